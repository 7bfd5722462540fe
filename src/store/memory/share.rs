//! What one replica enforces while it is alone.

use crate::algorithm::{Kind, Rule};

/// Which part of a shared limit one replica enforces while it is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) numerator: u32,
    pub(crate) denominator: u32,
}

impl Share {
    pub(crate) const WHOLE: Self = Self { numerator: 1, denominator: 1 };

    /// At least 1 of something, nothing of nothing.
    pub(super) fn of(self, amount: u64) -> u64 {
        let part = u128::from(amount) * u128::from(self.numerator) / u128::from(self.denominator.max(1));
        // A share is at most 1, so the part is at most the amount.
        u64::try_from(part).unwrap_or(amount).clamp(amount.min(1), amount)
    }

    /// The rule in force for an entry of which Redis last said that so much was
    /// used, 0 for one that this process started itself. A bucket also fills
    /// with this replica's share only.
    pub(super) fn of_rule(self, rule: &Rule, told: u64) -> Rule {
        if self == Self::WHOLE {
            return *rule;
        }
        let used = told.min(rule.limit);
        let kind = match rule.kind {
            Kind::TokenBucket { refill } => Kind::TokenBucket { refill: self.of(refill) },
            other => other,
        };
        Rule { kind, limit: used + self.of(rule.limit - used), ..*rule }
    }
}
