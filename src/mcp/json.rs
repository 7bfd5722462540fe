//! The look at a JSON-RPC body: method, `params.name` and id of each message,
//! and nothing else. What it does not need is skipped without being built.

use std::cell::Cell;
use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::message::{Item, TOOLS_CALL};

/// Why a body is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Not JSON.
    Syntax,
    /// JSON, but no JSON-RPC message, or an empty array.
    NoMessage,
    /// A key that decides stands twice: parsers differ in which of the two they
    /// take.
    DuplicateKey,
    /// An array of more messages than are looked at.
    TooMany,
}

/// What a body holds: whether it is an array, and its messages, one or more.
pub(super) fn look(body: &Bytes, max_messages: usize) -> Result<(bool, Vec<Item>), Unreadable> {
    let why = Cell::new(Unreadable::NoMessage);
    let mut json = serde_json::Deserializer::from_slice(body);
    let whole = Whole { body, max_messages, why: &why };
    let read = whole.deserialize(&mut json).and_then(|found| json.end().map(|()| found));
    match read {
        Ok((true, items)) if items.is_empty() => Err(Unreadable::NoMessage),
        Ok(found) => Ok(found),
        Err(error) if error.is_data() => Err(why.get()),
        Err(_) => Err(Unreadable::Syntax),
    }
}

#[derive(Clone, Copy)]
struct Whole<'a> {
    body: &'a Bytes,
    max_messages: usize,
    why: &'a Cell<Unreadable>,
}

impl Whole<'_> {
    fn fail<E: serde::de::Error>(&self, why: Unreadable) -> E {
        self.why.set(why);
        E::custom("not taken")
    }

    /// Puts what is read into an empty place.
    fn fill<T, E: serde::de::Error>(&self, place: &mut Option<T>, read: T) -> Result<(), E> {
        match place.replace(read) {
            None => Ok(()),
            Some(_) => Err(self.fail(Unreadable::DuplicateKey)),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = (bool, Vec<Item>);

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        if self.body.trim_ascii_start().starts_with(b"[") {
            json.deserialize_seq(self)
        } else {
            json.deserialize_map(self)
        }
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = (bool, Vec<Item>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message or an array of them")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Ok((false, vec![One(self).visit_map(map)?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut found = Vec::new();
        while let Some(item) = items.next_element_seed(One(self))? {
            if found.len() == self.max_messages {
                return Err(self.fail(Unreadable::TooMany));
            }
            found.push(item);
        }
        Ok((true, found))
    }
}

/// One message.
struct One<'a>(Whole<'a>);

impl<'de> DeserializeSeed<'de> for One<'_> {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Item, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for One<'_> {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON-RPC message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
        let Self(whole) = self;
        let (mut method, mut params, mut id) = (None, None, None);
        while let Some(key) = map.next_key_seed(KeyOf)? {
            match key {
                Field::Method => whole.fill(&mut method, map.next_value::<Box<str>>()?)?,
                Field::Params => whole.fill(&mut params, map.next_value_seed(Params(whole))?)?,
                Field::Id => whole.fill(&mut id, map.next_value::<&RawValue>()?)?,
                Field::Name | Field::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let id = match id.map(RawValue::get) {
            None | Some("null") => None,
            // It is given back as it came.
            Some(id) if id.starts_with(['"', '-']) || id.starts_with(|c: char| c.is_ascii_digit()) => {
                Some(whole.body.slice_ref(id.as_bytes()))
            }
            Some(_) => return Err(A::Error::custom("an id is a string or a number")),
        };
        let tool = params.flatten().filter(|_| method.as_deref() == Some(TOOLS_CALL));
        Ok(Item { method, tool, id })
    }
}

/// The `name` in the params, if there is one and it is a text.
struct Params<'a>(Whole<'a>);

impl<'de> DeserializeSeed<'de> for Params<'_> {
    type Value = Option<Box<str>>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Params<'_> {
    type Value = Option<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("params by name")
    }

    /// `null`.
    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut name = None;
        while let Some(key) = map.next_key_seed(KeyOf)? {
            match key {
                Field::Name => self.0.fill(&mut name, map.next_value::<&RawValue>()?)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        // Methods of one's own may mean something else by it.
        let text = name.map(RawValue::get).filter(|json| json.starts_with('"'));
        text.map(serde_json::from_str).transpose().map_err(A::Error::custom)
    }
}

enum Field {
    Method,
    Params,
    Id,
    Name,
    Other,
}

/// Compared as it is read, escapes and all, without keeping it.
struct KeyOf;

impl<'de> DeserializeSeed<'de> for KeyOf {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Field, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyOf {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Field, E> {
        Ok(match key {
            "method" => Field::Method,
            "params" => Field::Params,
            "id" => Field::Id,
            "name" => Field::Name,
            _ => Field::Other,
        })
    }
}

#[cfg(test)]
mod tests;
