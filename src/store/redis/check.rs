//! One check as Redis is asked, and as it answers: the Rust side of what the
//! script's head describes.

use std::time::Duration;

use arrayvec::ArrayVec;
use redis::Cmd;

use crate::algorithm::{Act, Amount, Kind, Rule, State};
use crate::clock::Millis;
use crate::policy::{MAX_LIMIT, MAX_WINDOW};

/// One policy's part in a check on Redis.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The whole key, with namespace, hash tag and the algorithm's suffix.
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) cost: u64,
    pub(crate) act: Act,
    /// Blocks with less than this left are over, see [`Rule::pardon`].
    pub(crate) pardon: Millis,
    /// `None` where no reservations are kept.
    pub(crate) reservations: Option<Reservations>,
    /// What this replica has counted by itself and sends in front.
    pub(crate) owed: Option<Owed>,
}

impl Asked {
    /// Whether it is a charge of a fixed window, and nothing else.
    pub(super) fn is_plain(&self) -> bool {
        let is_charge = self.rule.kind == Kind::FixedWindow && self.act == Act::Charge;
        is_charge && self.pardon == 0 && self.reservations.is_none() && self.owed.is_none()
    }
}

/// Where the open reservations of a counter are, and the one that is meant.
#[derive(Clone, Debug)]
pub(crate) struct Reservations {
    pub(crate) key: String,
    /// `name=amount`, empty for none.
    pub(crate) member: String,
    pub(crate) held_for: Millis,
}

/// What is owed to one counter, see the script.
#[derive(Clone, Debug)]
pub(crate) struct Owed {
    /// The key that is set when the delta is added. `None`: there is no delta.
    pub(crate) marker: Option<String>,
    pub(crate) floor: Amount,
    pub(crate) delta: Amount,
    pub(crate) left: Millis,
    pub(crate) blocked: bool,
}

/// The state of each key before a check.
pub(crate) type Before = Vec<Remembered>;

/// What Redis remembered of one key, with the time left on its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    amount: Amount,
    left: Millis,
    blocked: bool,
    /// What open reservations hold.
    pub(crate) open: u64,
}

/// How many integers the script answers with for each counter.
pub(super) const REPLIED: usize = 4;

impl Remembered {
    /// The same on a clock that reads `now`.
    pub(crate) fn at(self, kind: Kind, now: Millis) -> State {
        let mark = now.saturating_add(self.left);
        match kind {
            _ if self.blocked => State::Blocked { until: mark },
            Kind::FixedWindow if self.left == 0 => State::Idle,
            Kind::TokenBucket { .. } if self.amount.is_zero() => State::Idle,
            // Also with nothing counted: where its sub-windows begin is Redis' to say.
            _ => State::Counting { amount: self.amount, mark },
        }
    }

    pub(super) fn from_reply(reply: &[i64]) -> Option<Self> {
        let &[current, previous, left, open] = reply else { return None };
        // No block of ours is longer; one that somebody has set is told as if.
        let longest = MAX_WINDOW.as_secs() * 1000;
        let number = |number| u64::try_from(number).unwrap_or(0);
        let amount = Amount { current: number(current), previous: number(previous) };
        let left = number(left).min(longest);
        Some(Self { amount, left, blocked: current < 0 && left > 0, open: number(open) })
    }
}

/// The arguments of the script, as its head describes them.
pub(super) fn fill(command: &mut Cmd, asked: &[Asked], server_now: Duration) {
    let owed = || asked.iter().enumerate().filter_map(|(i, asked)| Some((i, asked, asked.owed.as_ref()?)));
    let markers = || owed().filter_map(|(_, _, owed)| owed.marker.as_ref());
    let reservations = || asked.iter().filter_map(|asked| asked.reservations.as_ref());
    command.arg(asked.len() + markers().count() + reservations().count());
    for asked in asked {
        command.arg(&asked.key);
    }
    for marker in markers() {
        command.arg(marker);
    }
    for reservations in reservations() {
        command.arg(&reservations.key);
    }
    command.arg(asked.len()).arg(owed().count());
    let mut open = asked.len() + markers().count();
    for asked in asked {
        open += usize::from(asked.reservations.is_some());
        fill_counter(command, asked, open);
    }
    let mut marker = asked.len();
    for (i, asked, owed) in owed() {
        marker += usize::from(owed.marker.is_some());
        let at = if owed.marker.is_some() { marker } else { 0 };
        command.arg(i + 1).arg(at);
        for amount in [owed.floor, owed.delta] {
            command.arg(amount.current.min(MAX_LIMIT)).arg(amount.previous.min(MAX_LIMIT));
        }
        command.arg(moment(&asked.rule, owed, server_now)).arg(u8::from(owed.blocked));
    }
}

fn fill_counter(command: &mut Cmd, asked: &Asked, open: usize) {
    let Rule { kind, limit, window, block, enforced, .. } = asked.rule;
    let algorithm = match kind {
        Kind::FixedWindow => 'f',
        Kind::SlidingWindow => 's',
        Kind::TokenBucket { .. } => 'b',
    };
    let act = match asked.act {
        Act::Charge => 'c',
        Act::Reserve => 'r',
        Act::Settle => 's',
        Act::Refund { .. } => 'u',
    };
    let keeps = asked.reservations.is_some().then_some('o');
    let pardons = (asked.pardon > 0).then_some('p');
    let form: ArrayVec<u8, 4> = [Some(algorithm), Some(act), keeps, pardons]
        .into_iter()
        .flatten()
        .map(|letter| letter as u8)
        .collect();
    command.arg(&form[..]);
    // What is above the limit is too large, however far above.
    let cost = asked.cost.min(MAX_LIMIT + 1);
    command.arg(limit).arg(window).arg(block).arg(cost).arg(u8::from(enforced));
    if let Kind::TokenBucket { refill } = kind {
        command.arg(refill);
    }
    if let Some(reservations) = &asked.reservations {
        command.arg(open);
        if matches!(asked.act, Act::Reserve | Act::Settle) {
            command.arg(&reservations.member);
        }
        if asked.act == Act::Reserve {
            command.arg(reservations.held_for);
        }
    }
    if let Act::Refund { left } = asked.act {
        command.arg(left);
    }
    if asked.pardon > 0 {
        command.arg(asked.pardon);
    }
}

/// The moment of a debt on the server's clock: the end of a window or a block,
/// the index of a sub-window, or the moment of a level.
fn moment(rule: &Rule, owed: &Owed, server_now: Duration) -> u64 {
    let millis = |time: Duration| time.as_secs() * 1000 + u64::from(time.subsec_millis());
    let end = millis(server_now + Duration::from_millis(owed.left));
    match rule.kind {
        _ if owed.blocked => end,
        Kind::FixedWindow => end,
        // The end is known to a few milliseconds: the nearest one is meant.
        Kind::SlidingWindow => (end + rule.window / 2) / rule.window.max(1) - 1,
        Kind::TokenBucket { .. } => millis(server_now),
    }
}
