//! What rules know of a request besides its head.

use std::fmt;
use std::sync::Arc;

use crate::identity::{Principal, RequestHead};

/// Reads one fact. Borrowed from the request, so that it costs nothing.
type Read = Arc<dyn for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync>;

/// Where rules find the user, tenant and plan of a request. By default in the
/// [`Principal`] that the authentication layer has left in its extensions.
///
/// Reading is synchronous: a plan that must be looked up is looked up by the
/// authentication layer.
///
/// ```
/// use tower_ratelimit::identity::RequestHead;
/// use tower_ratelimit::rules::Facts;
///
/// #[derive(Clone)]
/// struct Session {
///     plan: &'static str,
/// }
///
/// fn plan<'a>(head: &RequestHead<'a>) -> Option<&'a str> {
///     head.extensions().get::<Session>().map(|session| session.plan)
/// }
/// let facts = Facts::new().plan_by(plan);
/// ```
#[derive(Clone)]
#[must_use = "facts do nothing until rules have them"]
pub struct Facts {
    user: Read,
    tenant: Read,
    plan: Read,
}

impl Facts {
    /// From the [`Principal`] in the request's extensions.
    pub fn new() -> Self {
        Self {
            user: Arc::new(|head| principal(head)?.user_name()),
            tenant: Arc::new(|head| principal(head)?.workspace_id()),
            plan: Arc::new(|head| principal(head)?.plan_name()),
        }
    }

    /// Reads the user's name in another way.
    pub fn user_by(
        mut self,
        read: impl for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync + 'static,
    ) -> Self {
        self.user = Arc::new(read);
        self
    }

    /// Reads the tenant's (workspace's) id in another way.
    pub fn tenant_by(
        mut self,
        read: impl for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync + 'static,
    ) -> Self {
        self.tenant = Arc::new(read);
        self
    }

    /// Reads the plan's name in another way.
    pub fn plan_by(
        mut self,
        read: impl for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync + 'static,
    ) -> Self {
        self.plan = Arc::new(read);
        self
    }

    pub(super) fn user<'a>(&self, head: &RequestHead<'a>) -> Option<&'a str> {
        (self.user)(head)
    }

    pub(super) fn tenant<'a>(&self, head: &RequestHead<'a>) -> Option<&'a str> {
        (self.tenant)(head)
    }

    pub(super) fn plan<'a>(&self, head: &RequestHead<'a>) -> Option<&'a str> {
        (self.plan)(head)
    }
}

fn principal<'a>(head: &RequestHead<'a>) -> Option<&'a Principal> {
    head.extensions().get()
}

impl Default for Facts {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Facts(..)")
    }
}
