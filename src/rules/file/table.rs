//! Tables and values of a document that know where they stand.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::RulesFileError;
use crate::policy::{MAX_WINDOW, MIN_WINDOW};

type Result<T> = std::result::Result<T, RulesFileError>;

/// How much of a value an error shows.
const SHOWN: usize = 60;

/// The number of the line, from 1, in which a byte stands.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// A table, whose fields are all known.
pub(super) struct Table<'a> {
    pub(super) name: String,
    pub(super) line: usize,
    fields: Vec<Value<'a>>,
}

/// A value and the field that has it.
#[derive(Clone)]
pub(super) struct Value<'a> {
    pub(super) field: String,
    pub(super) line: usize,
    text: &'a str,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Table<'a> {
    /// With these fields at most, or with names that the operator chooses.
    pub(super) fn new(
        text: &'a str,
        name: String,
        line: usize,
        table: &'a DeTable<'a>,
        known: Option<&[&str]>,
    ) -> Result<Self> {
        let mut fields: Vec<_> = table.iter().collect();
        // As they stand in the file, not by name.
        fields.sort_by_key(|(key, _)| key.span().start);
        let fields: Vec<_> = fields
            .into_iter()
            .map(|(key, value)| Value {
                field: key.get_ref().to_string(),
                line: line_of(text, key.span().start),
                text,
                value,
            })
            .collect();
        if let Some(known) = known
            && let Some(odd) = fields.iter().find(|field| !known.contains(&field.field.as_str()))
        {
            let reason = format!("{name} has no such field, it takes {}", known.join(", "));
            return Err(RulesFileError::new(odd.line, shown(&odd.field), reason));
        }
        Ok(Self { name, line, fields })
    }

    pub(super) fn fields(&self) -> &[Value<'a>] {
        &self.fields
    }

    pub(super) fn get(&self, field: &str) -> Option<&Value<'a>> {
        self.fields.iter().find(|value| value.field == field)
    }

    pub(super) fn required(&self, field: &str) -> Result<&Value<'a>> {
        self.get(field)
            .ok_or_else(|| RulesFileError::new(self.line, field, format!("is missing in {}", self.name)))
    }

    /// The texts of a list, none if the field is not there.
    pub(super) fn texts(&self, field: &str) -> Result<Vec<Value<'a>>> {
        self.get(field).map_or_else(|| Ok(Vec::new()), Value::items)
    }
}

impl<'a> Value<'a> {
    pub(super) fn error(&self, takes: impl fmt::Display) -> RulesFileError {
        let reason = format!("{} is not allowed, it takes {takes}", self.shown());
        RulesFileError::new(self.line, shown(&self.field), reason)
    }

    fn shown(&self) -> String {
        shown(self.text.get(self.value.span()).unwrap_or("this"))
    }

    pub(super) fn as_str(&self) -> Option<&'a str> {
        self.value.get_ref().as_str()
    }

    pub(super) fn as_integer(&self) -> Option<u64> {
        let number = self.value.get_ref().as_integer()?;
        u64::from_str_radix(number.as_str(), number.radix()).ok()
    }

    pub(super) fn text(&self, takes: &str) -> Result<&'a str> {
        self.as_str().filter(|text| !text.trim().is_empty()).ok_or_else(|| self.error(takes))
    }

    pub(super) fn number(&self, range: RangeInclusive<u64>) -> Result<u64> {
        self.as_integer().filter(|number| range.contains(number)).ok_or_else(|| {
            self.error(format_args!("a whole number from {} to {}", range.start(), range.end()))
        })
    }

    pub(super) fn duration(&self) -> Result<Duration> {
        let legal = |duration: &Duration| {
            (MIN_WINDOW..=MAX_WINDOW).contains(duration) && duration.subsec_nanos().is_multiple_of(1_000_000)
        };
        let duration = self.as_str().and_then(|text| humantime::parse_duration(text).ok());
        duration.filter(legal).ok_or_else(|| {
            self.error("a duration such as \"15m\", in whole milliseconds from 1 ms to 366 days")
        })
    }

    /// The one of these words that it is.
    pub(super) fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let found = words.iter().find(|(word, _)| Some(*word) == self.as_str());
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            self.error(words.join(", "))
        })
    }

    /// The values of a list, which is not too long to be meant.
    pub(super) fn items(&self) -> Result<Vec<Self>> {
        let DeValue::Array(items) = self.value.get_ref() else {
            return Err(self.error("a list"));
        };
        Ok(items
            .iter()
            .map(|value| Self {
                field: self.field.clone(),
                line: line_of(self.text, value.span().start),
                text: self.text,
                value,
            })
            .collect())
    }

    pub(super) fn table(&self, name: String, known: Option<&[&str]>) -> Result<Table<'a>> {
        match self.value.get_ref() {
            DeValue::Table(table) => Table::new(self.text, name, self.line, table, known),
            _ => Err(self.error("a table")),
        }
    }
}

/// One line of it, and not a long one.
fn shown(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if short.len() < text.len() { format!("{short}...") } else { short }
}
