//! Reads single variables: their form and range, not their meaning.

use std::env;
use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::SettingsError;

type Lookup<'a> = dyn Fn(&str) -> Result<Option<String>, SettingsError> + 'a;

/// Named values, from the process or from a test.
pub(super) struct Environment<'a> {
    lookup: &'a Lookup<'a>,
}

impl<'a> Environment<'a> {
    pub(super) fn new(lookup: &'a Lookup<'a>) -> Self {
        Self { lookup }
    }

    /// The value as it is, `None` when it is blank: for a password or a path,
    /// which may begin or end with a space.
    pub(super) fn verbatim(&self, variable: &str) -> Result<Option<String>, SettingsError> {
        let value = (self.lookup)(variable)?;
        Ok(value.filter(|value| !value.trim().is_empty()))
    }

    /// The value without white space around it, `None` when nothing is left.
    pub(super) fn trimmed(&self, variable: &str) -> Result<Option<String>, SettingsError> {
        let value = self.verbatim(variable)?;
        Ok(value.map(|value| value.trim().to_owned()))
    }

    pub(super) fn is_set(&self, variable: &str) -> Result<bool, SettingsError> {
        self.verbatim(variable).map(|value| value.is_some())
    }

    /// A whole number within `range`.
    pub(super) fn whole<T: TryFrom<u64> + Into<u64> + Copy>(
        &self,
        variable: &str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, SettingsError> {
        let (min, max) = ((*range.start()).into(), (*range.end()).into());
        let number = self.within(variable, "a whole number", min..=max)?;
        Ok(number.and_then(|number| T::try_from(number).ok()))
    }

    /// A whole number of milliseconds within `range`.
    pub(super) fn millis(
        &self,
        variable: &str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>, SettingsError> {
        let range = in_millis(*range.start())..=in_millis(*range.end());
        let millis = self.within(variable, "a whole number of milliseconds", range)?;
        Ok(millis.map(Duration::from_millis))
    }

    /// A fraction above 0 and up to 1, in lowest terms.
    pub(super) fn share(&self, variable: &str) -> Result<Option<(u32, u32)>, SettingsError> {
        self.parsed(variable, parse_share, || {
            "a share above 0 and up to 1, such as 1/4, 0.25 or 1".to_owned()
        })
    }

    /// Addresses and CIDR ranges between commas; empty when unset.
    pub(super) fn ranges(&self, variable: &str) -> Result<Vec<String>, SettingsError> {
        let ranges = self.parsed(variable, parse_ranges, || {
            "addresses or CIDR ranges between commas, such as 10.0.0.0/8,fd00::/8".to_owned()
        })?;
        Ok(ranges.unwrap_or_default())
    }

    fn within(
        &self,
        variable: &str,
        what: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, SettingsError> {
        self.parsed(
            variable,
            |text| parse_digits(text).filter(|number| range.contains(number)),
            || format!("{what} from {} to {}", range.start(), range.end()),
        )
    }

    fn parsed<T>(
        &self,
        variable: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        accepts: impl FnOnce() -> String,
    ) -> Result<Option<T>, SettingsError> {
        let Some(text) = self.trimmed(variable)? else {
            return Ok(None);
        };
        match parse(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(SettingsError::new(variable, accepts()).with_value(&text)),
        }
    }
}

/// Looks a variable up in the environment of this process.
pub(super) fn of_process(variable: &str) -> Result<Option<String>, SettingsError> {
    decode(variable, env::var_os(variable))
}

pub(super) fn decode(variable: &str, value: Option<OsString>) -> Result<Option<String>, SettingsError> {
    value.map(OsString::into_string).transpose().map_err(|_| SettingsError::new(variable, "text in UTF-8"))
}

/// Digits and nothing else: `parse` alone takes a sign as well.
pub(super) fn parse_digits(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Exact: a decimal is read by its digits and not as a float.
fn parse_share(text: &str) -> Option<(u32, u32)> {
    /// The most decimals of which the denominator is still a `u32`.
    const MAX_DECIMALS: usize = 9;
    let (numerator, denominator) = if let Some((above, below)) = text.split_once('/') {
        (parse_digits(above.trim())?, parse_digits(below.trim())?)
    } else if let Some((whole, decimals)) = text.split_once('.') {
        let places = Some(decimals.len()).filter(|places| *places <= MAX_DECIMALS)?;
        let denominator = 10_u64.pow(u32::try_from(places).ok()?);
        let whole = parse_digits(whole)?.checked_mul(denominator)?;
        (whole.checked_add(parse_digits(decimals)?)?, denominator)
    } else {
        (parse_digits(text)?, 1)
    };
    if numerator == 0 || numerator > denominator {
        return None;
    }
    let divisor = greatest_common_divisor(numerator, denominator);
    let numerator = u32::try_from(numerator / divisor).ok()?;
    Some((numerator, u32::try_from(denominator / divisor).ok()?))
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn parse_ranges(text: &str) -> Option<Vec<String>> {
    items(text).map(|range| is_range(range).then(|| range.to_owned())).collect()
}

fn is_range(text: &str) -> bool {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let longest = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.is_none_or(|bits| parse_digits(bits).is_some_and(|bits| bits <= longest))
}

/// What stands between commas. A comma too many is nobody's mistake.
pub(super) fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn in_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
