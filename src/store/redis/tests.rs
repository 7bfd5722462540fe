//! The script against the pure step, on a real server.
//!
//! Time is injected: `TIME` is the test's, and a prelude writes the state with
//! its time left before the body runs in the same call. A call is repeated when
//! the server's millisecond changed during it, for then what `PTTL` tells is of
//! another time than the step's.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use self::support::{RedisServer, Reply, RespClient};
use super::check::{REPLIED, fill};
use super::script::{CHECK, FIXED_CHARGES};
use super::*;
use crate::algorithm::vectors::{Player, play_all};
use crate::algorithm::{self, Amount, Kind, Line, Rule, State, tests::*};
use crate::clock::Millis;
use crate::decision::Outcome;
use crate::policy::MAX_LIMIT;

const BLOCK: &str = "9100000000000000000";

/// The script in a frame that sets the scene and reads what it left.
struct Twin {
    client: RespClient,
    check: String,
    fixed_charges: String,
    repeated: usize,
    /// How many checks were plain charges of fixed windows.
    plain: usize,
}

impl Twin {
    fn new(server: &RedisServer) -> Self {
        let mut client = RespClient::connect(server.addr()).unwrap();
        let [check, fixed_charges] = [CHECK, FIXED_CHARGES]
            .map(|script| client.command(&["SCRIPT", "LOAD", &framed(script)]).unwrap().text().unwrap());
        Self { client, check, fixed_charges, repeated: 0, plain: 0 }
    }

    /// Plays one check on given states. Answers with what the script said was
    /// before, and with the lines as it left them.
    fn check(&mut self, keys: &[String], lines: &[Line], now: Millis) -> (Vec<Remembered>, Vec<Line>) {
        let asked: Vec<_> = keys.iter().zip(lines).map(|(key, line)| asked(key, line, now)).collect();
        let played = self.play(&args(&self.check, &asked, lines, now), lines, now);
        let plain: Vec<_> = asked.into_iter().map(|asked| Asked { reservations: None, ..asked }).collect();
        if plain.iter().all(Asked::is_plain) && lines.iter().all(|line| line.open == 0) {
            self.plain += 1;
            let quickly = self.play(&args(&self.fixed_charges, &plain, lines, now), lines, now);
            assert_eq!(quickly, played, "{lines:?}");
        }
        played
    }

    fn play(&mut self, args: &[String], lines: &[Line], now: Millis) -> (Vec<Remembered>, Vec<Line>) {
        loop {
            let mut reply = self.client.command(args).unwrap().array().into_iter();
            if reply.next().unwrap().int() == 0 {
                self.repeated += 1;
                continue;
            }
            let said: Vec<_> = reply.next().unwrap().array().into_iter().map(Reply::int).collect();
            let left = reply.next().unwrap().array();
            let before = said.chunks(REPLIED).map(|reply| Remembered::from_reply(reply).unwrap()).collect();
            let after = left.chunks(3).zip(lines).map(|(left, line)| line_of(left, *line, now)).collect();
            return (before, after);
        }
    }
}

/// The command: the script's own arguments, and behind them those of the frame.
fn args(sha: &str, asked: &[Asked], lines: &[Line], now: Millis) -> Vec<String> {
    let mut command = redis::cmd("EVALSHA");
    fill(command.arg(sha), asked, Duration::ZERO);
    let text = |arg: redis::Arg<&[u8]>| match arg {
        redis::Arg::Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        _ => unreachable!("no cursor"),
    };
    let mut args: Vec<_> = command.args_iter().map(text).collect();
    for line in lines {
        // The script itself is to find out which block is over.
        let rule = Rule { pardon: 0, ..line.rule };
        let (value, left) = stored(&rule, rule.at(line.state, now), now);
        args.extend([value, left.to_string(), line.open.to_string()]);
    }
    args.extend([(now / 1000).to_string(), (now % 1000 * 1000).to_string()]);
    args
}

fn asked(key: &str, line: &Line, now: Millis) -> Asked {
    let member = format!("own={}", line.cost);
    let reservations = Some(Reservations { key: format!("{key}:=open"), member, held_for: 1_000_000 });
    let pardon = line.rule.pardon.saturating_sub(now);
    let (rule, cost, act) = (line.rule, line.cost, line.act);
    Asked { key: key.to_owned(), rule, cost, act, pardon, reservations, owed: None }
}

/// A state as Redis keeps it, and its time left.
fn stored(rule: &Rule, state: State, now: Millis) -> (String, Millis) {
    let left = rule.end(state).map_or(0, |end| end - now);
    let text = match state {
        _ if left == 0 => String::new(),
        State::Idle => String::new(),
        State::Blocked { .. } => BLOCK.to_owned(),
        State::Counting { amount: Amount { current, previous }, mark } => match rule.kind {
            Kind::FixedWindow => current.to_string(),
            Kind::SlidingWindow => {
                format!("{}:{}:{current}:{previous}", rule.window, mark / rule.window - 1)
            }
            Kind::TokenBucket { .. } => format!("{}:{current}:{mark}", rule.window),
        },
    };
    (text, left)
}

/// What the script has left of one line.
fn line_of(left: &[Reply], line: Line, now: Millis) -> Line {
    let value = left[0].clone().text().unwrap();
    let ttl = u64::try_from(left[1].clone().int()).unwrap_or(0);
    let open = left[2].clone().text().unwrap().parse().unwrap();
    let numbers: Vec<u64> = value.split(':').filter_map(|number| number.parse().ok()).collect();
    let state = match (line.rule.kind, &numbers[..]) {
        (_, []) => State::Idle,
        _ if value == BLOCK => State::Blocked { until: now + ttl },
        (Kind::FixedWindow, &[count]) => State::Counting { amount: Amount::of(count), mark: now + ttl },
        (Kind::SlidingWindow, &[window, index, current, previous]) => {
            State::Counting { amount: Amount { current, previous }, mark: (index + 1) * window }
        }
        (Kind::TokenBucket { .. }, &[_, level, at]) => {
            State::Counting { amount: Amount::of(level), mark: at }
        }
        _ => panic!("{value} of {line:?}"),
    };
    assert_eq!(line.rule.end(state).map_or(0, |end| end - now), ttl, "the expiry of {value} of {line:?}");
    Line { state, open, ..line }
}

/// Neither store keeps what counts for nothing.
fn canonical(rule: &Rule, state: State) -> State {
    if state.is_nothing(rule.kind) { State::Idle } else { state }
}

/// How much a block may have left to be over: mostly nothing.
fn pardon() -> impl Strategy<Value = Millis> {
    prop_oneof![4 => Just(0), 1 => 1..400u64]
}

/// A script in the frame.
fn framed(script: &str) -> String {
    format!(
            "local server = redis
             local injected
             local redis = setmetatable({{ call = function(name, ...)
               if name == 'TIME' then return injected end
               return server.call(name, ...)
             end }}, {{ __index = server }})
             local function body()\n{script}\nend
             local function millis() local t = server.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
             local n, last, started = tonumber(ARGV[1]), #ARGV, millis()
             injected = {{ ARGV[last - 1], ARGV[last] }}
             redis.call('SET', KEYS[1], 'x', 'PX', 1000)
             local steady = redis.call('PTTL', KEYS[1]) == 1000
             local at = last - 2 - 3 * n
             for i = 1, n do
               local value, left, open = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
               at = at + 3
               if value == '' then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], value, 'PX', left) end
               redis.call('DEL', KEYS[i] .. ':=open')
               if open ~= '0' then redis.call('ZADD', KEYS[i] .. ':=open', '1e15', 'other=' .. open) end
             end
             local reply, after = body(), {{}}
             for i = 1, n do
               after[3 * i - 2] = redis.call('GET', KEYS[i]) or ''
               after[3 * i - 1] = redis.call('PTTL', KEYS[i])
               local sum = 0
               for _, member in ipairs(redis.call('ZRANGE', KEYS[i] .. ':=open', 0, -1)) do
                 sum = sum + tonumber(string.match(member, '=(%d+)$'))
               end
               after[3 * i] = string.format('%.0f', sum)
             end
             return {{ (steady and started == millis()) and 1 or 0, reply, after }}"
        )
}

#[test]
fn the_script_and_the_pure_step_decide_alike() {
    let server = RedisServer::start();
    let twin = RefCell::new(Twin::new(&server));
    let keys: Vec<_> = (0..3).map(|i| format!("twin{i}:rl:x")).collect();
    let sequences = (vec(rule(), 1..4), vec((cost(), act(), pause(), pardon()), 1..12), 0..1_000_000_000u64);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(10_000));
    let steps = Cell::new(0);
    runner
        .run(&sequences, |(rules, charges, start)| {
            let mut lines: Vec<_> = rules.iter().map(|&rule| line(rule, 0, State::Idle)).collect();
            let mut now = 1_700_000_000_000 + start;
            for (cost, act, pause, pardon) in charges {
                now += pause;
                for line in &mut lines {
                    // What is settled was open before, and is over now.
                    (line.cost, line.act) = (cost, act);
                    line.rule.pardon = if pardon > 0 { now + pardon } else { 0 };
                }
                let (before, after) = twin.borrow_mut().check(&keys[..lines.len()], &lines, now);
                for (line, before) in lines.iter().zip(before) {
                    let Line { rule, state, open, .. } = *line;
                    let said = canonical(&rule, before.at(rule.kind, now));
                    prop_assert_eq!(said, canonical(&rule, rule.at(state, now)), "{:?}", line);
                    prop_assert_eq!(before.open, open);
                }
                algorithm::step(&mut lines, now, |_| ());
                for (line, after) in lines.iter().zip(after) {
                    let state = canonical(&line.rule, after.state);
                    prop_assert_eq!(state, canonical(&line.rule, line.state), "{:?}", line);
                    prop_assert_eq!(after.open, line.open, "{:?}", line);
                }
                steps.set(steps.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    let twin = twin.into_inner();
    assert!(steps.get() > 10_000 && twin.plain > 500, "{} of {} were plain", twin.plain, steps.get());
    let Twin { plain, repeated, .. } = twin;
    println!("{} steps, {plain} plain, {repeated} repeated because the millisecond changed", steps.get());
}

/// One identity in Redis, with time injected.
struct InRedis<'a> {
    twin: &'a RefCell<Twin>,
    rule: Rule,
    state: State,
}

impl InRedis<'_> {
    /// Plays a check in Redis, and answers with the state before it.
    fn play(&mut self, cost: u64, now: Millis) -> Line {
        let line = line(self.rule, cost, self.state);
        let (before, after) = self.twin.borrow_mut().check(&[String::from("vector:rl:x")], &[line], now);
        self.state = after[0].state;
        Line { state: before[0].at(line.rule.kind, now), ..line }
    }
}

impl Player for InRedis<'_> {
    fn check(&mut self, cost: u64, now: Millis) -> Outcome {
        let mut lines = [self.play(cost, now)];
        let mut outcome = None;
        algorithm::step(&mut lines, now, |line| outcome = Some(line));
        let expected = canonical(&self.rule, lines[0].state);
        assert_eq!(expected, canonical(&self.rule, self.state), "the step expects what the script left");
        outcome.unwrap()
    }

    fn peek(&mut self, now: Millis) -> Outcome {
        let line = self.play(0, now);
        algorithm::peek(&line.rule, line.state, 0, now)
    }

    fn reset(&mut self) {
        self.state = State::Idle;
    }
}

#[test]
fn the_script_gives_the_answers_of_every_vector() {
    let server = RedisServer::start();
    let twin = RefCell::new(Twin::new(&server));
    let steps = play_all(|rule| InRedis { twin: &twin, rule, state: State::Idle });
    assert!(steps > 15_000, "only {steps} steps were played");
}

/// Rules of one algorithm in every range that a policy takes: windows that the
/// limit does not divide, and of up to a year.
fn settings(kind: usize) -> impl Strategy<Value = Rule> {
    const YEAR: u64 = 31_622_400_000;
    let window = prop_oneof![1..50u64, 1..100_000u64, 1..=YEAR];
    let limit = || prop_oneof![1..9u64, 1..1_000_000u64, 1..=MAX_LIMIT];
    (window, limit(), limit()).prop_map(move |(window, limit, refill)| {
        let (kind, limit) = match kind {
            0 => (Kind::FixedWindow, limit),
            1 => (Kind::SlidingWindow, limit),
            _ => (Kind::TokenBucket { refill }, limit.min(MAX_LIMIT / window)),
        };
        Rule { kind, limit, window, block: 0, enforced: true, pardon: 0 }
    })
}

#[test]
fn the_script_admits_when_it_was_promised_and_not_a_millisecond_earlier() {
    let server = RedisServer::start();
    let twin = RefCell::new(Twin::new(&server));
    let key = [String::from("promise:rl:x")];
    let admits = |line: Line, now| {
        let (_, after) = twin.borrow_mut().check(&key, &[line], now);
        canonical(&line.rule, after[0].state) != canonical(&line.rule, line.rule.at(line.state, now))
    };
    for kind in 0..3 {
        let refusals = Cell::new(0);
        let charges = vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 2..8);
        let mut runner =
            TestRunner::new(ProptestConfig { cases: 100, max_global_rejects: 100_000, ..Default::default() });
        runner
            .run(&(settings(kind), charges, 0..1_000_000_000u64), |(rule, charges, start)| {
                let mut now = 1_700_000_000_000 + start;
                let mut state = State::Idle;
                let below = |index: prop::sample::Index, most: u64| {
                    u64::try_from(index.index(usize::try_from(most).unwrap())).unwrap()
                };
                for (pause, cost) in charges {
                    now += below(pause, rule.window);
                    let charge = line(rule, 1 + below(cost, rule.limit), state);
                    let mut played = [charge];
                    let mut wait = None;
                    algorithm::step(&mut played, now, |outcome| wait = outcome.retry_after_ms);
                    let Some(wait) = wait else {
                        state = played[0].state;
                        continue;
                    };
                    refusals.set(refusals.get() + 1);
                    prop_assert!(!admits(charge, now));
                    prop_assert!(
                        !admits(charge, now + wait - 1),
                        "one millisecond before {wait}: {charge:?}"
                    );
                    prop_assert!(admits(charge, now + wait), "at {wait}: {charge:?}");
                    return Ok(());
                }
                Err(TestCaseError::reject("nothing was refused"))
            })
            .unwrap();
        assert_eq!(refusals.get(), 100);
    }
}
