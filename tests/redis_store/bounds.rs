//! What can be admitted in one window at the most, measured and held against
//! the formulas in the docs of the crate. Each case reaches its bound, so none
//! of them is looser than it has to be.

use std::sync::Arc;

use tokio::task::JoinSet;
use tower_ratelimit::{Decision, PolicyHandle, RateLimiter, Source};

use crate::setup::{Dice, PATIENT, Redis, builder, eventually, fixed, hit, ms, who};
use crate::support::{Mode, Proxy, RedisServer, Reply};

const LIMIT: u64 = 100;

/// Whose requests are counted.
const ANN: &str = "ann";

/// The share of 1/`parts` of what is left, as the docs define it.
fn share(parts: u32, left: u64) -> u64 {
    (left / u64::from(parts)).max(left.min(1))
}

/// A process that has a limiter, and a path to Redis of its own.
struct Replica {
    limiter: RateLimiter,
    policy: PolicyHandle,
    proxy: Proxy,
    /// The count that Redis told it last; 0 if it does not know the identity.
    told: u64,
    /// Admitted by itself since then.
    unpaid: u64,
}

impl Replica {
    async fn ask(&mut self) -> Decision {
        let decision = hit(&self.limiter, &self.policy, ANN).await;
        match decision.source() {
            Source::Redis => (self.told, self.unpaid) = (decision.used(), 0),
            Source::Local => self.unpaid += u64::from(decision.is_allowed()),
            _ => {}
        }
        decision
    }

    /// Asks until refused, and answers how many were admitted.
    async fn drain(&mut self) -> u64 {
        let mut admitted = 0;
        while self.ask().await.is_allowed() {
            admitted += 1;
            assert!(admitted <= 4 * LIMIT, "it never ends");
        }
        admitted
    }

    /// Learns the count without a charge.
    async fn look(&mut self) {
        let seen = self.limiter.peek(&self.policy, &who(ANN)).await;
        assert_eq!(seen.source(), Source::Redis);
        (self.told, self.unpaid) = (seen.used(), 0);
    }

    async fn cut(&self) {
        self.proxy.set_mode(Mode::Reset);
        eventually("the connection is lost", || !self.limiter.is_connected()).await;
    }

    async fn heal(&self) {
        self.proxy.set_mode(Mode::Forward);
        eventually("it is back on Redis", || self.limiter.is_connected()).await;
    }
}

/// Replicas that share a limit.
struct Fleet {
    redis: Redis,
    replicas: Vec<Replica>,
    parts: u32,
    admitted: u64,
}

impl Fleet {
    /// Each with a share of 1/`parts`.
    async fn start(replicas: usize, parts: u32) -> Self {
        let redis = Redis::start();
        let mut fleet = Self { redis, replicas: Vec::new(), parts, admitted: 0 };
        for _ in 0..replicas {
            let proxy = Proxy::start(fleet.redis.server.addr()).await;
            let limiter = builder(proxy.url()).namespace(&fleet.redis.namespace).fallback_share(1, parts);
            let limiter = limiter.deadline(PATIENT).build().unwrap();
            let policy = limiter.policy(fixed("http", LIMIT, 60_000)).unwrap();
            fleet.replicas.push(Replica { limiter, policy, proxy, told: 0, unpaid: 0 });
        }
        for replica in &fleet.replicas {
            // Connects it, and tells it nothing of the one that counts.
            let nobody = hit(&replica.limiter, &replica.policy, "nobody").await;
            assert_eq!(nobody.source(), Source::Redis);
        }
        fleet
    }

    /// So many requests to one replica, all of which Redis admits.
    async fn admit(&mut self, replica: usize, requests: u64) {
        for _ in 0..requests {
            let decision = self.replicas[replica].ask().await;
            assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Redis));
            self.admitted += 1;
        }
    }

    async fn admit_round_robin(&mut self, requests: usize) {
        for i in 0..requests {
            self.admit(i % self.replicas.len(), 1).await;
        }
    }

    async fn all_look(&mut self) {
        for replica in &mut self.replicas {
            replica.look().await;
        }
    }

    async fn cut_all(&self) {
        for replica in &self.replicas {
            replica.cut().await;
        }
    }

    async fn drain(&mut self, replica: usize) {
        self.admitted += self.replicas[replica].drain().await;
    }

    /// Everybody but `first`, which is back on Redis, admits what it can alone;
    /// then `first` does.
    async fn drain_all_but_one_alone(&mut self, first: usize) {
        for replica in (0..self.replicas.len()).filter(|&replica| replica != first) {
            self.drain(replica).await;
        }
        self.replicas[first].heal().await;
        self.drain(first).await;
    }

    /// The others are back, too, and nobody gets anything more.
    async fn all_return_and_get_nothing(&mut self) {
        for replica in &mut self.replicas {
            replica.heal().await;
            assert_eq!(replica.drain().await, 0, "a second budget");
        }
        let count = self.count();
        assert!(count >= LIMIT, "Redis counts {count}");
    }

    fn count(&self) -> u64 {
        let key = self.replicas[0].policy.store_key(&who(ANN));
        self.redis.server.get(&key).map_or(0, |count| count.parse().unwrap())
    }

    /// What a replica may admit alone.
    fn alone(&self, replica: &Replica) -> u64 {
        share(self.parts, LIMIT - replica.told)
    }

    fn freshest(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.told).max().unwrap()
    }

    /// Redis is gone, and stays so.
    fn bound_of_failover(&self) -> u64 {
        self.freshest() + self.replicas.iter().map(|replica| self.alone(replica)).sum::<u64>()
    }

    /// `first` is the first that is back on Redis, which still knows of `known`;
    /// the others are still without.
    fn bound_of_recovery(&self, first: usize, known: u64) -> u64 {
        let others = self.replicas.iter().enumerate().filter(|&(i, _)| i != first);
        let lost = self.freshest().saturating_sub(known.max(self.replicas[first].told));
        LIMIT + lost + others.map(|(_, replica)| self.alone(replica)).sum::<u64>()
    }
}

/// How a limit was used before Redis failed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// One request to each replica in turn.
    InTurn,
    /// All through the first.
    ByOne,
    /// In turn, and all know of all.
    AllKnow,
}

const USES: [Use; 3] = [Use::InTurn, Use::ByOne, Use::AllKnow];

async fn fleet_of_4(parts: u32, how: Use, used: u64) -> Fleet {
    let mut fleet = Fleet::start(4, parts).await;
    if how == Use::ByOne {
        fleet.admit(0, used).await;
    } else {
        fleet.admit_round_robin(usize::try_from(used).unwrap()).await;
    }
    if how == Use::AllKnow {
        fleet.all_look().await;
    }
    fleet
}

#[tokio::test]
async fn one_replica_admits_the_limit_whatever_becomes_of_redis() {
    for (parts, keeps_data) in [(1, true), (1, false), (4, true), (4, false)] {
        let mut fleet = Fleet::start(1, parts).await;
        fleet.admit(0, 80).await;
        fleet.cut_all().await;
        for _ in 0..3 {
            fleet.admitted += u64::from(fleet.replicas[0].ask().await.is_allowed());
        }
        if !keeps_data {
            fleet.redis.server.restart();
        }
        fleet.replicas[0].heal().await;
        fleet.drain(0).await;
        assert_eq!(fleet.admitted, LIMIT, "a share of 1/{parts}, data kept: {keeps_data}");
        assert_eq!(fleet.count(), LIMIT);
    }
}

#[tokio::test]
async fn failover_admits_what_was_told_and_each_replica_s_share_of_the_rest() {
    for (parts, how, used, measured) in [
        (1, Use::AllKnow, 80, 160),
        (1, Use::ByOne, 100, 400),
        (1, Use::InTurn, 80, 80 + 23 + 22 + 21 + 20),
        (4, Use::AllKnow, 80, 100),
        (4, Use::InTurn, 80, 100),
        // One each, for rounding down would leave nothing to anybody.
        (4, Use::AllKnow, 99, 103),
        (4, Use::ByOne, 100, 175),
        (4, Use::ByOne, 0, 100),
    ] {
        let mut fleet = fleet_of_4(parts, how, used).await;
        fleet.cut_all().await;
        let bound = fleet.bound_of_failover();
        for replica in 0..4 {
            fleet.drain(replica).await;
        }
        assert_eq!((fleet.admitted, bound), (measured, measured), "1/{parts}, {used} used, {how:?}");
    }
}

#[tokio::test]
async fn recovery_adds_only_what_the_others_have_not_paid_yet() {
    for (parts, how, measured) in [
        (4, Use::AllKnow, 100 + 3 * 5),
        (4, Use::InTurn, 100 + 5 + 5 + 5),
        (4, Use::ByOne, 100 + 3 * 25),
        (1, Use::AllKnow, 100 + 3 * 20),
    ] {
        let mut fleet = fleet_of_4(parts, how, 80).await;
        fleet.cut_all().await;
        let bound = fleet.bound_of_recovery(0, 80);
        fleet.drain_all_but_one_alone(0).await;
        assert_eq!((fleet.admitted, bound), (measured, measured), "1/{parts}, {how:?}");
        fleet.all_return_and_get_nothing().await;
        assert_eq!(fleet.count(), fleet.admitted, "all of it is paid in the end");
    }
}

#[tokio::test]
async fn lost_data_adds_what_the_first_one_back_did_not_know_of() {
    for parts in [1, 4] {
        for how in USES {
            // The one that knows least.
            let first = if how == Use::ByOne { 3 } else { 0 };
            let mut fleet = fleet_of_4(parts, how, 80).await;
            fleet.cut_all().await;
            fleet.redis.server.restart();
            let bound = fleet.bound_of_recovery(first, 0);
            fleet.drain_all_but_one_alone(first).await;
            let measured = match (parts, how) {
                (1, Use::InTurn) => 100 + 3 + 22 + 21 + 20,
                (1, Use::ByOne) => 400,
                (1, Use::AllKnow) => 100 + 3 * 20,
                (_, Use::InTurn) => 100 + 3 + 3 * 5,
                (_, Use::ByOne) => 100 + 80 + 5 + 2 * 25,
                (_, Use::AllKnow) => 100 + 3 * 5,
            };
            assert_eq!((fleet.admitted, bound), (measured, measured), "1/{parts}, {how:?}");
            fleet.all_return_and_get_nothing().await;
        }
    }
}

/// A replica of Redis is promoted that has not seen the last 20.
#[tokio::test]
async fn failover_of_redis_itself_adds_what_was_not_replicated() {
    for parts in [1, 2] {
        let mut fleet = Fleet::start(2, parts).await;
        let promoted = RedisServer::start();
        let of = fleet.redis.server.port().to_string();
        ok(&fleet.redis.server, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        ok(&promoted, &["REPLICAOF", "127.0.0.1", &of]);
        fleet.admit(1, 40).await;
        fleet.admit(0, 20).await;
        let key = fleet.replicas[0].policy.store_key(&who(ANN));
        eventually("60 are replicated", || promoted.get(&key).as_deref() == Some("60")).await;
        ok(&promoted, &["REPLICAOF", "NO", "ONE"]);
        fleet.admit(0, 20).await;
        fleet.cut_all().await;
        for replica in &fleet.replicas {
            replica.proxy.switch_target(promoted.addr());
        }
        fleet.redis.server = promoted;
        let bound = fleet.bound_of_recovery(1, 60);
        fleet.drain_all_but_one_alone(1).await;
        let measured = LIMIT + (80 - 60) + share(parts, 20);
        assert_eq!((fleet.admitted, bound), (measured, measured), "1/{parts}");
        fleet.all_return_and_get_nothing().await;
    }
}

#[tokio::test]
async fn failover_of_redis_itself_adds_nothing_where_one_replica_was_told_all() {
    let mut fleet = Fleet::start(1, 1).await;
    let promoted = RedisServer::start();
    fleet.admit(0, 80).await;
    fleet.cut_all().await;
    fleet.replicas[0].proxy.switch_target(promoted.addr());
    fleet.redis.server = promoted;
    fleet.replicas[0].heal().await;
    fleet.drain(0).await;
    assert_eq!((fleet.admitted, fleet.count()), (LIMIT, LIMIT));
}

/// What may or may not have arrived is not added: it may hide behind what others
/// have counted meanwhile.
#[tokio::test]
async fn charges_of_unknown_outcome_that_were_lost_add_themselves() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.server.addr()).await;
    let limiter = builder(proxy.url()).namespace(&redis.namespace).deadline(ms(100)).build().unwrap();
    let policy = limiter.policy(fixed("http", LIMIT, 60_000)).unwrap();
    let mut first = Replica { limiter, policy, proxy, told: 0, unpaid: 0 };
    let other = redis.limiter();
    let there = other.policy(fixed("http", LIMIT, 60_000)).unwrap();
    let mut admitted = 10;
    for _ in 0..10 {
        assert_eq!(first.ask().await.source(), Source::Redis);
    }
    first.proxy.set_mode(Mode::Swallow);
    while first.limiter.is_connected() {
        let decision = first.ask().await;
        assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local));
    }
    let unknown = first.unpaid;
    assert!((3..=4).contains(&unknown), "{unknown}: those that waited for a deadline");
    admitted += unknown;
    for _ in 0..20 {
        admitted += u64::from(hit(&other, &there, ANN).await.is_allowed());
    }
    first.heal().await;
    admitted += first.drain().await;
    assert_eq!(admitted, LIMIT + unknown);
}

/// Nothing is lost and nothing counts twice, whoever comes and goes.
#[tokio::test]
async fn redis_counts_what_was_admitted_less_what_is_still_owed() {
    let mut dice = Dice::new(11);
    for round in 0..6 {
        let parts = [1, 2, 3][round % 3];
        let mut fleet = Fleet::start(3, parts).await;
        // More cuts would keep a replica away for ever longer.
        let mut cuts_left = [2, 2, 2];
        let mut is_cut = [false; 3];
        let mut alone = [0; 3];
        for step in 0..120 {
            let at = usize::try_from(dice.roll(3)).unwrap();
            match dice.roll(12) {
                0 if !is_cut[at] && cuts_left[at] > 0 => {
                    fleet.replicas[at].cut().await;
                    alone[at] = fleet.alone(&fleet.replicas[at]);
                    (is_cut[at], cuts_left[at]) = (true, cuts_left[at] - 1);
                }
                1 if is_cut[at] => {
                    let replica = &mut fleet.replicas[at];
                    replica.heal().await;
                    replica.look().await;
                    is_cut[at] = false;
                }
                _ => {
                    let decision = fleet.replicas[at].ask().await;
                    fleet.admitted += u64::from(decision.is_allowed());
                    assert!(
                        !is_cut[at] || fleet.replicas[at].unpaid <= alone[at],
                        "round {round}: its share"
                    );
                }
            }
            let owed: u64 = fleet.replicas.iter().map(|replica| replica.unpaid).sum();
            assert_eq!(fleet.count() + owed, fleet.admitted, "round {round}, step {step}");
        }
    }
}

/// Whatever is done to the path of one replica, and however many of its requests
/// are under way: each counts, those of unknown outcome at most twice.
#[tokio::test]
async fn one_replica_behind_a_path_that_fails_at_random_never_exceeds_the_limit() {
    let server = Arc::new(RedisServer::start());
    let mut rounds = JoinSet::new();
    for round in 0..24 {
        let server = server.clone();
        rounds.spawn(async move {
            let mut dice = Dice::new(round + 1);
            let proxy = Proxy::start(server.addr()).await;
            let limiter = builder(proxy.url()).namespace(format!("round-{round}")).deadline(ms(60));
            let limiter = limiter.build().unwrap();
            let policy = limiter.policy(fixed("http", LIMIT, 60_000)).unwrap();
            let mut admitted = 0;
            // More losses would keep it away for ever longer.
            for _ in 0..3 {
                let cut = usize::try_from(dice.roll(14)).unwrap();
                let fault = match dice.roll(8) {
                    0 => Mode::Reset,
                    1 => Mode::Swallow,
                    2 => Mode::Hold,
                    3 => Mode::Delay(ms(40 + dice.roll(80))),
                    4 => Mode::SilentReplyAfter(cut),
                    5 => Mode::ResetReplyAfter(cut),
                    _ => Mode::CutReplyAfter(cut),
                };
                for mode in [Mode::Forward, fault, Mode::Forward] {
                    proxy.set_mode(mode);
                    for _ in 0..dice.roll(3) {
                        admitted += at_once(&limiter, &policy, 1 + dice.roll(6)).await;
                        tokio::time::sleep(ms(dice.roll(60))).await;
                    }
                }
            }
            eventually("it is back on Redis", || limiter.is_connected()).await;
            let mut last = hit(&limiter, &policy, ANN).await;
            while last.source() != Source::DenyCache {
                admitted += u64::from(last.is_allowed());
                // A decision without Redis does not yield to those who connect.
                tokio::task::yield_now().await;
                last = hit(&limiter, &policy, ANN).await;
            }
            assert!(admitted <= LIMIT, "round {round}: {admitted} admitted");
            let key = policy.store_key(&who(ANN));
            let count: u64 = server.get(&key).unwrap().parse().unwrap();
            assert!(count >= admitted, "round {round}: {admitted} admitted, {count} counted");
            // Nearly nothing was counted twice.
            assert!(admitted >= LIMIT / 2, "round {round}: {admitted} admitted");
        });
    }
    rounds.join_all().await;
}

/// So many requests at once: how many were admitted.
async fn at_once(limiter: &RateLimiter, policy: &PolicyHandle, requests: u64) -> u64 {
    let mut under_way = JoinSet::new();
    for _ in 0..requests {
        let (limiter, policy) = (limiter.clone(), policy.clone());
        under_way.spawn(async move { u64::from(hit(&limiter, &policy, ANN).await.is_allowed()) });
    }
    under_way.join_all().await.into_iter().sum()
}

fn ok(server: &RedisServer, command: &[&str]) {
    assert_eq!(server.command(command), Reply::Simple("OK".to_owned()), "{command:?}");
}
