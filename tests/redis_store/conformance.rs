//! One suite for both stores: the same charges get the same decisions.

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tower_ratelimit::{Charge, Decision, Key, MAX_LIMIT, Policy, PolicyHandle, RateLimiter, Refusal, Source};

use crate::setup::{NoFallback, Redis, bucket, fixed, hit, hit_for, ms, on_both_stores, sliding, who};

/// The scenarios that hold for every algorithm, and more for one of them.
macro_rules! for_every_algorithm {
    ($($scenario:ident)*; fixed: $($more:ident)*) => {
        on_both_stores! { fixed: $($scenario)* $($more)* }
        on_both_stores! { sliding: $($scenario)* }
        on_both_stores! { bucket: $($scenario)* }
    };
}

for_every_algorithm! {
    a_limit_counts_down_and_then_refuses
    a_cost_is_charged_whole_or_not_at_all
    a_cost_of_0_charges_nothing_and_is_refused_when_1_would_be
    a_cost_above_the_limit_is_too_large_and_changes_nothing
    a_limit_of_0_refuses_everything_and_stores_nothing
    a_peek_reports_and_never_charges_or_refuses
    a_reset_forgets_the_count_and_the_block_of_one_identity
    the_first_refusal_starts_a_block_with_a_fixed_end
    neither_a_cost_of_0_nor_one_too_large_starts_a_block
    an_identity_that_is_never_blocked_is_still_limited
    each_policy_that_refuses_by_itself_starts_its_block
    a_cost_that_never_fits_keeps_the_others_from_blocking
    one_identity_is_charged_once_in_a_check
    a_shadow_policy_counts_and_reports_but_never_refuses
    a_shadow_policy_does_not_hold_up_an_enforced_one
    eight_policies_fit_in_one_check
    several_algorithms_charge_all_or_none
    a_reservation_holds_its_place_until_it_is_settled
    a_reservation_that_nobody_settles_lapses
    a_settlement_is_charged_past_the_limit_and_after_the_lapse
    a_refund_gives_back_once_and_never_below_zero
    a_refusal_by_reservations_starts_no_block
    another_limit_for_an_identity_is_on_the_same_count;
    fixed: costs_and_counts_are_exact_up_to_2_pow_53
        a_window_is_forgotten_at_its_end
        several_policies_charge_all_or_none
}

/// Makes a policy of a name, a limit and a window in milliseconds.
type Of = fn(&str, u64, u64) -> Policy;

/// What a refusal says of the wait, within what a test can take. A sliding window
/// can ask for up to two windows.
fn assert_wait(decision: &Decision, at_most_ms: u64) {
    let wait = decision.retry_after().expect("a wait");
    assert!(wait > ms(0) && wait <= ms(2 * at_most_ms), "{decision:?}");
    assert_eq!(decision.reset_after(), wait, "{decision:?}");
}

async fn a_limit_counts_down_and_then_refuses(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 3, 60_000)).unwrap();
    for left in [2, 1, 0] {
        let decision = hit(&limiter, &http, "ann").await;
        assert!(decision.is_allowed());
        assert_eq!((decision.limit(), decision.used(), decision.remaining()), (3, 3 - left, left));
        assert_eq!(decision.retry_after(), None);
        assert!(decision.reset_after() > ms(0) && decision.reset_after() <= ms(60_000));
    }
    for _ in 0..3 {
        let decision = hit(&limiter, &http, "ann").await;
        assert_eq!(decision.refusal(), Some(Refusal::Limit));
        assert_eq!((decision.limit(), decision.used(), decision.remaining()), (3, 3, 0));
        assert_eq!(decision.blocked_for(), None);
        assert_wait(&decision, 60_000);
    }
    assert_eq!(hit(&limiter, &http, "bob").await.remaining(), 2, "another identity has its own");
}

async fn a_cost_is_charged_whole_or_not_at_all(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 5, 60_000)).unwrap();
    assert_eq!(hit_for(&limiter, &http, "ann", 3).await.remaining(), 2);
    let refused = hit_for(&limiter, &http, "ann", 3).await;
    assert_eq!(refused.refusal(), Some(Refusal::Limit));
    assert_eq!((refused.used(), refused.remaining()), (3, 2), "a refusal shows what smaller costs have left");
    let smaller = hit_for(&limiter, &http, "ann", 2).await;
    assert!(smaller.is_allowed());
    assert_eq!(smaller.remaining(), 0);
}

async fn a_cost_of_0_charges_nothing_and_is_refused_when_1_would_be(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 1, 60_000)).unwrap();
    for _ in 0..3 {
        let free = hit_for(&limiter, &http, "ann", 0).await;
        assert!(free.is_allowed());
        assert_eq!((free.used(), free.remaining()), (0, 1));
        assert_eq!(free.reset_after(), ms(0), "no window has started");
    }
    assert!(hit(&limiter, &http, "ann").await.is_allowed());
    let refused = hit_for(&limiter, &http, "ann", 0).await;
    assert_eq!(refused.refusal(), Some(Refusal::Limit));
    assert_wait(&refused, 60_000);
}

async fn a_cost_above_the_limit_is_too_large_and_changes_nothing(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 5, 60_000)).unwrap();
    for cost in [6, MAX_LIMIT, MAX_LIMIT + 1, u64::MAX] {
        let refused = hit_for(&limiter, &http, "ann", cost).await;
        assert_eq!(refused.refusal(), Some(Refusal::TooLarge), "{cost}");
        assert_eq!(refused.retry_after(), None, "no wait makes {cost} fit");
        assert_eq!((refused.used(), refused.remaining()), (0, 5));
    }
    assert_eq!(hit_for(&limiter, &http, "ann", 5).await.remaining(), 0, "nothing was charged");
    let refused = hit_for(&limiter, &http, "ann", u64::MAX).await;
    assert_eq!(refused.refusal(), Some(Refusal::TooLarge), "used up or not");
    assert_eq!(refused.retry_after(), None);
}

async fn costs_and_counts_are_exact_up_to_2_pow_53(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", MAX_LIMIT, 60_000)).unwrap();
    assert_eq!(hit_for(&limiter, &http, "ann", MAX_LIMIT - 2).await.remaining(), 2);
    assert_eq!(hit(&limiter, &http, "ann").await.used(), MAX_LIMIT - 1);
    assert_eq!(hit_for(&limiter, &http, "ann", 2).await.refusal(), Some(Refusal::Limit));
    let last = hit(&limiter, &http, "ann").await;
    assert!(last.is_allowed());
    assert_eq!((last.limit(), last.used(), last.remaining()), (MAX_LIMIT, MAX_LIMIT, 0));
    assert_eq!(hit(&limiter, &http, "ann").await.refusal(), Some(Refusal::Limit));
    assert!(hit_for(&limiter, &http, "bob", MAX_LIMIT).await.is_allowed());
}

async fn a_limit_of_0_refuses_everything_and_stores_nothing(limiter: RateLimiter, of: Of) {
    let closed = limiter.policy(of("closed", 0, 60_000).block_for(ms(60_000))).unwrap();
    for cost in [0, 1, 2, u64::MAX] {
        let refused = hit_for(&limiter, &closed, "ann", cost).await;
        assert_eq!(refused.refusal(), Some(Refusal::Limit), "{cost}");
        assert_eq!((refused.limit(), refused.remaining()), (0, 0));
        assert_eq!(refused.retry_after(), Some(ms(60_000)), "the window is what is promised");
        assert_eq!(refused.blocked_for(), None);
    }
    assert_eq!(limiter.peek(&closed, &who("ann")).await.reset_after(), ms(0));
}

async fn a_window_is_forgotten_at_its_end(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 2, 300)).unwrap();
    assert_eq!(hit(&limiter, &http, "ann").await.remaining(), 1);
    assert_eq!(hit(&limiter, &http, "ann").await.remaining(), 0);
    let refused = hit(&limiter, &http, "ann").await;
    assert_wait(&refused, 300);
    tokio::time::sleep(refused.retry_after().unwrap()).await;
    assert_eq!(hit(&limiter, &http, "ann").await.remaining(), 1);
}

async fn a_peek_reports_and_never_charges_or_refuses(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 2, 60_000).block_for(ms(90_000))).unwrap();
    let fresh = limiter.peek(&http, &who("ann")).await;
    assert_eq!((fresh.used(), fresh.remaining(), fresh.reset_after()), (0, 2, ms(0)));
    for used in [1, 2] {
        let _ = hit(&limiter, &http, "ann").await;
        for _ in 0..2 {
            let seen = limiter.peek(&http, &who("ann")).await;
            assert!(seen.is_allowed());
            assert_eq!((seen.used(), seen.remaining(), seen.blocked_for()), (used, 2 - used, None));
            assert!(seen.reset_after() > ms(0) && seen.reset_after() <= ms(60_000));
        }
    }
    assert_eq!(hit(&limiter, &http, "ann").await.refusal(), Some(Refusal::Blocked));
    let blocked = limiter.peek(&http, &who("ann")).await;
    assert!(blocked.is_allowed(), "a peek never refuses");
    assert_eq!((blocked.used(), blocked.remaining()), (2, 0));
    assert!(blocked.blocked_for().unwrap() > ms(60_000));
}

async fn a_reset_forgets_the_count_and_the_block_of_one_identity(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 1, 60_000)).unwrap();
    let login = limiter.policy(of("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    for policy in [&http, &login] {
        for name in ["ann", "bob"] {
            assert!(hit(&limiter, policy, name).await.is_allowed());
            assert!(!hit(&limiter, policy, name).await.is_allowed());
        }
    }
    limiter.reset(&login, &who("ann")).await.unwrap();
    assert!(hit(&limiter, &login, "ann").await.is_allowed());
    assert!(!hit(&limiter, &login, "bob").await.is_allowed());
    assert!(!hit(&limiter, &http, "ann").await.is_allowed(), "under another policy");
    limiter.reset(&http, &who("ann")).await.unwrap();
    assert!(hit(&limiter, &http, "ann").await.is_allowed());
    limiter.reset(&http, &who("nobody")).await.unwrap();
}

async fn the_first_refusal_starts_a_block_with_a_fixed_end(limiter: RateLimiter, of: Of) {
    let login = limiter.policy(of("login", 2, 60_000).block_for(ms(400))).unwrap();
    for _ in 0..2 {
        assert!(hit(&limiter, &login, "ann").await.is_allowed());
    }
    let first = hit(&limiter, &login, "ann").await;
    assert_eq!(first.refusal(), Some(Refusal::Blocked));
    assert_eq!((first.used(), first.remaining()), (2, 0));
    assert_eq!(first.blocked_for(), first.retry_after());
    assert_wait(&first, 400);
    tokio::time::sleep(ms(100)).await;
    let second = hit(&limiter, &login, "ann").await;
    assert_eq!(second.refusal(), Some(Refusal::Blocked));
    assert_wait(&second, 300);
    tokio::time::sleep(second.retry_after().unwrap()).await;
    for left in [1, 0] {
        assert_eq!(hit(&limiter, &login, "ann").await.remaining(), left, "a whole allowance again");
    }
}

async fn neither_a_cost_of_0_nor_one_too_large_starts_a_block(limiter: RateLimiter, of: Of) {
    let login = limiter.policy(of("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    assert!(hit(&limiter, &login, "ann").await.is_allowed());
    let free = hit_for(&limiter, &login, "ann", 0).await;
    assert_eq!((free.refusal(), free.blocked_for()), (Some(Refusal::Limit), None));
    let large = hit_for(&limiter, &login, "ann", 2).await;
    assert_eq!((large.refusal(), large.blocked_for()), (Some(Refusal::TooLarge), None));
    assert_eq!(hit(&limiter, &login, "ann").await.refusal(), Some(Refusal::Blocked));
    let large = hit_for(&limiter, &login, "ann", 2).await;
    assert_eq!(large.refusal(), Some(Refusal::TooLarge), "blocked or not");
    assert_eq!(hit_for(&limiter, &login, "ann", 0).await.refusal(), Some(Refusal::Blocked));
}

async fn an_identity_that_is_never_blocked_is_still_limited(limiter: RateLimiter, of: Of) {
    let login = limiter.policy(of("login", 1, 60_000).block_for(ms(90_000))).unwrap();
    let proxy = Key::builder().principal("proxy").never_blocked().finish();
    assert!(limiter.check([Charge::new(&login, proxy)]).await.is_allowed());
    for _ in 0..2 {
        let refused = limiter.check([Charge::new(&login, proxy)]).await;
        assert_eq!((refused.refusal(), refused.blocked_for()), (Some(Refusal::Limit), None));
        assert_wait(&refused, 60_000);
    }
}

async fn both(limiter: &RateLimiter, policies: &[PolicyHandle; 2], costs: [u64; 2]) -> Decision {
    let charge = |i: usize| Charge::new(&policies[i], who("ann")).cost(costs[i]);
    limiter.check([charge(0), charge(1)]).await
}

async fn several_policies_charge_all_or_none(limiter: RateLimiter, of: Of) {
    let pair = limiter.policies(&[of("narrow", 1, 60_000), of("wide", 10, 90_000)]).unwrap();
    let first = both(&limiter, &pair, [1, 1]).await;
    assert!(first.is_allowed());
    assert_eq!((first.policy(), first.remaining()), ("narrow", 0), "the tightest one speaks");
    for _ in 0..5 {
        let refused = both(&limiter, &pair, [1, 1]).await;
        assert_eq!((refused.policy(), refused.refusal()), ("narrow", Some(Refusal::Limit)));
        assert_wait(&refused, 60_000);
    }
    assert_eq!(limiter.peek(&pair[1], &who("ann")).await.used(), 1, "the other one was spared");
    assert!(hit_for(&limiter, &pair[1], "ann", 9).await.is_allowed());
    let refused = both(&limiter, &pair, [1, 1]).await;
    assert_eq!(refused.policy(), "wide", "of several refusals the longest wait speaks");
    assert!(refused.retry_after().unwrap() > ms(60_000));
}

async fn each_policy_that_refuses_by_itself_starts_its_block(limiter: RateLimiter, of: Of) {
    let policy = |name, block| of(name, 1, 60_000).block_for(ms(block));
    let pair = limiter.policies(&[policy("short", 70_000), policy("long", 90_000)]).unwrap();
    assert!(both(&limiter, &pair, [1, 1]).await.is_allowed());
    let refused = both(&limiter, &pair, [1, 1]).await;
    assert_eq!((refused.policy(), refused.refusal()), ("long", Some(Refusal::Blocked)));
    assert!(refused.blocked_for().unwrap() > ms(70_000));
    for policy in &pair {
        assert!(limiter.peek(policy, &who("ann")).await.blocked_for().is_some(), "{policy:?}");
    }
    let charge = |i: usize| Charge::new(&pair[i], who("bob"));
    assert!(limiter.check([charge(0)]).await.is_allowed());
    assert_eq!(limiter.check([charge(0), charge(1)]).await.policy(), "short");
    assert!(limiter.peek(&pair[0], &who("bob")).await.blocked_for().is_some());
    let spared = limiter.peek(&pair[1], &who("bob")).await;
    assert_eq!((spared.used(), spared.blocked_for()), (0, None), "it would have admitted");
}

async fn a_cost_that_never_fits_keeps_the_others_from_blocking(limiter: RateLimiter, of: Of) {
    let policy = |name, limit| of(name, limit, 60_000).block_for(ms(90_000));
    let pair = limiter.policies(&[policy("used-up", 1), policy("small", 5)]).unwrap();
    assert!(both(&limiter, &pair, [1, 1]).await.is_allowed());
    let refused = both(&limiter, &pair, [1, 6]).await;
    assert_eq!((refused.policy(), refused.refusal()), ("small", Some(Refusal::TooLarge)));
    for policy in &pair {
        let seen = limiter.peek(policy, &who("ann")).await;
        assert_eq!((seen.used(), seen.blocked_for()), (1, None), "{policy:?}");
    }
}

async fn one_identity_is_charged_once_in_a_check(limiter: RateLimiter, of: Of) {
    let http = limiter.policy(of("http", 9, 60_000)).unwrap();
    let charge = || Charge::new(&http, who("ann"));
    assert_eq!(limiter.check([charge(), charge().cost(0), charge().cost(2)]).await.used(), 3, "of their sum");
    let two = limiter.check([charge(), Charge::new(&http, who("bob"))]).await;
    assert_eq!(two.used(), 4, "two identities under one policy are two");
    assert_eq!(limiter.peek(&http, &who("bob")).await.used(), 1);
}

async fn a_shadow_policy_counts_and_reports_but_never_refuses(limiter: RateLimiter, of: Of) {
    let trial = limiter.policy(of("trial", 2, 60_000).shadow()).unwrap();
    for used in [1, 2] {
        let decision = hit(&limiter, &trial, "ann").await;
        assert!(decision.is_allowed() && decision.is_shadow());
        assert_eq!((decision.used(), decision.refusal()), (used, None));
    }
    for cost in [1, 3] {
        let decision = hit_for(&limiter, &trial, "ann", cost).await;
        assert!(decision.is_allowed(), "nobody is turned away by a trial");
        let reported = if cost == 1 { Refusal::Limit } else { Refusal::TooLarge };
        assert_eq!((decision.used(), decision.refusal()), (2, Some(reported)), "but it is reported");
    }
}

async fn a_shadow_policy_does_not_hold_up_an_enforced_one(limiter: RateLimiter, of: Of) {
    let trial = of("trial", 1, 60_000).block_for(ms(90_000)).shadow();
    let pair = limiter.policies(&[trial, of("http", 3, 60_000)]).unwrap();
    for left in [2, 1, 0] {
        let decision = both(&limiter, &pair, [1, 1]).await;
        assert!(decision.is_allowed());
        assert_eq!((decision.policy(), decision.remaining()), ("http", left), "the enforced one speaks");
    }
    assert!(limiter.peek(&pair[0], &who("ann")).await.blocked_for().is_some(), "the trial goes its way");
    let refused = both(&limiter, &pair, [1, 1]).await;
    assert_eq!((refused.policy(), refused.is_allowed()), ("http", false));
}

async fn eight_policies_fit_in_one_check(limiter: RateLimiter, of: Of) {
    let names = ["p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"];
    let eight = limiter.policies(&names.map(|name| of(name, 2, 60_000))).unwrap();
    let check = || limiter.check(std::array::from_fn::<_, 8, _>(|i| Charge::new(&eight[i], who("ann"))));
    assert!(hit(&limiter, &eight[7], "ann").await.is_allowed());
    let first = check().await;
    assert!(first.is_allowed());
    assert_eq!((first.policy(), first.remaining()), ("p8", 0));
    assert_eq!(check().await.policy(), "p8");
    assert_eq!(limiter.peek(&eight[0], &who("ann")).await.used(), 1);
}

async fn several_algorithms_charge_all_or_none(limiter: RateLimiter, of: Of) {
    let policies =
        [of("own", 2, 60_000), fixed("f", 9, 60_000), sliding("s", 9, 60_000), bucket("b", 9, 60_000)];
    let all = limiter.policies(&policies).unwrap();
    let check = || limiter.check(all.each_ref().map(|policy| Charge::new(policy, who("ann"))));
    for left in [1, 0] {
        let decision = check().await;
        assert_eq!((decision.policy(), decision.remaining()), ("own", left), "the tightest one speaks");
    }
    for _ in 0..3 {
        assert_eq!(check().await.policy(), "own", "the one that refuses");
    }
    for policy in &all {
        assert_eq!(limiter.peek(policy, &who("ann")).await.used(), 2, "{policy:?} was spared");
    }
}

async fn a_reservation_holds_its_place_until_it_is_settled(limiter: RateLimiter, of: Of) {
    let tokens = limiter.policy(of("tokens", 100, 3_600_000).reserve_for(ms(60_000))).unwrap();
    let reserve = || limiter.reserve([Charge::new(&tokens, who("ann")).cost(40)]);
    let first = reserve().await;
    assert_eq!((first.decision().used(), first.decision().remaining()), (40, 60));
    let second = reserve().await;
    assert_eq!(second.decision().remaining(), 20);
    let third = reserve().await;
    assert_eq!(third.decision().refusal(), Some(Refusal::Reserved));
    assert_eq!(third.decision().retry_after(), Some(ms(1_000)));
    assert!(third.settle(40).await.is_none(), "nothing was held");
    let seen = limiter.peek(&tokens, &who("ann")).await;
    assert_eq!((seen.used(), seen.remaining()), (80, 20), "a peek sees what is held");
    assert_eq!(first.settle(10).await.unwrap().remaining(), 50);
    assert_eq!(second.settle(10).await.unwrap().remaining(), 80);
    assert_eq!(limiter.peek(&tokens, &who("ann")).await.used(), 20);
    // A check charges at once, and sees what others hold.
    let held = reserve().await;
    assert!(hit_for(&limiter, &tokens, "ann", 40).await.is_allowed());
    assert_eq!(hit(&limiter, &tokens, "ann").await.refusal(), Some(Refusal::Reserved));
    assert_eq!(held.settle(0).await.unwrap().remaining(), 40, "given back whole");
}

async fn a_reservation_that_nobody_settles_lapses(limiter: RateLimiter, of: Of) {
    let tokens = limiter.policy(of("tokens", 10, 3_600_000).reserve_for(ms(200))).unwrap();
    let reserve = || limiter.reserve([Charge::new(&tokens, who("ann")).cost(10)]);
    drop(reserve().await);
    assert_eq!(reserve().await.decision().refusal(), Some(Refusal::Reserved));
    tokio::time::sleep(ms(220)).await;
    assert_eq!(limiter.peek(&tokens, &who("ann")).await.used(), 0);
    assert!(reserve().await.decision().is_allowed());
}

async fn a_settlement_is_charged_past_the_limit_and_after_the_lapse(limiter: RateLimiter, of: Of) {
    let tokens = limiter.policy(of("tokens", 100, 3_600_000).reserve_for(ms(100))).unwrap();
    let reserve = |name| limiter.reserve([Charge::new(&tokens, who(name)).cost(40)]);
    let past = reserve("ann").await.settle(120).await.unwrap();
    assert_eq!((past.used(), past.remaining()), (120, 0));
    assert_eq!(reserve("ann").await.decision().refusal(), Some(Refusal::Limit), "the next one is refused");
    let late = reserve("bob").await;
    tokio::time::sleep(ms(120)).await;
    assert_eq!(late.settle(30).await.unwrap().remaining(), 70, "all of it is charged");
    let nothing = reserve("carl").await;
    assert_eq!(nothing.settle(0).await.unwrap().remaining(), 100);
}

async fn a_refund_gives_back_once_and_never_below_zero(limiter: RateLimiter, of: Of) {
    let calls = limiter.policy(of("calls", 5, 3_600_000)).unwrap();
    let charge = Charge::new(&calls, who("ann")).cost(3);
    let decision = limiter.check([charge.clone()]).await;
    assert_eq!(decision.remaining(), 2);
    assert!(limiter.refund(&charge, &decision).await.unwrap());
    assert_eq!(limiter.peek(&calls, &who("ann")).await.remaining(), 5);
    assert!(limiter.refund(&charge, &decision).await.unwrap());
    assert_eq!(limiter.peek(&calls, &who("ann")).await.remaining(), 5, "never below zero");
    assert!(hit_for(&limiter, &calls, "ann", 5).await.is_allowed());
    let refused = limiter.check([charge.clone()]).await;
    assert!(!limiter.refund(&charge, &refused).await.unwrap(), "a refusal has charged nothing");
    let other = limiter.policy(of("other", 5, 3_600_000)).unwrap();
    let elsewhere = Charge::new(&other, who("ann"));
    assert!(!limiter.refund(&elsewhere, &decision).await.unwrap(), "a decision about another policy");
    assert_eq!(limiter.peek(&calls, &who("ann")).await.remaining(), 0);
}

async fn a_refusal_by_reservations_starts_no_block(limiter: RateLimiter, of: Of) {
    let login = of("login", 2, 3_600_000).block_for(ms(7_200_000)).reserve_for(ms(60_000));
    let login = limiter.policy(login).unwrap();
    let reserve = || limiter.reserve([Charge::new(&login, who("ann"))]);
    let (first, second) = (reserve().await, reserve().await);
    for _ in 0..3 {
        let third = reserve().await;
        assert_eq!(third.decision().refusal(), Some(Refusal::Reserved));
        assert_eq!(third.decision().blocked_for(), None);
    }
    first.settle(1).await;
    second.settle(0).await;
    let third = reserve().await;
    assert!(third.decision().is_allowed(), "one has been given back");
    third.settle(1).await;
    assert_eq!(reserve().await.decision().refusal(), Some(Refusal::Blocked), "now both are used");
}

async fn another_limit_for_an_identity_is_on_the_same_count(limiter: RateLimiter, of: Of) {
    let api = limiter.policy(of("api", 3, 3_600_000)).unwrap();
    let hit = async |limit| limiter.check([Charge::new(&api, who("ann")).limit(limit)]).await;
    for left in [2, 1, 0] {
        assert_eq!(hit(3).await.remaining(), left);
    }
    assert!(!hit(3).await.is_allowed());
    let doubled = hit(6).await;
    assert_eq!((doubled.limit(), doubled.remaining()), (6, 2), "at once, with the count kept");
    assert_eq!(hit(2).await.refusal(), Some(Refusal::Limit));
    assert_eq!(hit(0).await.refusal(), Some(Refusal::Limit), "a limit of 0 refuses everything");
}

/// What is compared: all of a decision but the exact milliseconds.
fn told(decision: &Decision) -> impl PartialEq + std::fmt::Debug + use<> {
    let seconds = |wait: Option<std::time::Duration>| wait.map(|wait| (wait.as_secs() + 300) / 3600);
    (
        decision.policy().to_owned(),
        (decision.is_allowed(), decision.refusal(), decision.is_shadow()),
        (decision.limit(), decision.used(), decision.remaining()),
        (seconds(decision.retry_after()), seconds(decision.blocked_for())),
    )
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Check { of: usize, name: &'static str, costs: [u64; 3] },
    Reserve { of: usize, name: &'static str, cost: u64, actual: Option<u64> },
    Refund { of: usize, name: &'static str, cost: u64 },
    Peek { of: usize, name: &'static str },
    Reset { of: usize, name: &'static str },
}

fn act() -> impl Strategy<Value = Act> {
    let name = || prop_oneof![3 => Just("ann"), 1 => Just("bob")];
    let cost = || prop_oneof![6 => Just(1), 2 => 0..4_u64, 1 => Just(u64::MAX)];
    prop_oneof![
        // 3: all of them.
        8 => (0..4_usize, name(), [cost(), cost(), cost()])
            .prop_map(|(of, name, costs)| Act::Check { of, name, costs }),
        2 => (0..4_usize, name(), cost(), proptest::option::of(0..9_u64))
            .prop_map(|(of, name, cost, actual)| Act::Reserve { of, name, cost, actual }),
        2 => (0..3_usize, name(), 1..4_u64).prop_map(|(of, name, cost)| Act::Refund { of, name, cost }),
        2 => (0..3_usize, name()).prop_map(|(of, name)| Act::Peek { of, name }),
        1 => (0..3_usize, name()).prop_map(|(of, name)| Act::Reset { of, name }),
    ]
}

/// Algorithm, limit, whether it blocks, whether it is a trial.
fn rules() -> impl Strategy<Value = [(usize, u64, bool, bool); 3]> {
    let rule = || (0..3_usize, 0..6_u64, any::<bool>(), prop::bool::weighted(0.2));
    [rule(), rule(), rule()]
}

async fn play(limiter: &RateLimiter, policies: &[PolicyHandle; 3], act: Act) -> Option<Decision> {
    let charge = |i: usize, name, costs: [u64; 3]| Charge::new(&policies[i], who(name)).cost(costs[i]);
    match act {
        Act::Check { of: 3, name, costs } => {
            Some(limiter.check(std::array::from_fn::<_, 3, _>(|i| charge(i, name, costs))).await)
        }
        Act::Check { of, name, costs } => Some(limiter.check([charge(of, name, costs)]).await),
        // Of the first one only, or of all: what is held open is left so.
        Act::Reserve { of, name, cost, actual } => {
            let reserved = if of == 3 {
                limiter.reserve(std::array::from_fn::<_, 3, _>(|i| charge(i, name, [cost; 3]))).await
            } else {
                limiter.reserve([charge(of, name, [cost; 3])]).await
            };
            let decision = reserved.decision().clone();
            match actual {
                Some(actual) => reserved.settle(actual).await.or(Some(decision)),
                None => Some(decision),
            }
        }
        Act::Refund { of, name, cost } => {
            let charge = charge(of, name, [cost; 3]);
            let decision = limiter.check([charge.clone()]).await;
            limiter.refund(&charge, &decision).await.unwrap();
            Some(limiter.peek(&policies[of], &who(name)).await)
        }
        Act::Peek { of, name } => Some(limiter.peek(&policies[of], &who(name)).await),
        Act::Reset { of, name } => {
            limiter.reset(&policies[of], &who(name)).await.unwrap();
            None
        }
    }
}

#[test]
fn random_sequences_get_the_same_decisions_from_both_stores() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stores = [RateLimiter::memory(), redis.builder().observer(NoFallback).build().unwrap()];
    let (round, cached) = (Cell::new(0), Cell::new(0));
    TestRunner::new(ProptestConfig::with_cases(crate::setup::SEQUENCES))
        .run(&(rules(), vec(act(), 1..25)), |(rules, acts)| {
            round.set(round.get() + 1);
            // None ends during the test, and no two waits are equal.
            let policy = |i: usize| {
                let (algorithm, limit, blocks, trial) = rules[i];
                let (name, window) = (format!("r{}-{i}", round.get()), 36_000_000 + 7_200_000 * i as u64);
                let of: Of = [fixed, sliding, bucket][algorithm];
                let mut policy = of(&name, limit, window).reserve_for(ms(3_600_000));
                if blocks {
                    policy = policy.block_for(ms(180_000_000 + 7_200_000 * i as u64));
                }
                if trial { policy.shadow() } else { policy }
            };
            let policies: [Policy; 3] = std::array::from_fn(policy);
            let handles = stores.each_ref().map(|store| store.policies(&policies).unwrap());
            for act in acts {
                let [memory, shared] = [0, 1].map(|i| runtime.block_on(play(&stores[i], &handles[i], act)));
                if shared.as_ref().is_some_and(|decision| decision.source() == Source::DenyCache) {
                    cached.set(cached.get() + 1);
                }
                prop_assert_eq!(memory.as_ref().map(told), shared.as_ref().map(told), "{:?}", act);
            }
            Ok(())
        })
        .unwrap();
    let enough = crate::setup::SEQUENCES / 10;
    assert!(cached.get() > enough, "the deny cache took part {} times", cached.get());
}
