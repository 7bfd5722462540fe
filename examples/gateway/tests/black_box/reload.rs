//! `RULES_FILE`, SIGHUP and `--check`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::gateway::{Gateway, eventually};
use crate::http::Client;
use crate::support::RedisServer;

const SAAS: &str = include_str!("../../../saas.toml");

/// A file of rules, gone when dropped.
struct RulesFile(PathBuf);

impl RulesFile {
    fn new(text: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let file = Self(std::env::temp_dir().join(format!("rules-{}-{number}.toml", std::process::id())));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for RulesFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The SaaS file with another limit of writes on the free plan.
fn writes(limit: u32) -> String {
    SAAS.replace("limit = 20", &format!("limit = {limit}"))
}

fn write(client: &mut Client) -> (u16, u64) {
    let answer = client.request("POST", "/api/projects", &[("authorization", "Bearer acme.ann.free")]);
    (answer.status, answer.number("x-ratelimit-remaining"))
}

fn a_raised_limit_is_effective_at_once(variables: &[(&str, &str)]) {
    let file = RulesFile::new(&writes(20));
    let gateway = Gateway::start(&[&[("RULES_FILE", file.path())], variables].concat());
    let mut client = gateway.connect();
    for left in (0..20).rev() {
        assert_eq!(write(&mut client), (200, left));
    }
    // Refused, and blocked for five minutes.
    for _ in 0..3 {
        assert_eq!(write(&mut client), (429, 0));
    }
    file.write(&writes(40));
    gateway.signal("HUP");
    eventually("the new rules", || gateway.logged("rules read again") == 1);
    assert_eq!(write(&mut client), (200, 39), "the block is lifted, and after a block all is new");
    assert_eq!(gateway.logged("rules: api-write: limit 20 -> 40, counts kept"), 1, "{}", gateway.logs());
}

#[test]
fn a_raised_limit_is_effective_at_once_for_a_client_that_was_refused() {
    a_raised_limit_is_effective_at_once(&[]);
}

#[test]
fn it_is_effective_at_once_through_redis_as_well() {
    let redis = RedisServer::start();
    a_raised_limit_is_effective_at_once(&[("REDIS_URL", &redis.url()), ("RATE_LIMIT_DEADLINE_MS", "5000")]);
}

#[test]
fn a_limit_without_a_block_keeps_its_count_through_redis() {
    let redis = RedisServer::start();
    let exports =
        |limit| SAAS.replace("[policies.export]\nlimit = 5", &format!("[policies.export]\nlimit = {limit}"));
    let file = RulesFile::new(&exports(5));
    let gateway = Gateway::start(&[
        ("RULES_FILE", file.path()),
        ("REDIS_URL", &redis.url()),
        ("RATE_LIMIT_DEADLINE_MS", "5000"),
    ]);
    let export = || {
        let answer = gateway.get("/api/exports");
        (answer.status, answer.number("x-ratelimit-remaining"))
    };
    let asked: Vec<_> = (0..7).map(|_| export().0).collect();
    assert_eq!(asked, [200, 200, 200, 200, 200, 429, 429]);
    file.write(&exports(8));
    gateway.signal("HUP");
    eventually("the new rules", || gateway.logged("rules read again") == 1);
    assert_eq!(export(), (200, 2), "5 of 8 were used");
}

#[test]
fn a_broken_file_changes_nothing_and_says_line_and_reason() {
    let file = RulesFile::new(&writes(20));
    let gateway = Gateway::start(&[("RULES_FILE", file.path())]);
    let mut client = gateway.connect();
    assert_eq!(write(&mut client), (200, 19));
    let line = SAAS.lines().position(|line| line == "limit = 20").unwrap() + 1;
    let broken = [
        (writes(40).replace("limit = 40", "limit = forty"), format!("line {line}: file: it is not TOML")),
        (writes(40).replace("limit = 40", "limit = -40"), format!("line {line}: limit: -40 is not allowed")),
        (
            writes(40).replace("limit = 40", "limti = 40"),
            format!("line {line}: limti: policy api-write has no"),
        ),
    ];
    for (text, error) in &broken {
        file.write(text);
        gateway.signal("HUP");
        eventually("the error", || gateway.logged(error) == 1);
    }
    fs::remove_file(&file.0).unwrap();
    gateway.signal("HUP");
    eventually("the error", || gateway.logged("rules not changed: RULES_FILE: ") == 4);
    assert_eq!(write(&mut client), (200, 18), "the rules of before");
    assert_eq!(gateway.logged("ERROR"), 4);

    file.write(&broken[1].0);
    let said = Gateway::start_in_vain(&[("RULES_FILE", file.path())]);
    assert!(said.contains("RULES_FILE: ") && said.contains(&broken[1].1), "{said}");
}

#[test]
fn the_digest_of_the_rules_is_in_the_metrics() {
    let file = RulesFile::new(&writes(20));
    let gateway = Gateway::start(&[("RULES_FILE", file.path())]);
    let info = || {
        let metrics = gateway.get("/metrics").body;
        let lines = metrics.lines().filter(|line| line.starts_with("ratelimit_rules_info"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = info();
    assert!(before.len() == 1 && before[0].ends_with(" 1"), "{before:?}");
    file.write(&writes(40));
    gateway.signal("HUP");
    eventually("the new rules", || gateway.logged("rules read again") == 1);
    let after = info();
    let old = before[0].replace("} 1", "} 0");
    assert!(after.len() == 2 && after.contains(&old), "{before:?} {after:?}");
    assert_eq!(after.iter().filter(|line| line.ends_with(" 1")).count(), 1, "{after:?}");
}

#[test]
fn a_check_shows_the_plan_or_what_is_wrong_and_does_nothing() {
    let (old, new) = (RulesFile::new(&writes(20)), RulesFile::new(&writes(40)));
    let (is_content, said) = Gateway::check(&[("RULES_FILE", old.path())], new.path());
    assert!(is_content);
    let (first, steps) = said.split_once('\n').unwrap();
    assert!(first.starts_with(&format!("{}: rules ", new.path())), "{first}");
    assert_eq!(steps, "api-write: limit 20 -> 40, counts kept\n");
    let (is_content, said) = Gateway::check(&[("RULES_FILE", old.path())], old.path());
    assert!(is_content && said.ends_with("\nno change\n"), "{said}");
    let (is_content, said) = Gateway::check(&[], old.path());
    assert!(
        is_content && said.contains("\nlogin: added\n") && said.contains("\notherwise: no limit -> http\n")
    );

    new.write("[policies.http]\nlimit = 5\nwindow = \"1 fortnight\"\n");
    let (is_content, said) = Gateway::check(&[], new.path());
    assert!(!is_content);
    let error = "line 3: window: \"1 fortnight\" is not allowed, it takes a duration";
    assert!(said.contains(new.path()) && said.contains(error), "{said}");
    assert!(!Gateway::check(&[], "/no/such/file.toml").0);
}

#[test]
fn a_file_may_leave_nothing_to_the_gateway() {
    let file =
        RulesFile::new("[policies.all]\nlimit = 1\nwindow = \"1m\"\n[otherwise]\npolicies = [\"all\"]\n");
    let gateway = Gateway::start(&[("RULES_FILE", file.path())]);
    assert_eq!(gateway.get("/whoami").json()["key"], serde_json::Value::Null);
    assert_eq!(gateway.get("/").status, 429);
    assert_eq!(gateway.get("/healthz").status, 200, "whatever the rules");
}
