use http::{HeaderValue, Request};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::identity::{Hop, HopVerdict, Notes};

const XFF: &str = "x-forwarded-for";

fn request(peer: Option<&str>, headers: &[(&str, &[u8])]) -> Request<()> {
    let mut request = Request::new(());
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
    }
    for (name, value) in headers {
        let name = HeaderName::try_from(*name).unwrap();
        request.headers_mut().append(name, HeaderValue::from_bytes(value).unwrap());
    }
    request
}

/// What is enforced; and that the explanation says the same.
fn identify(clients: &ClientIp, request: &Request<()>) -> (String, Notes) {
    let head = RequestHead::new(request);
    let Identified::Known(key, notes) = clients.identify(&head, Key::builder()) else {
        panic!("a client address is never missing");
    };
    let key = key.finish();
    let explanation = clients.explain(&head);
    assert_eq!(explanation.identity(), key.as_str());
    assert_eq!(explanation.notes(), notes);
    (key.as_str().to_owned(), notes)
}

/// One case: the client that `clients` sees, and what was odd.
#[track_caller]
fn check(clients: &ClientIp, peer: &str, headers: &[(&str, &str)], key: &str, notes: Notes) {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
    let peer = Some(peer).filter(|peer| !peer.is_empty());
    let found = identify(clients, &request(peer, &headers));
    assert_eq!(found, (key.to_owned(), notes), "{headers:?}");
}

fn quiet() -> Notes {
    Notes::default()
}

fn behind_ten() -> ClientIp {
    ClientIp::behind(["10.0.0.0/8"]).unwrap()
}

#[test]
fn o_ip_1_the_client_is_the_rightmost_entry_that_is_no_proxy() {
    let clients = behind_ten();
    for i in 1..=5 {
        let chain = format!("198.51.100.{i}, 203.0.113.9");
        check(&clients, "10.0.0.5", &[(XFF, &chain)], "203.0.113.9", quiet());
    }
    check(&clients, "10.0.0.5", &[(XFF, "198.51.100.1")], "198.51.100.1", quiet());
    check(&clients, "10.0.0.5", &[(XFF, "198.51.100.1, 203.0.113.9, 10.0.0.6")], "203.0.113.9", quiet());
    // Nobody but proxies: the leftmost asks on its own account.
    check(&clients, "10.0.0.5", &[(XFF, "10.0.0.7, 10.0.0.6")], "10.0.0.7", quiet());
    check(&clients, "10.0.0.5", &[], "10.0.0.5", quiet());
}

#[test]
fn o_ip_2_a_peer_that_is_no_proxy_is_the_client() {
    let headers = [
        (XFF, "198.51.100.1"),
        ("x-real-ip", "198.51.100.2"),
        ("forwarded", "for=198.51.100.3"),
        ("cf-connecting-ip", "198.51.100.4"),
    ];
    for clients in [behind_ten(), ClientIp::peer(), ClientIp::default(), ClientIp::behind([""; 0]).unwrap()] {
        check(&clients, "203.0.113.50", &headers, "203.0.113.50", quiet());
    }
}

#[test]
fn o_ip_3_proxy_that_writes_ip_and_port() {
    for entry in ["203.0.113.9:52241", "203.0.113.9:52242", "203.0.113.9"] {
        check(&behind_ten(), "10.0.0.5", &[(XFF, entry)], "203.0.113.9", quiet());
    }
    for entry in ["[2001:db8::9]:443", "2001:db8::9", "[2001:db8::9]"] {
        check(&behind_ten(), "10.0.0.5", &[(XFF, entry)], "2001:db8::/64", quiet());
    }
}

#[test]
fn o_ip_4_a_second_line_is_joined_behind_the_first() {
    for i in 1..=4 {
        let own = format!("198.51.100.{i}");
        check(&behind_ten(), "10.0.0.5", &[(XFF, &own), (XFF, "203.0.113.9")], "203.0.113.9", quiet());
    }
}

#[test]
fn o_ip_5_mapped_ipv4_is_ipv4_in_peers_entries_and_ranges() {
    for range in ["10.42.0.0/16", "::ffff:10.42.0.0/112", "::ffff:a2a:1"] {
        let clients = ClientIp::behind([range]).unwrap();
        for peer in ["10.42.0.1", "::ffff:10.42.0.1"] {
            check(&clients, peer, &[(XFF, "203.0.113.9")], "203.0.113.9", quiet());
            check(&clients, peer, &[(XFF, "203.0.113.10, ::ffff:10.42.0.1")], "203.0.113.10", quiet());
        }
    }
    check(&ClientIp::peer(), "::ffff:203.0.113.9", &[], "203.0.113.9", quiet());
}

#[test]
fn o_ip_6_an_unreadable_entry_ends_the_walk() {
    let long = "A".repeat(8 * 1024);
    for garbage in [
        "'{${print(1)}}'",
        "",
        ",",
        "unknown",
        "_hidden",
        "203.0.113.9,",
        "203.0.113.999",
        "198.51.100.1, unknown",
        &long,
    ] {
        check(&behind_ten(), "10.0.0.5", &[(XFF, garbage)], "10.0.0.5", Notes::UNREADABLE);
    }
    check(&behind_ten(), "10.0.0.5", &[(XFF, " , 203.0.113.9")], "203.0.113.9", quiet());
    // The last hop that a proxy vouched for, not the peer and nothing further left.
    let chain = "198.51.100.1, unknown, 10.0.0.6";
    check(&behind_ten(), "10.0.0.5", &[(XFF, chain)], "10.0.0.6", Notes::UNREADABLE);
}

#[test]
fn o_ip_7_without_a_peer_address_there_is_one_bucket() {
    for clients in [behind_ten(), ClientIp::peer(), ClientIp::hops(1).unwrap()] {
        check(&clients, "", &[(XFF, "203.0.113.9")], "peer=none", Notes::NO_PEER);
        check(&clients, "", &[], "peer=none", Notes::NO_PEER);
    }
}

#[test]
fn o_ip_7_a_trusted_unix_socket_is_a_proxy() {
    let clients = ClientIp::peer().trust_unix_socket();
    check(&clients, "", &[(XFF, "198.51.100.1, 203.0.113.9")], "203.0.113.9", quiet());
    check(&clients, "", &[], "peer=none", Notes::NO_PEER);
    check(&clients, "", &[(XFF, "unknown")], "peer=none", Notes::NO_PEER.with(Notes::UNREADABLE));
    // One with an address is judged by it.
    check(&clients, "203.0.113.50", &[(XFF, "198.51.100.1")], "203.0.113.50", quiet());

    let clients = behind_ten().trust_unix_socket();
    check(&clients, "", &[(XFF, "203.0.113.9, 10.0.0.5")], "203.0.113.9", quiet());
    let clients = ClientIp::hops(2).unwrap().trust_unix_socket();
    check(&clients, "", &[(XFF, "203.0.113.9, 192.0.2.1")], "203.0.113.9", quiet());
    check(&clients, "", &[(XFF, "203.0.113.9")], "peer=none", Notes::NO_PEER.with(Notes::SHORT_CHAIN));
}

#[test]
fn o_ip_8_only_the_configured_header_is_read() {
    for i in 1..=3 {
        let other = format!("198.51.100.{i}");
        let headers = [("x-real-ip", &other[..]), ("forwarded", "for=198.51.100.9")];
        check(&behind_ten(), "10.0.0.5", &headers, "10.0.0.5", quiet());
    }
    let clients = behind_ten().header("X-Real-IP").unwrap();
    check(&clients, "10.0.0.5", &[(XFF, "198.51.100.1")], "10.0.0.5", quiet());
    check(&clients, "10.0.0.5", &[("x-real-ip", "203.0.113.9")], "203.0.113.9", quiet());
    let twice = [("x-real-ip", "198.51.100.1"), ("x-real-ip", "203.0.113.9")];
    check(&clients, "10.0.0.5", &twice, "10.0.0.5", Notes::UNREADABLE);
}

#[test]
fn forwarded_is_walked_as_a_list() {
    let clients = behind_ten().header("Forwarded").unwrap();
    let chain = "for=198.51.100.1, For=\"[2001:db8::9]:4711\";proto=https, for=10.0.0.6;by=\"x,y\"";
    check(&clients, "10.0.0.5", &[("forwarded", chain)], "2001:db8::/64", quiet());
    check(&clients, "10.0.0.5", &[("forwarded", "for=1.1.1.1;for=2.2.2.2")], "10.0.0.5", Notes::UNREADABLE);
}

#[test]
fn o_v6_1_addresses_of_one_network_are_one_client() {
    for i in 1..=5 {
        check(&ClientIp::peer(), &format!("2001:db8:1:2::{i}"), &[], "2001:db8:1:2::/64", quiet());
    }
    check(&ClientIp::peer(), "2001:db8:1:3::1", &[], "2001:db8:1:3::/64", quiet());
}

#[test]
fn o_v6_2_mapped_ipv4_is_not_grouped() {
    for entry in ["::ffff:203.0.113.9", "::ffff:cb00:7109", "203.0.113.9"] {
        check(&ClientIp::peer(), entry, &[], "203.0.113.9", quiet());
        check(&behind_ten(), "10.0.0.5", &[(XFF, entry)], "203.0.113.9", quiet());
    }
    check(&ClientIp::peer(), "::ffff:203.0.113.10", &[], "203.0.113.10", quiet());
}

#[test]
fn o_v6_3_prefix_lengths_are_configuration() {
    let clients = ClientIp::peer().ipv6_prefix(56).unwrap();
    check(&clients, "2001:db8:0:100::1", &[], "2001:db8:0:100::/56", quiet());
    check(&clients, "2001:db8:0:1ff::1", &[], "2001:db8:0:100::/56", quiet());
    check(&clients, "2001:db8:0:200::1", &[], "2001:db8:0:200::/56", quiet());
    let clients = ClientIp::peer().ipv6_prefix(128).unwrap().ipv4_prefix(24).unwrap();
    check(&clients, "2001:db8::1", &[], "2001:db8::1/128", quiet());
    check(&clients, "203.0.113.9", &[], "203.0.113.0/24", quiet());

    for bits in [32, 48, 64, 128] {
        assert!(ClientIp::peer().ipv6_prefix(bits).is_ok(), "{bits}");
    }
    for bits in [0, 31, 129, 255] {
        assert!(ClientIp::peer().ipv6_prefix(bits).is_err(), "{bits}");
    }
    for bits in [0, 33] {
        let error = ClientIp::peer().ipv4_prefix(bits).unwrap_err().to_string();
        assert_eq!(error, format!("ipv4_prefix: {bits} is not within 1 to 32"));
    }
}

#[test]
fn o_blk_4_a_proxy_that_nobody_declared_is_noticed() {
    for peer in
        ["10.0.0.5", "172.16.0.1", "192.168.1.1", "127.0.0.1", "169.254.1.1", "100.64.0.1", "100.127.0.1"]
    {
        check(&ClientIp::peer(), peer, &[(XFF, "203.0.113.9")], peer, Notes::UNTRUSTED_FORWARDED);
        check(&ClientIp::peer(), peer, &[("x-real-ip", "x")], peer, Notes::UNTRUSTED_FORWARDED);
        check(&ClientIp::peer(), peer, &[], peer, quiet());
    }
    for (peer, key) in [("::1", "::/64"), ("fd00::1", "fd00::/64"), ("fe80::1", "fe80::/64")] {
        check(&ClientIp::peer(), peer, &[(XFF, "203.0.113.9")], key, Notes::UNTRUSTED_FORWARDED);
    }
    // Of a public peer that would be said for every scanner.
    for peer in ["198.51.100.7", "100.128.0.1", "100.63.0.1"] {
        check(&ClientIp::peer(), peer, &[(XFF, "203.0.113.9")], peer, quiet());
    }
    let clients = ClientIp::behind(["10.1.0.0/16"]).unwrap().header("fly-client-ip").unwrap();
    check(&clients, "10.0.0.5", &[("fly-client-ip", "203.0.113.9")], "10.0.0.5", Notes::UNTRUSTED_FORWARDED);
}

#[test]
fn o_blk_4_named_addresses_are_limited_but_never_blocked() {
    let clients = behind_ten().never_block(["198.51.100.0/24", "::ffff:192.0.2.1"]).unwrap();
    let is_blockable = |peer, headers: &[(&str, &[u8])]| {
        let request = request(Some(peer), headers);
        match clients.identify(&RequestHead::new(&request), Key::builder()) {
            Identified::Known(key, _) => key.finish().is_blockable(),
            Identified::Missing(_) => panic!("a client address is never missing"),
        }
    };
    assert!(!is_blockable("198.51.100.7", &[]));
    assert!(!is_blockable("192.0.2.1", &[]));
    assert!(!is_blockable("10.0.0.5", &[(XFF, b"198.51.100.7")]));
    assert!(is_blockable("203.0.113.9", &[]));
}

#[test]
fn hops_count_from_the_right_with_the_peer_as_hop_0() {
    for (hops, chain, key, notes) in [
        (1, "198.51.100.1, 203.0.113.9", "203.0.113.9", quiet()),
        (2, "198.51.100.1, 203.0.113.9, 192.0.2.1", "203.0.113.9", quiet()),
        (3, "203.0.113.9, 192.0.2.1", "192.0.2.99", Notes::SHORT_CHAIN),
        (1, "unknown", "192.0.2.99", Notes::UNREADABLE),
        (2, "unknown, 192.0.2.1", "192.0.2.99", Notes::UNREADABLE),
        (2, "203.0.113.9, unknown", "192.0.2.99", Notes::UNREADABLE),
    ] {
        let clients = ClientIp::hops(hops).unwrap();
        check(&clients, "192.0.2.99", &[(XFF, chain)], key, notes);
    }
    check(&ClientIp::hops(1).unwrap(), "192.0.2.99", &[], "192.0.2.99", Notes::SHORT_CHAIN);
    let clients = ClientIp::hops(1).unwrap().header("x-real-ip").unwrap();
    check(&clients, "192.0.2.99", &[("x-real-ip", "203.0.113.9")], "203.0.113.9", quiet());
}

#[test]
fn a_cdn_is_believed_only_where_it_is_the_next_hop() {
    const CF: &str = "cf-connecting-ip";
    let clients = behind_ten().cdn(["198.51.100.0/24"], CF).unwrap();
    let through_cdn = (XFF, "1.1.1.1, 203.0.113.9, 198.51.100.7, 10.0.0.6");
    check(&clients, "10.0.0.5", &[through_cdn, (CF, "203.0.113.9")], "203.0.113.9", quiet());
    // Past the CDN, straight to the balancer.
    let past_cdn = (XFF, "203.0.113.66");
    check(&clients, "10.0.0.5", &[past_cdn, (CF, "203.0.113.9")], "203.0.113.66", Notes::PAST_CDN);
    // Past the balancer as well.
    check(&clients, "203.0.113.66", &[past_cdn, (CF, "203.0.113.9")], "203.0.113.66", Notes::PAST_CDN);
    let both = Notes::PAST_CDN.with(Notes::UNTRUSTED_FORWARDED);
    check(&clients, "192.168.0.1", &[past_cdn], "192.168.0.1", both);
    // Something is wrong at the CDN.
    for cf in
        [&[][..], &[(CF, "x")], &[(CF, "203.0.113.9"), (CF, "203.0.113.9")], &[(CF, "203.0.113.9, 1.1.1.1")]]
    {
        let headers: Vec<_> = [through_cdn].iter().chain(cf).copied().collect();
        check(&clients, "10.0.0.5", &headers, "198.51.100.7", Notes::UNREADABLE);
    }
    // From inside.
    check(&clients, "10.0.0.5", &[], "10.0.0.5", quiet());

    let direct = ClientIp::peer().cdn(["198.51.100.0/24"], CF).unwrap();
    check(&direct, "198.51.100.7", &[(CF, "203.0.113.9")], "203.0.113.9", quiet());
    check(&direct, "203.0.113.66", &[(CF, "203.0.113.9")], "203.0.113.66", Notes::PAST_CDN);
    let overlapping = behind_ten().cdn(["10.9.0.0/16"], CF).unwrap();
    check(&overlapping, "10.0.0.5", &[(XFF, "10.9.0.1"), (CF, "203.0.113.9")], "203.0.113.9", quiet());
}

#[test]
fn the_walk_is_bounded() {
    let chain = vec!["10.0.0.6"; 32].join(",");
    check(&behind_ten(), "10.0.0.5", &[(XFF, "203.0.113.9"), (XFF, &chain)], "10.0.0.6", Notes::UNREADABLE);
    check(&behind_ten(), "10.0.0.5", &[(XFF, &chain)], "10.0.0.6", quiet());
    let wide = format!("203.0.113.9,{}10.0.0.6", " ".repeat(8 * 1024));
    check(&behind_ten(), "10.0.0.5", &[(XFF, &wide)], "10.0.0.5", Notes::UNREADABLE);
}

#[test]
fn wrong_configuration_is_an_error_that_names_it() {
    let peer = ClientIp::peer;
    for (result, text) in [
        (
            ClientIp::behind(["10.0.0.0/8", "10.0.0/8"]),
            "behind: \"10.0.0/8\" is neither an address nor a CIDR range",
        ),
        (peer().never_block(["x"]), "never_block: \"x\" is neither an address nor a CIDR range"),
        (peer().cdn(["x"], "a"), "cdn: \"x\" is neither an address nor a CIDR range"),
        (peer().cdn([""; 0], "a"), "cdn: no range is given"),
        (peer().cdn(["::1"], "a b"), "cdn: \"a b\" is not the name of a header that fits here"),
        (peer().cdn(["::1"], "Forwarded"), "cdn: \"Forwarded\" is not the name of a header that fits here"),
        (ClientIp::hops(0), "hops: 0 is not within 1 to 32"),
        (ClientIp::hops(33), "hops: 33 is not within 1 to 32"),
        (
            ClientIp::hops(1).and_then(|ip| ip.cdn(["::1"], "a")),
            "cdn: cannot be combined with a number of hops",
        ),
        (behind_ten().header(""), "header: \"\" is not the name of a header that fits here"),
        (peer().header(XFF), "header: \"x-forwarded-for\" would never be read, as no proxy is trusted"),
        (
            ClientIp::hops(2).and_then(|ip| ip.header("x-real-ip")),
            "header: \"x-real-ip\" holds one address, but several hops are configured",
        ),
    ] {
        assert_eq!(result.unwrap_err().to_string(), text);
    }
    assert!(peer().trust_unix_socket().header("forwarded").is_ok());
}

#[test]
fn an_explanation_answers_hop_by_hop() {
    let request = request(
        Some("10.0.0.5"),
        &[(XFF, b"198.51.100.1\x9b, 203.0.113.9"), (XFF, b"10.0.0.6"), ("x-real-ip", b"192.0.2.1")],
    );
    let why = behind_ten().explain(&RequestHead::new(&request));
    let hops: Vec<_> = why.hops().iter().map(|hop| (hop.text(), hop.verdict())).collect();
    assert_eq!(
        hops,
        [
            ("10.0.0.5", HopVerdict::TrustedProxy),
            ("10.0.0.6", HopVerdict::TrustedProxy),
            ("203.0.113.9", HopVerdict::Client),
            ("198.51.100.1\u{fffd}", HopVerdict::NotReached),
        ]
    );
    assert_eq!(why.peer(), Some([10, 0, 0, 5].into()));
    assert_eq!(why.header(), Some(XFF));
    assert_eq!(why.client(), Some([203, 0, 113, 9].into()));
    assert_eq!(
        why.to_string(),
        "x-forwarded-for: 198.51.100.1\u{fffd}, 203.0.113.9\n\
         x-forwarded-for: 10.0.0.6\n\
         read: x-forwarded-for\n\
         hop: 10.0.0.5 (trusted proxy)\n\
         hop: 10.0.0.6 (trusted proxy)\n\
         hop: 203.0.113.9 (client)\n\
         hop: 198.51.100.1\u{fffd} (not reached)\n\
         client: 203.0.113.9\n\
         identity: 203.0.113.9"
    );
    let debug = format!("{why:?}");
    assert!(!debug.contains("203.0.113") && !debug.contains("198.51"), "{debug}");
}

#[test]
fn an_explanation_shows_headers_that_were_not_believed() {
    let why = |clients: ClientIp, peer, headers| clients.explain(&RequestHead::new(&request(peer, headers)));

    let ignored = why(ClientIp::peer(), Some("10.0.0.5"), &[(XFF, b"203.0.113.9")]);
    assert_eq!(ignored.header(), None);
    assert_eq!(ignored.lines(), ["x-forwarded-for: 203.0.113.9"]);
    assert!(ignored.to_string().contains("note: a forwarding header from a private peer"));

    let nobody = why(ClientIp::peer(), None, &[]);
    assert_eq!(nobody.hops()[0].verdict(), HopVerdict::NoAddress);
    assert_eq!(nobody.client(), None);
    assert!(nobody.to_string().contains("into_make_service_with_connect_info"));

    let cdn = behind_ten().cdn(["198.51.100.0/24"], "cf-connecting-ip").unwrap();
    let cdn = why(cdn, Some("10.0.0.5"), &[(XFF, b"x, 198.51.100.7"), ("cf-connecting-ip", b"203.0.113.9")]);
    let verdicts: Vec<_> = cdn.hops().iter().map(Hop::verdict).collect();
    use HopVerdict::{Cdn, Client, NotReached, TrustedProxy};
    assert_eq!(verdicts, [TrustedProxy, Cdn, Client, NotReached]);
    assert_eq!(cdn.header(), Some("cf-connecting-ip"));
    assert_eq!(cdn.lines().len(), 2);
}

#[test]
fn an_explanation_is_bounded() {
    let long = "1".repeat(20_000);
    let mut headers = vec![(XFF, long.as_bytes()); 100];
    headers.push((XFF, b"203.0.113.9"));
    let why = behind_ten().explain(&RequestHead::new(&request(Some("10.0.0.5"), &headers)));
    assert!(why.to_string().len() < 64 * 1024);
}

/// What a client can put into one header line, with a taste for delimiters.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        ",",
        "\"",
        "\\",
        ";",
        " ",
        "for=",
        "for=\"",
        "[2001:db8::bad]",
        "198.51.100.66",
        "10.0.0.66",
        "unknown",
    ]);
    let byte =
        any::<u8>().prop_filter("legal in a header", |byte| *byte == b'\t' || *byte >= 32 && *byte != 127);
    prop_oneof![
        3 => vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes()),
        2 => vec(byte, 0..60),
        1 => (1..12_000usize).prop_map(|len| vec![b'"'; len]),
    ]
}

/// An address as some proxy writes it into `Forwarded` and `X-Forwarded-For`.
fn entry() -> impl Strategy<Value = (IpAddr, String, String)> {
    let client = prop_oneof![
        any::<u8>().prop_map(|last| IpAddr::from([203, 0, 113, last])),
        any::<u16>().prop_map(|last| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last])),
    ];
    (client, 0..4usize, any::<u16>()).prop_map(|(ip, spelling, port)| {
        let node = match (ip, spelling % 2) {
            (IpAddr::V6(_), 0) => format!("[{ip}]"),
            (IpAddr::V6(_), _) => format!("[{ip}]:{port}"),
            (IpAddr::V4(_), 0) => ip.to_string(),
            (IpAddr::V4(_), _) => format!("{ip}:{port}"),
        };
        let forwarded = match spelling {
            0 | 1 => format!("for=\"{node}\""),
            2 => format!("proto=https;For=\"{node}\";by=\"a,b;\\\"c\\\"\""),
            _ => format!("host=\"x\\\\\";for=\"{node}\""),
        };
        let node = if spelling > 1 { format!("\"{node}\"") } else { node };
        (ip, node, forwarded)
    })
}

fn configurations() -> Vec<ClientIp> {
    vec![
        ClientIp::peer(),
        behind_ten(),
        behind_ten().header("forwarded").unwrap(),
        behind_ten().header("x-real-ip").unwrap(),
        behind_ten().header("cloudfront-viewer-address").unwrap(),
        behind_ten().cdn(["198.51.100.0/24"], "cf-connecting-ip").unwrap(),
        ClientIp::hops(1).unwrap(),
        ClientIp::hops(3).unwrap().header("forwarded").unwrap(),
        ClientIp::peer().trust_unix_socket(),
    ]
}

proptest! {
    #![proptest_config(crate::property::at_least(512))]

    #[test]
    fn no_header_breaks_it(lines in vec(line(), 0..5), has_peer: bool) {
        let names = [XFF, "forwarded", "x-real-ip", "cloudfront-viewer-address", "cf-connecting-ip"];
        let headers: Vec<_> = names
            .iter()
            .flat_map(|name| lines.iter().map(|line| (*name, &line[..])))
            .collect();
        let request = request(has_peer.then_some("10.0.0.5"), &headers);
        for clients in configurations() {
            let (key, _) = identify(&clients, &request);
            prop_assert!(key == "peer=none" || key.bytes().all(|byte| b"0123456789abcdef.:/".contains(&byte)), "{}", key);
            let _ = clients.explain(&RequestHead::new(&request)).to_string();
        }
    }

    /// The property that all else serves.
    #[test]
    fn what_the_client_writes_on_the_left_never_matters(
        lines in vec(line(), 0..4),
        appended in line(),
        (ip, node, forwarded) in entry(),
        proxies in 0..3usize,
        own_line: bool,
    ) {
        let expected = ClientIp::peer();
        let expected = identify(&expected, &request(Some(&ip.to_string()), &[]));
        for (name, entry, proxy) in [(XFF, node, "10.0.0.6"), ("forwarded", forwarded, "for=10.0.0.6")] {
            let clients = behind_ten().header(name).unwrap();
            let hops = ClientIp::hops(1 + proxies).unwrap().header(name).unwrap();
            // The first proxy appends to the last line or begins a new one.
            let chain = format!("{entry}{}", format!(", {proxy}").repeat(proxies));
            let mut headers: Vec<_> = lines.iter().map(|line| (name, line.clone())).collect();
            if own_line {
                headers.push((name, appended.clone()));
                headers.push((name, chain.into_bytes()));
            } else {
                headers.push((name, [&appended[..], b",", chain.as_bytes()].concat()));
            }
            let headers: Vec<_> = headers.iter().map(|(name, line)| (*name, &line[..])).collect();
            let request = request(Some("10.0.0.5"), &headers);
            prop_assert_eq!(&identify(&clients, &request), &expected);
            prop_assert_eq!(&identify(&hops, &request), &expected);
        }
    }

    #[test]
    fn whatever_an_untrusted_peer_sends_it_is_the_client(lines in vec(line(), 0..4)) {
        let headers: Vec<_> = lines.iter().map(|line| (XFF, &line[..])).collect();
        let request = request(Some("203.0.113.50"), &headers);
        for clients in [ClientIp::peer(), behind_ten(), ClientIp::peer().trust_unix_socket()] {
            prop_assert_eq!(identify(&clients, &request), ("203.0.113.50".to_owned(), quiet()));
        }
    }
}
