//! The script against the pure step, on a real server.
//!
//! Time is injected: a prelude writes the state with its time left, then the
//! body runs in the same call. A call is repeated when the server's millisecond
//! changed during it, for then the body saw another time than the step.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::cell::{Cell, RefCell};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use self::support::{RedisServer, Reply, RespClient};
use super::script::FIXED_WINDOW;
use super::*;
use crate::algorithm::vectors::{Player, play_fixed_window};
use crate::algorithm::{self, Line, tests::*};
use crate::decision::Outcome;

const BLOCK: &str = "9100000000000000000";

/// The script in a frame that sets the scene and reads what it left.
struct Twin {
    client: RespClient,
    script: String,
    sha: Option<String>,
    repeated: usize,
}

impl Twin {
    fn new(server: &RedisServer) -> Self {
        let script = format!(
            "local function body()\n{FIXED_WINDOW}\nend
             local function millis() local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) end
             local n, started = #KEYS, millis()
             redis.call('SET', KEYS[1], 'x', 'PX', 1000)
             local steady = redis.call('PTTL', KEYS[1]) == 1000
             for i = 1, n do
               local value, left = ARGV[2 + 5 * n + 2 * i - 1], ARGV[2 + 5 * n + 2 * i]
               if value == '' then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], value, 'PX', left) end
             end
             local reply, after = body(), {{}}
             for i = 1, n do
               after[2 * i - 1] = redis.call('GET', KEYS[i]) or ''
               after[2 * i] = redis.call('PTTL', KEYS[i])
             end
             return {{ (steady and started == millis()) and 1 or 0, reply, after }}"
        );
        Self { client: RespClient::connect(server.addr()).unwrap(), script, sha: None, repeated: 0 }
    }

    /// Plays one check on given states. Answers with what the script said was
    /// before, and with the states that it left.
    fn check(&mut self, keys: &[String], lines: &[Line], now: Millis) -> (Vec<Remembered>, Vec<State>) {
        let sha = match &self.sha {
            Some(sha) => sha.clone(),
            None => self.client.command(&["SCRIPT", "LOAD", &self.script]).unwrap().text().unwrap(),
        };
        let mut args = vec![String::from("EVALSHA"), sha.clone(), keys.len().to_string()];
        self.sha = Some(sha);
        args.extend(keys.iter().cloned());
        args.extend([keys.len().to_string(), String::from("0")]);
        for line in lines {
            let Rule { limit, window, block, enforced } = line.rule;
            let cost = line.cost.min(MAX_LIMIT + 1);
            args.extend([limit, window, block, cost, u64::from(enforced)].map(|number| number.to_string()));
        }
        for line in lines {
            let (value, left) = match line.state.at(now) {
                State::Idle => (String::new(), 0),
                State::Counting { count, end } => (count.to_string(), end - now),
                State::Blocked { until } => (BLOCK.to_owned(), until - now),
            };
            args.extend([value, left.to_string()]);
        }
        loop {
            let mut reply = self.client.command(&args).unwrap().array().into_iter();
            if reply.next().unwrap().int() == 0 {
                self.repeated += 1;
                continue;
            }
            let said: Vec<_> = reply.next().unwrap().array().into_iter().map(Reply::int).collect();
            let left = reply.next().unwrap().array();
            let before = said.chunks(2).map(|pair| Remembered::from_reply(pair[0], pair[1])).collect();
            return (before, left.chunks(2).map(|pair| state_of(pair, now)).collect());
        }
    }
}

fn state_of(pair: &[Reply], now: Millis) -> State {
    let value = pair[0].clone().text().unwrap();
    let left = pair[1].clone().int();
    match value.as_str() {
        "" => State::Idle,
        BLOCK => State::Blocked { until: now + u64::try_from(left).unwrap() },
        count => State::Counting { count: count.parse().unwrap(), end: now + u64::try_from(left).unwrap() },
    }
}

#[test]
fn the_script_and_the_pure_step_decide_alike() {
    let server = RedisServer::start();
    let twin = RefCell::new(Twin::new(&server));
    let keys: Vec<_> = (0..3).map(|i| format!("twin{i}:rl:x")).collect();
    let sequences = (vec(rule(), 1..4), vec((cost(), pause()), 1..12));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(10_000));
    let steps = Cell::new(0);
    runner
        .run(&sequences, |(rules, charges)| {
            let mut lines: Vec<_> =
                rules.iter().map(|&rule| Line { rule, cost: 0, state: State::Idle }).collect();
            let mut now = 1_000;
            for (cost, pause) in charges {
                now += pause;
                lines.iter_mut().for_each(|line| line.cost = cost);
                let (before, after) = twin.borrow_mut().check(&keys[..lines.len()], &lines, now);
                let known: Vec<_> = lines.iter().map(|line| line.state.at(now)).collect();
                prop_assert_eq!(before.iter().map(|before| before.at(now)).collect::<Vec<_>>(), known);
                algorithm::step(&mut lines, now, |_| ());
                prop_assert_eq!(
                    after,
                    lines.iter().map(|line| line.state).collect::<Vec<_>>(),
                    "{:?}",
                    lines
                );
                steps.set(steps.get() + 1);
            }
            Ok(())
        })
        .unwrap();
    assert!(steps.get() > 10_000);
    println!("{} steps, {} repeated because the millisecond changed", steps.get(), twin.borrow().repeated);
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
        let line = Line { rule: self.rule, cost, state: self.state };
        let (before, after) = self.twin.borrow_mut().check(&[String::from("vector:rl:x")], &[line], now);
        self.state = after[0];
        Line { state: before[0].at(now), ..line }
    }
}

impl Player for InRedis<'_> {
    fn check(&mut self, cost: u64, now: Millis) -> Outcome {
        let mut lines = [self.play(cost, now)];
        let mut outcome = None;
        algorithm::step(&mut lines, now, |line| outcome = Some(line));
        assert_eq!(lines[0].state, self.state, "the step expects what the script left");
        outcome.unwrap()
    }

    fn peek(&mut self, now: Millis) -> Outcome {
        let line = self.play(0, now);
        algorithm::peek(&line.rule, line.state, now)
    }

    fn reset(&mut self) {
        self.state = State::Idle;
    }
}

#[test]
fn the_script_gives_the_answers_of_every_vector() {
    let server = RedisServer::start();
    let twin = RefCell::new(Twin::new(&server));
    let steps = play_fixed_window(|rule| InRedis { twin: &twin, rule, state: State::Idle });
    assert!(steps > 5_000, "only {steps} steps were played");
}
