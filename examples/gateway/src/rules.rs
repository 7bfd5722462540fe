//! The rules: those of `RULES_FILE`, or the SaaS example that is built in.
//!
//! Read again on SIGHUP. A file that is wrong changes nothing: what is wrong is
//! logged with its line.

use std::fs;
use std::path::{Path, PathBuf};

use tower_ratelimit::rules::{Limit, LiveRules, RuleSet, RulesFile};
use tower_ratelimit::{BuildError, RateLimiter};

const BUILT_IN: &str = include_str!("../../saas.toml");

/// Where rules come from, and what they are read with.
pub(crate) struct Source {
    file: Option<PathBuf>,
    format: RulesFile,
    /// For requests for which the file has no rule.
    otherwise: Limit,
}

impl Source {
    pub(crate) fn new(file: Option<PathBuf>, format: RulesFile, otherwise: Limit) -> Self {
        Self { file, format, otherwise }
    }

    /// What `RULES_FILE` says now.
    pub(crate) fn read(&self) -> Result<RuleSet, String> {
        match &self.file {
            Some(file) => self.read_file(file).map_err(|error| format!("RULES_FILE: {error}")),
            None => self.parse(BUILT_IN).map_err(|error| format!("the rules built in: {error}")),
        }
    }

    fn read_file(&self, file: &Path) -> Result<RuleSet, String> {
        let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        self.parse(&text).map_err(|error| format!("{}: {error}", file.display()))
    }

    fn parse(&self, text: &str) -> Result<RuleSet, String> {
        let rules = self.format.parse(text).map_err(|error| error.to_string())?;
        Ok(if rules.has_default() { rules } else { rules.otherwise(self.otherwise.clone()) })
    }

    /// What going over to `file` would mean: from `RULES_FILE`, or from no rules at
    /// all where that is not set.
    pub(crate) fn check(&self, file: &Path) -> Result<String, String> {
        let rules = self.read_file(file)?;
        let digest = rules.digest();
        let before = if self.file.is_some() { self.read()? } else { RuleSet::new() };
        let shown = |error: BuildError| format!("{}: {error}", file.display());
        let live = LiveRules::new(&RateLimiter::memory(), before).map_err(shown)?;
        let plan = live.plan(rules).map_err(shown)?;
        Ok(format!("{}: rules {digest}\n{plan}", file.display()))
    }

    /// Reads the file again and goes over to it.
    fn reload(&self, live: &LiveRules) -> Result<(), String> {
        let plan = live.plan(self.read()?).map_err(|error| error.to_string())?;
        for step in plan.steps() {
            tracing::info!("rules: {step}");
        }
        plan.apply().map_err(|error| error.to_string())
    }
}

/// Goes over to what the file says whenever SIGHUP comes. Caught from now on.
#[cfg(unix)]
pub(crate) fn reload_on_hangup(source: Source, live: LiveRules) -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut hangups = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            match source.reload(&live) {
                Ok(()) => tracing::info!(digest = live.current().digest(), "rules read again"),
                Err(error) => tracing::error!("rules not changed: {error}"),
            }
        }
    });
    Ok(())
}

/// There is no such signal.
#[cfg(not(unix))]
pub(crate) fn reload_on_hangup(_: Source, _: LiveRules) -> std::io::Result<()> {
    Ok(())
}
