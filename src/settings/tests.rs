//! What is accepted, what is refused, and that no password ever shows.

use proptest::prelude::*;

use super::*;

fn settings(values: &[(&str, &str)]) -> Result<Settings, SettingsError> {
    Settings::from_lookup(|name| {
        let found = values.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn target(values: &[(&str, &str)]) -> RedisTarget {
    settings(values).unwrap().redis.unwrap()
}

fn refusal(values: &[(&str, &str)]) -> String {
    settings(values).unwrap_err().to_string()
}

#[test]
fn nothing_set_means_memory_and_the_defaults() {
    for blank in [None, Some(""), Some(" \t")] {
        let settings = Settings::from_lookup(|_| blank.map(str::to_owned)).unwrap();
        assert_eq!(settings.redis(), None);
        assert_eq!(settings.mcp_rate_limit_max(), 100);
        assert_eq!(settings.codemode_rate_limit_max(), 60);
        assert_eq!(settings.rate_limit_window(), Duration::from_secs(60));
        assert_eq!(settings.deadline(), None);
        assert_eq!(settings.fallback_share(), None);
        assert_eq!(settings.ipv6_prefix(), None);
        assert_eq!(settings.trusted_proxies(), [""; 0]);
        assert_eq!(settings.audit_log_path(), None);
        assert_eq!(settings.warnings(), [""; 0]);
    }
}

#[test]
fn numbers_are_accepted_up_to_both_ends_of_their_range() {
    let least = settings(&[
        ("MCP_RATE_LIMIT_MAX", "0"),
        ("RATE_LIMIT_WINDOW_MS", "1"),
        ("RATE_LIMIT_DEADLINE_MS", "1"),
        ("RATE_LIMIT_IPV6_PREFIX", "32"),
    ])
    .unwrap();
    assert_eq!(least.mcp_rate_limit_max(), 0);
    assert_eq!(least.rate_limit_window(), Duration::from_millis(1));
    assert_eq!(least.deadline(), Some(Duration::from_millis(1)));
    assert_eq!(least.ipv6_prefix(), Some(32));

    let most = settings(&[
        ("MCP_RATE_LIMIT_MAX", " 9007199254740991 "),
        ("CODEMODE_RATE_LIMIT_MAX", "9007199254740991"),
        ("RATE_LIMIT_WINDOW_MS", "31622400000"),
        ("RATE_LIMIT_DEADLINE_MS", "60000"),
        ("RATE_LIMIT_IPV6_PREFIX", "128"),
    ])
    .unwrap();
    assert_eq!(most.mcp_rate_limit_max(), MAX_LIMIT);
    assert_eq!(most.codemode_rate_limit_max(), MAX_LIMIT);
    assert_eq!(most.rate_limit_window(), MAX_WINDOW);
    assert_eq!(most.deadline(), Some(Duration::from_secs(60)));
    assert_eq!(most.ipv6_prefix(), Some(128));
}

#[test]
fn a_wrong_number_is_refused_with_its_variable_and_what_it_accepts() {
    assert_eq!(
        refusal(&[("RATE_LIMIT_WINDOW_MS", "abc")]),
        r#"RATE_LIMIT_WINDOW_MS: "abc" is not accepted: a whole number of milliseconds from 1 to 31622400000"#
    );
    for (variable, value, accepts) in [
        ("MCP_RATE_LIMIT_MAX", "9007199254740992", "a whole number from 0 to 9007199254740991"),
        ("MCP_RATE_LIMIT_MAX", "-1", "a whole number from 0 to 9007199254740991"),
        ("CODEMODE_RATE_LIMIT_MAX", "+60", "a whole number from 0 to 9007199254740991"),
        ("CODEMODE_RATE_LIMIT_MAX", "1e3", "a whole number from 0 to 9007199254740991"),
        ("RATE_LIMIT_WINDOW_MS", "0", "milliseconds from 1 to 31622400000"),
        ("RATE_LIMIT_WINDOW_MS", "31622400001", "milliseconds from 1 to 31622400000"),
        ("RATE_LIMIT_DEADLINE_MS", "0", "milliseconds from 1 to 60000"),
        ("RATE_LIMIT_DEADLINE_MS", "60001", "milliseconds from 1 to 60000"),
        ("RATE_LIMIT_IPV6_PREFIX", "31", "a whole number from 32 to 128"),
        ("RATE_LIMIT_IPV6_PREFIX", "129", "a whole number from 32 to 128"),
    ] {
        let error = settings(&[(variable, value)]).unwrap_err();
        assert_eq!(error.variable(), variable);
        let text = error.to_string();
        assert!(text.contains(value) && text.ends_with(accepts), "{text}");
    }
}

#[test]
fn a_share_is_exact() {
    for (text, share) in [
        ("1/4", (1, 4)),
        ("2 / 8", (1, 4)),
        ("0.25", (1, 4)),
        ("0.333333333", (333_333_333, 1_000_000_000)),
        ("1", (1, 1)),
        ("1.0", (1, 1)),
        ("4294967295/4294967295", (1, 1)),
        ("1/4294967295", (1, u32::MAX)),
    ] {
        let settings = settings(&[("RATE_LIMIT_FALLBACK_SHARE", text)]).unwrap();
        assert_eq!(settings.fallback_share(), Some(share), "{text}");
    }
    for text in [
        "0",
        "0/4",
        "0.0",
        "5/4",
        "1.01",
        "2",
        "1/0",
        "-1/4",
        "1/-4",
        ".",
        "1.",
        ".5",
        "1/4/2",
        "25%",
        "0.1234567891",
        "1/4294967296",
        "18446744073709551615.5",
        "quarter",
    ] {
        let error = refusal(&[("RATE_LIMIT_FALLBACK_SHARE", text)]);
        assert!(error.ends_with("such as 1/4, 0.25 or 1"), "{error}");
    }
}

#[test]
fn trusted_proxies_are_addresses_and_ranges() {
    let accepted = settings(&[("TRUSTED_PROXIES", "10.0.0.0/8, ::1 ,fd00::/8,192.0.2.1,")]);
    let expected = ["10.0.0.0/8", "::1", "fd00::/8", "192.0.2.1"];
    assert_eq!(accepted.unwrap().trusted_proxies(), expected);
    for text in ["10.0.0.0/33", "::/129", "10.0.0/8", "proxy.internal", "10.0.0.0/", "10.0.0.0/+8"] {
        let error = settings(&[("TRUSTED_PROXIES", text)]).unwrap_err();
        assert_eq!(error.variable(), "TRUSTED_PROXIES", "{text}");
    }
}

#[test]
fn a_redis_url_is_kept_as_it_is() {
    for (url, shown) in [
        ("redis://127.0.0.1", "redis://127.0.0.1:6379"),
        ("redis://127.0.0.1:7000/", "redis://127.0.0.1:7000"),
        ("rediss://ann:s3cret@redis.internal:6380/3", "rediss://redis.internal:6380/3"),
        ("redis://:s3@cret@[::1]/0?protocol=resp3", "redis://[::1]:6379/0"),
    ] {
        let target = target(&[("REDIS_URL", url)]);
        assert_eq!(target, RedisTarget::Url(url.to_owned()));
        assert_eq!(target.urls(), [url]);
        assert_eq!(target.to_string(), shown);
        assert_eq!(format!("{target:?}"), format!("RedisTarget({shown})"));
    }
}

#[test]
fn a_wrong_redis_url_is_refused_and_not_shown() {
    for url in [
        "s3cret",
        "http://:s3cret@host",
        "redis:s3cret",
        "redis://",
        "redis://:s3cret@",
        "redis://:s3cret@:6379",
        "redis://:s3cret%FF@host",
        "redis://:s3cret@host:0",
        "redis://:s3cret@host:65536",
        "redis://:s3cret@host/first",
        "redis://:s3cret@host/2147483648",
        "redis://:s3cret/@host:6379",
        "redis://:s3cret@::1:6379",
        "redis://host:s3cret",
        "unix:///run/s3cret",
    ] {
        let error = settings(&[("REDIS_URL", url)]).unwrap_err();
        assert_eq!(error.variable(), "REDIS_URL");
        let text = format!("{error} {error:?}");
        assert!(text.contains("redis://") && !text.contains("s3cret"), "{text}");
    }
}

#[test]
fn a_host_becomes_a_url() {
    for (values, url) in [
        (&[("REDIS_HOST", "localhost")][..], "redis://localhost:6379/0"),
        (&[("REDIS_HOST", "::1"), ("REDIS_PORT", "7000")], "redis://[::1]:7000/0"),
        (&[("REDIS_HOST", "redis"), ("REDIS_PORT", "tcp://10.96.0.5:7000")], "redis://redis:7000/0"),
        (&[("REDIS_HOST", "[::1]"), ("REDIS_DB", "5")], "redis://[::1]:6379/5"),
        (
            &[("REDIS_HOST", "10.0.0.7"), ("REDIS_PASSWORD", " p@ss/w:%ö")],
            "redis://:%20p%40ss%2Fw%3A%25%C3%B6@10.0.0.7:6379/0",
        ),
    ] {
        assert_eq!(target(values), RedisTarget::Url(url.to_owned()));
    }
    for (variable, value) in [
        ("REDIS_HOST", "localhost:6379"),
        ("REDIS_HOST", "redis://:s3cret@localhost"),
        ("REDIS_PORT", "tcp://10.0.0.1"),
        ("REDIS_PORT", "tcp://10.0.0.1:0"),
        ("REDIS_PORT", "0"),
        ("REDIS_DB", "-1"),
    ] {
        let error = settings(&[(variable, value), ("REDIS_HOST", "localhost")]).unwrap_err();
        assert_eq!(error.variable(), variable);
        assert!(!error.to_string().contains("s3cret"));
    }
}

#[test]
fn a_cluster_comes_first_and_has_no_database() {
    let nodes = ("REDIS_CLUSTER_NODES", "a:7000, b ,[2001:db8::1]:7001,[::1],");
    let cluster = target(&[nodes, ("REDIS_PASSWORD", "s3cret")]);
    assert_eq!(cluster.to_string(), "redis cluster a:7000,b:6379,[2001:db8::1]:7001,[::1]:6379");
    assert_eq!(cluster.urls()[1], "redis://:s3cret@b:6379");
    assert!(!format!("{cluster:?}").contains("s3cret"));

    let error = refusal(&[nodes, ("REDIS_DB", "0")]);
    assert!(error.starts_with("REDIS_DB") && error.contains("REDIS_CLUSTER_NODES"), "{error}");
    for text in [",", "a:", "a:0", "a:x", "::1", "redis://:s3cret@a:7000", "[::1", "[a]:1", "a b"] {
        let error = refusal(&[("REDIS_CLUSTER_NODES", text)]);
        assert!(error.starts_with("REDIS_CLUSTER_NODES: the value"), "{error}");
    }
}

#[test]
fn what_is_set_and_not_used_is_one_warning_that_names_it() {
    let nodes = ("REDIS_CLUSTER_NODES", "a:7000");
    let url = ("REDIS_URL", "redis://b");
    let host = ("REDIS_HOST", "c");
    let password = ("REDIS_PASSWORD", "s3cret");
    for (values, warning) in [
        (&[nodes, password][..], None),
        (&[url][..], None),
        (&[host, password], None),
        (&[("REDIS_PORT", "tcp://10.0.0.1:6379"), url], None),
        (&[nodes, url], Some("REDIS_CLUSTER_NODES is used, REDIS_URL ignored")),
        (&[nodes, url, host], Some("REDIS_CLUSTER_NODES is used, REDIS_URL, REDIS_HOST ignored")),
        (&[url, host, password], Some("REDIS_URL is used, REDIS_HOST, REDIS_PASSWORD ignored")),
        (
            &[password],
            Some(
                "REDIS_PASSWORD ignored: without REDIS_CLUSTER_NODES, REDIS_URL or REDIS_HOST \
                 counts stay in memory",
            ),
        ),
    ] {
        let settings = settings(values).unwrap();
        assert_eq!(settings.warnings().first().map(String::as_str), warning);
        assert!(settings.warnings().len() <= 1);
    }
}

#[test]
fn a_path_is_kept_as_it_is() {
    let settings = settings(&[("AUDIT_LOG_PATH", "/var/log/my audit.jsonl")]).unwrap();
    assert_eq!(settings.audit_log_path(), Some(Path::new("/var/log/my audit.jsonl")));
}

#[cfg(unix)]
#[test]
fn a_value_that_is_not_text_is_refused_and_not_shown() {
    use std::os::unix::ffi::OsStringExt;

    let value = std::ffi::OsString::from_vec(b"s3cret\xff".to_vec());
    let error = environment::decode("REDIS_PASSWORD", Some(value)).unwrap_err();
    assert_eq!(error.to_string(), "REDIS_PASSWORD: the value is not accepted: text in UTF-8");
}

#[test]
fn a_shown_value_is_short_and_stays_on_one_line() {
    let text = refusal(&[("RATE_LIMIT_WINDOW_MS", &"1\n".repeat(500))]);
    assert!(text.lines().count() == 1 && text.len() < 300, "{text}");
}

proptest! {
    #[test]
    fn no_value_panics(values in prop::collection::hash_map(variable(), value(), 0..15)) {
        if let Ok(settings) = Settings::from_lookup(|name| values.get(name).cloned()) {
            let _ = format!("{settings:?}");
        }
    }

    #[test]
    fn a_password_never_shows(
        secret in "s3cret[!-~]{0,12}",
        source in 0..6,
        junk in "[ -~]{0,6}",
    ) {
        let values = match source {
            0 => vec![("REDIS_URL", format!("redis://{junk}:{secret}@host/{junk}"))],
            1 => vec![("REDIS_URL", format!("{junk}{secret}@{junk}"))],
            2 => vec![("REDIS_PASSWORD", secret), ("REDIS_HOST", format!("host{junk}"))],
            3 => vec![("REDIS_PASSWORD", secret), ("REDIS_CLUSTER_NODES", format!("a:1,{junk}"))],
            4 => vec![("REDIS_CLUSTER_NODES", format!("redis://:{secret}@{junk},b"))],
            _ => vec![("REDIS_HOST", format!("redis://:{secret}@{junk}"))],
        };
        let settings = Settings::from_lookup(|name| {
            values.iter().find(|(variable, _)| *variable == name).map(|(_, value)| value.clone())
        });
        let shown = match settings {
            Ok(settings) => {
                let redis = settings.redis().map(ToString::to_string);
                format!("{settings:?} {redis:?} {:?}", settings.warnings())
            }
            Err(error) => format!("{error} {error:?}"),
        };
        prop_assert!(!shown.contains("s3cret"), "{shown}");
    }
}

fn variable() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "REDIS_CLUSTER_NODES",
        "REDIS_URL",
        "REDIS_HOST",
        "REDIS_PORT",
        "REDIS_PASSWORD",
        "REDIS_DB",
        "MCP_RATE_LIMIT_MAX",
        "CODEMODE_RATE_LIMIT_MAX",
        "RATE_LIMIT_WINDOW_MS",
        "RATE_LIMIT_DEADLINE_MS",
        "RATE_LIMIT_FALLBACK_SHARE",
        "RATE_LIMIT_IPV6_PREFIX",
        "TRUSTED_PROXIES",
        "AUDIT_LOG_PATH",
    ])
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[0-9./,:\\[\\]a-f@ -]{0,24}", "rediss?://[a-z0-9:@./\\[\\]?#%-]{0,24}",]
}
