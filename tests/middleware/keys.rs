//! Limits by who the application says is asking.

use std::collections::BTreeSet;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing};
use http::StatusCode;
use http::header::AUTHORIZATION;
use http::request::Builder;
use proptest::prelude::*;
use tower::{Layer as _, Service};
use tower_http::normalize_path::NormalizePathLayer;
use tower_ratelimit::identity::{
    ClientIp, Extension, Header, Host, Identified, Identify, Method, RequestHead, Route, normalize,
};
use tower_ratelimit::middleware::Missing;
use tower_ratelimit::{Key, KeySecret, RateLimitLayer};

use crate::harness::{Limited, ask, fixed, from, get, limiter, named, secs, statuses};
use crate::support::Logs;

#[derive(Clone)]
struct Tenant(Option<String>);

#[derive(Clone)]
struct User(Option<String>);

fn by_tenant() -> Extension<Tenant> {
    Extension::new(|tenant: &Tenant| tenant.0.as_deref().map(Into::into))
}

fn by_user() -> Extension<User> {
    Extension::new(|user: &User| user.0.as_deref().map(Into::into))
}

fn asking(tenant: Option<&str>, user: Option<&str>) -> Builder {
    let [tenant, user] = [tenant, user].map(|name| name.map(str::to_owned));
    from("203.0.113.9").extension(Tenant(tenant)).extension(User(user))
}

#[tokio::test]
async fn o_key_1_separators_inside_a_part_make_no_other_pair() {
    let limited = Limited::new(|layer| layer.policy(fixed(1, secs(60))).identity((by_tenant(), by_user())));
    let pairs = [
        (Some("a:b"), Some("c")),
        (Some("a"), Some("b:c")),
        (None, Some("a:b:c")),
        (Some("a:b:c"), None),
        (Some("a%3Ab"), Some("c")),
        (Some("a"), Some("b")),
        (Some("{a}"), Some("b")),
        (Some("{a"), Some("}b")),
        (Some("a*"), Some("b")),
        (Some("a\n"), Some("b")),
        (Some("a\0"), Some("b")),
        (Some("a"), Some("🦀")),
        (Some("none="), Some("a:b:c")),
        (Some("203.0.113.9"), Some("c")),
    ];
    for (i, (tenant, user)) in pairs.into_iter().enumerate() {
        assert_eq!(limited.ask(asking(tenant, user)).await.status, 200, "{tenant:?} {user:?}");
        assert_eq!(limited.ask(asking(tenant, user)).await.status, 429, "{tenant:?} {user:?}");
        assert_eq!(limited.seen.keys().len(), i + 1);
    }
    // An empty part is a missing one.
    assert_eq!(limited.ask(asking(Some(""), Some("a:b:c"))).await.status, 429);
    let legal = |byte: u8| byte.is_ascii_graphic() && !b"{}".contains(&byte);
    assert!(limited.seen.keys().iter().all(|key| key.bytes().all(legal)), "{:?}", limited.seen.keys());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn o_key_1_two_pairs_have_one_key_only_if_they_are_equal(
        [a, b, c] in proptest::array::uniform3("[a:%=/{} .1é-]{0,2}"),
        between in prop::sample::select(vec!["", ":", "%3A", "=", " ", "}:{", "/"]),
    ) {
        // One text cut at two places: what a join without care would confuse.
        let (left, right) = ((format!("{a}{between}{b}"), c.clone()), (a, format!("{b}{between}{c}")));
        let key = |(tenant, user): &(String, String)| {
            let request = asking(Some(tenant), Some(user)).body(()).unwrap();
            match (by_tenant(), by_user()).identify(&RequestHead::new(&request), Key::builder()) {
                Identified::Known(key, _) => Some(key.finish().as_str().to_owned()),
                _ => None,
            }
        };
        // Blank is missing, and missing parts equal each other.
        let parts = |(tenant, user): &(String, String)| {
            [tenant, user].map(|part| Some(part.clone()).filter(|part| !part.trim().is_empty()))
        };
        prop_assert_eq!(key(&left) == key(&right), parts(&left) == parts(&right));
    }
}

#[tokio::test]
async fn o_key_2_a_path_parameter_is_not_part_of_the_key() {
    type Place = fn(Router, RateLimitLayer) -> Router;
    let places: [Place; 2] = [Router::route_layer, Router::layer];
    for (i, place) in places.into_iter().enumerate() {
        let (limiter, _, seen) = limiter();
        let builder = RateLimitLayer::builder(limiter).policy(fixed(3, secs(60)));
        let layer = builder.identity((ClientIp::peer(), Route::new())).build().unwrap();
        let app = place(Router::new().route("/verify/{code}", routing::get(async || "")), layer);

        let codes = (1..=10).map(|code| get("203.0.113.9", &format!("/verify/{code}")));
        let got = statuses(&app, codes).await;
        assert_eq!((&got[..3], &got[3..]), (&[200; 3][..], &[429; 7][..]));
        assert_eq!(seen.keys(), ["203.0.113.9:route=/verify/%7Bcode%7D"]);

        let unmatched = (1..=10).map(|n| get("203.0.113.9", &format!("/no/{n}")));
        let got = statuses(&app, unmatched).await;
        if i == 0 {
            assert_eq!(got, [404; 10], "`route_layer` does not see them");
        } else {
            assert_eq!((&got[..3], &got[3..]), (&[404; 3][..], &[429; 7][..]));
            assert_eq!(seen.keys()[1..], ["203.0.113.9:route=none"]);
        }
    }
}

/// Asks with all spellings of one path: those that reach the handler share a
/// bucket, and those that reach nothing share another.
async fn assert_spellings_share<S, B>(app: &S, reach: &[&str])
where
    S: Service<http::Request<axum::body::Body>, Response = http::Response<B>, Error: std::fmt::Debug> + Clone,
    B: http_body::Body<Data = bytes::Bytes, Error: std::fmt::Debug>,
{
    let mut left = [(200, 100), (404, 100)];
    let spellings = [
        "/api/users",
        "/api//users",
        "/api/users/",
        "/api/./users",
        "/api/%75sers",
        "/API/users",
        "/api/users?x=1",
        "//api/users",
    ];
    for path in spellings {
        let answer = ask(app, get("203.0.113.9", path)).await;
        let bucket = left.iter_mut().find(|(status, _)| *status == answer.status).unwrap();
        bucket.1 -= 1;
        assert_eq!(answer.remaining(), Some(bucket.1), "{path}");
        assert_eq!(answer.status == 200, reach.contains(&path), "{path}");
    }
}

#[tokio::test]
async fn o_key_3_many_spellings_of_one_path_are_one_bucket() {
    let app = || {
        let (limiter, ..) = limiter();
        let builder = RateLimitLayer::builder(limiter).policy(fixed(100, secs(60)));
        let layer = builder.identity((ClientIp::peer(), Route::new())).build().unwrap();
        Router::new().route("/api/users", routing::get(async || "")).layer(layer)
    };
    assert_spellings_share(&app(), &["/api/users", "/api/users?x=1"]).await;
    let normalized = NormalizePathLayer::trim_trailing_slash().layer(app());
    let reach = ["/api/users", "/api/users/", "/api/users?x=1", "//api/users"];
    assert_spellings_share(&normalized, &reach).await;
}

/// Takes `Bearer <key>` in any spelling and leaves the verified user.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let claim = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or("");
    let key = claim.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match key.map(|(_, key)| key.trim()) {
        Some("k") => {
            request.extensions_mut().insert(User(Some("ann".to_owned())));
            next.run(request).await
        }
        _ => StatusCode::UNAUTHORIZED.into_response(),
    }
}

#[tokio::test]
async fn o_key_4_made_up_credentials_are_bounded_and_spellings_of_one_are_one() {
    let (limiter, _, seen) = limiter();
    let layer = |policy| RateLimitLayer::builder(limiter.clone()).policy(policy);
    let by_ip = layer(named("ip", 5, secs(60))).build().unwrap();
    let by_user = layer(named("user", 3, secs(60))).identity(by_user()).build().unwrap();
    let app = Router::new()
        .route("/", routing::get(async || ""))
        .layer(by_user)
        .layer(from_fn(authenticate))
        .layer(by_ip);

    let bogus = (0..30).map(|i| {
        from("203.0.113.9")
            .header("x-api-key", format!("{i}"))
            .header(AUTHORIZATION, format!("x{i} Bearer k"))
    });
    let got = statuses(&app, bogus).await;
    assert_eq!((&got[..5], &got[5..]), (&[401; 5][..], &[429; 25][..]));

    let spellings = ["Bearer k", "bearer k", "Bearer  k", "BEARER k"];
    let requests = spellings.iter().map(|claim| from("203.0.113.10").header(AUTHORIZATION, *claim));
    assert_eq!(statuses(&app, requests).await, [200, 200, 200, 429]);
    assert_eq!(seen.keys(), ["203.0.113.10", "203.0.113.9", "ann"]);
}

#[tokio::test]
async fn o_key_5_a_missing_identity_is_what_the_operator_says() {
    const BLANKS: [Option<&str>; 4] = [None, Some(""), Some("  "), Some("\t")];
    let limited = |missing: Option<Missing>| {
        Limited::new(|layer| {
            let layer = layer.policy(fixed(1, secs(60))).identity(Header::new("x-api-key").unwrap());
            match missing {
                Some(missing) => layer.missing(missing),
                None => layer,
            }
        })
    };
    let asking = |peer, key: Option<&str>| match key {
        Some(key) => from(peer).header("x-api-key", key),
        None => from(peer),
    };
    let rejected = Missing::Reject(StatusCode::UNAUTHORIZED);
    for (missing, expected, keys) in [
        (None, [200, 200, 200, 429], &["203.0.113.1", "203.0.113.2", "203.0.113.3"][..]),
        (Some(Missing::ByIp), [200, 200, 200, 429], &["203.0.113.1", "203.0.113.2", "203.0.113.3"]),
        (Some(Missing::Skip), [200, 200, 200, 200], &[]),
        (Some(rejected), [401, 401, 401, 401], &[]),
        (Some(Missing::Shared), [200, 429, 429, 429], &["none="]),
    ] {
        for blank in BLANKS {
            let limited = limited(missing);
            let peers = ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.1"];
            let got = statuses(&limited.service, peers.map(|peer| asking(peer, blank))).await;
            assert_eq!(got, expected, "{missing:?} {blank:?}");
            assert_eq!(limited.seen.keys(), keys, "{missing:?} {blank:?}");
            let hits = got.iter().filter(|status| **status == 200).count();
            assert_eq!(limited.handler.hits(), hits);
            // Whoever says who is asking is limited by that, and nobody else.
            let keyed = ["k", "k"].map(|key| asking("203.0.113.1", Some(key)));
            assert_eq!(limited.statuses(keyed).await, [200, 429], "{missing:?} {blank:?}");
        }
    }
}

#[tokio::test]
async fn o_key_5_a_request_that_is_rejected_has_no_limit_headers() {
    let limited = Limited::new(|layer| {
        let layer = layer.policy(fixed(1, secs(60))).identity(by_user());
        layer.missing(Missing::Reject(StatusCode::FORBIDDEN))
    });
    let rejected = ask(&limited.service, from("203.0.113.9")).await;
    assert_eq!((rejected.status, rejected.limit(), rejected.retry_after()), (403, None, None));
    assert!(rejected.body.is_empty());
}

#[tokio::test]
async fn o_key_6_an_account_name_is_one_account_where_that_is_asked_for() {
    let accounts =
        ["Ann@Example.org", "ann@example.org ", "jos\u{e9}@example.org", "jose\u{301}@example.org"];
    let limited = |identity| Limited::new(|layer| layer.policy(fixed(1, secs(60))).identity(identity));
    let asking = |name: &str| from("203.0.113.9").extension(User(Some(name.to_owned())));

    let preset = limited(by_user().normalize(normalize::account));
    assert_eq!(preset.statuses(accounts.map(asking)).await, [200, 429, 200, 429]);
    let exact = limited(by_user());
    assert_eq!(exact.statuses(accounts.map(asking)).await, [200; 4]);
    // The Turkish dotless i is a letter of its own.
    assert_eq!(preset.statuses(["ali", "al\u{131}"].map(asking)).await, [200, 200]);

    let header = Header::new("x-account").unwrap().normalize(normalize::account);
    let by_header = Limited::new(|layer| layer.policy(fixed(1, secs(60))).identity(header));
    let bytes =
        |bytes: &[u8]| from("203.0.113.9").header("x-account", http::HeaderValue::from_bytes(bytes).unwrap());
    let requests =
        [b"ANN".as_slice(), b"ann", b"\xff\xfe", b"\xff\xfe", "JOSÉ".as_bytes(), "josé".as_bytes()];
    assert_eq!(by_header.statuses(requests.map(bytes)).await, [200, 429, 200, 429, 200, 429]);
}

#[tokio::test]
async fn what_the_authentication_layer_verified_is_the_identity() {
    let limited = Limited::new(|layer| layer.policy(fixed(1, secs(60))).identity(by_user()));
    let user = |peer, name: &str| from(peer).extension(User(Some(name.to_owned())));
    let requests = [
        user("203.0.113.1", "ann"),
        user("203.0.113.2", "ann"),
        user("203.0.113.1", "bob"),
        // A name that reads like an address is not that address.
        user("203.0.113.1", "203.0.113.2"),
        from("203.0.113.2"),
    ];
    assert_eq!(limited.statuses(requests).await, [200, 429, 200, 200, 200]);
    assert_eq!(limited.seen.keys(), ["%3203.0.113.2", "203.0.113.2", "ann", "bob"]);
}

#[tokio::test]
async fn a_closure_can_say_who_is_asking() {
    let limited = Limited::new(|layer| {
        layer
            .policy(fixed(1, secs(60)))
            .identity(|head: &RequestHead<'_>| head.uri().query().map(str::to_owned))
    });
    let requests = ["/?ann", "/x?ann", "/?bob", "/", "/"].map(|path| get("203.0.113.9", path));
    assert_eq!(limited.statuses(requests).await, [200, 429, 200, 200, 429]);
}

#[tokio::test]
async fn kinds_of_identity_never_share_a_bucket() {
    let value = "203.0.113.9";
    let by: [Box<dyn Identify>; 5] = [
        Box::new(ClientIp::peer()),
        Box::new(Header::new("x-user").unwrap()),
        Box::new(Header::secret("x-user").unwrap()),
        Box::new(Host::new()),
        Box::new(by_user()),
    ];
    let mut keys = BTreeSet::new();
    for (i, identity) in by.into_iter().enumerate() {
        let limited = Limited::new(|layer| layer.policy(fixed(1, secs(60))).identity(identity));
        let request = from(value).header("x-user", value).header("host", value);
        assert_eq!(limited.ask(request.extension(User(Some(value.to_owned())))).await.status, 200);
        keys.extend(limited.seen.keys());
        assert_eq!(keys.len(), i + 1, "{keys:?}");
    }
}

#[tokio::test]
async fn an_invented_method_is_no_new_allowance() {
    let limited =
        Limited::new(|layer| layer.policy(fixed(1, secs(60))).identity((ClientIp::peer(), Method::new())));
    let methods = ["GET", "GET", "POST", "BREW", "STEEP", "get"];
    let requests = methods.map(|method| from("203.0.113.9").method(method));
    assert_eq!(limited.statuses(requests).await, [200, 429, 200, 200, 429, 429]);
}

#[tokio::test]
async fn o_log_2_a_secret_is_neither_in_a_key_nor_in_a_log() {
    const SECRET: &str = "live_ABC123";
    let plain = || Header::secret("x-api-key").unwrap();
    let keyed = || Header::new("x-api-key").unwrap().hmac(KeySecret::new("of the deployment"));
    let mut keys = BTreeSet::new();
    for identity in [plain(), keyed()] {
        let (logs, _guard) = Logs::capture();
        // Twice, as two replicas would: the same key on both.
        for _replica in 0..2 {
            let identity = identity.clone();
            let limited =
                Limited::new(|layer| layer.policy(fixed(1, secs(60)).block_for(secs(60))).identity(identity));
            let asking = || {
                get("203.0.113.9", "/x?api_key=live_ABC123")
                    .header("x-api-key", SECRET)
                    .header("cookie", "session=live_ABC123")
            };
            assert_eq!(limited.statuses([asking(), asking(), asking()]).await, [200, 429, 429]);
            keys.extend(limited.seen.keys());
        }
        // O-LOG-3: what is logged of a refusal names the policy and no more.
        assert!(logs.contains("policy=\"http\""), "{:?}", logs.lines());
        for secret in [SECRET, "203.0.113.9", "api_key", "session"] {
            assert!(!logs.contains(secret), "{secret}: {:?}", logs.matching(secret));
        }
    }
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys.iter().all(|key| !key.contains(SECRET)), "{keys:?}");
    let hashed = ["hmac.header.x-api-key=", "sha256.header.x-api-key="];
    assert!(keys.iter().zip(hashed).all(|(key, kind)| key.len() == kind.len() + 32 && key.starts_with(kind)));
}
