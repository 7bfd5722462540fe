use std::net::IpAddr;

use http::Request;

use super::*;
use crate::identity::{ClientIp, Header, Method};

fn user() -> Header {
    Header::new("x-user").unwrap()
}

fn request(peer: Option<&str>, user: Option<&str>) -> Request<()> {
    let mut request = Request::new(());
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
    }
    if let Some(user) = user {
        request.headers_mut().insert("x-user", user.parse().unwrap());
    }
    request
}

fn key(identity: &dyn Identify, request: &Request<()>) -> Option<(String, Notes)> {
    match identity.identify(&RequestHead::new(request), Key::builder().principal("given")) {
        Identified::Known(key, notes) => {
            let text = key.finish().as_str().to_owned();
            Some((text.strip_prefix("given:").unwrap().to_owned(), notes))
        }
        Identified::Missing(key) => {
            assert_eq!(key.finish().as_str(), "given");
            None
        }
    }
}

fn text(identity: &dyn Identify, request: &Request<()>) -> Option<String> {
    key(identity, request).map(|(text, _)| text)
}

#[test]
fn all_parts_stand_in_their_order() {
    let request = request(Some("203.0.113.9"), Some("ann"));
    let expected = Some("ip=203.0.113.9:header.x-user=ann:method=GET".to_owned());
    let composite = All::new().part(ClientIp::peer()).part(user()).part(Method::new());
    assert_eq!(text(&composite, &request), expected);
    assert_eq!(text(&(ClientIp::peer(), user(), Method::new()), &request), expected);
    let nested = (ClientIp::peer(), (user(), Method::new()));
    assert_eq!(text(&nested, &request), expected);
}

#[test]
fn o_key_1_a_missing_part_is_a_marker_that_no_value_equals() {
    let composite = (user(), ClientIp::peer());
    let marked = text(&composite, &request(Some("203.0.113.9"), None)).unwrap();
    assert_eq!(marked, "none=:ip=203.0.113.9");
    for name in ["none", "none=", "none%3D", "="] {
        let named = text(&composite, &request(Some("203.0.113.9"), Some(name))).unwrap();
        assert_ne!(named, marked);
    }
}

#[test]
fn a_composite_of_which_nothing_is_there_is_missing() {
    let nobody = request(None, None);
    assert_eq!(key(&(user(), user()), &nobody), None);
    assert_eq!(key(&All::new().part(user()).part(user()), &nobody), None);
    assert_eq!(key(&All::new(), &nobody), None);
    assert_eq!(key(&FirstOf::new().or(user()).or(user()), &nobody), None);
    assert_eq!(key(&FirstOf::new(), &nobody), None);
    assert_eq!(key(&Scoped::new("global", user()), &nobody), None);
}

#[test]
fn notes_of_all_parts_are_kept() {
    let parts = (ClientIp::peer(), ClientIp::hops(1).unwrap(), user());
    let (_, notes) = key(&parts, &request(None, Some("ann"))).unwrap();
    assert_eq!(notes, Notes::NO_PEER);
    let (_, notes) = key(&parts, &request(Some("203.0.113.9"), None)).unwrap();
    assert_eq!(notes, Notes::SHORT_CHAIN);
}

#[test]
fn the_first_that_is_there_counts() {
    let choice = FirstOf::new().or(user()).or(ClientIp::peer());
    let both = request(Some("203.0.113.9"), Some("ann"));
    assert_eq!(text(&choice, &both).as_deref(), Some("header.x-user=ann"));
    let anonymous = request(Some("203.0.113.9"), None);
    assert_eq!(text(&choice, &anonymous).as_deref(), Some("ip=203.0.113.9"));
}

#[test]
fn a_scope_makes_one_part_of_an_identity() {
    let address = Scoped::new("global", ClientIp::peer());
    for (peer, expected) in
        [("203.0.113.9", "global=203.0.113.9"), ("2001:db8:1:2::9", "global=2001:db8:1:2::/64")]
    {
        assert_eq!(text(&address, &request(Some(peer), None)).as_deref(), Some(expected));
    }
    let both = Scoped::new("global", (ClientIp::peer(), user()));
    let request = request(Some("203.0.113.9"), Some("ann"));
    assert_eq!(text(&both, &request).as_deref(), Some("global=203.0.113.9%3Aheader.x-user%3Dann"));
    // A principal that looks like an address is not in its bucket here either.
    let principal = Scoped::new("global", |_: &RequestHead<'_>| Some("203.0.113.9".to_owned()));
    assert_ne!(text(&principal, &request), text(&address, &request));
}

#[test]
fn a_scope_keeps_that_an_address_is_never_blocked() {
    let office = ClientIp::peer().never_block(["203.0.113.9"]).unwrap();
    let request = request(Some("203.0.113.9"), Some("ann"));
    let is_blockable =
        |identity: &dyn Identify| match identity.identify(&RequestHead::new(&request), Key::builder()) {
            Identified::Known(key, _) => Some(key.finish().is_blockable()),
            Identified::Missing(_) => None,
        };
    assert_eq!(is_blockable(&Scoped::new("global", office.clone())), Some(false));
    assert_eq!(is_blockable(&(user(), office)), Some(false));
    assert_eq!(is_blockable(&Scoped::new("global", ClientIp::peer())), Some(true));
}

#[test]
fn boxed_and_shared_identities_are_identities() {
    let request = request(None, Some("ann"));
    let boxed: Box<dyn Identify> = Box::new(user());
    let shared: Arc<dyn Identify> = Arc::new(user());
    let expected = Some("header.x-user=ann:header.x-user=ann:header.x-user=ann".to_owned());
    assert_eq!(text(&(boxed, shared, Arc::new(user())), &request), expected);
}
