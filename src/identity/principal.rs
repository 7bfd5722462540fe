//! What an authentication layer leaves in a request's extensions for rules.

use std::fmt;
use std::sync::Arc;

use super::{Extension, Scoped};

/// A verified caller: the user, the workspace (tenant) it acts in, and the plan
/// that the workspace pays for. The authentication layer puts it into the
/// request's extensions; [rules](crate::rules) read it from there.
///
/// An application with a type of its own can have rules read that instead, see
/// [`Facts`](crate::rules::Facts).
///
/// ```
/// use tower_ratelimit::identity::Principal;
///
/// let ann = Principal::new().user("ann").workspace("acme").plan("pro");
/// assert_eq!(ann.plan_name(), Some("pro"));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[must_use = "a principal does nothing until it is in a request's extensions"]
pub struct Principal {
    user: Option<Arc<str>>,
    workspace: Option<Arc<str>>,
    plan: Option<Arc<str>>,
}

impl Principal {
    /// Of whom nothing is known yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Who it is. Default: nobody in particular.
    pub fn user(mut self, name: impl Into<Arc<str>>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// The workspace or tenant. Default: none.
    pub fn workspace(mut self, id: impl Into<Arc<str>>) -> Self {
        self.workspace = Some(id.into());
        self
    }

    /// The plan. Default: none, which rules take as any plan that they do not
    /// know.
    pub fn plan(mut self, name: impl Into<Arc<str>>) -> Self {
        self.plan = Some(name.into());
        self
    }

    /// Who it is.
    #[must_use]
    pub fn user_name(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The workspace or tenant.
    #[must_use]
    pub fn workspace_id(&self) -> Option<&str> {
        self.workspace.as_deref()
    }

    /// The plan.
    #[must_use]
    pub fn plan_name(&self) -> Option<&str> {
        self.plan.as_deref()
    }

    /// The identity of the user: its bare name.
    pub fn by_user() -> Extension<Self> {
        Extension::new(|principal: &Self| principal.user_name().map(Into::into)).called("user")
    }

    /// The identity of the workspace: `workspace=<id>`.
    pub fn by_workspace() -> Scoped<Extension<Self>> {
        let id = Extension::new(|principal: &Self| principal.workspace_id().map(Into::into));
        Scoped::new("workspace", id.called("id"))
    }
}

/// Names and ids are for keys, not for logs.
impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Principal").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The account that a login names, whoever sends it: not verified. A layer in
/// front reads it from the body and puts it into the request's extensions.
///
/// Spelled as the account table compares it, or each spelling has an allowance
/// of its own: see `normalize::account`.
#[derive(Clone, PartialEq, Eq)]
pub struct Account(Arc<str>);

impl Account {
    /// The account of this name.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The identity of the account: its bare name.
    pub fn identity() -> Extension<Self> {
        Extension::new(|account: &Self| Some(account.0.as_ref().into())).called("account")
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Account(..)")
    }
}
