//! Limits by client address, and who can choose it.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::connect_info::MockConnectInfo;
use http::Request;
use http::request::Builder;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tower_ratelimit::identity::{All, ClientIp, Constant, FirstOf, Header, Scoped};
use tower_ratelimit::test_util::namespace;
use tower_ratelimit::{RateLimitLayer, RateLimiter};

use crate::harness::{Handler, Limited, ask, ask_over, fixed, from, limiter, named, secs};
use crate::support::Logs;

const PROXY: &str = "10.0.0.5";

fn limited(limit: u64, clients: ClientIp) -> Limited {
    Limited::new(|layer| layer.policy(fixed(limit, secs(60))).client_ip(clients))
}

fn behind_proxy(limit: u64) -> Limited {
    limited(limit, ClientIp::behind(["10.0.0.0/8"]).unwrap())
}

fn forwarded(entries: &str) -> Builder {
    from(PROXY).header("x-forwarded-for", entries)
}

#[tokio::test]
async fn o_ip_1_leftmost_forwarded_entry_is_chosen_by_the_attacker() {
    let limited = behind_proxy(3);
    let requests = (1..=5).map(|i| forwarded(&format!("198.51.100.{i}, 203.0.113.9")));
    assert_eq!(limited.statuses(requests).await, [200, 200, 200, 429, 429]);
    assert_eq!(limited.seen.keys(), ["203.0.113.9"]);
    assert_eq!(limited.ask(forwarded("198.51.100.1")).await.remaining(), Some(2), "never touched");
}

#[tokio::test]
async fn o_ip_2_header_honoured_from_a_peer_that_is_no_proxy() {
    for limited in [behind_proxy(3), Limited::by(fixed(3, secs(60)))] {
        let requests = (1..=5).map(|i| {
            let claim = format!("198.51.100.{i}");
            from("203.0.113.50")
                .header("x-forwarded-for", &claim)
                .header("x-real-ip", &claim)
                .header("forwarded", format!("for={claim}"))
                .header("cf-connecting-ip", &claim)
        });
        assert_eq!(limited.statuses(requests).await, [200, 200, 200, 429, 429]);
        assert_eq!(limited.seen.keys(), ["203.0.113.50"]);
    }
}

#[tokio::test]
async fn o_ip_3_proxy_that_writes_ip_and_port() {
    let limited = behind_proxy(3);
    let requests = (1..=4).map(|i| forwarded(&format!("203.0.113.9:5224{i}")));
    assert_eq!(limited.statuses(requests).await, [200, 200, 200, 429]);
    for (entry, remaining) in [("[2001:db8::9]:443", 2), ("2001:db8::9", 1), ("203.0.113.10:1", 2)] {
        assert_eq!(limited.ask(forwarded(entry)).await.remaining(), Some(remaining), "{entry}");
    }
    assert_eq!(limited.seen.keys(), ["2001:db8::/64", "203.0.113.10", "203.0.113.9"]);
}

#[tokio::test]
async fn o_ip_4_proxy_adds_a_second_header_line() {
    let limited = behind_proxy(3);
    let requests =
        (1..=4).map(|i| forwarded(&format!("198.51.100.{i}")).header("x-forwarded-for", "203.0.113.9"));
    assert_eq!(limited.statuses(requests).await, [200, 200, 200, 429]);
    assert_eq!(limited.seen.keys(), ["203.0.113.9"]);
}

#[tokio::test]
async fn o_ip_5_a_mapped_peer_is_its_ipv4_address() {
    let limited = limited(1, ClientIp::behind(["10.42.0.0/16"]).unwrap());
    let through = |client| from("::ffff:10.42.0.1").header("x-forwarded-for", client);
    let requests = ["203.0.113.9", "203.0.113.10", "203.0.113.9"].map(through);
    assert_eq!(limited.statuses(requests).await, [200, 200, 429]);
    assert_eq!(limited.seen.keys(), ["203.0.113.10", "203.0.113.9"]);
}

#[tokio::test]
async fn o_ip_5_over_a_dual_stack_listener() {
    let (limiter, _, seen) = limiter();
    let layer = RateLimitLayer::builder(limiter)
        .policy(fixed(1, secs(60)))
        .client_ip(ClientIp::behind(["127.0.0.0/8"]).unwrap())
        .build()
        .unwrap();
    let app = Router::new().route_service("/", Handler::new()).layer(layer);
    let listener = TcpListener::bind("[::]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });

    let mut got = Vec::new();
    for client in ["203.0.113.9", "203.0.113.10", "203.0.113.9"] {
        let connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        got.push(ask_over(connection, &format!("x-forwarded-for: {client}\r\n")).await);
    }
    server.abort();
    assert_eq!(got, [200, 200, 429]);
    assert_eq!(seen.keys(), ["203.0.113.10", "203.0.113.9"]);
}

#[tokio::test]
async fn o_ip_6_garbage_in_the_header_is_no_error_and_no_key() {
    let limited = behind_proxy(100);
    let long = "A".repeat(8 * 1024);
    let unreadable = [
        "'{${print(1)}}'",
        "",
        ",",
        "unknown",
        "_hidden",
        "203.0.113.9,",
        "203.0.113.999",
        "203.0.113.9, unknown",
        "203.0.113.9, \"",
        &long,
    ];
    for entries in unreadable {
        assert_eq!(limited.ask(forwarded(entries)).await.status, 200);
        assert_eq!(limited.seen.count("odd unreadable"), 1, "{entries:.40}");
    }
    // Bytes that are no text at all.
    let binary = http::HeaderValue::from_bytes(b"\xff\xfe, 203.0.113.9\x80").unwrap();
    assert_eq!(limited.ask(from(PROXY).header("x-forwarded-for", binary)).await.status, 200);
    assert_eq!(limited.seen.keys(), [PROXY], "the last hop that is certain");

    assert_eq!(limited.ask(forwarded(" , 203.0.113.9")).await.status, 200);
    assert_eq!(limited.seen.keys(), [PROXY, "203.0.113.9"]);
}

#[tokio::test]
async fn o_ip_7_no_peer_address_is_one_bucket_and_one_error_a_minute() {
    let (logs, _guard) = Logs::capture();
    let limited = Limited::by(fixed(1, secs(60)));
    let errors = || logs.lines().iter().filter(|line| line.starts_with("ERROR")).count();
    let no_peer = || Request::get("/");

    assert_eq!(limited.statuses([no_peer(), no_peer(), no_peer()]).await, [200, 429, 429]);
    assert_eq!(limited.seen.keys(), ["peer=none"]);
    let told = "misconfigured no_peer_address";
    assert_eq!((errors(), limited.seen.count(told)), (1, 1));
    assert!(logs.contains("into_make_service_with_connect_info::<SocketAddr>()"), "names the line to add");

    // Told again every minute while it lasts.
    limited.advance(59_999);
    assert_eq!(limited.statuses([no_peer(), no_peer()]).await, [429, 429]);
    assert_eq!((errors(), limited.seen.count(told)), (1, 0));
    limited.advance(1);
    assert_eq!(limited.statuses([no_peer(), no_peer()]).await, [200, 429]);
    assert_eq!((errors(), limited.seen.count(told)), (2, 1));

    // Mended once it was not seen for a minute.
    limited.advance(59_999);
    assert_eq!(limited.ask(from("203.0.113.9")).await.status, 200);
    assert_eq!(limited.seen.told(), [""; 0]);
    limited.advance(1);
    assert_eq!(limited.ask(from("203.0.113.10")).await.status, 200);
    assert_eq!(limited.seen.told(), ["mended no_peer_address"]);
    // And it begins anew.
    assert_eq!(limited.ask(no_peer()).await.status, 200);
    assert_eq!(limited.seen.count(told), 1);
}

#[tokio::test]
async fn o_ip_7_over_a_unix_socket() {
    for (clients, expected, errors) in
        [(ClientIp::peer(), [200, 429], 1), (ClientIp::peer().trust_unix_socket(), [200, 200], 0)]
    {
        let (logs, _guard) = Logs::capture();
        let layer = RateLimitLayer::builder(RateLimiter::memory())
            .policy(fixed(1, secs(60)))
            .client_ip(clients)
            .build()
            .unwrap();
        let app = Router::new().route_service("/", Handler::new()).layer(layer);
        let path = std::env::temp_dir().join(namespace());
        let listener = UnixListener::bind(&path).unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });

        let mut got = Vec::new();
        for client in ["203.0.113.9", "203.0.113.10"] {
            let connection = UnixStream::connect(&path).await.unwrap();
            got.push(ask_over(connection, &format!("x-forwarded-for: {client}\r\n")).await);
        }
        server.abort();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(got, expected);
        let told = logs.matching("no_peer_address");
        assert_eq!(told.len(), errors, "{told:?}");
    }
}

#[tokio::test]
async fn o_ip_8_only_the_configured_header_is_ever_read() {
    let limited = behind_proxy(2);
    let requests = (1..=3).map(|i| {
        from(PROXY)
            .header("x-real-ip", format!("198.51.100.{i}"))
            .header("forwarded", format!("for=198.51.100.{i}"))
    });
    assert_eq!(limited.statuses(requests).await, [200, 200, 429]);
    assert_eq!(limited.seen.keys(), [PROXY]);
}

#[tokio::test]
async fn o_v6_1_rotating_inside_one_64_is_one_client() {
    let limited = Limited::by(fixed(3, secs(60)));
    let requests = (1..=5).map(|i| from(&format!("2001:db8:1:2::{i}")));
    assert_eq!(limited.statuses(requests).await, [200, 200, 200, 429, 429]);
    assert_eq!(limited.ask(from("2001:db8:1:3::1")).await.remaining(), Some(2));
    assert_eq!(limited.seen.keys(), ["2001:db8:1:2::/64", "2001:db8:1:3::/64"]);
}

#[tokio::test]
async fn o_v6_2_grouping_does_not_swallow_mapped_ipv4() {
    let limited = Limited::by(fixed(1, secs(60)));
    let peers = ["::ffff:203.0.113.9", "::ffff:cb00:7109", "203.0.113.9", "::ffff:203.0.113.10"];
    assert_eq!(limited.statuses(peers.map(from)).await, [200, 429, 429, 200]);
    assert_eq!(limited.seen.keys(), ["203.0.113.10", "203.0.113.9"]);
}

#[tokio::test]
async fn o_v6_3_prefix_lengths_are_configuration() {
    let prefixed = limited(1, ClientIp::peer().ipv6_prefix(56).unwrap().ipv4_prefix(24).unwrap());
    let peers = [
        ("2001:db8:0:100::1", 200),
        ("2001:db8:0:1ff::1", 429),
        ("2001:db8:0:200::1", 200),
        ("203.0.113.9", 200),
        ("203.0.113.200", 429),
        ("203.0.114.9", 200),
    ];
    for (peer, expected) in peers {
        assert_eq!(prefixed.ask(from(peer)).await.status, expected, "{peer}");
    }
    let whole = limited(1, ClientIp::peer().ipv6_prefix(128).unwrap());
    assert_eq!(whole.statuses(["2001:db8::1", "2001:db8::2"].map(from)).await, [200, 200]);
    for bits in [0, 129] {
        let error = ClientIp::peer().ipv6_prefix(bits).unwrap_err().to_string();
        assert!(error.starts_with(&format!("ipv6_prefix: {bits} ")), "{error}");
    }
}

#[tokio::test]
async fn o_blk_4_a_proxy_that_nobody_named_is_noticed_when_it_is_refused() {
    let (logs, _guard) = Logs::capture();
    let limited = Limited::by(fixed(10, secs(60)));
    let requests =
        (0..60).map(|i| from("198.51.100.7").header("x-forwarded-for", format!("203.0.113.{}", i % 50)));
    let got = limited.statuses(requests).await;
    assert_eq!(got.iter().filter(|status| **status == 429).count(), 50);
    let told = limited.seen.told();
    let count = |news| told.iter().filter(|told| *told == news).count();
    assert_eq!(count("odd untrusted_forwarded"), 50, "each refusal is counted");
    assert_eq!(count("misconfigured untrusted_forwarding"), 1);
    assert_eq!(logs.matching("untrusted_forwarding").len(), 1, "one event");
    assert!(!logs.contains("198.51.100.7") && !logs.contains("203.0.113."), "without an address");
}

#[tokio::test]
async fn o_blk_4_a_private_peer_with_the_header_is_noticed_at_once_and_once() {
    let limited = Limited::by(fixed(1, secs(60)));
    for expected in [200, 429] {
        let answer = limited.ask(from("192.168.0.7").header("x-forwarded-for", "203.0.113.9")).await;
        assert_eq!(answer.status, expected);
        let told = limited.seen.told();
        let odd: Vec<_> = told.iter().filter(|told| told.starts_with("odd")).collect();
        assert_eq!(odd, ["odd untrusted_forwarded"], "{expected}");
    }
    // A public one without a refusal is nothing to speak of: anyone may send it.
    let public = from("203.0.113.50").header("x-forwarded-for", "203.0.113.9");
    assert_eq!(limited.ask(public).await.status, 200);
    assert_eq!(limited.seen.told(), [""; 0]);
}

#[tokio::test]
async fn o_blk_4_the_operators_own_header_is_noticed_as_well() {
    let by_own_header = ClientIp::behind(["10.0.0.0/8"]).unwrap().header("x-client-ip").unwrap();
    let limited = Limited::new(|layer| layer.policy(fixed(1, secs(60))).identity(by_own_header));
    for expected in [200, 429] {
        let request = from("198.51.100.7").header("x-client-ip", "203.0.113.9");
        assert_eq!(limited.ask(request).await.status, expected);
    }
    assert!(limited.seen.told().contains(&"odd untrusted_forwarded".to_owned()));
}

#[tokio::test]
async fn the_layers_identity_says_how_addresses_are_found_elsewhere() {
    let behind = || ClientIp::behind(["10.0.0.0/8"]).unwrap();
    let by_account = || (Header::new("x-account").unwrap(), behind());
    let client = |ip: &str| from("10.0.0.5").header("x-forwarded-for", ip.to_owned());

    let skips = Limited::new(|layer| {
        layer.policy(fixed(1, secs(60))).identity(by_account()).skip_ips(["203.0.113.0/24"])
    });
    for (ip, second) in [("203.0.113.9", 200), ("198.51.100.1", 429)] {
        assert_eq!(skips.ask(client(ip)).await.status, 200);
        assert_eq!(skips.ask(client(ip)).await.status, second, "{ip}");
    }

    let header = || FirstOf::new().or(Header::new("x-account").unwrap()).or(behind());
    let missing = Limited::new(|layer| {
        layer
            .policy_by(fixed(9, secs(60)), header())
            .policy_by(named("key", 1, secs(60)), Header::new("x-key").unwrap())
    });
    for ip in ["203.0.113.9", "203.0.113.10"] {
        assert_eq!(missing.ask(client(ip)).await.status, 200, "{ip} is not the proxy's bucket");
    }
}

#[tokio::test]
async fn o_blk_4_addresses_can_be_limited_but_never_blocked() {
    let edge = || ClientIp::peer().never_block(["198.51.100.0/24"]).unwrap();
    let identities: [fn(ClientIp) -> All; 2] = [
        |edge| All::new().part(edge).part(Constant::new("use", "login")),
        |edge| All::new().part(Scoped::new("global", edge)),
    ];
    let plain = limited_and_blocking(|layer| layer.client_ip(edge()));
    let composites =
        identities.map(|identity| limited_and_blocking(|layer| layer.identity(identity(edge()))));
    for limited in [plain].into_iter().chain(composites) {
        for (peer, wait) in [("198.51.100.7", 60), ("203.0.113.9", 3600)] {
            assert_eq!(limited.ask(from(peer)).await.status, 200);
            let refused = limited.ask(from(peer)).await;
            assert_eq!((refused.status, refused.retry_after()), (429, Some(wait)), "{peer}");
        }
        assert_eq!(limited.seen.count("http blocked"), 1);
    }
}

fn limited_and_blocking(
    set: impl FnOnce(
        tower_ratelimit::middleware::RateLimitLayerBuilder,
    ) -> tower_ratelimit::middleware::RateLimitLayerBuilder,
) -> Limited {
    Limited::new(|layer| set(layer.policy(fixed(1, secs(60)).block_for(secs(3600)))))
}

#[tokio::test]
async fn behind_a_cdn_only_its_own_hop_may_name_the_client() {
    let clients = ClientIp::behind(["10.0.0.0/8"]).unwrap();
    let limited = limited(1, clients.cdn(["198.51.100.0/24"], "cf-connecting-ip").unwrap());
    let through = |hop: &str, client: &str| forwarded(hop).header("cf-connecting-ip", client);
    let requests = [
        through("198.51.100.7", "203.0.113.9"),
        through("198.51.100.8", "203.0.113.9"),
        through("198.51.100.8", "203.0.113.10"),
        // Past the CDN: the header is the client's own claim.
        through("203.0.113.66", "203.0.113.11"),
        through("203.0.113.66", "203.0.113.12"),
    ];
    assert_eq!(limited.statuses(requests).await, [200, 429, 200, 200, 429]);
    assert_eq!(limited.seen.keys(), ["203.0.113.10", "203.0.113.66", "203.0.113.9"]);
    assert_eq!(limited.seen.count("odd past_cdn"), 2);
}

#[tokio::test]
async fn behind_a_number_of_hops_the_entry_at_that_place_is_the_client() {
    let limited = limited(1, ClientIp::hops(2).unwrap());
    let requests = ["198.51.100.1, 203.0.113.9, 10.0.0.7", "203.0.113.9, 10.9.9.9", "203.0.113.9"];
    assert_eq!(limited.statuses(requests.map(forwarded)).await, [200, 429, 200]);
    assert_eq!(limited.seen.keys(), [PROXY, "203.0.113.9"]);
    assert_eq!(limited.seen.count("odd short_chain"), 1);
}

#[tokio::test]
async fn a_bare_address_in_the_extensions_is_a_peer_too() {
    let limited = Limited::by(fixed(3, secs(60)));
    let ip: std::net::IpAddr = "203.0.113.9".parse().unwrap();
    let peers = [
        Request::get("/").extension(ip),
        Request::get("/").extension(SocketAddr::new(ip, 7)),
        Request::get("/").extension(MockConnectInfo(SocketAddr::new(ip, 7))),
    ];
    for peer in peers {
        assert_eq!(ask(&limited.service, peer).await.status, 200);
    }
    assert_eq!(limited.seen.keys(), ["203.0.113.9"]);
}
