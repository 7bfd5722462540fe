//! Logs, through `tracing`. A client's key shows as a short hash; no header,
//! query or URL is ever part of an event.

use tracing::{debug, error, info, warn};

use super::{Checked, Observer, Problem};
use crate::store::{StoreErrorKind, StoreEvent};

#[derive(Debug)]
pub(super) struct Trace;

impl Observer for Trace {
    fn refused(&self, checked: &Checked<'_>) {
        debug!(
            policy = checked.policy(),
            key = %checked.key().redacted(),
            reason = checked.verdict().as_str(),
            source = checked.source().as_str(),
            shadow = checked.is_shadow(),
            retry_after = ?checked.retry_after(),
            "rate limit refused a request"
        );
    }

    fn blocked(&self, checked: &Checked<'_>) {
        info!(
            policy = checked.policy(),
            key = %checked.key().redacted(),
            shadow = checked.is_shadow(),
            blocked_for = ?checked.retry_after(),
            "rate limit blocked a client"
        );
    }

    fn store(&self, event: &StoreEvent<'_>) {
        match event {
            StoreEvent::Connected { address } => info!(%address, "rate limit store connected"),
            StoreEvent::Left { address } => debug!(%address, "rate limit store has no slots there"),
            StoreEvent::Misconfigured { address, error } => error!(
                %address,
                reason = error.kind().as_str(),
                misconfigured = true,
                "rate limit store refuses checks; deciding them in this process until that is mended"
            ),
            StoreEvent::Lost { address, error } if error.kind().is_misconfiguration() => error!(
                %address,
                reason = error.kind().as_str(),
                misconfigured = true,
                "rate limit store refuses this client; limiting in this process until that is mended"
            ),
            StoreEvent::Lost { address, error } => warn!(
                %address,
                reason = error.kind().as_str(),
                "rate limit store lost; limiting in this process until it is back"
            ),
            StoreEvent::Answered { .. } | StoreEvent::Failed { .. } => {}
        }
    }

    fn fell_back(&self, policy: &str, reason: StoreErrorKind) {
        debug!(policy, reason = reason.as_str(), "rate limit decided by this process alone");
    }

    fn misconfigured(&self, problem: &Problem) {
        error!(problem = problem.as_str(), "{problem}");
    }

    fn rules(&self, digest: &str, replaced: Option<&str>) {
        info!(digest, replaced, "rate limit rules apply");
    }

    fn mended(&self, problem: &Problem) {
        info!(problem = problem.as_str(), "not seen for a minute");
    }
}
