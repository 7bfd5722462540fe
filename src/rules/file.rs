//! Rules from a TOML file.

mod sections;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use toml::de::DeTable;

use self::table::Table;
use super::{Facts, RuleSet};
use crate::identity::{Account, ClientIp, Host, Identify, Method, Principal, Route};

/// More is not the work of an operator.
const MAX_BYTES: usize = 1 << 20;

/// Reads a [`RuleSet`] from TOML.
///
/// ```
/// use tower_ratelimit::rules::RulesFile;
///
/// let rules = RulesFile::new().parse(r#"
///     [skip]
///     paths = ["/healthz"]
///
///     [factors.vip]
///     times = 2
///     users = ["ann"]
///
///     [policies.writes]
///     limit = 20
///     window = "1m"
///     identity = ["workspace", "ip", "user", "route"]
///     plans = { pro = 100, enterprise = 1000 }
///     factors = ["vip"]
///
///     [[rules]]
///     route = "/api/{*rest}"
///     methods = ["POST", "PUT", "PATCH"]
///     policies = ["writes"]
/// "#)?;
///
/// let error = RulesFile::new().parse("[policies.http]\nlimit = -1\nwindow = '1m'").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "line 2: limit: -1 is not allowed, it takes a whole number from 0 to 9007199254740991"
/// );
/// # Ok::<(), tower_ratelimit::rules::RulesFileError>(())
/// ```
///
/// Durations are a number and a unit: `500ms`, `30s`, `15m`, `1h`, `1h 30m`, `2d`.
/// Everything that is not named here is refused.
///
/// **`[policies.<name>]`**, one for each name, 1 to 64 of `a-z`, `0-9`, `_`, `-`:
///
/// | field | value | default |
/// |---|---|---|
/// | `limit` | how much in one window, 0 (refuses everything) to 9007199254740991 | must be there |
/// | `window` | duration, 1 ms to 366 days | must be there |
/// | `algorithm` | `fixed_window`, `sliding_window` or `token_bucket` | `fixed_window` |
/// | `burst` | of a token bucket: the most at once; burst x window in ms up to 9007199254740991 | the limit |
/// | `block` | duration of the block that the first refusal starts, 1 ms to 366 days | no block |
/// | `identity` | who is counted, a list of the words below | `["ip"]` |
/// | `cost` | of one request, 0 to 9007199254740991 | 1 |
/// | `count` | statuses, 100 to 599: only requests that are answered so count | all count |
/// | `reserve` | duration for which a place is held open, 1 ms to 366 days | with `count` 1 m, otherwise none is |
/// | `plans` | other limits by plan: `{ pro = 100 }`; other plans have `limit` | none |
/// | `factors` | names of factors that may multiply the limit; the first that fits | none |
/// | `on_store_failure` | `local`, `deny` or `allow` | `local` |
/// | `mode` | `enforce`, or `shadow` to count and report only | `enforce` |
///
/// **Words of an identity**: `ip`, `user` and `workspace` (of the
/// [`Principal`]), `account` (of the [`Account`]), `route`, `method`, `host`,
/// `header:<name>`, `secret-header:<name>` (hashed), and what the application
/// [adds](Self::identity). `<kind>=<word>` is the word as a part of a kind of its
/// own: `global=ip`. Policies that one rule names share their first word, so that
/// their keys share a slot of a cluster.
///
/// **`[[rules]]`**, in order; the first one applies for which all holds that it
/// says. `policies` must be there, the rest may be left out:
///
/// | field | value | default |
/// |---|---|---|
/// | `policies` | up to 8 names of policies, checked together; `[]` does not limit | must be there |
/// | `route`, `routes` | a pattern or a list: `/auth/login`, `/api/{id}/x`, `/auth/{*rest}` | all |
/// | `methods` | in upper case | all, unknown ones too |
/// | `plans`, `tenants` | names, of the `Principal` | all |
///
/// **`[otherwise]`** has the `policies` for requests for which no rule holds.
/// Default: they are not limited.
///
/// **`[factors.<name>]`**: `times`, a whole number or a ratio as text (`"3/2"`), each
/// part 1 to 1000000; and for whom: `users`, `tenants`, `plans`, at least one name.
///
/// **`[skip]`**: `paths` (exact), `methods`, `ips` (CIDR or single addresses).
/// These requests are not limited.
#[derive(Clone)]
#[must_use = "this reads nothing until `parse`"]
pub struct RulesFile {
    words: BTreeMap<String, Arc<dyn Identify>>,
    client_ip: ClientIp,
    facts: Facts,
}

impl RulesFile {
    /// With the words of the table above; `ip` is the peer's address.
    pub fn new() -> Self {
        let file = Self { words: BTreeMap::new(), client_ip: ClientIp::peer(), facts: Facts::new() };
        file.identity("user", Principal::by_user())
            .identity("workspace", Principal::by_workspace())
            .identity("account", Account::identity())
            .identity("route", Route::new())
            .identity("method", Method::new())
            .identity("host", Host::new())
            .client_ip(ClientIp::peer())
    }

    /// How the word `ip`, and `ips` of `[skip]`, find the client address.
    pub fn client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client_ip = client_ip.clone();
        self.identity("ip", client_ip)
    }

    /// Adds a word for identities, or gives one another meaning.
    pub fn identity(mut self, word: impl Into<String>, identity: impl Identify) -> Self {
        self.words.insert(word.into(), Arc::new(identity));
        self
    }

    /// Where the user, tenant and plan of a request are found, for conditions and
    /// factors. Default: in its [`Principal`].
    pub fn facts(mut self, facts: Facts) -> Self {
        self.facts = facts;
        self
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with its line, field and value.
    pub fn parse(&self, text: &str) -> Result<RuleSet, RulesFileError> {
        if text.len() > MAX_BYTES {
            let reason = format!("{} bytes are not allowed, it takes up to {MAX_BYTES}", text.len());
            return Err(RulesFileError::new(1, "file", reason));
        }
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| table::line_of(text, span.start));
            RulesFileError::new(
                line,
                "file",
                format!("it is not TOML, {}", error.message().replace('\n', ", ")),
            )
        })?;
        let sections = ["skip", "factors", "policies", "rules", "otherwise"];
        let root = Table::new(text, "the file".to_owned(), 1, document.get_ref(), Some(&sections))?;
        sections::rule_set(self, &root)
    }
}

impl Default for RulesFile {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RulesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesFile").field("words", &self.words.keys()).finish_non_exhaustive()
    }
}

/// Why a file of rules is refused: the line, the field, and the reason with the
/// value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}: {reason}")]
pub struct RulesFileError {
    line: usize,
    field: String,
    reason: String,
}

impl RulesFileError {
    fn new(line: usize, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { line, field: field.into(), reason: reason.into() }
    }

    /// The line, counted from 1.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// The field, or `file` for the whole.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

#[cfg(test)]
mod tests;
