use http::Request;
use proptest::prelude::*;

use super::*;
use crate::identity::RequestHead;
use crate::rules::LiveRules;
use crate::{Policy, Rate, RateLimiter};

const SAAS: &str = include_str!("../../../examples/saas.toml");

fn refused(text: &str) -> String {
    RulesFile::new().parse(text).expect_err(text).to_string()
}

/// A policy on lines 1 to 3, that a rule on line 5 names.
fn with(field: &str) -> String {
    format!("[policies.http]\nlimit = 5\nwindow = '1m'\n{field}\n[[rules]]\npolicies = ['http']\n")
}

#[test]
fn a_file_without_anything_limits_nothing() {
    let rules = RulesFile::new().parse("").unwrap();
    assert_eq!(rules.to_string(), "otherwise: no limit\n");
}

#[test]
fn defaults_are_those_of_the_docs() {
    let rules = RulesFile::new().parse(&with("")).unwrap();
    let http = Policy::fixed_window("http", Rate::per_minute(5));
    let same = crate::rules::Limit::new(http).by(ClientIp::peer());
    let same = RuleSet::new().rule(crate::rules::Rule::any().limit(same));
    assert_eq!(rules.to_string(), same.to_string());
}

#[test]
fn every_field_is_read() {
    let text = with(
        "algorithm = 'token_bucket'\nburst = 9\nblock = '1h'\nidentity = ['global=ip', 'header:x-a', 'secret-header:x-b', 'host']\n\
         cost = 2\ncount = [403, 401]\nreserve = '30s'\nplans = { pro = 7, free = 6 }\nfactors = ['vip']\n\
         on_store_failure = 'deny'\nmode = 'shadow'\n[factors.vip]\ntimes = '3/2'\nusers = ['ann']\ntenants = ['acme']\nplans = ['gold']",
    );
    let rules = RulesFile::new().parse(&text).unwrap();
    assert_eq!(
        rules.to_string(),
        "any route\n  http: TokenBucket 5 in 1m, burst 9, then blocked for 1h, held for 30s, shadow; without the \
         store Deny; by global=ip, header:x-a, secret-header:x-b, host; cost 2; counts 401, 403; plans pro 7, free \
         6; factors vip x 3/2, users {\"ann\"}, tenants {\"acme\"}, plans {\"gold\"}\notherwise: no limit\n"
    );
}

#[test]
fn a_wrong_value_is_named_with_its_field_and_line() {
    for (field, error) in [
        ("limt = 5", "line 4: limt: policy http has no such field, it takes limit, window, algorithm"),
        ("burst = 9", "line 4: burst: 9 has no effect on policy http"),
        (
            "algorithm = 'leaky'",
            "line 4: algorithm: 'leaky' is not allowed, it takes \"fixed_window\", \"sliding",
        ),
        ("block = '1 fortnight'", "line 4: block: '1 fortnight' is not allowed, it takes a duration such as"),
        ("block = 5", "line 4: block: 5 is not allowed, it takes a duration"),
        ("block = '400d'", "line 4: block: '400d' is not allowed, it takes a duration"),
        ("block = '1us'", "line 4: block: '1us' is not allowed"),
        ("reserve = 'x'", "line 4: reserve: 'x' is not allowed"),
        (
            "identity = ['ip', 'usr']",
            "line 4: identity: 'usr' is not allowed, it takes account, host, ip, method, route",
        ),
        ("identity = ['header:a b']", "line 4: identity: 'header:a b' is not allowed"),
        ("identity = ['=ip']", "line 4: identity: '=ip' is not allowed"),
        ("identity = []", "line 4: identity: [] is not allowed, it takes at least one word"),
        ("identity = 'ip'", "line 4: identity: 'ip' is not allowed, it takes a list"),
        ("cost = -1", "line 4: cost: -1 is not allowed, it takes a whole number from 0"),
        ("cost = 1.5", "line 4: cost: 1.5 is not allowed"),
        ("count = [\n401,\n20]", "line 6: count: 20 is not allowed, it takes a whole number from 100 to 599"),
        ("count = []", "line 4: count: [] is not allowed, it takes at least one status"),
        (
            "plans = { pro = 9007199254740992 }",
            "line 4: pro: 9007199254740992 is not allowed, it takes a whole",
        ),
        ("plans = ['pro']", "line 4: plans: ['pro'] is not allowed, it takes a table"),
        (
            "factors = ['vip']",
            "line 4: factors: 'vip' is not allowed, it takes the name of a factor, and there is none",
        ),
        (
            "on_store_failure = 'open'",
            "line 4: on_store_failure: 'open' is not allowed, it takes \"local\", \"deny\"",
        ),
        ("mode = true", "line 4: mode: true is not allowed, it takes \"enforce\", \"shadow\""),
        ("limit = 6", "line 4: file: it is not TOML, duplicate key"),
        ("x = ", "line 4: file: it is not TOML"),
    ] {
        let told = refused(&with(field));
        assert!(told.starts_with(error), "{field}: {told}");
    }
}

#[test]
fn a_wrong_section_is_named_with_its_field_and_line() {
    for (text, error) in [
        ("[polices.http]", "line 1: polices: the file has no such field, it takes skip, factors, policies"),
        ("[policies.http]\nwindow = '1m'", "line 1: limit: is missing in policy http"),
        ("[policies.http]\nlimit = 5", "line 1: window: is missing in policy http"),
        (
            "[policies.http]\nlimit = 9007199254740992\nwindow = '1m'",
            "line 2: limit: 9007199254740992 is not",
        ),
        ("[policies.http]\nlimit = 5\nwindow = '0s'", "line 3: window: '0s' is not allowed"),
        (
            "\n[policies.Http]\nlimit = 5\nwindow = '1m'",
            "line 2: name: \"Http\" is not allowed, it takes 1 to 64",
        ),
        ("[policies.http]\nlimit = 5\nwindow = '1m'", "line 1: http: no rule names this policy"),
        ("[policies.a]\n[policies.a]", "line 2: file: it is not TOML, duplicate key"),
        (
            "[[rules]]\npolicies = ['x']",
            "line 2: policies: 'x' is not allowed, it takes the name of a policy, and",
        ),
        ("[[rules]]", "line 1: policies: is missing in a rule"),
        (
            "[[rules]]\npolicies = []\nroute = 'api'",
            "line 3: route: 'api' is not allowed, it takes a path such as",
        ),
        ("[[rules]]\npolicies = []\nroute = '/{*a}/b'", "line 3: route: '/{*a}/b' is not allowed"),
        (
            "[[rules]]\npolicies = []\nroute = '/'\nroutes = []",
            "line 4: routes: [] is not allowed, it takes route or",
        ),
        (
            "[[rules]]\npolicies = []\nmethods = ['get']",
            "line 3: methods: 'get' is not allowed, it takes a method in",
        ),
        ("[[rules]]\npolicies = []\nplans = ['']", "line 3: plans: '' is not allowed, it takes a name"),
        (
            "[skip]\npaths = ['healthz']",
            "line 2: paths: 'healthz' is not allowed, it takes a path that starts",
        ),
        (
            "[skip]\nips = ['10.0.0.0/8', '10.0.0.0/33']",
            "line 2: ips: '10.0.0.0/33' is not allowed, it takes an",
        ),
        (
            "[factors.vip]\ntimes = 0\nusers = ['a']",
            "line 2: times: 0 is not allowed, it takes a whole number or a",
        ),
        ("[factors.vip]\ntimes = '1/0'\nusers = ['a']", "line 2: times: '1/0' is not allowed"),
        ("[factors.vip]\ntimes = 2", "line 1: vip: is for nobody"),
        ("[factors.vip]\ntimes = 2\nusers = ['a']", "line 1: vip: no policy names this factor"),
        ("rules = 5", "line 1: rules: 5 is not allowed, it takes a list"),
        ("policies = []", "line 1: policies: [] is not allowed, it takes a table"),
    ] {
        let told = refused(text);
        assert!(told.starts_with(error), "{text}: {told}");
    }
    let twice = with("").replace("['http']", "['http', 'http']");
    assert_eq!(refused(&twice), "line 6: policies: 'http' is not allowed, it takes each policy once");
    assert!(refused(&" ".repeat(MAX_BYTES + 1)).starts_with("line 1: file: 1048577 bytes are not allowed"));
}

#[test]
fn an_error_is_one_short_line() {
    for text in [
        "a\u{1}b".to_owned(),
        format!("['{}']", "x".repeat(9_000)),
        with(&format!("cost = '{}'", "\u{e9}".repeat(500))),
    ] {
        let told = refused(&text);
        assert!(!told.contains(['\n', '\u{1}']) && told.len() < 500, "{told}");
    }
}

/// Whatever it is: an error, or rules that a limiter takes and a request meets.
fn play(text: &str) {
    let Ok(rules) = RulesFile::new().parse(text) else { return };
    let limiter = RateLimiter::memory();
    let live = LiveRules::new(&limiter, rules).unwrap();
    let request = Request::post("/api/projects").body(()).unwrap();
    assert!(!format!("{live:?} {:?}", RequestHead::new(&request)).is_empty());
}

proptest! {
    #![proptest_config(crate::property::at_least(3_000))]

    #[test]
    fn no_text_panics(text in any::<String>()) {
        play(&text);
    }

    #[test]
    fn no_text_of_the_words_of_a_file_panics(words in prop::collection::vec(word(), 0..60)) {
        play(&words.concat());
    }

    #[test]
    fn no_change_of_the_saas_file_panics(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..12usize, "[ -~\n]{0,6}"), 1..4),
    ) {
        let mut text = SAAS.to_owned();
        for (at, length, with) in cuts {
            let at = at.index(text.len());
            text.replace_range(at..(at + length).min(text.len()), &with);
        }
        play(&text);
    }
}

fn word() -> impl Strategy<Value = String> {
    let words = [
        "[policies.a]\n",
        "[policies.b]\n",
        "[[rules]]\n",
        "[skip]\n",
        "[factors.vip]\n",
        "[otherwise]\n",
        "limit = ",
        "window = ",
        "algorithm = ",
        "burst = ",
        "block = ",
        "identity = ",
        "cost = ",
        "count = ",
        "plans = ",
        "factors = ",
        "route = ",
        "methods = ",
        "policies = ",
        "times = ",
        "users = ",
        "ips = ",
        "paths = ",
        "mode = ",
        "\n",
        "5\n",
        "0\n",
        "-1\n",
        "99999999999999999999\n",
        "0x7f\n",
        "1.5\n",
        "true\n",
        "'1m'\n",
        "'366d'\n",
        "'token_bucket'\n",
        "'sliding_window'\n",
        "['ip']\n",
        "['a']\n",
        "['a', 'b']\n",
        "['vip']\n",
        "['/x']\n",
        "'/{*r}'\n",
        "['POST']\n",
        "[401]\n",
        "{ pro = 5 }\n",
        "'2/3'\n",
        "'shadow'\n",
        "[",
        "]",
        "{",
        "}",
        "'",
        "\"\"\"",
        "=",
        ".",
        "#",
    ];
    prop_oneof![8 => prop::sample::select(words.to_vec()).prop_map(str::to_owned), 1 => "[ -~]{1,4}"]
}
