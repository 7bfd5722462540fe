//! Deciding through Redis: its refusals repeated, its answers mirrored, and what
//! happens when it cannot decide.

use arrayvec::ArrayVec;

use super::{Backend, Charge, Inner, decision};
use crate::algorithm::{self, Line, State};
use crate::clock::Millis;
use crate::decision::{Decision, Outcome, Refusal, Source};
use crate::policy::MAX_POLICIES;
use crate::store::StoreError;
use crate::store::memory::{Answer, Answers};
use crate::store::redis;

impl Charge {
    fn asked_of_redis(&self) -> redis::Asked {
        redis::Asked { key: self.policy.store_key(&self.key), rule: self.rule(), cost: self.cost }
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

    pub(super) async fn decide_by_redis(&self, charges: &[Charge]) -> Decision {
        let Backend::Redis(store) = &self.backend else {
            return self.decide_locally(charges, self.clock.now());
        };
        let asked: ArrayVec<_, MAX_POLICIES> = charges.iter().map(Charge::asked_of_redis).collect();
        let before = match store.charge(&asked).await {
            Ok(before) => before,
            Err(error) => return self.fall_back(charges, &error),
        };
        // The time left is counted from the answer, later than Redis does: what
        // is promised is then true there as well.
        let now = self.clock.now();
        let mut lines: ArrayVec<Line, MAX_POLICIES> = charges
            .iter()
            .zip(before)
            .map(|(charge, before)| Line { rule: charge.rule(), cost: charge.cost, state: before.at(now) })
            .collect();
        let mut outcomes = ArrayVec::<Outcome, MAX_POLICIES>::new();
        algorithm::step(&mut lines, now, |outcome| outcomes.push(outcome));
        for ((charge, line), outcome) in charges.iter().zip(&lines).zip(&outcomes) {
            if line.state != State::Idle {
                let refused = matches!(outcome.refusal, Some(Refusal::Limit | Refusal::Blocked));
                self.local.mirror(&charge.asked(), line.state, refused, now);
            }
        }
        let answer = |(line, outcome): (&Line, Outcome)| Answer { limit: line.rule.limit, outcome };
        let answers: Answers = lines.iter().zip(outcomes).map(answer).collect();
        self.conclude(charges, &answers, Source::Redis)
    }

    /// The numbers of one identity as Redis has them, if it answers.
    pub(super) async fn peek_at_redis(&self, charge: &Charge) -> Option<Decision> {
        let Backend::Redis(store) = &self.backend else { return None };
        if store.unavailable().is_some() {
            return None;
        }
        // A cost of 0 changes nothing.
        let before = store.charge(&[redis::Asked { cost: 0, ..charge.asked_of_redis() }]).await.ok()?;
        let now = self.clock.now();
        let rule = charge.rule();
        let outcome = algorithm::peek(&rule, before.first()?.at(now), now);
        Some(decision(charge, Answer { limit: rule.limit, outcome }, Source::Redis))
    }

    /// The one place where a store that could not decide becomes a decision.
    pub(super) fn fall_back(&self, charges: &[Charge], error: &StoreError) -> Decision {
        for charge in charges {
            let policy = charge.policy.policy().name();
            self.observers.tell(|observer| observer.fell_back(policy, error.kind()));
        }
        self.decide_locally(charges, self.clock.now())
    }
}
