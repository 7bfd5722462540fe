//! The gRPC service on the same port, under the same limit.

use std::time::Duration;

use grpc::{GreeterClient, HelloRequest};
use tonic::Code;
use tonic_types::StatusExt;

use crate::gateway::Gateway;

#[tokio::test(flavor = "multi_thread")]
async fn o_grpc_1_calls_and_pages_share_one_limit_and_a_call_is_refused_as_one() {
    let gateway = Gateway::start(&[("MCP_RATE_LIMIT_MAX", "2")]);
    assert_eq!(gateway.get("/").number("x-ratelimit-remaining"), 1);

    let mut client = GreeterClient::connect(format!("http://{}", gateway.addr())).await.unwrap();
    let ann = || HelloRequest { name: "Ann".to_owned() };
    let reply = client.say_hello(ann()).await.unwrap();
    assert_eq!(reply.metadata().get("x-ratelimit-remaining").unwrap(), "0");
    assert_eq!(reply.into_inner().message, "hello, Ann");

    let refused = client.say_hello(ann()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let delay = refused.get_error_details().retry_info().unwrap().retry_delay.unwrap();
    assert!(delay > Duration::from_secs(50) && delay <= Duration::from_secs(60), "{delay:?}");
    assert_eq!(gateway.get("/").status, 429);
    assert_eq!(gateway.get("/decision").json()["allowed"], false);
}
