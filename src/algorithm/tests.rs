use proptest::collection::vec;
use proptest::prelude::*;

use super::vectors::{Player, play_fixed_window};
use super::*;

/// One identity on the pure step.
struct Pure {
    rule: Rule,
    state: State,
}

impl Player for Pure {
    fn check(&mut self, cost: u64, now: Millis) -> Outcome {
        let mut lines = [Line { rule: self.rule, cost, state: self.state }];
        let outcome = play(&mut lines, now).remove(0);
        self.state = lines[0].state;
        outcome
    }

    fn peek(&mut self, now: Millis) -> Outcome {
        peek(&self.rule, self.state, now)
    }

    fn reset(&mut self) {
        self.state = State::Idle;
    }
}

fn play(lines: &mut [Line], now: Millis) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    step(lines, now, |outcome| outcomes.push(outcome));
    outcomes
}

#[test]
fn the_pure_step_gives_the_answers_of_every_vector() {
    let steps = play_fixed_window(|rule| Pure { rule, state: State::Idle });
    assert!(steps > 5_000, "only {steps} steps were played");
}

pub(crate) fn rule() -> impl Strategy<Value = Rule> {
    let limit = prop_oneof![3 => 0..6u64, 1 => Just(crate::policy::MAX_LIMIT)];
    let window = prop_oneof![1..50u64, Just(60_000), Just(31_622_400_000)];
    let block = prop_oneof![2 => Just(0), 1 => 1..200u64, 1 => Just(31_622_400_000)];
    (limit, window, block, prop::bool::weighted(0.8)).prop_map(|(limit, window, block, enforced)| Rule {
        limit,
        window,
        block,
        enforced,
    })
}

pub(crate) fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..4u64, 1 => 4..8u64, 1 => Just(crate::policy::MAX_LIMIT), 1 => Just(u64::MAX)]
}

pub(crate) fn pause() -> impl Strategy<Value = Millis> {
    prop_oneof![3 => 0..3u64, 3 => 0..60u64, 1 => 0..70_000u64]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// The promise of a refusal: one tick earlier it is refused again, at the
    /// promised time it is admitted.
    #[test]
    fn retry_after_is_the_truth(
        rules in vec(rule(), 1..4),
        steps in vec((cost(), pause()), 1..20),
    ) {
        let mut lines: Vec<_> =
            rules.iter().map(|&rule| Line { rule, cost: 0, state: State::Idle }).collect();
        let mut now = 1_000_000;
        for (cost, pause) in steps {
            now += pause;
            lines.iter_mut().for_each(|line| line.cost = cost);
            let refusals: Vec<_> = play(&mut lines, now)
                .into_iter()
                .zip(&rules)
                .filter(|(outcome, rule)| rule.enforced && outcome.refusal.is_some())
                .collect();
            let never = |(outcome, rule): &(Outcome, &Rule)| rule.limit == 0 || outcome.refusal == Some(Refusal::TooLarge);
            if refusals.is_empty() || refusals.iter().any(never) {
                continue;
            }
            let wait = refusals.iter().filter_map(|(outcome, _)| outcome.retry_after_ms).max().unwrap();
            prop_assert!(wait >= 1);
            let refused_at = |at| {
                play(&mut lines.clone(), at).iter().zip(&rules).any(|(outcome, rule)| rule.enforced && outcome.refusal.is_some())
            };
            prop_assert!(refused_at(now + wait - 1), "one tick before {wait}");
            prop_assert!(!refused_at(now + wait), "at {wait}");
        }
    }

    #[test]
    fn a_refused_check_adds_to_no_count(
        rules in vec(rule(), 1..4),
        steps in vec((cost(), pause()), 1..20),
    ) {
        let mut lines: Vec<_> =
            rules.iter().map(|&rule| Line { rule, cost: 0, state: State::Idle }).collect();
        let mut now = 0;
        for (cost, pause) in steps {
            now += pause;
            lines.iter_mut().for_each(|line| line.cost = cost);
            let before: Vec<_> = lines.iter().map(|line| line.state.at(now)).collect();
            let outcomes = play(&mut lines, now);
            let refused = outcomes.iter().zip(&rules).any(|(outcome, rule)| rule.enforced && outcome.refusal.is_some());
            for (line, before) in lines.iter().zip(before) {
                if let State::Counting { count, .. } = line.state {
                    prop_assert!(count <= line.rule.limit, "never past the limit");
                    prop_assert!(!refused || line.state == before);
                }
            }
            for (outcome, rule) in outcomes.iter().zip(&rules) {
                prop_assert_eq!(outcome.used + outcome.remaining, rule.limit);
            }
        }
    }
}

#[test]
fn a_cost_that_never_fits_changes_nothing_at_all() {
    let full = Rule { limit: 1, window: 1_000, block: 5_000, enforced: true };
    let used_up = State::Counting { count: 1, end: 1_000 };
    let mut lines =
        [Line { rule: full, cost: 1, state: used_up }, Line { rule: full, cost: 2, state: State::Idle }];
    let outcomes = play(&mut lines, 0);
    assert_eq!(outcomes[1].refusal, Some(Refusal::TooLarge));
    assert_eq!(lines[0].state, used_up, "no block starts beside a cost that is too large");
}

#[test]
fn each_policy_that_refuses_by_itself_starts_its_block() {
    let rule = |block| Rule { limit: 1, window: 1_000, block, enforced: true };
    let used_up = State::Counting { count: 1, end: 1_000 };
    let mut lines = [
        Line { rule: rule(5_000), cost: 1, state: used_up },
        Line { rule: rule(9_000), cost: 1, state: used_up },
        Line { rule: rule(9_000), cost: 1, state: State::Idle },
    ];
    let outcomes = play(&mut lines, 0);
    assert_eq!(lines[0].state, State::Blocked { until: 5_000 });
    assert_eq!(lines[1].state, State::Blocked { until: 9_000 });
    assert_eq!(lines[2].state, State::Idle);
    assert_eq!(outcomes.iter().map(|outcome| outcome.block_started).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn a_shadow_policy_counts_and_refuses_nobody() {
    let shadow = Rule { limit: 1, window: 1_000, block: 0, enforced: false };
    let enforced = Rule { limit: 5, enforced: true, ..shadow };
    let mut lines = [
        Line { rule: shadow, cost: 1, state: State::Counting { count: 1, end: 500 } },
        Line { rule: enforced, cost: 1, state: State::Idle },
    ];
    let outcomes = play(&mut lines, 0);
    assert_eq!(outcomes[0].refusal, Some(Refusal::Limit));
    assert_eq!(lines[1].state, State::Counting { count: 1, end: 1_000 }, "the request was admitted");
}
