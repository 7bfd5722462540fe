//! From the answers for each policy to the one decision.

use std::time::Duration;

use arrayvec::ArrayVec;

use super::{Backend, Charge, Inner, Listing};
use crate::clock::Millis;
use crate::decision::{Decision, Source};
use crate::observe::{Checked, Verdict};
use crate::policy::MAX_POLICIES;
use crate::store::memory::{Answer, Charged, Share};

impl Inner {
    /// In memory nothing is shared, so a process has all of a limit.
    pub(super) fn fallback_share(&self) -> Share {
        match &self.backend {
            Backend::Memory => Share::WHOLE,
            _ => self.share,
        }
    }

    /// Decides, or counts, by what this process knows.
    pub(super) fn decide_here(&self, charges: &[Charge]) -> Decision {
        let asked: ArrayVec<_, MAX_POLICIES> = charges.iter().map(Charge::asked).collect();
        let charged = if matches!(self.backend, Backend::Memory) { Charged::Here } else { Charged::Unsent };
        let answers = self.local.check(&asked, self.fallback_share(), charged, self.clock.now());
        self.conclude(charges, &answers, Source::Local)
    }

    /// Tells the observers, and picks the answer that matters to the client.
    ///
    /// There is at least one charge: `check` and the layer see to that.
    pub(super) fn conclude(&self, charges: &[Charge], answers: &[Answer], source: Source) -> Decision {
        let refuses = |i: usize| charges[i].rule().enforced && answers[i].outcome.refusal.is_some();
        let is_refused = (0..charges.len()).any(refuses);
        let mut deciding = 0;
        for i in 0..charges.len() {
            self.tell(&charges[i], &answers[i], is_refused, source);
            // A refusal decides before an allowance, an enforced policy before a shadow.
            let rank = |i: usize| (refuses(i), charges[i].rule().enforced);
            let weight = |i: usize| {
                if is_refused { answers[i].outcome.wait() } else { answers[i].outcome.tightness() }
            };
            if (rank(i), weight(i)) > (rank(deciding), weight(deciding)) {
                deciding = i;
            }
        }
        let now = self.clock.now();
        let decided = decision(&charges[deciding], answers[deciding], source, now);
        let is_listed = match charges[deciding].listing {
            Listing::Never => false,
            Listing::OnRefusal => is_refused,
            Listing::Always => true,
        };
        if charges.len() == 1 || !is_listed {
            return decided;
        }
        let each = charges.iter().zip(answers).map(|(charge, answer)| decision(charge, *answer, source, now));
        Decision { each: Some(each.collect()), ..decided }
    }

    fn tell(&self, charge: &Charge, answer: &Answer, check_refused: bool, source: Source) {
        let verdict = match answer.outcome.refusal {
            Some(_) if answer.outcome.block_started => Verdict::BlockStarted,
            Some(refusal) => Verdict::Refused(refusal),
            None if check_refused => Verdict::Spared,
            None => Verdict::Allowed,
        };
        if !charge.act.asks() {
            return;
        }
        self.observers.checked(&Checked {
            policy: charge.policy.policy().name(),
            key: &charge.key,
            verdict,
            limit: answer.limit,
            used: answer.outcome.used,
            retry_after: answer.outcome.retry_after_ms.map(Duration::from_millis),
            source,
            shadow: !charge.rule().enforced,
            local_entries: self.local.entries(),
            overflowed: self.local.overflowed(),
        });
    }
}

pub(super) fn decision(charge: &Charge, answer: Answer, source: Source, at: Millis) -> Decision {
    let policy = charge.policy.policy();
    Decision {
        policy: policy.shared_name().clone(),
        limit: answer.limit,
        outcome: answer.outcome,
        source,
        shadow: policy.is_shadow(),
        counted: true,
        window_ms: policy.quota_window_ms(),
        each: None,
        at,
    }
}
