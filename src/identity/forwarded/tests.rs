use http::Request;

use super::*;

fn headers(name: &str, lines: &[&[u8]]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let name = HeaderName::try_from(name).unwrap();
        headers.append(name, HeaderValue::from_bytes(line).unwrap());
    }
    headers
}

/// The entries from the right, `-` for one that cannot be read and `...` for
/// the end of what is looked at.
fn entries(name: &str, lines: &[&[u8]]) -> Vec<String> {
    let headers = headers(name, lines);
    ForwardingHeader::new(HeaderName::try_from(name).unwrap())
        .entries(&headers)
        .map(|entry| match entry {
            Entry::Address(ip, _) => ip.to_string(),
            Entry::Unreadable(_) => "-".to_owned(),
            Entry::OutOfBounds => "...".to_owned(),
        })
        .collect()
}

fn only(name: &str, line: &str) -> Option<String> {
    match &entries(name, &[line.as_bytes()])[..] {
        [entry] if entry != "-" => Some(entry.clone()),
        _ => None,
    }
}

#[test]
fn o_ip_3_every_spelling_of_a_node_is_its_address() {
    for (text, address) in [
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.9:52241", "203.0.113.9"),
        ("203.0.113.9:_hidden", "203.0.113.9"),
        (" \t203.0.113.9 ", "203.0.113.9"),
        ("\"203.0.113.9\"", "203.0.113.9"),
        ("\"203.0.113.9:1\"", "203.0.113.9"),
        ("2001:db8::9", "2001:db8::9"),
        ("2001:DB8:0::9", "2001:db8::9"),
        ("[2001:db8::9]", "2001:db8::9"),
        ("[2001:db8::9]:443", "2001:db8::9"),
        ("\"[2001:db8::9]:443\"", "2001:db8::9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("::ffff:cb00:7109", "203.0.113.9"),
        ("0:0:0:0:0:FFFF:CB00:7109", "203.0.113.9"),
        ("[::ffff:203.0.113.9]:80", "203.0.113.9"),
    ] {
        assert_eq!(only("x-forwarded-for", text).as_deref(), Some(address), "{text}");
        assert_eq!(only("x-real-ip", text).as_deref(), Some(address), "{text}");
    }
}

#[test]
fn o_ip_6_what_is_no_node_has_no_address() {
    for text in [
        "",
        " ",
        "unknown",
        "_hidden",
        "'{${print(1)}}'",
        "203.0.113.999",
        "203.0.113",
        "203.0.113.09",
        "203.0.113.9:",
        "203.0.113.9:x",
        "203.0.113.9:123456",
        "203.0.113.9:_",
        "203.0.113.9 evil",
        "[2001:db8::9",
        "[2001:db8::9]443",
        "[203.0.113.9]:80",
        "[]",
        "2001:db8::9%eth0",
        "::ffff:203.0.113.9:80",
        "\"",
        "\"\"",
        "\"203.0.113.9",
        "203.0.113.9\"",
        "\"203.0.113.9\"x",
        "\"203.0.113.9\\\"",
        &"1".repeat(5_000),
    ] {
        assert_eq!(only("x-forwarded-for", text), None, "{text}");
        assert_eq!(only("x-real-ip", text), None, "{text}");
    }
}

#[test]
fn the_for_of_a_forwarded_element_is_read() {
    for (text, address) in [
        ("for=203.0.113.9", Some("203.0.113.9")),
        ("FOR=203.0.113.9;Proto=https;by=10.0.0.1", Some("203.0.113.9")),
        ("proto=https; for=\"[2001:db8::9]:4711\" ;;", Some("2001:db8::9")),
        ("for=\"203.0.113.9:_port\"", Some("203.0.113.9")),
        ("for=\"\\203.0.113.\\9\"", Some("203.0.113.9")),
        ("host=\"a,b;for=198.51.100.1\";for=203.0.113.9", Some("203.0.113.9")),
        ("host=\"a\\\",b\";for=203.0.113.9", Some("203.0.113.9")),
        ("host=\"a\\\\\";for=203.0.113.9", Some("203.0.113.9")),
        // Strictly it must be quoted; widely it is not.
        ("for=[2001:db8::9]:4711", Some("2001:db8::9")),
        ("for=203.0.113.9;for=203.0.113.9", None),
        ("for=unknown", None),
        ("for=_hidden", None),
        ("for=", None),
        ("for =203.0.113.9", None),
        ("proto=https", None),
        ("203.0.113.9", None),
        ("for=203.0.113.9;secure", None),
        ("", None),
    ] {
        assert_eq!(only("forwarded", text).as_deref(), address, "{text}");
    }
}

#[test]
fn lists_are_read_from_the_right_over_all_lines() {
    for (name, lines, expected) in [
        ("x-forwarded-for", &["1.1.1.1, 2.2.2.2", "3.3.3.3"][..], &["3.3.3.3", "2.2.2.2", "1.1.1.1"][..]),
        ("x-forwarded-for", &["1.1.1.1,,2.2.2.2,"], &["-", "2.2.2.2", "-", "1.1.1.1"]),
        ("x-forwarded-for", &["1.1.1.1", ""], &["-", "1.1.1.1"]),
        ("x-forwarded-for", &["\"1.1.1.1\",\"2.2.2.2\""], &["2.2.2.2", "1.1.1.1"]),
        ("forwarded", &["for=\"[::1]\";host=\"a,b\",for=2.2.2.2"], &["2.2.2.2", "::1"]),
        // What the client left open cannot reach what the proxy appended.
        ("forwarded", &["for=1.1.1.1, for=\", for=2.2.2.2"], &["2.2.2.2", "-"]),
        ("forwarded", &["for=\", for=\"[2001:db8::9]\""], &["2001:db8::9", "-"]),
        ("forwarded", &["for=\\, for=\"[2001:db8::9]\""], &["2001:db8::9", "-"]),
        ("x-forwarded-for", &["\"", "2.2.2.2"], &["2.2.2.2", "-"]),
    ] {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        assert_eq!(entries(name, &lines), expected, "{lines:?}");
    }
}

#[test]
fn a_header_of_one_value_has_one_line() {
    assert_eq!(entries("x-real-ip", &[b"203.0.113.9"]), ["203.0.113.9"]);
    assert_eq!(entries("x-real-ip", &[b"203.0.113.9", b"203.0.113.9"]), ["-"]);
    assert_eq!(entries("x-real-ip", &[b"203.0.113.9, 203.0.113.9"]), ["-"]);
    assert!(entries("x-real-ip", &[]).is_empty());
}

#[test]
fn a_viewer_address_is_split_at_its_last_colon() {
    for (text, address) in [
        ("203.0.113.9:46532", Some("203.0.113.9")),
        ("2001:db8::9:46532", Some("2001:db8::9")),
        ("2001:db8:0:0:0:0:0:9:46532", Some("2001:db8::9")),
        ("2001:db8:0:0:0:0:0:9", None),
        ("203.0.113.9", None),
        ("203.0.113.9:", None),
        ("", None),
    ] {
        assert_eq!(only("cloudfront-viewer-address", text).as_deref(), address, "{text}");
    }
}

#[test]
fn at_most_32_entries_are_read() {
    let line = vec!["10.0.0.1"; 40].join(",");
    let read = entries("x-forwarded-for", &[b"1.1.1.1", line.as_bytes()]);
    assert_eq!(read.len(), MAX_ENTRIES + 1);
    assert_eq!(read[MAX_ENTRIES], "...");

    let lines = vec![&b"10.0.0.1"[..]; MAX_ENTRIES];
    assert_eq!(entries("x-forwarded-for", &lines), vec!["10.0.0.1"; MAX_ENTRIES]);
}

#[test]
fn at_most_8_kib_are_read() {
    let fits = "A".repeat(MAX_BYTES);
    assert_eq!(entries("x-forwarded-for", &[fits.as_bytes()]), ["-"]);

    let padding = " ".repeat(MAX_BYTES);
    let read = entries("x-forwarded-for", &[format!("1.1.1.1,{padding}2.2.2.2").as_bytes()]);
    assert_eq!(read, ["..."]);
    let read = entries("x-forwarded-for", &[b"1.1.1.1", format!("{padding},2.2.2.2").as_bytes()]);
    assert_eq!(read, ["2.2.2.2", "..."]);
    // A quote does not look further either.
    let read = entries("forwarded", &[format!("for=\"{padding}\"").as_bytes()]);
    assert_eq!(read, ["-"]);
}

#[test]
fn usual_forwarding_headers_are_noticed() {
    for name in ["X-Forwarded-For", "Forwarded", "X-Real-IP", "CF-Connecting-IP", "True-Client-IP"] {
        let request = Request::builder().header(name, "x").body(()).unwrap();
        assert!(has_forwarding_header(&RequestHead::new(&request)), "{name}");
    }
    let request = Request::builder().header("x-request-id", "x").body(()).unwrap();
    assert!(!has_forwarding_header(&RequestHead::new(&request)));
}
