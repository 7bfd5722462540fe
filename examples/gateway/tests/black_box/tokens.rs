//! Tokens, which are known when the answer has ended.

use std::thread;
use std::time::{Duration, Instant};

use crate::gateway::{Gateway, eventually};
use crate::http::Client;
use crate::support::RedisServer;

const ANN: (&str, &str) = ("authorization", "Bearer acme.ann.free");

fn complete(client: &mut Client, who: &[(&str, &str)], words: u64) -> (u16, u64) {
    let answer = client.post("/v1/complete", who, &format!(r#"{{"max_tokens":{words}}}"#));
    if answer.status == 200 {
        assert_eq!(answer.body.split_whitespace().count() as u64, words);
    }
    (answer.status, answer.number("x-ratelimit-remaining"))
}

/// What the end of an answer has settled is told to Redis in the background.
fn until_used(redis: &RedisServer, key: &str, used: u64) {
    let started = Instant::now();
    while redis.get(key) != Some(used.to_string()) {
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}, not {used}", redis.get(key));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn o_llm_2_an_answer_costs_what_it_came_to_and_reserves_an_estimate() {
    let redis = RedisServer::start();
    let url = redis.url();
    let variables =
        [("REDIS_URL", url.as_str()), ("TOKENS_RATE_LIMIT_MAX", "100"), ("RATE_LIMIT_DEADLINE_MS", "5000")];
    let replicas = [Gateway::start(&variables), Gateway::start(&variables)];
    let key = "tokens:rl:{acme.ann}";
    // Ten at once: two estimates of 40 fit.
    let mut clients: Vec<_> = (0..10).map(|i| replicas[i % 2].connect()).collect();
    for client in &mut clients {
        client.send_post("/v1/complete", &[ANN], r#"{"max_tokens":10}"#);
    }
    let answers: Vec<_> = clients.iter_mut().map(|client| client.receive("POST")).collect();
    let admitted = answers.iter().filter(|answer| answer.status == 200).count();
    // The first two may have ended before the last has come.
    assert!((2..=4).contains(&admitted), "{admitted}");
    for answer in answers.iter().filter(|answer| answer.status == 429) {
        assert_eq!(answer.number("retry-after"), 1, "only reservations are in the way");
    }
    until_used(&redis, key, 10 * admitted as u64);
    let mut client = replicas[1].connect();
    let (status, left) = complete(&mut client, &[ANN], 1);
    assert_eq!((status, left), (200, 100 - 10 * admitted as u64 - 40), "the estimate is held");
    until_used(&redis, key, 10 * admitted as u64 + 1);
}

#[test]
fn a_client_that_hangs_up_pays_for_what_it_got() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&[("REDIS_URL", &redis.url()), ("RATE_LIMIT_DEADLINE_MS", "5000")]);
    let mut client = gateway.connect();
    client.send_post("/v1/complete", &[ANN], r#"{"max_tokens":1000}"#);
    assert_eq!(client.head(), 200);
    for _ in 0..5 {
        assert_eq!(client.chunk().as_deref(), Some("word "));
    }
    drop(client);
    let key = "tokens:rl:{acme.ann}";
    let started = Instant::now();
    let paid: u64 = loop {
        if let Some(paid) = redis.get(key) {
            break paid.parse().unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(5));
    };
    assert!((5..200).contains(&paid), "{paid}");
}

#[test]
fn workspaces_users_and_addresses_have_tokens_of_their_own() {
    let gateway = Gateway::start(&[("TOKENS_RATE_LIMIT_MAX", "50")]);
    let mut client = gateway.connect();
    let others = [("authorization", "Bearer acme.bob.free"), ("authorization", "Bearer other.ann.free")];
    for who in [&[ANN][..], &others[..1], &others[1..], &[]] {
        assert_eq!(complete(&mut client, who, 20), (200, 10));
        // Settled by the time the next one comes, or shortly after.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(complete(&mut client, who, 1).0, 429, "30 are left, and 40 may be needed");
    }
}

#[test]
fn a_number_of_tokens_that_cannot_be_read_is_told() {
    let said = Gateway::start_in_vain(&[("TOKENS_RATE_LIMIT_MAX", "many")]);
    assert!(said.contains("TOKENS_RATE_LIMIT_MAX") && said.contains("many"), "{said}");
}

#[test]
fn what_is_no_call_of_the_model_holds_no_tokens() {
    let redis = RedisServer::start();
    // One estimate of 40 is all there is.
    let gateway = Gateway::start(&[
        ("REDIS_URL", &redis.url()),
        ("TOKENS_RATE_LIMIT_MAX", "40"),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
    ]);
    let nothing_is_held = || redis.pttl("tokens:rl:{acme.ann}:=open") == -2;
    for (path, status) in [("/nothing/here", 404), ("/nothing/here", 404), ("/v1/complete", 405)] {
        let answer = gateway.get_with(path, &[ANN]);
        assert_eq!((answer.status, answer.number("x-ratelimit-limit")), (status, 100), "{path}");
    }
    assert!(nothing_is_held(), "they are counted by address alone");
    for _ in 0..2 {
        let mut client = gateway.connect();
        assert_eq!(client.post("/v1/complete", &[ANN], "{").status, 400);
        eventually("nothing is held for it", nothing_is_held);
    }
    // Gone before the first word.
    let mut client = gateway.connect();
    client.send_post("/v1/complete", &[ANN], r#"{"max_tokens":1000}"#);
    assert_eq!(client.head(), 200);
    drop(client);
    eventually("nothing is held for it", nothing_is_held);
}
