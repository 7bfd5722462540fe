use super::*;
use crate::algorithm::Amount;
use crate::algorithm::tests::counting;
use crate::algorithm::vectors::{Player, play_all};

const RULE: Rule =
    Rule { kind: Kind::FixedWindow, limit: 3, window: 1_000, block: 0, enforced: true, pardon: 0 };

fn asked(key: &str, rule: Rule) -> Asked<'_> {
    Asked { policy: 7, key, first_len: 0, rule, cost: 1, act: Act::Charge, reservation: None }
}

fn said(state: State, refused: bool) -> &'static Said {
    Box::leak(Box::new(Said { state, charged: 0, refused, reserved: false, generation: 1, resets: 0 }))
}

fn check(table: &LocalTable, asked: Asked<'_>, now: Millis) -> Outcome {
    table.check(&[asked], Share::WHOLE, Charged::Here, now)[0].outcome
}

/// One identity in a table.
struct InTable {
    table: LocalTable,
    rule: Rule,
}

impl Player for InTable {
    fn check(&mut self, cost: u64, now: Millis) -> Outcome {
        check(&self.table, Asked { cost, ..asked("x", self.rule) }, now)
    }

    fn peek(&mut self, now: Millis) -> Outcome {
        self.table.peek(&asked("x", self.rule), Share::WHOLE, now).outcome
    }

    fn reset(&mut self) {
        self.table.reset(&asked("x", self.rule));
    }
}

#[test]
fn the_table_gives_the_answers_of_every_vector() {
    let steps = play_all(|rule| InTable { table: LocalTable::new(10), rule });
    assert!(steps > 15_000, "only {steps} steps were played");
}

#[test]
fn o_mem_1_a_million_identities_never_exceed_the_capacity() {
    let table = LocalTable::new(10_000);
    for i in 0..1_000_000_u64 {
        check(&table, asked(&i.to_string(), RULE), i / 1_000);
        assert!(table.entries() <= 10_000);
    }
    let counted: usize = table.shards.iter().map(|shard| shard.lock().unwrap().slots.len()).sum();
    assert_eq!(counted, table.entries());
    table.sweep(10_000);
    assert_eq!(table.entries(), 0, "what has ended is gone without traffic on it");
}

#[test]
fn insertions_sweep_what_has_ended() {
    let table = LocalTable::new(1_000);
    for i in 0..1_000 {
        check(&table, asked(&format!("old{i}"), RULE), 0);
    }
    for i in 0..400 {
        check(&table, asked(&format!("new{i}"), RULE), 1_000);
    }
    assert_eq!(table.entries(), 400);
}

#[test]
fn o_mem_2_a_flood_of_identities_does_not_free_the_one_at_its_limit() {
    for capacity in [1_000, 10_000] {
        let table = LocalTable::new(capacity);
        for _ in 0..3 {
            assert_eq!(check(&table, asked("a", RULE), 0).refusal, None);
        }
        for i in 0..20 * capacity {
            check(&table, asked(&format!("other{i}"), RULE), 1);
        }
        assert_eq!(check(&table, asked("a", RULE), 2).refusal, Some(Refusal::Limit), "{capacity}");
    }
}

#[test]
fn the_soonest_ending_of_those_with_something_left_goes_first() {
    let table = LocalTable::new(2);
    let long = Rule { window: 9_000, ..RULE };
    check(&table, asked("long", long), 0);
    check(&table, asked("short", RULE), 0);
    check(&table, asked("new", RULE), 1);
    assert_eq!(check(&table, asked("long", long), 2).used, 2, "it was kept");
}

#[test]
fn when_all_are_refused_newcomers_share_one_bucket() {
    let table = LocalTable::new(2);
    let once = Rule { limit: 1, ..RULE };
    for key in ["a", "a", "b", "b"] {
        check(&table, asked(key, once), 0);
    }
    assert_eq!(check(&table, asked("c", once), 1).refusal, None, "the shared bucket's one place");
    assert_eq!(check(&table, asked("d", once), 1).refusal, Some(Refusal::Limit));
    assert_eq!(table.overflowed(), 2);
    assert_eq!(check(&table, asked("a", once), 2).refusal, Some(Refusal::Limit), "and nobody was freed");
    assert_eq!(check(&table, asked("d", once), 1_000).refusal, None, "room again when the windows end");
}

#[test]
fn newcomers_of_all_shards_share_one_bucket() {
    let table = LocalTable::new(4 * MIN_SHARD);
    let once = Rule { limit: 1, ..RULE };
    let mut refused = 0;
    // More than fit, so that every shard is full of refused ones.
    for i in 0..16 * MIN_SHARD {
        let key = i.to_string();
        check(&table, asked(&key, once), 0);
        refused += usize::from(check(&table, asked(&key, once), 0).refusal.is_some());
    }
    assert!(refused > 4 * MIN_SHARD);
    let wide = Rule { limit: 5, ..RULE };
    let newcomers = (0..200).filter(|i| {
        let key = format!("new{i}");
        table.check(&[Asked { policy: 9, ..asked(&key, wide) }], Share::WHOLE, Charged::Here, 1)[0]
            .outcome
            .refusal
            .is_none()
    });
    assert_eq!(newcomers.count(), 5);
}

#[test]
fn a_share_is_of_what_was_left() {
    let quarter = Share { numerator: 1, denominator: 4 };
    let of = |share: Share, limit, told| share.of_rule(&Rule { limit, ..RULE }, told).limit;
    assert_eq!(of(quarter, 100, 0), 25);
    assert_eq!(of(quarter, 100, 80), 85);
    assert_eq!(of(quarter, 3, 0), 1, "at least one");
    assert_eq!(of(quarter, 3, 2), 3);
    assert_eq!(of(quarter, 100, 100), 100, "none if nothing was left");
    assert_eq!(of(quarter, 100, 150), 100);
    assert_eq!(of(quarter, 0, 0), 0);
    assert_eq!(of(Share::WHOLE, crate::policy::MAX_LIMIT, 7), crate::policy::MAX_LIMIT);
}

#[test]
fn a_denial_is_repeated_until_it_ends_and_for_costs_that_do_not_fit() {
    let table = LocalTable::new(10);
    let two_left = counting(1, 500);
    table.mirror(&Asked { cost: 3, ..asked("a", RULE) }, said(two_left, true), 0);
    let denial = |cost, now| table.denial(&Asked { cost, ..asked("a", RULE) }, now);
    assert_eq!(denial(3, 100).unwrap().retry_after_ms, Some(400));
    assert!(denial(2, 100).is_none(), "this may fit: Redis is asked");
    assert!(denial(4, 100).is_none(), "this never fits: no refusal of the limit");
    assert!(denial(3, 500).is_none(), "it has ended");
    assert!(table.denial(&asked("b", RULE), 0).is_none());
}

#[test]
fn a_refusal_that_may_still_start_a_block_is_not_repeated() {
    let table = LocalTable::new(10);
    let rule = Rule { block: 5_000, ..RULE };
    table.mirror(&asked("a", rule), said(counting(3, 900), true), 0);
    assert!(table.denial(&asked("a", rule), 1).is_none());
    table.mirror(&asked("a", rule), said(State::Blocked { until: 5_000 }, true), 1);
    assert_eq!(table.denial(&asked("a", rule), 1).unwrap().retry_after_ms, Some(4_999));
}

#[test]
fn answers_mirrored_in_the_wrong_order_lose_nothing() {
    let table = LocalTable::new(10);
    let count = || table.peek(&asked("a", RULE), Share::WHOLE, 3).outcome.used;
    table.mirror(&asked("a", RULE), said(counting(2, 1_001), false), 1);
    table.mirror(&asked("a", RULE), said(counting(1, 1_000), false), 2);
    assert_eq!(count(), 2);
    table.mirror(&asked("a", RULE), said(State::Blocked { until: 9_000 }, true), 2);
    table.mirror(&asked("a", RULE), said(counting(3, 1_000), false), 2);
    assert!(table.peek(&asked("a", RULE), Share::WHOLE, 3).outcome.blocked);
}

#[test]
fn a_later_answer_of_one_window_does_not_put_its_end_off() {
    let table = LocalTable::new(10);
    // The same end in Redis, of which the second answer was longer under way.
    table.mirror(&asked("a", RULE), said(counting(3, 1_000), true), 1);
    table.mirror(&asked("a", RULE), said(counting(3, 1_001), true), 2);
    assert_eq!(table.denial(&asked("a", RULE), 2).unwrap().retry_after_ms, Some(998));
    // Another window ends a whole window later.
    table.mirror(&asked("a", RULE), said(counting(1, 1_900), false), 900);
    assert_eq!(table.peek(&asked("a", RULE), Share::WHOLE, 1_000).outcome.reset_after_ms, 900);
}

#[test]
fn keys_of_different_shards_are_checked_together() {
    let table = LocalTable::new(1 << 20);
    let keys: Vec<_> = (0..8).map(|i| i.to_string()).collect();
    std::thread::scope(|scope| {
        for turned in [false, true] {
            let (table, keys) = (&table, &keys);
            scope.spawn(move || {
                for _ in 0..10_000 {
                    let wide = Rule { limit: 20_000, ..RULE };
                    let mut all: Vec<_> = keys.iter().map(|key| asked(key, wide)).collect();
                    if turned {
                        all.reverse();
                    }
                    table.check(&all, Share::WHOLE, Charged::Here, 0);
                }
            });
        }
    });
    let wide = Rule { limit: 20_000, ..RULE };
    for key in &keys {
        assert_eq!(
            check(&table, asked(key, wide), 1).refusal,
            Some(Refusal::Limit),
            "all 20,000 were counted"
        );
    }
}

/// One of four replicas.
const QUARTER: Share = Share { numerator: 1, denominator: 4 };

#[test]
fn a_replica_with_a_share_of_a_bucket_has_its_share_of_what_has_come_back() {
    let rule = Rule { kind: Kind::TokenBucket { refill: 100 }, limit: 100, window: 60_000, ..RULE };
    let table = LocalTable::new(10);
    let full_for_80 = State::Counting { amount: Amount::of(80 * 60_000), mark: 0 };
    table.mirror(&asked("a", rule), said(full_for_80, false), 0);
    let left = |now| table.peek(&asked("a", rule), QUARTER, now).outcome.remaining;
    // Nobody asks, and a token comes back each 600 ms: 80, 60, 20, 0 are taken.
    assert_eq!([0, 12_000, 36_000, 48_000].map(left), [5, 10, 20, 25]);
}

/// What Redis says of a place that it holds for nothing that is counted.
fn holds(state: State) -> Said {
    Said { state, charged: 0, refused: false, reserved: true, generation: 1, resets: 0 }
}

fn reserving(table: &LocalTable, cost: u64, time: Millis) -> Asked<'static> {
    let wide = Rule { limit: 100, window: 60_000, ..RULE };
    Asked { cost, act: Act::Reserve, reservation: Some((table.marker(), time)), ..asked("a", wide) }
}

#[test]
fn places_that_nobody_settles_do_not_pile_up_while_redis_answers() {
    let table = LocalTable::new(10);
    for now in 0..1_000 {
        table.mirror(&reserving(&table, 1, 10), &holds(State::Idle), now);
    }
    let shard = table.shards[0].lock().unwrap();
    let held = shard.slots.iter().next().unwrap().1.open.as_ref().unwrap().len();
    assert!(held <= 11, "{held} are remembered, of which 10 have not lapsed");
}

#[test]
fn what_was_charged_here_survives_an_answer_of_before_that_knows_of_nothing() {
    let table = LocalTable::new(10);
    let unknown = Asked { policy: 8, ..asked("a", RULE) };
    // Redis was asked to hold a place, or to settle one for nothing. Meanwhile:
    table.check(&[Asked { act: Act::Charge, ..reserving(&table, 1, 10) }], Share::WHOLE, Charged::Unsent, 0);
    table.check(&[unknown], Share::WHOLE, Charged::Unknown, 0);
    table.mirror(&reserving(&table, 1, 10), &holds(State::Idle), 1);
    table.mirror(&unknown, &holds(State::Idle), 1);
    let owed = table.owed(&reserving(&table, 1, 10), 1, 2).map(|debt| debt.delta.current);
    assert_eq!(owed, Some(1), "it surely never came to Redis");
    let owed = table.owed(&unknown, 1, 2).map(|debt| debt.floor.current);
    assert_eq!(owed, Some(1), "it may never have come there");
}

#[test]
fn a_bucket_is_denied_no_longer_than_its_client_was_told() {
    let rule = Rule { kind: Kind::TokenBucket { refill: 1 }, limit: 1, window: 1_000, ..RULE };
    let level = |current, mark| State::Counting { amount: Amount::of(current), mark };
    let table = LocalTable::new(10);
    // Charged at 0, of which the answer was under way for 80 ms. That of the next
    // one was quick, and told its client 919 ms.
    table.mirror(&asked("a", rule), said(level(1_000, 80), false), 80);
    table.mirror(&asked("a", rule), said(level(919, 81), true), 81);
    assert!(table.denial(&asked("a", rule), 999).is_some());
    assert_eq!(table.denial(&asked("a", rule), 1_000), None);
    // As well where the delay is worth more than a token.
    let fast = Rule { kind: Kind::TokenBucket { refill: 100 }, limit: 1, ..rule };
    table.mirror(&asked("b", fast), said(level(1_000, 80), false), 80);
    table.mirror(&asked("b", fast), said(level(500, 80), true), 80);
    assert_eq!(table.denial(&asked("b", fast), 85), None);
}

#[test]
fn o_win_6_a_denial_under_another_window_is_not_repeated() {
    let table = LocalTable::new(10);
    table.mirror(&asked("a", RULE), said(counting(3, 900), true), 0);
    assert!(table.denial(&asked("a", RULE), 1).is_some());
    assert_eq!(table.denial(&asked("a", Rule { window: 100, ..RULE }), 1), None, "Redis may admit sooner");
}

#[test]
fn retry_after_is_true_for_a_share() {
    let wide = Rule { limit: 100, window: 60_000, ..RULE };
    let of = |current, previous| Amount { current, previous };
    let cases = [
        (wide, State::Counting { amount: of(80, 0), mark: 60_000 }),
        (Rule { kind: Kind::SlidingWindow, ..wide }, State::Counting { amount: of(10, 80), mark: 60_000 }),
        (
            Rule { kind: Kind::TokenBucket { refill: 100 }, ..wide },
            State::Counting { amount: of(80 * 60_000, 0), mark: 0 },
        ),
    ];
    for (rule, state) in cases {
        let table = LocalTable::new(10);
        table.mirror(&asked("a", rule), &holds(state), 0);
        let check = |now| table.check(&[asked("a", rule)], QUARTER, Charged::Unsent, now)[0].outcome;
        let wait = (0..30).find_map(|_| check(0).retry_after_ms).unwrap();
        assert!(check(wait - 1).refusal.is_some(), "{rule:?}, one tick earlier");
        assert_eq!(check(wait).refusal, None, "{rule:?}, after {wait} ms");
    }
}
