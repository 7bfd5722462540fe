use http::Request;

use super::*;
use crate::key::Key;

fn key(identity: &impl Identify, request: &Request<()>) -> Option<String> {
    match identity.identify(&RequestHead::new(request), Key::builder()) {
        Identified::Known(key, notes) => {
            assert!(notes.is_empty());
            Some(key.finish().as_str().to_owned())
        }
        Identified::Missing(key) => {
            assert!(key.is_empty());
            None
        }
    }
}

fn with_lines(name: &str, lines: &[&[u8]]) -> Request<()> {
    let mut request = Request::new(());
    for line in lines {
        let name = HeaderName::try_from(name).unwrap();
        request.headers_mut().append(name, HeaderValue::from_bytes(line).unwrap());
    }
    request
}

#[test]
fn a_header_is_one_trimmed_line() {
    let user = Header::new("X-User").unwrap();
    for (lines, expected) in [
        (&[&b" ann\t"[..]][..], Some("header.x-user=ann")),
        (&[b"203.0.113.9"], Some("header.x-user=203.0.113.9")),
        (&[b"a:{b} \xff"], Some("header.x-user=a%3A%7Bb%7D%20%FF")),
        (&[b"ann", b"ann"], None),
    ] {
        assert_eq!(key(&user, &with_lines("x-user", lines)).as_deref(), expected);
    }
}

#[test]
fn o_key_5_an_absent_empty_or_blank_value_is_missing() {
    let header = Header::new("x-api-key").unwrap();
    let secret = Header::secret("x-api-key").unwrap();
    for lines in [&[][..], &[&b""[..]], &[b" \t "]] {
        let request = with_lines("x-api-key", lines);
        assert_eq!(key(&header, &request), None);
        assert_eq!(key(&secret, &request), None);
    }
    for name in [None, Some(""), Some(" \u{a0}")] {
        let mut request = Request::new(());
        request.extensions_mut().insert(name);
        let read = Extension::new(|name: &Option<&'static str>| name.map(Cow::Borrowed));
        assert_eq!(key(&read, &request), None);
        let closure = move |_: &RequestHead<'_>| name.map(str::to_owned);
        assert_eq!(key(&closure, &request), None);
    }
    let erased = Header::new("x-api-key").unwrap().normalize(|_| " ".to_owned());
    assert_eq!(key(&erased, &with_lines("x-api-key", &[b"k"])), None);
}

#[test]
fn o_key_5_a_name_that_is_no_header_is_an_error() {
    for name in ["", "x api key", "x:key", "\u{e9}"] {
        let error = Header::new(name).unwrap_err().to_string();
        assert_eq!(error, format!("{name:?} is not the name of a header"));
        assert!(Header::secret(name).is_err());
    }
}

#[test]
fn o_log_2_a_secret_header_is_not_readable() {
    let request = with_lines("x-api-key", &[b"live_ABC123"]);
    let hashed = key(&Header::secret("x-api-key").unwrap(), &request).unwrap();
    assert!(hashed.starts_with("sha256.header.x-api-key="), "{hashed}");
    let keyed = Header::secret("x-api-key").unwrap().hmac(KeySecret::new("s3cr3t"));
    let shown = format!("{keyed:?} {:?}", RequestHead::new(&request));
    let keyed = key(&keyed, &request).unwrap();
    assert!(keyed.starts_with("hmac.header.x-api-key="), "{keyed}");
    for text in [hashed, keyed, shown] {
        assert!(!text.contains("ABC123") && !text.contains("s3cr3t"), "{text}");
    }
}

#[test]
fn o_key_6_a_value_is_byte_exact_unless_normalized() {
    let exact = Header::new("x-account").unwrap();
    let normal = exact.clone().normalize(str::to_lowercase);
    let upper = with_lines("x-account", &[b"Ann@Example.org"]);
    let lower = with_lines("x-account", &[b"ann@example.org "]);
    assert_ne!(key(&exact, &upper), key(&exact, &lower));
    assert_eq!(key(&normal, &upper), key(&normal, &lower));
    // What is not UTF-8 is not normalized, and is no reason to panic.
    let bytes = with_lines("x-account", &[b"ANN\xff"]);
    assert_eq!(key(&normal, &bytes).as_deref(), Some("header.x-account=ANN%FF"));
}

#[cfg(feature = "unicode")]
#[test]
fn o_key_6_the_preset_joins_the_forms_of_a_name() {
    let account = Header::new("x-account").unwrap().normalize(crate::identity::normalize::account);
    let composed = with_lines("x-account", &["Jos\u{e9}@example.org".as_bytes()]);
    let decomposed = with_lines("x-account", &["jose\u{301}@example.org".as_bytes()]);
    assert_eq!(key(&account, &composed), key(&account, &decomposed));
}

#[test]
fn o_key_4_an_extension_is_a_bare_principal() {
    #[derive(Clone)]
    struct User(String);
    let read = Extension::new(|user: &User| Some(user.0.as_str().into()));
    let mut request = Request::new(());
    assert_eq!(key(&read, &request), None);

    for (name, expected) in [("ann", "ann"), ("Ann ", "Ann%20"), ("203.0.113.9", "%3203.0.113.9")] {
        request.extensions_mut().insert(User(name.to_owned()));
        assert_eq!(key(&read, &request).as_deref(), Some(expected));
    }
    let lower = read.clone().normalize(str::to_lowercase);
    request.extensions_mut().insert(User("ANN".to_owned()));
    assert_eq!(key(&lower, &request).as_deref(), Some("ann"));
}

#[test]
fn o_key_2_without_a_pattern_there_is_one_route() {
    for path in ["/verify/1", "/verify/2", "/none"] {
        let request = Request::builder().uri(path).body(()).unwrap();
        assert_eq!(key(&Route::new(), &request).as_deref(), Some("route=none"));
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn o_key_2_the_route_is_its_pattern() {
    use axum::Router;
    use axum::routing::get;
    use tower::ServiceExt as _;

    let app =
        Router::new().route(
            "/verify/{code}",
            get(|request: Request<axum::body::Body>| async move {
                key(&Route::new(), &request.map(|_| ())).unwrap()
            }),
        );
    for path in ["/verify/1", "/verify/2", "/verify/2?x=1"] {
        let request = Request::builder().uri(path).body(axum::body::Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
        assert_eq!(body, "route=/verify/%7Bcode%7D");
    }
}

#[test]
fn invented_methods_are_one() {
    for (method, expected) in [
        ("GET", "method=GET"),
        ("PATCH", "method=PATCH"),
        ("PURGE", "method=other"),
        ("X1", "method=other"),
        ("get", "method=other"),
        ("other", "method=other"),
    ] {
        let request = Request::builder().method(method).body(()).unwrap();
        assert_eq!(key(&Method::new(), &request).as_deref(), Some(expected));
    }
}

#[test]
fn a_host_is_lower_case_without_port_and_dot() {
    for (uri, lines, expected) in [
        ("/", &[&b"API.example.org"[..]][..], Some("host=api.example.org")),
        ("/", &[b"api.example.org.:8080"], Some("host=api.example.org")),
        ("/", &[b"[2001:db8::1]:443"], Some("host=[2001%3Adb8%3A%3A1]")),
        ("http://Api.example.org:80/", &[], Some("host=api.example.org")),
        // RFC 9112, section 3.2.2: the absolute form counts.
        ("http://api.example.org/", &[b"other.example.org"], Some("host=api.example.org")),
        ("/", &[], None),
        ("/", &[b""], None),
        ("/", &[b":80"], None),
        ("/", &[b"."], None),
        ("/", &[b"\xff"], None),
        ("/", &[b"a.example.org", b"b.example.org"], None),
    ] {
        let mut request = with_lines("host", lines);
        *request.uri_mut() = uri.parse().unwrap();
        assert_eq!(key(&Host::new(), &request).as_deref(), expected, "{uri} {lines:?}");
    }
}

#[test]
fn a_constant_is_the_same_for_all() {
    let request = Request::new(());
    assert_eq!(key(&Constant::new("scope", "login"), &request).as_deref(), Some("scope=login"));
    assert_eq!(key(&Constant::new("scope", ""), &request), None);
}
