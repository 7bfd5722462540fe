//! Paying what was counted here while Redis could not be asked.
//!
//! The debts of an identity with traffic ride in front of its next check. Those
//! of the others are sent here, in batches, once the connection has been
//! healthy for a second, and whenever something new is owed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Backend, Charge, Charges, Inner, PolicyHandle, fallback};
use crate::algorithm::{Act, Rule, State};
use crate::store::memory::{Asked, Charged, Debtor, PolicyId, Said};
use crate::store::redis::{self, Before, RedisStore, Tag};
use crate::store::{StoreError, StoreErrorKind};

/// A connection is left to the traffic for this long, and between two rounds.
const PAUSE: Duration = Duration::from_secs(1);

/// How often the end of an outage is looked for at shutdown.
const PATIENCE: Duration = Duration::from_millis(20);

/// How many debts are sent at once: a script that runs a fraction of a
/// millisecond, to a cluster one for each slot.
const BATCH: usize = 64;

/// Pays on the present connection, until it is lost or the limiter is gone.
pub(super) async fn pay_while_connected(inner: Weak<Inner>) {
    let Some(generation) = inner.upgrade().and_then(|inner| inner.connection()) else { return };
    // Several masters of a cluster may have connected at once.
    let is_first = |inner: &Arc<Inner>| match &inner.backend {
        Backend::Redis { store, .. } => store.starts_to_pay(generation),
        _ => false,
    };
    if !inner.upgrade().as_ref().is_some_and(is_first) {
        return;
    }
    // A new connection may be to a server that has lost everything.
    let mut is_due = true;
    loop {
        sleep(PAUSE).await;
        let Some(inner) = inner.upgrade() else { return };
        let Backend::Redis { store, .. } = &inner.backend else { return };
        if store.generation() != Some(generation) {
            return;
        }
        is_due |= inner.local.has_new_debts();
        if is_due {
            // A master that is missing is paid when it connects.
            let paid = inner.pay_all(store, generation).await;
            is_due = paid.is_err_and(|error| error.kind() != StoreErrorKind::Disconnected);
        }
        for release in inner.unknown.take() {
            let _ = fallback::decide(inner.clone(), Charges::from_iter([release])).await;
        }
    }
}

/// Reservations that Redis may hold without need: of unknown outcome, or settled
/// while it was gone. This process has taken them over; Redis would hold them
/// until they lapse, and refuse others for them.
#[derive(Default)]
pub(super) struct Unknown(Mutex<Vec<Charge>>);

impl Unknown {
    /// More than this many lapse by themselves.
    const MOST: usize = 4096;

    pub(super) fn remember(&self, charges: &[Charge], charged: Charged) {
        let mut released = charges.iter().filter_map(|charge| charge.released(charged)).peekable();
        if released.peek().is_none() {
            return;
        }
        let mut unknown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = Self::MOST.saturating_sub(unknown.len());
        unknown.extend(released.take(room));
    }

    fn take(&self) -> Vec<Charge> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A debt with the policy that it belongs to.
struct Due {
    debtor: Debtor,
    rule: Rule,
    asked: redis::Asked,
}

struct Paid {
    due: Vec<Due>,
    before: Before,
    generation: u64,
}

/// Sends debts that can be sent together.
async fn pay(store: Arc<RedisStore>, due: Vec<Due>) -> Result<Paid, StoreError> {
    let tag = due.first().map_or_else(Tag::default, |due| Tag::of(&due.asked.key));
    // Nothing is said of a master of which the loss has been told.
    if let Some(error) = store.unavailable(tag) {
        return Err(error);
    }
    let turn = store.turn(tag).await?;
    let asked = due.iter().map(|due| due.asked.clone()).collect();
    let before = store.answer(&turn, store.charge(&turn, asked)).await?;
    let generation = turn.generation();
    Ok(Paid { due, before, generation })
}

impl Inner {
    /// The connection that checks use now, if there is one.
    fn connection(&self) -> Option<u64> {
        match &self.backend {
            Backend::Redis { store, .. } => store.generation(),
            _ => None,
        }
    }

    /// Pays everything that is owed, waiting for a connection if need be.
    pub(super) async fn pay_what_is_left(&self, store: &Arc<RedisStore>) -> Result<(), StoreError> {
        loop {
            if !self.local.owes(self.clock.now()) {
                return Ok(());
            }
            let Some(generation) = store.generation() else {
                sleep(PATIENCE).await;
                continue;
            };
            match self.pay_all(store, generation).await {
                Err(error) if error.kind() == StoreErrorKind::Disconnected => sleep(PATIENCE).await,
                paid => paid?,
            }
        }
    }

    /// Pays everything that is owed now, one batch after the other. What one
    /// master of a cluster does not take keeps nobody else from being paid.
    pub(super) async fn pay_all(&self, store: &Arc<RedisStore>, generation: u64) -> Result<(), StoreError> {
        let policies = self.registry.policies();
        let (mut place, mut all) = (Some((0, 0)), Ok(()));
        while let Some(from) = place {
            let resets = self.local.resets();
            let rule = |policy| policies.get(&policy).map(PolicyHandle::rule);
            let (debtors, next) = self.local.debts(from, BATCH, generation, self.clock.now(), rule);
            place = next;
            let due: Vec<Due> = debtors.into_iter().filter_map(|debtor| due(&policies, debtor)).collect();
            if due.is_empty() {
                continue;
            }
            let mut payments = JoinSet::new();
            for part in store.parted(due, |due| &due.asked.key) {
                payments.spawn(pay(store.clone(), part));
            }
            while let Some(paid) = payments.join_next().await {
                match paid {
                    Ok(Ok(Paid { due, before, generation })) => {
                        self.acknowledge(&due, before, generation, resets);
                    }
                    Ok(Err(error)) => all = all.and(Err(error)),
                    // It has not panicked, and only the end of the runtime ends it.
                    Err(_) => all = all.and(Err(StoreError::new(StoreErrorKind::Disconnected))),
                }
            }
            if all.is_err() && !store.is_cluster() {
                break;
            }
        }
        all
    }

    fn acknowledge(&self, due: &[Due], before: Before, generation: u64, resets: u64) {
        let now = self.clock.now();
        for (due, remembered) in due.iter().zip(before) {
            let Debtor { policy, key, first_len, debt } = &due.debtor;
            let asked = Asked {
                policy: *policy,
                key,
                first_len: *first_len,
                rule: due.rule,
                cost: 0,
                act: Act::Charge,
                reservation: None,
            };
            self.local.paid(&asked, debt.marker, generation);
            let state = remembered.at(due.rule.kind, now);
            let refused = matches!(state, State::Blocked { .. });
            if !state.is_nothing(due.rule.kind) {
                let said = Said { state, charged: 0, refused, reserved: false, generation, resets };
                self.local.mirror(&asked, &said, now);
            }
        }
    }
}

/// What to send for a debtor. Nothing for a policy that nobody has any more.
fn due(policies: &HashMap<PolicyId, PolicyHandle>, debtor: Debtor) -> Option<Due> {
    let policy = policies.get(&debtor.policy)?;
    let (first, rest) = debtor.key.split_at_checked(debtor.first_len.into())?;
    let key = policy.store_key_of(first, rest);
    let owed = Some(policy.owed(&key, &debtor.debt));
    // A cost of 0 charges nothing, and nothing is refused by it.
    let rule = Rule { enforced: false, ..policy.rule() };
    let asked = redis::Asked { key, rule, cost: 0, act: Act::Charge, pardon: 0, reservations: None, owed };
    Some(Due { debtor, rule, asked })
}
