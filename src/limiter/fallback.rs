//! Deciding through Redis: its refusals repeated, its answers mirrored, and what
//! happens when it cannot decide.

use std::sync::{Arc, Weak};

use arrayvec::ArrayVec;

use super::{Backend, Charge, Charges, Inner, PolicyHandle, decision};
use crate::algorithm::{self, Act, Line};
use crate::clock::Millis;
use crate::decision::{Decision, Outcome, Refusal, Source};
use crate::policy::{MAX_POLICIES, OnStoreFailure};
use crate::store::memory::{Answer, Answers, Charged, Debt, Said};
use crate::store::redis::{self, Remembered, Turn};
use crate::store::{StoreError, StoreErrorKind};

/// What was sent in front of a check, charge by charge, and when.
pub(super) struct Sent {
    debts: ArrayVec<Option<Debt>, MAX_POLICIES>,
    /// That of the connection.
    generation: u64,
    /// How often an identity was reset before.
    resets: u64,
}

impl Charge {
    pub(super) fn tag(&self) -> redis::Tag<'_> {
        self.policy.tag(&self.key)
    }

    fn asked_of_redis(&self, debt: Option<&Debt>, now: Millis) -> redis::Asked {
        let key = self.policy.store_key(&self.key);
        let owed = debt.map(|debt| self.policy.owed(&key, debt));
        let held_for = self.policy.policy().reserve_ms();
        let reservations = (held_for > 0).then(|| redis::Reservations {
            key: PolicyHandle::reservations_key(&key),
            member: self.reservation.map_or_else(String::new, |held| format!("{}={}", held.id, held.amount)),
            held_for,
        });
        let rule = self.rule();
        let pardon = rule.pardon.saturating_sub(now);
        redis::Asked { key, rule, cost: self.cost, act: self.act, pardon, reservations, owed }
    }
}

/// One check by Redis; by this process if Redis does not answer in time.
pub(super) async fn decide(inner: Arc<Inner>, charges: Charges) -> Decision {
    let Backend::Redis { store, .. } = &inner.backend else {
        return inner.decide_here(&charges);
    };
    // All in one slot, or a cluster would have been asked for each by itself.
    let turn = match store.turn(charges[0].tag()).await {
        Ok(turn) => turn,
        Err(error) => return inner.fall_back(&charges, &error, Charged::Unsent),
    };
    let (asked, sent) = inner.ask(&charges, &turn);
    let mut answer = Box::pin(store.charge(&turn, asked));
    let error = match store.answer(&turn, &mut answer).await {
        Ok(before) => {
            let answers = inner.take_over(&charges, before, &sent, true);
            return inner.conclude(&charges, &answers, Source::Redis);
        }
        Err(error) => error,
    };
    // Whether it was executed is known only where the server has said no.
    let is_unknown = matches!(error.kind(), StoreErrorKind::Timeout | StoreErrorKind::Io);
    let charged = if is_unknown { Charged::Unknown } else { Charged::Unsent };
    let decision = inner.fall_back(&charges, &error, charged);
    if error.kind() == StoreErrorKind::Timeout {
        let superseded = store.superseded(&turn);
        // Not the turn: its place is for those who still wait. Held by the late,
        // as many as there are places would leave none to find out with that the
        // connection is dead.
        let late = Late { inner: Arc::downgrade(&inner), charges, sent };
        tokio::spawn(late.learn(answer, superseded));
    }
    decision
}

/// A check that was decided here before its answer came.
struct Late {
    inner: Weak<Inner>,
    charges: Charges,
    sent: Sent,
}

impl Late {
    /// Waits for the answer, and learns from it what Redis has counted. Not for
    /// longer than until there is another connection: who waits keeps the old
    /// one open, and on one that has gone silent the answer may never come.
    async fn learn(
        self,
        answer: impl Future<Output = Result<redis::Before, StoreError>>,
        superseded: impl Future<Output = ()>,
    ) {
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = superseded => return,
        };
        let Ok(before) = answer else { return };
        let Some(inner) = self.inner.upgrade() else { return };
        inner.take_over(&self.charges, before, &self.sent, false);
    }
}

impl Inner {
    /// A refusal that Redis gave before and that still holds.
    ///
    /// Only for a check of one policy: with several, another one may since have
    /// come to refuse for longer, or to start its block.
    pub(super) fn denied_before(&self, charges: &[Charge], now: Millis) -> Option<Decision> {
        let [charge] = charges else { return None };
        let outcome = self.local.denial(&charge.asked(), now)?;
        let answer = Answer { limit: charge.rule().limit, outcome };
        Some(self.conclude(charges, &[answer], Source::DenyCache))
    }

    /// What Redis is asked: the charges, and in front of them what this process
    /// has counted for it.
    fn ask(&self, charges: &[Charge], turn: &Turn) -> (Vec<redis::Asked>, Sent) {
        let (now, generation, resets) = (self.clock.now(), turn.generation(), self.local.resets());
        let debts: ArrayVec<_, MAX_POLICIES> =
            charges.iter().map(|charge| self.local.owed(&charge.asked(), generation, now)).collect();
        let asked =
            charges.iter().zip(&debts).map(|(charge, debt)| charge.asked_of_redis(debt.as_ref(), now));
        let asked = asked.collect();
        (asked, Sent { debts, generation, resets })
    }

    /// Takes over an answer: computes what it means for each policy, and mirrors
    /// it. A late one tells of charges that are counted here already.
    pub(super) fn take_over(
        &self,
        charges: &[Charge],
        before: Vec<Remembered>,
        sent: &Sent,
        in_time: bool,
    ) -> Answers {
        // The time left is counted from the answer, later than Redis does: what
        // is promised is then true there as well.
        let now = self.clock.now();
        let line = |(charge, before): (&Charge, Remembered)| {
            let (rule, open) = (charge.rule(), before.open);
            Line { rule, cost: charge.cost, act: charge.act, state: before.at(rule.kind, now), open }
        };
        let mut lines: ArrayVec<Line, MAX_POLICIES> = charges.iter().zip(before).map(line).collect();
        let counted: ArrayVec<_, MAX_POLICIES> = lines.iter().map(|line| (line.state, line.open)).collect();
        let mut outcomes = ArrayVec::<Outcome, MAX_POLICIES>::new();
        algorithm::step(&mut lines, now, |outcome| outcomes.push(outcome));
        for (i, (charge, line)) in charges.iter().zip(&lines).enumerate() {
            let asked = charge.asked();
            if let Some(debt) = sent.debts[i] {
                self.local.paid(&asked, debt.marker, sent.generation);
            }
            let (before, open) = counted[i];
            // What was late is held here already, if this process has admitted it, and
            // may have been settled since.
            let reserved = in_time && line.open > open;
            if line.state.is_nothing(line.rule.kind) && !reserved && charge.act.asks() {
                continue;
            }
            let refused = matches!(outcomes[i].refusal, Some(Refusal::Limit | Refusal::Blocked));
            let added = line.state.amount().current.saturating_sub(before.amount().current);
            let charged = if in_time { added } else { 0 };
            let (generation, resets) = (sent.generation, sent.resets);
            let said = Said { state: line.state, charged, refused, reserved, generation, resets };
            self.local.mirror(&asked, &said, now);
        }
        let answer = |(line, outcome): (&Line, Outcome)| Answer { limit: line.rule.limit, outcome };
        lines.iter().zip(outcomes).map(answer).collect()
    }

    /// The numbers of one identity as Redis has them, if it answers.
    pub(super) async fn peek_at_redis(&self, charge: &Charge) -> Option<Decision> {
        let Backend::Redis { store, .. } = &self.backend else { return None };
        let turn = store.turn(charge.tag()).await.ok()?;
        // A cost of 0 changes nothing.
        let charges = [charge.clone().cost(0)];
        let (asked, sent) = self.ask(&charges, &turn);
        let before = store.answer(&turn, store.charge(&turn, asked)).await.ok()?;
        let state = *before.first()?;
        self.take_over(&charges, before, &sent, true);
        let (now, rule) = (self.clock.now(), charge.rule());
        let outcome = algorithm::peek(&rule, state.at(rule.kind, now), state.open, now);
        Some(decision(charge, Answer { limit: rule.limit, outcome }, Source::Redis, now))
    }

    /// The one place where a store that could not decide becomes a decision, by
    /// each policy's choice.
    pub(super) fn fall_back(&self, charges: &[Charge], error: &StoreError, charged: Charged) -> Decision {
        for charge in charges {
            let policy = charge.policy.policy().name();
            self.observers.tell(|observer| observer.fell_back(policy, error.kind()));
        }
        self.unknown.remember(charges, charged);
        let choice = |charge: &Charge| match charge.act {
            Act::Charge | Act::Reserve => charge.policy.policy().store_failure(),
            // What has happened is counted, whatever was to become of the next.
            Act::Settle => OnStoreFailure::Local,
            // Redis has charged it, and it is not for this process to give it back.
            Act::Refund { .. } => OnStoreFailure::Allow,
        };
        let denies = |charge: &&Charge| charge.rule().enforced && choice(charge) == OnStoreFailure::Deny;
        if let Some(denying) = charges.iter().find(denies) {
            return self.uncounted(denying, Some(Refusal::Unavailable));
        }
        let counted: Charges =
            charges.iter().filter(|charge| choice(charge) != OnStoreFailure::Allow).cloned().collect();
        if counted.is_empty() {
            return self.uncounted(&charges[0], None);
        }
        let asked: ArrayVec<_, MAX_POLICIES> = counted.iter().map(Charge::asked).collect();
        let answers = self.local.check(&asked, self.share, charged, self.clock.now());
        self.conclude(&counted, &answers, Source::Local)
    }

    /// A decision for which nobody has counted.
    fn uncounted(&self, charge: &Charge, refusal: Option<Refusal>) -> Decision {
        let limit = charge.rule().limit;
        let outcome = Outcome {
            refusal,
            used: 0,
            remaining: if refusal.is_none() { limit } else { 0 },
            reset_after_ms: 0,
            // The next try may find the store back.
            retry_after_ms: refusal.map(|_| 1000),
            blocked: false,
            block_started: false,
        };
        let answers = [Answer { limit, outcome }];
        let decision = self.conclude(std::slice::from_ref(charge), &answers, Source::Local);
        Decision { counted: false, ..decision }
    }
}
