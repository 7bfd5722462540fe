use proptest::collection::vec;
use proptest::prelude::*;

use super::vectors::{Player, play_all};
use super::*;

/// One identity on the pure step.
struct Pure {
    rule: Rule,
    state: State,
}

impl Player for Pure {
    fn check(&mut self, cost: u64, now: Millis) -> Outcome {
        let mut lines = [line(self.rule, cost, self.state)];
        let outcome = play(&mut lines, now).remove(0);
        self.state = lines[0].state;
        outcome
    }

    fn peek(&mut self, now: Millis) -> Outcome {
        peek(&self.rule, self.state, 0, now)
    }

    fn reset(&mut self) {
        self.state = State::Idle;
    }
}

pub(crate) fn line(rule: Rule, cost: u64, state: State) -> Line {
    Line { rule, cost, act: Act::Charge, state, open: 0 }
}

pub(crate) fn fixed(limit: u64, window: Millis, block: Millis) -> Rule {
    Rule { kind: Kind::FixedWindow, limit, window, block, enforced: true, pardon: 0 }
}

pub(crate) fn counting(count: u64, mark: Millis) -> State {
    State::Counting { amount: Amount::of(count), mark }
}

fn play(lines: &mut [Line], now: Millis) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    step(lines, now, |outcome| outcomes.push(outcome));
    outcomes
}

#[test]
fn the_pure_step_gives_the_answers_of_every_vector() {
    let steps = play_all(|rule| Pure { rule, state: State::Idle });
    assert!(steps > 15_000, "only {steps} steps were played");
}

/// Rules of every algorithm, within what a policy may be.
pub(crate) fn rule() -> impl Strategy<Value = Rule> {
    let window =
        prop_oneof![2 => 1..50u64, 1 => Just(60_000), 1 => Just(31_622_400_000), 1 => 1..31_622_400_000u64];
    let limit = prop_oneof![3 => 0..6u64, 1 => Just(MAX_LIMIT), 1 => 0..=MAX_LIMIT];
    let block = prop_oneof![2 => Just(0), 1 => 1..200u64, 1 => Just(31_622_400_000)];
    let refill = prop_oneof![3 => 1..9u64, 1 => Just(MAX_LIMIT), 1 => 1..=MAX_LIMIT];
    (0..3, limit, window, block, refill, prop::bool::weighted(0.8)).prop_map(
        |(kind, limit, window, block, refill, enforced)| {
            let (kind, limit) = match kind {
                0 => (Kind::FixedWindow, limit),
                1 => (Kind::SlidingWindow, limit),
                _ => (Kind::TokenBucket { refill }, limit.min(MAX_LIMIT / window)),
            };
            Rule { kind, limit, window, block, enforced, pardon: 0 }
        },
    )
}

pub(crate) fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Charge),
        2 => Just(Act::Reserve),
        1 => Just(Act::Settle),
        1 => (-60..200i64).prop_map(|left| Act::Refund { left }),
    ]
}

pub(crate) fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..4u64, 1 => 4..8u64, 1 => Just(MAX_LIMIT), 1 => Just(u64::MAX)]
}

pub(crate) fn pause() -> impl Strategy<Value = Millis> {
    prop_oneof![3 => 0..3u64, 3 => 0..60u64, 1 => 0..70_000u64]
}

proptest! {
    #![proptest_config(crate::property::at_least(4_000))]

    /// The promise of a refusal: one tick earlier it is refused again, at the
    /// promised time it is admitted.
    #[test]
    fn retry_after_is_the_truth(
        rules in vec(rule(), 1..4),
        steps in vec((cost(), pause()), 1..20),
    ) {
        let mut lines: Vec<_> =
            rules.iter().map(|&rule| line(rule, 0, State::Idle)).collect();
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
            rules.iter().map(|&rule| line(rule, 0, State::Idle)).collect();
        let mut now = 0;
        for (cost, pause) in steps {
            now += pause;
            lines.iter_mut().for_each(|line| line.cost = cost);
            let before: Vec<_> = lines.iter().map(|line| line.rule.at(line.state, now)).collect();
            let outcomes = play(&mut lines, now);
            let refused = outcomes.iter().zip(&rules).any(|(outcome, rule)| rule.enforced && outcome.refusal.is_some());
            for (line, before) in lines.iter().zip(before) {
                prop_assert!(line.rule.used(line.state, now) <= line.rule.limit, "never past the limit");
                let is_blocked = matches!(line.state, State::Blocked { .. });
                prop_assert!(!refused || line.state == before || is_blocked);
            }
            for (outcome, rule) in outcomes.iter().zip(&rules) {
                prop_assert_eq!(outcome.used + outcome.remaining, rule.limit);
            }
        }
    }
}

#[test]
fn a_cost_that_never_fits_changes_nothing_at_all() {
    let full = fixed(1, 1_000, 5_000);
    let used_up = counting(1, 1_000);
    let mut lines = [line(full, 1, used_up), line(full, 2, State::Idle)];
    let outcomes = play(&mut lines, 0);
    assert_eq!(outcomes[1].refusal, Some(Refusal::TooLarge));
    assert_eq!(lines[0].state, used_up, "no block starts beside a cost that is too large");
}

#[test]
fn each_policy_that_refuses_by_itself_starts_its_block() {
    let rule = |block| fixed(1, 1_000, block);
    let used_up = counting(1, 1_000);
    let mut lines =
        [line(rule(5_000), 1, used_up), line(rule(9_000), 1, used_up), line(rule(9_000), 1, State::Idle)];
    let outcomes = play(&mut lines, 0);
    assert_eq!(lines[0].state, State::Blocked { until: 5_000 });
    assert_eq!(lines[1].state, State::Blocked { until: 9_000 });
    assert_eq!(lines[2].state, State::Idle);
    assert_eq!(outcomes.iter().map(|outcome| outcome.block_started).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn a_shadow_policy_counts_and_refuses_nobody() {
    let shadow = Rule { enforced: false, ..fixed(1, 1_000, 0) };
    let enforced = Rule { limit: 5, enforced: true, ..shadow };
    let mut lines = [line(shadow, 1, counting(1, 500)), line(enforced, 1, State::Idle)];
    let outcomes = play(&mut lines, 0);
    assert_eq!(outcomes[0].refusal, Some(Refusal::Limit));
    assert_eq!(lines[1].state, counting(1, 1_000), "the request was admitted");
}

#[test]
fn an_open_reservation_holds_its_place_and_refuses_without_a_block() {
    let rule = fixed(5, 1_000, 9_000);
    let mut lines = [Line { act: Act::Reserve, ..line(rule, 5, State::Idle) }];
    let outcome = play(&mut lines, 0).remove(0);
    assert_eq!((outcome.refusal, outcome.remaining), (None, 0));
    assert_eq!((lines[0].state, lines[0].open), (State::Idle, 5), "held, not counted");
    let outcome = play(&mut lines, 0).remove(0);
    assert_eq!((outcome.refusal, outcome.retry_after_ms), (Some(Refusal::Reserved), Some(1_000)));
    assert_eq!((lines[0].state, lines[0].open), (State::Idle, 5), "no block");
    // Settled for more than was held, and for more than there is.
    let mut lines = [Line { act: Act::Settle, ..line(rule, 7, State::Idle) }];
    let outcome = play(&mut lines, 0).remove(0);
    assert_eq!((outcome.used, outcome.remaining), (7, 0));
    let mut lines = [line(rule, 1, lines[0].state)];
    assert_eq!(play(&mut lines, 1).remove(0).refusal, Some(Refusal::Blocked), "the next one is refused");
}

#[test]
fn a_refund_reaches_the_window_that_was_charged_and_no_later_one() {
    let fixed = fixed(5, 1_000, 0);
    let after = |rule, state, left, now| {
        let mut lines = [Line { act: Act::Refund { left }, ..line(rule, 2, state) }];
        play(&mut lines, now);
        lines[0].state
    };
    assert_eq!(after(fixed, counting(3, 1_000), 600, 400), counting(1, 1_000));
    assert_eq!(after(fixed, counting(1, 1_000), 600, 400), counting(0, 1_000), "never below zero");
    assert_eq!(after(fixed, counting(3, 1_900), 600, 1_000), counting(3, 1_900), "a later window");
    let sliding = Rule { kind: Kind::SlidingWindow, ..fixed };
    let counts = |current, previous| State::Counting { amount: Amount { current, previous }, mark: 3_000 };
    assert_eq!(after(sliding, counts(3, 4), 600, 2_400), counts(1, 4));
    assert_eq!(after(sliding, counts(3, 4), -400, 2_400), counts(3, 2), "it still weighs");
    assert_eq!(after(sliding, counts(3, 4), -1_400, 2_400), counts(3, 4), "it weighs no more");
}

#[test]
fn another_limit_changes_the_burst_of_a_bucket_in_proportion() {
    let bucket = Rule { kind: Kind::TokenBucket { refill: 10 }, ..fixed(30, 1_000, 0) };
    let doubled = bucket.with_limit(20);
    assert_eq!((doubled.kind, doubled.limit), (Kind::TokenBucket { refill: 20 }, 60));
    assert_eq!(bucket.with_limit(0).limit, 0);
    assert_eq!(
        bucket.with_limit(0).with_limit(20),
        Rule { kind: Kind::TokenBucket { refill: 20 }, limit: 20, ..bucket }
    );
    let most = bucket.with_limit(u64::MAX);
    assert!(most.limit * most.window <= MAX_LIMIT);
    assert_eq!(fixed(30, 1_000, 0).with_limit(u64::MAX).limit, MAX_LIMIT);
}

#[test]
fn the_level_of_a_bucket_survives_another_window() {
    let bucket = |window| Rule { kind: Kind::TokenBucket { refill: 1 }, ..fixed(30, window, 0) };
    // Seven tokens of a second are seven of a minute.
    assert_eq!(bucket(60_000).rescaled(Amount::of(7_000), 1_000), Amount::of(420_000));
    assert_eq!(bucket(3).rescaled(Amount::of(1), 1_000), Amount::of(1), "rounded up");
}
