//! A setting that is not accepted.

/// A variable has a value that is not accepted. The text names the variable
/// and what it accepts.
///
/// The value is shown only where it cannot hold a password.
///
/// ```
/// use tower_ratelimit::settings::SettingsError;
///
/// let error = SettingsError::new("LISTEN", "an address and a port").with_value("here");
/// assert_eq!(
///     error.to_string(),
///     r#"LISTEN: "here" is not accepted: an address and a port"#,
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {} is not accepted: {accepts}", shown(value.as_deref()))]
pub struct SettingsError {
    variable: String,
    value: Option<String>,
    accepts: String,
}

impl SettingsError {
    /// `variable` has a value that is not among what it `accepts` ("a whole
    /// number"). The value is not shown.
    #[must_use]
    pub fn new(variable: impl Into<String>, accepts: impl Into<String>) -> Self {
        Self { variable: variable.into(), value: None, accepts: accepts.into() }
    }

    /// Shows the value too, at most its first 64 characters.
    #[must_use]
    pub fn with_value(mut self, value: &str) -> Self {
        const SHOWN: usize = 64;
        let mut text: String = value.chars().take(SHOWN).collect();
        if text.len() < value.len() {
            text.push_str("...");
        }
        self.value = Some(text);
        self
    }

    /// The name of the variable.
    #[must_use]
    pub fn variable(&self) -> &str {
        &self.variable
    }
}

/// Quoted and escaped: a line break in a value must not forge a line of log.
fn shown(value: Option<&str>) -> String {
    value.map_or_else(|| "the value".to_owned(), |value| format!("{value:?}"))
}
