//! The form of a refusal: JSON, problem details, gRPC, or one's own.

use bytes::Bytes;
use http::request::Builder;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tower_ratelimit::identity::Header;
use tower_ratelimit::middleware::Missing;
use tower_ratelimit::response::{Json, Negotiated, Problem, Refused, Reply};

use crate::harness::{Answer, Limited, ask, fixed, from, millis, named, secs};

const QUOTA: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

fn refusing() -> Limited {
    Limited::by(fixed(0, secs(37)))
}

fn accepting(accept: &str) -> Builder {
    from("203.0.113.9").header("accept", accept)
}

fn call(content_type: &str) -> Builder {
    from("203.0.113.9").method("POST").header("content-type", content_type)
}

fn body(answer: &Answer) -> Value {
    serde_json::from_slice(&answer.body).unwrap()
}

#[tokio::test]
async fn who_prefers_problem_details_gets_them() {
    let refused = refusing().ask(accepting("application/problem+json, application/json;q=0.5")).await;
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!((refused.header("cache-control"), refused.retry_after()), (Some("no-store"), Some(37)));
    let expected = json!({
        "type": QUOTA,
        "title": "Quota Exceeded",
        "status": 429,
        "detail": "limit of 0 per 37s of policy http reached, retry in 37 s",
        "violated-policies": ["http"],
    });
    assert_eq!(body(&refused), expected);
}

#[tokio::test]
async fn everybody_else_gets_plain_json() {
    for accept in ["*/*", "application/json", "text/html", "application/json, application/problem+json"] {
        let refused = refusing().ask(accepting(accept)).await;
        assert_eq!(refused.header("content-type"), Some("application/json"), "{accept}");
        assert_eq!(body(&refused)["retryAfter"], 37);
    }
}

#[tokio::test]
async fn problem_details_can_be_the_only_form_and_so_can_json() {
    let problem = Limited::new(|layer| layer.policy(fixed(0, secs(37))).reply(Problem));
    let refused = problem.ask(accepting("application/json")).await;
    assert_eq!(body(&refused)["type"], QUOTA);
    let json = Limited::new(|layer| layer.policy(fixed(0, secs(37))).reply(Json));
    let refused = json.ask(accepting("application/problem+json")).await;
    assert_eq!(body(&refused)["success"], false);
}

#[tokio::test]
async fn problem_details_name_every_policy_that_refuses() {
    let policies = [
        named("a", 1, secs(10)),
        named("b", 9, secs(60)),
        named("tried", 1, secs(9)).shadow(),
        named("c", 1, secs(60)),
    ];
    let limited =
        Limited::new(|layer| policies.into_iter().fold(layer.reply(Problem), |layer, p| layer.policy(p)));
    assert_eq!(limited.ask(from("203.0.113.9")).await.status, 200);
    let refused = limited.ask(from("203.0.113.9")).await;
    assert_eq!(body(&refused)["violated-policies"], json!(["a", "c"]));
    assert_eq!(refused.retry_after(), Some(60));
}

#[tokio::test]
async fn o_grpc_1_a_call_is_refused_as_a_call_by_every_built_in_reply() {
    let limited = |reply: fn(&Refused<'_>) -> Response<Bytes>| {
        Limited::new(move |layer| layer.policy(fixed(1, millis(37_500))).reply(reply))
    };
    let with = [
        Limited::by(fixed(1, millis(37_500))),
        limited(|refused| Negotiated.refuse(refused)),
        limited(|refused| Problem.refuse(refused)),
        limited(|refused| Json.refuse(refused)),
    ];
    for limited in with {
        assert_eq!(limited.ask(call("application/grpc")).await.status, 200);
        limited.advance(1);
        for (content_type, answered) in [
            ("application/grpc", "application/grpc"),
            ("application/grpc+proto", "application/grpc"),
            ("application/grpc-web-text", "application/grpc-web-text"),
        ] {
            let refused = ask(&limited.service, call(content_type)).await;
            assert_eq!((refused.status, &refused.body[..]), (200, &b""[..]), "trailers-only");
            assert_eq!(refused.header("content-type"), Some(answered));
            assert_eq!(refused.number("grpc-status"), Some(8));
            assert_eq!(refused.number("grpc-retry-pushback-ms"), Some(37_499));
            assert_eq!(
                refused.header("grpc-message"),
                Some("limit of 1 per 37s 500ms of policy http reached, retry in 38 s")
            );
            assert_eq!(
                (refused.limit(), refused.remaining(), refused.retry_after()),
                (Some(1), Some(0), Some(38))
            );
            assert_eq!(refused.header("grpc-status-details-bin").is_some(), cfg!(feature = "tonic"));
        }
        assert_eq!(limited.handler.hits(), 1);
        assert_eq!(ask(&limited.service, from("203.0.113.9")).await.status, 429, "the same count");
    }
}

#[tokio::test]
async fn a_call_without_an_identity_is_turned_away_as_a_call() {
    for (status, code) in [(401, 16), (403, 7), (400, 3)] {
        let limited = Limited::new(|layer| {
            layer
                .policy(fixed(1, secs(60)))
                .identity(Header::new("x-api-key").unwrap())
                .missing(Missing::Reject(StatusCode::from_u16(status).unwrap()))
        });
        let refused = ask(&limited.service, call("application/grpc")).await;
        assert_eq!((refused.status, refused.number("grpc-status")), (200, Some(code)));
        let refused = ask(&limited.service, from("203.0.113.9")).await;
        assert_eq!((refused.status, refused.header("grpc-status")), (status, None));
        assert_eq!(limited.handler.hits(), 0);
    }
}

#[tokio::test]
async fn a_reply_of_ones_own_sees_the_request_and_can_hand_over() {
    #[derive(Clone)]
    struct Tenant(&'static str);

    let reply = |refused: &Refused<'_>| match refused.head().extensions().get::<Tenant>() {
        Some(Tenant(name)) if !refused.is_grpc() => Response::new(Bytes::from_static(name.as_bytes())),
        _ => Negotiated.refuse(refused),
    };
    let limited = Limited::new(|layer| layer.policy(fixed(0, secs(60))).reply(reply));
    let own = ask(&limited.service, from("203.0.113.9").extension(Tenant("acme"))).await;
    assert_eq!((own.status, &own.body[..], own.retry_after()), (200, &b"acme"[..], Some(60)));
    assert_eq!(own.header("cache-control"), None, "what is no refusal by its status is the reply's own");
    assert_eq!(ask(&limited.service, from("203.0.113.9")).await.status, 429);
    let grpc = ask(&limited.service, call("application/grpc").extension(Tenant("acme"))).await;
    assert_eq!(grpc.number("grpc-status"), Some(8));
}

#[tokio::test]
async fn no_cache_stores_a_429_whoever_wrote_it() {
    let reply = |own: Option<&'static str>| {
        move |refused: &Refused<'_>| {
            let response = Response::builder().status(refused.status());
            let response =
                own.into_iter().fold(response, |response, own| response.header("cache-control", own));
            response.body(Bytes::new()).unwrap()
        }
    };
    for (own, expected) in [(None, "no-store"), (Some("private"), "private")] {
        let limited = Limited::new(|layer| layer.policy(fixed(0, secs(60))).reply(reply(own)));
        assert_eq!(limited.ask(from("203.0.113.9")).await.header("cache-control"), Some(expected));
    }
}

#[tokio::test]
async fn o_str_2_an_event_source_can_be_told_to_come_back() {
    let reply = |refused: &Refused<'_>| {
        let wait = refused.decision().retry_after().unwrap().as_millis();
        let stream = Response::builder().header("content-type", "text/event-stream");
        stream.body(Bytes::from(format!("retry: {wait}\n\n"))).unwrap()
    };
    let by_default = Limited::by(fixed(1, secs(2)));
    let told = Limited::new(|layer| layer.policy(fixed(1, secs(2))).reply(reply));
    for limited in [&by_default, &told] {
        assert_eq!(ask(&limited.service, accepting("text/event-stream")).await.status, 200);
    }
    let refused = ask(&by_default.service, accepting("text/event-stream")).await;
    assert_eq!((refused.status, refused.retry_after()), (429, Some(2)));
    let refused = ask(&told.service, accepting("text/event-stream")).await;
    assert_eq!((refused.status, &refused.body[..]), (200, &b"retry: 2000\n\n"[..]));
    assert_eq!((by_default.handler.hits(), told.handler.hits()), (1, 1));
}
