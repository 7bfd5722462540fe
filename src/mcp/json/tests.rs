//! What is found in a body; and whatever the body is, that it is found or refused.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Method, tool and id.
type Found = (Option<String>, Option<String>, Option<String>);

fn see(body: &str) -> Result<Vec<Found>, Unreadable> {
    let text = |text: &Option<Box<str>>| text.as_deref().map(ToOwned::to_owned);
    let (_, items) = look(&Bytes::copy_from_slice(body.as_bytes()), 100)?;
    let id = |item: &Item| item.id.as_ref().map(|id| String::from_utf8(id.to_vec()).unwrap());
    Ok(items.iter().map(|item| (text(&item.method), text(&item.tool), id(item))).collect())
}

fn found(method: &str, tool: Option<&str>, id: Option<&str>) -> Found {
    (Some(method.to_owned()), tool.map(ToOwned::to_owned), id.map(ToOwned::to_owned))
}

#[test]
fn method_tool_and_id_are_found_wherever_they_stand() {
    let call = |id| Ok(vec![found("tools/call", Some("run"), id)]);
    for body in [
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run"}}"#,
        r#" {"params":{"arguments":{"name":"other","method":1},"name":"run"},"id":7,"method":"tools/call"} "#,
        r#"{"m\u0065thod":"tools\/c\u0061ll","id":7,"par\u0061ms":{"n\u0061me":"r\u0075n"},"x":{"id":1}}"#,
    ] {
        assert_eq!(see(body), call(Some("7")), "{body}");
    }
    for id in ["-1", "1.5", r#""a\"b\u00e9""#, "123456789012345678901234567890"] {
        assert_eq!(
            see(&format!(r#"{{"id": {id} ,"method":"ping"}}"#)),
            Ok(vec![found("ping", None, Some(id))])
        );
    }
    assert_eq!(see(r#"{"id":null,"method":"tools/call","params":{"name":"run"}}"#), call(None));
    // A prompt's name is no tool's, and what is no text names none.
    assert_eq!(
        see(r#"{"method":"prompts/get","params":{"name":"run"}}"#),
        Ok(vec![found("prompts/get", None, None)])
    );
    for params in ["null", "{}", r#"{"name":1}"#, r#"{"name":["run"]}"#, r#"{"Name":"run"}"#] {
        let body = format!(r#"{{"method":"tools/call","params":{params}}}"#);
        assert_eq!(see(&body), Ok(vec![found("tools/call", None, None)]), "{body}");
    }
    assert_eq!(see(r#"{"id":1,"result":{}}"#), Ok(vec![(None, None, Some("1".to_owned()))]));
    let batch = r#"[{"id":1,"method":"ping"},{"method":"tools/call","params":{"name":"run"}}]"#;
    assert_eq!(see(batch), Ok(vec![found("ping", None, Some("1")), found("tools/call", Some("run"), None)]));
}

#[test]
fn what_parsers_may_read_differently_is_refused() {
    for body in [
        r#"{"method":"ping","method":"tools/call"}"#,
        r#"{"method":"ping","m\u0065thod":"tools/call"}"#,
        r#"{"method":"tools/call","params":{},"params":{"name":"run"}}"#,
        r#"{"method":"tools/call","params":null,"params":{"name":"run"}}"#,
        r#"{"method":"tools/call","params":{"name":"echo","name":"run"}}"#,
        r#"{"method":"tools/call","params":{"name":1,"n\u0061me":"run"}}"#,
        r#"{"id":1,"id":2,"method":"ping"}"#,
        r#"[{"method":"ping"},{"method":"ping","method":"ping"}]"#,
    ] {
        assert_eq!(see(body), Err(Unreadable::DuplicateKey), "{body}");
    }
    for body in [
        "1",
        "true",
        "null",
        r#""text""#,
        "[]",
        " [ ] ",
        "[1]",
        "[[]]",
        r#"[{"method":"ping"},null]"#,
        r#"{"method":1}"#,
        r#"{"id":true}"#,
        r#"{"id":{}}"#,
        r#"{"id":[1]}"#,
        r#"{"params":[1]}"#,
        r#"{"params":"a"}"#,
        r#"{"method":"\ud800"}"#,
    ] {
        assert!(
            matches!(see(body), Err(Unreadable::NoMessage | Unreadable::Syntax)),
            "{body}: {:?}",
            see(body)
        );
    }
    for body in
        ["", " ", "{", "[{}", "{}{}", "{} x", "\u{feff}{}", "{'method':1}", "{\"method\":\"a\nb\"}", "[{},]"]
    {
        assert_eq!(see(body), Err(Unreadable::Syntax), "{body:?}");
    }
    assert_eq!(look(&Bytes::from_static(b"{\"id\":\"\xff\"}"), 9).map(|_| ()), Err(Unreadable::Syntax));
}

#[test]
fn an_array_is_looked_at_up_to_a_bound() {
    let messages = |count: usize| format!("[{}]", vec!["{}"; count].join(","));
    assert_eq!(see(&messages(100)).map(|found| found.len()), Ok(100));
    assert_eq!(see(&messages(101)), Err(Unreadable::TooMany));
}

#[test]
fn depth_costs_no_stack() {
    let deep = format!(r#"{{"x":{}{},"method":"ping"}}"#, "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert_eq!(see(&deep), Ok(vec![found("ping", None, None)]));
}

/// JSON that is nearly a message, with keys that matter here and there.
fn json() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "method",
        "params",
        "id",
        "name",
        "m\\u0065thod",
        "n\\u0061me",
        "arguments",
        "jsonrpc",
        "",
        "\\ud800",
    ]);
    let leaf = prop::sample::select(vec![
        "null",
        "true",
        "0",
        "-1",
        "1e400",
        "7",
        "\"tools/call\"",
        "\"tools\\/call\"",
        "\"run\"",
        "\"a\\\"b\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud800\"",
        "[]",
        "{}",
    ]);
    let leaf = leaf.prop_map(str::to_owned);
    leaf.prop_recursive(4, 24, 6, move |inner| {
        let entry = (key.clone(), inner.clone()).prop_map(|(key, value)| format!("\"{key}\":{value}"));
        prop_oneof![
            3 => prop::collection::vec(entry, 0..6).prop_map(|entries| format!("{{{}}}", entries.join(","))),
            1 => prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
        ]
    })
}

/// The same, cut off or with bytes changed, or just bytes.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let damaged =
        (json(), any::<prop::sample::Index>(), prop::option::of(any::<u8>())).prop_map(|(json, at, byte)| {
            let mut bytes = json.into_bytes();
            let at = at.index(bytes.len());
            match byte {
                Some(byte) => bytes[at] = byte,
                None => bytes.truncate(at),
            }
            bytes
        });
    prop_oneof![
        4 => json().prop_map(String::into_bytes),
        2 => damaged,
        1 => prop::collection::vec(any::<u8>(), 0..64),
    ]
}

/// What a parser finds that builds the whole value and takes the last of two keys.
fn by_value(message: &Value) -> (Option<&str>, Option<&str>) {
    let method = message["method"].as_str();
    (method, message["params"]["name"].as_str().filter(|_| method == Some("tools/call")))
}

proptest! {
    // `PROPTEST_CASES=1000000` for more.
    #[test]
    fn whatever_the_body_is_it_is_refused_or_understood_as_a_parser_does(bytes in body()) {
        const MAX: usize = 3;
        let bytes = Bytes::from(bytes);
        if let Ok((batch, items)) = look(&bytes, MAX) {
            prop_assert!(!items.is_empty() && items.len() <= MAX);
            let kept = |item: &Item| {
                item.method.as_ref().map_or(0, |text| text.len())
                    + item.tool.as_ref().map_or(0, |text| text.len())
                    + item.id.as_ref().map_or(0, Bytes::len)
            };
            prop_assert!(items.iter().map(kept).sum::<usize>() <= bytes.len());
            for id in items.iter().filter_map(|item| item.id.as_ref()) {
                let id: Box<RawValue> = serde_json::from_slice(id).unwrap();
                prop_assert!(id.get().starts_with(|first: char| "\"-0123456789".contains(first)));
            }
            // Numbers and lone surrogates that a parser refuses are not looked at
            // where they do not matter.
            if let Ok(whole) = serde_json::from_slice::<Value>(&bytes) {
                let messages = if batch { whole.as_array().unwrap().clone() } else { vec![whole] };
                let ours: Vec<_> = items.iter().map(|item| (item.method.as_deref(), item.tool.as_deref())).collect();
                prop_assert_eq!(ours, messages.iter().map(by_value).collect::<Vec<_>>());
            }
        }
    }
}
