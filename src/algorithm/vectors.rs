//! The worked examples of `tests/vectors`, played on anything that decides.

use serde_json::Value;

use super::{Kind, Rule};
use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};

const VECTORS: [&str; 3] = [
    include_str!("../../tests/vectors/fixed_window.jsonl"),
    include_str!("../../tests/vectors/sliding_window.jsonl"),
    include_str!("../../tests/vectors/token_bucket.jsonl"),
];

/// What is played: one identity under one rule.
pub(crate) trait Player {
    fn check(&mut self, cost: u64, now: Millis) -> Outcome;
    fn peek(&mut self, now: Millis) -> Outcome;
    fn reset(&mut self);
}

/// Plays every vector on a new player, and answers how many steps that were.
pub(crate) fn play_all<P: Player>(mut player: impl FnMut(Rule) -> P) -> usize {
    let mut steps = 0;
    for (line, vector) in VECTORS.iter().flat_map(|file| file.lines().enumerate()) {
        let vector: Value = serde_json::from_str(vector).unwrap();
        let policy = &vector["policy"];
        let number = |field: &str| policy[field].as_u64();
        let limit = number("limit").unwrap();
        let (kind, limit) = match vector["algorithm"].as_str().unwrap() {
            "fixed_window" => (Kind::FixedWindow, limit),
            "sliding_window" => (Kind::SlidingWindow, limit),
            "token_bucket" => (Kind::TokenBucket { refill: limit }, number("burst").unwrap()),
            other => panic!("unknown algorithm {other}"),
        };
        // Tokens that never come back are no tokens.
        let limit = if kind == (Kind::TokenBucket { refill: 0 }) { 0 } else { limit };
        let (window, block) = (number("window_ms").unwrap(), number("block_ms").unwrap_or(0));
        let rule = Rule { kind, limit, window, block, enforced: true, pardon: 0 };
        let mut player = player(rule);
        for step in vector["steps"].as_array().unwrap() {
            let now = step["t"].as_u64().unwrap();
            let outcome = match step["op"].as_str().unwrap() {
                "check" => player.check(step["cost"].as_u64().unwrap(), now),
                "peek" => player.peek(now),
                "reset" => {
                    player.reset();
                    continue;
                }
                other => panic!("unknown op {other}"),
            };
            compare(&step["want"], &outcome, &format!("line {}, {rule:?}, {step}: {outcome:?}", line + 1));
            steps += 1;
        }
    }
    steps
}

fn compare(want: &Value, outcome: &Outcome, what: &str) {
    for (field, want) in want.as_object().unwrap() {
        let got = match field.as_str() {
            "allowed" => Value::from(outcome.refusal.is_none()),
            "reason" => Value::from(outcome.refusal.map(Refusal::as_str)),
            "remaining" => Value::from(outcome.remaining),
            "retry_after" => Value::from(outcome.retry_after_ms),
            "reset_after" => Value::from(outcome.reset_after_ms),
            "blocked" => Value::from(outcome.blocked),
            other => panic!("unknown field {other}"),
        };
        assert_eq!(&got, want, "{field}: {what}");
    }
}
