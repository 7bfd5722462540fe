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

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;
    use crate::identity::{ClientIp, Described, Identified, Identify, RequestHead, Route};
    use crate::key::Key;

    fn key(identity: &dyn Identify, principal: Principal) -> Option<String> {
        let peer: std::net::IpAddr = "203.0.113.9".parse().unwrap();
        let request = Request::builder().extension(peer).extension(principal).body(()).unwrap();
        match identity.identify(&RequestHead::new(&request), Key::builder()) {
            Identified::Known(key, _) => Some(key.finish().as_str().to_owned()),
            Identified::Missing(_) => None,
        }
    }

    #[test]
    fn a_principal_is_its_user_bare_and_its_workspace_as_a_part_of_its_own() {
        let ann = || Principal::new().user("ann").workspace("acme");
        assert_eq!(key(&Principal::by_user(), ann()).as_deref(), Some("ann"));
        assert_eq!(key(&Principal::by_workspace(), ann()).as_deref(), Some("workspace=acme"));
        assert_eq!(key(&Principal::by_user(), Principal::new()), None);
        assert_eq!(key(&Principal::by_workspace(), Principal::new().workspace(" ")), None);
        let all = (Principal::by_workspace(), ClientIp::peer(), Principal::by_user(), Route::new());
        let nobody = key(&all, Principal::new());
        assert_eq!(nobody.as_deref(), Some("none=:ip=203.0.113.9:none=:route=none"));
        assert_eq!(Described(&all).to_string(), "workspace=id, ip, user, route");
    }

    #[test]
    fn a_workspace_that_is_called_like_an_address_is_no_address() {
        let by_address = Scoped::new("workspace", ClientIp::peer());
        let named = Principal::new().workspace("203.0.113.9");
        assert_ne!(key(&by_address, named.clone()), key(&Principal::by_workspace(), named));
    }

    proptest! {
        #[test]
        fn o_key_1_two_callers_have_two_keys(
            left in ("[a-z0-9:=%{} /é]{0,12}", "[a-z0-9:=%{} /é]{0,12}"),
            right in ("[a-z0-9:=%{} /é]{0,12}", "[a-z0-9:=%{} /é]{0,12}"),
        ) {
            let both = (Principal::by_workspace(), Principal::by_user());
            let of = |(workspace, user): &(String, String)| {
                key(&both, Principal::new().workspace(workspace.as_str()).user(user.as_str()))
            };
            // A blank name is a missing one.
            let meant = |(workspace, user): &(String, String)| {
                [workspace, user].map(|name| if name.trim().is_empty() { String::new() } else { name.clone() })
            };
            prop_assert_eq!(of(&left) == of(&right), meant(&left) == meant(&right));
        }
    }
}
