//! The worked examples of `tests/vectors`, played on anything that decides.

use serde_json::Value;

use super::Rule;
use crate::clock::Millis;
use crate::decision::{Outcome, Refusal};

const FIXED_WINDOW: &str = include_str!("../../tests/vectors/fixed_window.jsonl");

/// What is played: one identity under one rule.
pub(crate) trait Player {
    fn check(&mut self, cost: u64, now: Millis) -> Outcome;
    fn peek(&mut self, now: Millis) -> Outcome;
    fn reset(&mut self);
}

/// Plays every vector on a new player, and answers how many steps that were.
pub(crate) fn play_fixed_window<P: Player>(mut player: impl FnMut(Rule) -> P) -> usize {
    let mut steps = 0;
    for (line, vector) in FIXED_WINDOW.lines().enumerate() {
        let vector: Value = serde_json::from_str(vector).unwrap();
        let policy = &vector["policy"];
        let rule = Rule {
            limit: policy["limit"].as_u64().unwrap(),
            window: policy["window_ms"].as_u64().unwrap(),
            block: policy["block_ms"].as_u64().unwrap_or(0),
            enforced: true,
        };
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
