use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn an_address_is_its_canonical_text() {
    for (address, text) in [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("::ffff:cb00:7109", "203.0.113.9"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
    ] {
        assert_eq!(Key::ip(ip(address)).as_str(), text);
    }
}

#[test]
fn o_v6_3_prefix_lengths_group() {
    for (address, v4, v6, text) in [
        ("203.0.113.9", 24, 64, "203.0.113.0/24"),
        ("203.0.113.9", 255, 64, "203.0.113.9"),
        ("203.0.113.9", 0, 64, "0.0.0.0/0"),
        ("2001:db8:0:1ff::1", 32, 56, "2001:db8:0:100::/56"),
        ("2001:db8::1", 32, 128, "2001:db8::1/128"),
        ("2001:db8::1", 32, 255, "2001:db8::1/128"),
    ] {
        let key = Key::builder().network(ip(address), v4, v6).finish();
        assert_eq!(key.as_str(), text);
    }
}

#[test]
fn parts_are_spelled_as_documented() {
    let key = Key::builder()
        .ip(ip("2001:db8::1"))
        .ip(ip("203.0.113.9"))
        .ip(ip("2001:db8:7::1"))
        .principal("a/b")
        .named("route", "/u/{id}")
        .missing()
        .finish();
    assert_eq!(key.as_str(), "2001:db8::/64:ip=203.0.113.9:ip=2001:db8:7::/64:a%2Fb:route=/u/%7Bid%7D:none=");
    assert_eq!(key.split_first().0, "2001:db8::/64");
    assert_eq!(Key::principal("a/b c").as_str(), "a/b%20c");
    assert_eq!(Key::builder().finish().as_str(), "none=");
}

#[test]
fn a_principal_never_passes_for_an_address() {
    for (name, text) in [
        ("203.0.113.9", "%3203.0.113.9"),
        ("203.0.113.0/24", "%3203.0.113.0/24"),
        ("2001:db8::1", "%32001%3Adb8%3A%3A1"),
        ("2001:db8::/64", "%32001%3Adb8%3A%3A/64"),
        ("::1", "%3A%3A1"),
        ("%3203.0.113.9", "%253203.0.113.9"),
        ("203.0.113.999", "203.0.113.999"),
    ] {
        assert_eq!(Key::principal(name).as_str(), text);
    }
}

#[test]
fn eight_principals_never_pass_for_an_address() {
    let address = Key::builder().network(ip("1:2:3:4:5:6:7:8"), 32, 128).finish();
    assert_eq!(address.as_str(), "1:2:3:4:5:6:7:8/128");
    let groups = ["1", "2", "3", "4", "5", "6", "7", "8/128"];
    let principals = groups.iter().fold(Key::builder(), |key, group| key.principal(group));
    assert_eq!(principals.finish().as_str(), "1:2:3:4:5:6:7:8%2F128");
}

#[test]
fn a_kind_never_passes_for_one_of_the_builders_own() {
    let first = || Key::builder().principal("x");
    let digest = hex_sha256(b"v");
    for (named, own) in [
        (first().named("ip", "203.0.113.9"), first().ip(ip("203.0.113.9"))),
        (first().named("sha256.k", &digest), first().secret("k", "v", None)),
        (first().named("none", "x"), first().missing()),
        (
            first().named("sha256", hex_sha256(format!("x:{}", "y".repeat(200)).as_bytes())),
            first().principal("y".repeat(200)),
        ),
    ] {
        assert_ne!(named.finish().as_str(), own.finish().as_str());
    }
}

#[test]
fn o_key_1_separators_stay_inside_their_part() {
    let texts: Vec<Key> =
        [("a:b", "c"), ("a", "b:c"), ("", "a:b:c"), ("a%3Ab", "c"), ("a{", "}*\n\0"), ("", "")]
            .iter()
            .map(|(tenant, user)| Key::builder().principal(tenant).principal(user).finish())
            .collect();
    for (at, key) in texts.iter().enumerate() {
        assert!(texts[..at].iter().all(|other| other != key), "{}", key.as_str());
    }
    assert_eq!(texts[0].as_str(), "a%3Ab:c");
    assert_eq!(texts[4].as_str(), "a%7B:%7D*%0A%00");
    assert_eq!(texts[5].as_str(), "none=:none=");
}

#[test]
fn o_log_2_a_secret_is_hashed_and_the_same_everywhere() {
    let plain = Key::builder().secret("header.x-api-key", "live_ABC123", None).finish();
    assert_eq!(plain.as_str(), format!("sha256.header.x-api-key={}", hex_sha256(b"live_ABC123")));

    let keyed = |secret: &str| {
        let secret = KeySecret::new(secret);
        Key::builder().secret("k", "live_ABC123", Some(&secret)).finish()
    };
    assert!(keyed("one").as_str().starts_with("hmac.k="));
    assert_eq!(keyed("one"), keyed("one"));
    assert_ne!(keyed("one"), keyed("two"));
    assert_eq!(Key::builder().secret("k", "", None).finish().as_str(), "none=");
}

#[test]
fn exactly_max_key_len_bytes_stay_readable() {
    let longest = "a".repeat(MAX_KEY_LEN);
    assert_eq!(Key::principal(&longest).as_str(), longest);

    let longer = "a".repeat(MAX_KEY_LEN + 1);
    let hashed = format!("sha256={}", hex_sha256(longer.as_bytes()));
    assert_eq!(Key::principal(&longer).as_str(), hashed);
    assert_eq!(Key::principal(&longer).split_first(), (hashed.as_str(), ""));
}

#[test]
fn a_first_part_outlives_a_rest_that_is_too_long() {
    let rest = "r".repeat(MAX_KEY_LEN);
    let key = Key::builder().ip(ip("203.0.113.9")).principal(&rest).finish();
    let whole = format!("203.0.113.9:{rest}");
    assert_eq!(key.as_str(), format!("203.0.113.9:sha256={}", hex_sha256(whole.as_bytes())));
    assert_eq!(key.split_first().0, "203.0.113.9");
}

#[test]
fn a_first_part_that_is_itself_hashed_is_shared_too() {
    let first = "f".repeat(MAX_KEY_LEN + 1);
    let alone = Key::principal(&first);
    for rest in ["x".to_owned(), "r".repeat(200)] {
        let key = Key::builder().principal(&first).principal(rest).finish();
        assert_eq!(key.split_first().0, alone.as_str());
    }
}

#[test]
fn a_long_first_part_and_a_long_rest_are_both_hashed() {
    let rest = "r".repeat(MAX_KEY_LEN);
    for len in [MAX_READABLE_FIRST, MAX_READABLE_FIRST + 1, MAX_KEY_LEN] {
        let first = "f".repeat(len);
        let key = Key::builder().principal(&first).principal(&rest).finish();
        let shown = match len {
            MAX_READABLE_FIRST => first.clone(),
            _ => format!("sha256={}", hex_sha256(first.as_bytes())),
        };
        let digest = hex_sha256(format!("{first}:{rest}").as_bytes());
        assert_eq!(key.as_str(), format!("{shown}:sha256={digest}"));
        assert_eq!(key.split_first().0, shown);
    }
}

#[test]
fn debug_and_redacted_hide_the_text() {
    let key = Key::principal("ann");
    assert_eq!(format!("{key:?}"), format!("Key({})", key.redacted()));
    for shown in [format!("{key:?}"), format!("{:?}", Key::builder().principal("ann"))] {
        assert!(!shown.contains("ann"));
    }
    assert_eq!(format!("{:?}", KeySecret::new("ann")), "KeySecret(..)");
    assert_ne!(key.redacted().to_string(), Key::principal("bob").redacted().to_string());
}

#[test]
fn a_key_can_be_exempt_from_blocks() {
    assert!(Key::principal("ann").is_blockable());
    assert!(!Key::builder().principal("ann").never_blocked().finish().is_blockable());
    assert!(!Key::builder().never_blocked().principal("ann").finish().is_blockable());
}

/// A part as it was given.
#[derive(Clone, Debug)]
enum Part {
    Ip(IpAddr, u8, u8),
    Principal(Vec<u8>),
    Named(String, Vec<u8>),
    Secret(String, Vec<u8>, bool),
    Missing,
}

/// A part as it should count: what differs here must differ in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Meaning {
    Ip(IpAddr),
    Network(IpNet),
    Principal(Vec<u8>),
    Named(String, Vec<u8>),
    Secret(String, String),
    Missing,
}

fn secret() -> KeySecret {
    KeySecret::new("deployment")
}

impl Part {
    fn write(&self, key: KeyBuilder) -> KeyBuilder {
        match self {
            Self::Ip(ip, v4, v6) => key.network(*ip, *v4, *v6),
            Self::Principal(name) => key.principal(name),
            Self::Named(kind, value) => key.named(kind, value),
            Self::Secret(kind, value, keyed) => key.secret(kind, value, keyed.then(secret).as_ref()),
            Self::Missing => key.missing(),
        }
    }

    fn meaning(&self) -> Meaning {
        match self {
            Self::Ip(ip, v4, v6) => match ip.to_canonical() {
                ip @ IpAddr::V4(_) if *v4 == 32 => Meaning::Ip(ip),
                ip @ IpAddr::V4(_) => Meaning::Network(IpNet::new(ip, *v4).unwrap().trunc()),
                ip @ IpAddr::V6(_) => Meaning::Network(IpNet::new(ip, *v6).unwrap().trunc()),
            },
            Self::Principal(value) | Self::Named(_, value) | Self::Secret(_, value, _)
                if value.is_empty() =>
            {
                Meaning::Missing
            }
            Self::Principal(name) => Meaning::Principal(name.clone()),
            Self::Named(kind, value) => Meaning::Named(kind.clone(), value.clone()),
            Self::Secret(kind, value, true) => {
                let digest = secret().0.chain_update(value).finalize().into_bytes();
                let hex = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
                Meaning::Secret(format!("hmac.{kind}"), hex)
            }
            Self::Secret(kind, value, false) => Meaning::Secret(format!("sha256.{kind}"), hex_sha256(value)),
            Self::Missing => Meaning::Missing,
        }
    }
}

fn write(parts: &[Part]) -> Key {
    parts.iter().fold(Key::builder(), |key, part| part.write(key)).finish()
}

fn meanings(parts: &[Part]) -> Vec<Meaning> {
    match parts {
        [] => vec![Meaning::Missing],
        _ => parts.iter().map(Part::meaning).collect(),
    }
}

/// Reads a key back. That this can be written at all is the proof that keys
/// are injective.
fn read(mut text: &str) -> Vec<Meaning> {
    let mut parts = Vec::new();
    loop {
        let address = if parts.is_empty() { Some(text) } else { text.strip_prefix("ip=") };
        if let Some((network, rest)) = address.and_then(split_ipv6_network) {
            parts.push(Meaning::Network(network));
            match rest {
                Some(rest) => text = rest,
                None => return parts,
            }
            continue;
        }
        let (part, rest) = text.split_once(':').map_or((text, None), |(part, rest)| (part, Some(rest)));
        let is_first = parts.is_empty();
        parts.push(read_part(part, is_first));
        match rest {
            Some(rest) => text = rest,
            None => return parts,
        }
    }
}

fn split_ipv6_network(text: &str) -> Option<(IpNet, Option<&str>)> {
    let (address, rest) = text.split_once('/')?;
    let address: Ipv6Addr = address.parse().ok()?;
    let (prefix, rest) = rest.split_once(':').map_or((rest, None), |(prefix, rest)| (prefix, Some(rest)));
    Some((IpNet::new(address.into(), prefix.parse().ok()?).ok()?, rest))
}

fn read_part(part: &str, is_first: bool) -> Meaning {
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    match part.split_once('=') {
        Some(("none", "")) => Meaning::Missing,
        Some(("ip", address)) => read_ipv4(address).unwrap(),
        Some((kind, digest)) if is_reserved(kind) => {
            Meaning::Secret(String::from_utf8(decoded(kind)).unwrap(), digest.to_owned())
        }
        Some((kind, value)) => Meaning::Named(String::from_utf8(decoded(kind)).unwrap(), decoded(value)),
        None => match read_ipv4(part) {
            Some(address) if is_first => address,
            _ => Meaning::Principal(decoded(part)),
        },
    }
}

fn read_ipv4(text: &str) -> Option<Meaning> {
    let address = text.parse::<Ipv4Addr>().map(|ip| Meaning::Ip(ip.into())).ok();
    address.or_else(|| text.parse().map(Meaning::Network).ok())
}

fn ips() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        any::<[u8; 4]>().prop_map(|ip| Ipv4Addr::from(ip).to_ipv6_mapped().into()),
        // Few groups are set, so that the text has `::` in various places.
        vec(prop_oneof![3 => Just(0u16), 1 => 0..20u16], 8)
            .prop_map(|groups| IpAddr::from(<[u16; 8]>::try_from(groups).unwrap())),
    ]
}

/// Values of arbitrary bytes, and such as look like pieces of a key.
fn values() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..12),
        "[0-9a-f:./=%]{0,10}".prop_map(String::into_bytes),
        "(none=?|ip=|sha256=|sha256\\.k=|%3|1|::|/64|1\\.2\\.3\\.4|:|2001:db8){0,4}"
            .prop_map(String::into_bytes),
        ips().prop_map(|ip| ip.to_string().into_bytes()),
        (ips(), 0..=32u8).prop_map(|(ip, prefix)| format!("{ip}/{prefix}").into_bytes()),
    ]
}

fn kinds() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z.]{0,6}",
        "(ip|none|sha256|sha256\\.|hmac\\.|peer|/64|1|%69p){0,2}",
        any::<String>().prop_map(|kind| kind.chars().take(4).collect()),
    ]
}

fn parts() -> impl Strategy<Value = Part> {
    prop_oneof![
        3 => (ips(), 0..=32u8, 0..=128u8).prop_map(|(ip, v4, v6)| Part::Ip(ip, v4, v6)),
        1 => ips().prop_map(|ip| Part::Ip(ip, 32, 64)),
        4 => values().prop_map(Part::Principal),
        2 => (kinds(), values()).prop_map(|(kind, value)| Part::Named(kind, value)),
        1 => (kinds(), values(), any::<bool>()).prop_map(|(kind, value, keyed)| Part::Secret(kind, value, keyed)),
        1 => Just(Part::Missing),
    ]
}

#[test]
fn a_scoped_address_keeps_its_text_and_nothing_else_has_it() {
    let scoped = |ip: &str| Key::builder().scoped("global", &Key::ip(ip.parse().unwrap())).finish();
    assert_eq!(scoped("203.0.113.9").as_str(), "global=203.0.113.9");
    assert_eq!(scoped("2001:db8:1:2::9").as_str(), "global=2001:db8:1:2::/64");
    let named = Key::builder().named("global", "2001:db8:1:2::/64").finish();
    assert_eq!(named.as_str(), "global=2001%3Adb8%3A1%3A2%3A%3A/64");
    let parts = Key::builder().named("global", "2001").principal("db8").principal("1").principal("2/64");
    assert_eq!(parts.finish().as_str(), "global=2001:db8:1:2%2F64");
}

proptest! {
    #![proptest_config(crate::property::at_least(2_000))]

    #[test]
    fn a_key_can_be_read_back(parts in vec(parts(), 0..5)) {
        let mut builder = Key::builder();
        for part in &parts {
            builder = part.write(builder);
        }
        prop_assume!(builder.overflow.is_none());
        prop_assert_eq!(read(builder.finish().as_str()), meanings(&parts));
    }

    #[test]
    fn equal_texts_have_equal_parts(left in vec(parts(), 0..4), right in vec(parts(), 0..4)) {
        let same = write(&left).text == write(&right).text;
        prop_assert_eq!(same, meanings(&left) == meanings(&right));
    }

    /// Long ones cannot be read back, so change one byte instead.
    #[test]
    fn long_keys_differ_when_one_byte_does(
        mut parts in vec(vec(any::<u8>(), 1..150), 1..4),
        part in any::<prop::sample::Index>(),
        byte in any::<prop::sample::Index>(),
        change in 1..=255u8,
    ) {
        let write = |parts: &[Vec<u8>]| {
            parts.iter().fold(Key::builder(), |key, part| key.principal(part)).finish()
        };
        let before = write(&parts);
        let part = part.index(parts.len());
        let byte = byte.index(parts[part].len());
        parts[part][byte] ^= change;
        prop_assert_ne!(write(&parts).text, before.text);
    }

    #[test]
    fn a_key_is_short_printable_and_cannot_move_a_hash_tag(parts in vec(parts(), 0..9)) {
        let key = write(&parts);
        let text = key.as_str();
        prop_assert!(!text.is_empty() && text.len() <= MAX_KEY_LEN);
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}".contains(&byte)), "{}", text);

        let (first, rest) = key.split_first();
        prop_assert!(!first.is_empty());
        prop_assert!(rest.is_empty() || rest.starts_with(':'));
    }

    #[test]
    fn a_principal_is_never_an_address(name in values(), ip in ips(), v4 in 0..=32u8, v6 in 0..=128u8) {
        prop_assume!(!name.is_empty());
        let address = Key::builder().network(ip, v4, v6).finish();
        prop_assert_ne!(Key::principal(&name).text, address.text);
        prop_assert_ne!(Key::principal(address.as_str()).text, address.text);
    }
}
