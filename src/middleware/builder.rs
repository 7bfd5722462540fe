//! How a layer is set up.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::{Method, StatusCode};

use super::layer::RateLimitLayer;
use super::shared::{Shared, Skip};
use crate::identity::missing::Missing;
use crate::identity::{self, ClientIp, Identify, RequestHead};
use crate::limiter::{BuildError, RateLimiter};
use crate::policy::Policy;
use crate::response::{Fields, Negotiated, Reply, ResetFormat};
use crate::rules::{FixedRules, Limit, Rules, Who};

/// Sets up a [`RateLimitLayer`].
///
/// ```
/// use http::{Method, StatusCode};
/// use tower_ratelimit::identity::{ClientIp, Header};
/// use tower_ratelimit::middleware::Missing;
/// use tower_ratelimit::response::ResetFormat;
/// use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
///
/// let layer = RateLimitLayer::builder(RateLimiter::memory())
///     .policy(Policy::fixed_window("api", Rate::per_minute(600)))
///     .policy_by(Policy::fixed_window("api-ip", Rate::per_minute(6_000)), ClientIp::peer())
///     .identity(Header::secret("x-api-key")?)
///     .missing(Missing::Reject(StatusCode::UNAUTHORIZED))
///     .skip_path("/healthz")
///     .skip_method(Method::HEAD)
///     .skip(|head| head.path().starts_with("/static/"))
///     .reset_format(ResetFormat::DeltaSeconds)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Settings that exclude each other are an error of [`build`](Self::build):
///
/// ```
/// use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter, response::ResetFormat};
///
/// let error = RateLimitLayer::builder(RateLimiter::memory())
///     .policy(Policy::fixed_window("api", Rate::per_minute(600)))
///     .reset_format(ResetFormat::Rfc3339)
///     .without_headers()
///     .build()
///     .unwrap_err();
/// assert_eq!(error.to_string(), "reset_format: cannot be set together with without_headers");
/// ```
#[must_use = "a layer is built by `build`"]
pub struct RateLimitLayerBuilder {
    limiter: RateLimiter,
    limits: Vec<Limit>,
    rules: Option<Arc<dyn Rules>>,
    identity: Option<Arc<dyn Identify>>,
    client_ip: Option<ClientIp>,
    missing: Missing,
    skips: Vec<Skip>,
    skip_ips: Vec<String>,
    charge_preflights: bool,
    headers: bool,
    standard_fields: bool,
    reset: Option<ResetFormat>,
    reply: Option<Arc<dyn Reply>>,
    too_large: StatusCode,
    decision_in_request: bool,
    decision_in_response: bool,
}

impl RateLimitLayerBuilder {
    pub(super) fn new(limiter: RateLimiter) -> Self {
        Self {
            limiter,
            limits: Vec::new(),
            rules: None,
            identity: None,
            client_ip: None,
            missing: Missing::default(),
            skips: Vec::new(),
            skip_ips: Vec::new(),
            charge_preflights: false,
            headers: true,
            standard_fields: false,
            reset: None,
            reply: None,
            too_large: StatusCode::TOO_MANY_REQUESTS,
            decision_in_request: false,
            decision_in_response: false,
        }
    }

    /// Adds a policy for the layer's identity. A layer takes 1 to 8 with
    /// different names; a request is admitted only if all of them admit it, and
    /// refused by one it counts for none. Each charges a request 1.
    pub fn policy(self, policy: Policy) -> Self {
        self.limit(Limit::new(policy))
    }

    /// Adds a policy with an identity of its own: 5 logins for an address and
    /// an account, and 50 for the address.
    pub fn policy_by(self, policy: Policy, identity: impl Identify) -> Self {
        self.limit(Limit::new(policy).by(identity))
    }

    /// Adds a policy with everything that depends on the request: the identity,
    /// the cost, plans, which responses count. See [`Limit`].
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Has rules choose the policies of each request, in place of a fixed list;
    /// see [`rules`](crate::rules).
    pub fn rules(mut self, rules: impl Rules) -> Self {
        self.rules = Some(Arc::new(rules));
        self
    }

    /// Who is limited. Default: the client address, see
    /// [`client_ip`](Self::client_ip).
    pub fn identity(mut self, identity: impl Identify) -> Self {
        self.identity = Some(Arc::new(identity));
        self
    }

    /// How the client address is found: for the default identity, for
    /// [`Missing::ByIp`] and for [`skip_ips`](Self::skip_ips). It does not change
    /// a [`ClientIp`] that is given as an identity. Default: as the layer's
    /// identity does, or else that of a policy or rule, if one is by address; otherwise
    /// the peer's address, and no header is believed.
    pub fn client_ip(mut self, client_ip: ClientIp) -> Self {
        self.client_ip = Some(client_ip);
        self
    }

    /// What happens to a request without the identity. Default:
    /// [`Missing::ByIp`].
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Does not limit requests that the predicate picks: they cost nothing,
    /// touch no store and get no headers. It sees the path as the client sent
    /// it, before nested routers strip theirs.
    pub fn skip(mut self, skip: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.skips.push(Arc::new(skip));
        self
    }

    /// Does not limit this exact path, whatever the query. `/healthz/` is another
    /// one.
    pub fn skip_path(self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.skip(move |head| head.path() == path)
    }

    /// Does not limit this method. Default: all are limited.
    pub fn skip_method(self, method: Method) -> Self {
        self.skip(move |head| *head.method() == method)
    }

    /// Does not limit clients in these ranges, CIDR texts or single addresses,
    /// by the address that [`client_ip`](Self::client_ip) finds. A text that is
    /// neither is an error of [`build`](Self::build).
    pub fn skip_ips(mut self, ranges: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.skip_ips.extend(ranges.into_iter().map(Into::into));
        self
    }

    /// Charges CORS preflights (`OPTIONS` with `access-control-request-method`).
    /// Default: they are free, since browsers send them by themselves.
    pub fn charge_preflights(mut self) -> Self {
        self.charge_preflights = true;
        self
    }

    /// Leaves out `x-ratelimit-*`. Default: they are on every limited response.
    /// `retry-after` is on refusals in any case.
    pub fn without_headers(mut self) -> Self {
        self.headers = false;
        self
    }

    /// Writes `RateLimit-Policy` and `RateLimit` as well, as in the 11th version of
    /// the IETF's draft `draft-ietf-httpapi-ratelimit-headers`, which is not an RFC:
    /// a later version of this crate may follow a later draft. Default: off; they
    /// allocate, and few clients read them.
    ///
    /// Each lists every policy that has counted the request, so that none is hidden
    /// by a tighter one:
    ///
    /// ```text
    /// ratelimit-policy: "login";q=5;w=900, "login-ip";q=50;w=900
    /// ratelimit: "login";r=3;t=412, "login-ip";r=48;t=412
    /// ```
    ///
    /// `q` may be used in each `w` seconds; `r` is left for the next `t` seconds. On a
    /// refusal `RateLimit` lists the policies that refuse, each with its own wait;
    /// `retry-after` is the longest of them. Lines of the inner service are kept.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use axum::{Router, body::Body, http::Request, routing::get};
    /// use tower::ServiceExt;
    /// use tower_ratelimit::{Policy, Rate, RateLimitLayer, RateLimiter};
    ///
    /// let layer = RateLimitLayer::builder(RateLimiter::memory())
    ///     .policy(Policy::fixed_window("http", Rate::per_minute(100)))
    ///     .standard_fields()
    ///     .build()?;
    /// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    ///
    /// let response = app.oneshot(Request::get("/").body(Body::empty())?).await?;
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""http";q=100;w=60"#);
    /// assert_eq!(response.headers()["ratelimit"], r#""http";r=99;t=60"#);
    /// # Ok(())
    /// # }
    /// ```
    pub fn standard_fields(mut self) -> Self {
        self.standard_fields = true;
        self
    }

    /// How `x-ratelimit-reset` is written. Default: seconds since 1970.
    pub fn reset_format(mut self, format: ResetFormat) -> Self {
        self.reset = Some(format);
        self
    }

    /// Builds the response of a refusal, see [`Reply`]. Default: [`Negotiated`], as
    /// the client can read it; [`Problem`](crate::response::Problem) for problem details
    /// always.
    pub fn reply(mut self, reply: impl Reply) -> Self {
        self.reply = Some(Arc::new(reply));
        self
    }

    /// The status for a cost above the limit: 429 (default) or 413.
    pub fn too_large_status(mut self, status: StatusCode) -> Self {
        self.too_large = status;
        self
    }

    /// Puts the [`Decision`](crate::Decision) into the extensions of admitted
    /// requests, for handlers. Default: off, it allocates.
    pub fn decision_in_request(mut self) -> Self {
        self.decision_in_request = true;
        self
    }

    /// Puts the [`Decision`](crate::Decision) into the extensions of responses,
    /// refusals too, for outer layers. Where layers nest, it is the one that the
    /// headers show. Default: off, it allocates.
    pub fn decision_in_response(mut self) -> Self {
        self.decision_in_response = true;
        self
    }

    /// Builds the layer, without any I/O.
    ///
    /// # Errors
    ///
    /// Names the setting that is not legal, or the two that exclude each other:
    /// [`BuildError::NoPolicy`], [`TooManyPolicies`](BuildError::TooManyPolicies),
    /// [`DuplicatePolicy`](BuildError::DuplicatePolicy),
    /// [`DuplicatePlan`](BuildError::DuplicatePlan), [`Factor`](BuildError::Factor),
    /// [`Policy`](BuildError::Policy), [`Conflict`](BuildError::Conflict),
    /// [`ClusterIdentities`](BuildError::ClusterIdentities),
    /// [`Status`](BuildError::Status) or [`ClientIp`](BuildError::ClientIp).
    pub fn build(self) -> Result<RateLimitLayer, BuildError> {
        self.check()?;
        let own = self.limits.iter().filter_map(Limit::identity);
        let by_address = || self.identity.iter().chain(own).find_map(|who| who.client_ip()).cloned();
        let by_rules = || self.rules.as_ref().and_then(|rules| rules.client_ip());
        let client_ip = self.client_ip.clone().or_else(by_address).or_else(by_rules).unwrap_or_default();
        let mut skips = self.skips;
        if !self.skip_ips.is_empty() {
            skips.push(Arc::new(identity::from_ranges(client_ip.clone(), &self.skip_ips)?));
        }
        let identity = self.identity.unwrap_or_else(|| Arc::new(client_ip.clone()));
        if self.limiter.is_on_cluster() {
            check_first_parts(&self.limits, &identity)?;
        }
        let rules: Arc<dyn Rules> = match self.rules {
            Some(rules) => {
                rules.join(&self.limiter)?;
                rules
            }
            None => Arc::new(FixedRules::new(&self.limiter, self.limits)?),
        };
        let fields = Fields {
            enabled: self.headers,
            standard: self.standard_fields,
            reset: self.reset.unwrap_or_default(),
        };
        Ok(RateLimitLayer::new(Shared {
            rules,
            who: Who { identity, missing: self.missing, client_ip },
            limiter: self.limiter,
            skips,
            charge_preflights: self.charge_preflights,
            fields,
            reply: self.reply.unwrap_or_else(|| Arc::new(Negotiated)),
            too_large: self.too_large,
            decision_in_request: self.decision_in_request,
            decision_in_response: self.decision_in_response,
            services: AtomicUsize::new(0),
        }))
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.rules.is_some() && !self.limits.is_empty() {
            return Err(BuildError::Conflict { field: "rules", other: "policy or limit" });
        }
        if !self.headers && self.reset.is_some() {
            return Err(BuildError::Conflict { field: "reset_format", other: "without_headers" });
        }
        let is_used = self.rules.is_some() || self.limits.iter().any(|limit| limit.identity().is_none());
        if self.identity.is_some() && !is_used && !self.limits.is_empty() {
            return Err(BuildError::Conflict { field: "identity", other: "policy_by for every policy" });
        }
        if let Missing::Reject(status) = self.missing
            && !status.is_client_error()
        {
            return Err(BuildError::Status { field: "missing", status });
        }
        if !matches!(self.too_large, StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE) {
            return Err(BuildError::Status { field: "too_large_status", status: self.too_large });
        }
        Ok(())
    }
}

/// On a cluster the keys of one check share a slot only by their first part.
fn check_first_parts(limits: &[Limit], shared: &Arc<dyn Identify>) -> Result<(), BuildError> {
    let part = |limit: &Limit| limit.identity().unwrap_or(shared).first_part().map(Cow::into_owned);
    let declared: Vec<_> = limits.iter().filter_map(|limit| Some((limit.policy(), part(limit)?))).collect();
    let Some((policy, first)) = declared.first() else { return Ok(()) };
    match declared.iter().find(|(_, part)| part != first) {
        None => Ok(()),
        Some((other, other_first)) => Err(BuildError::ClusterIdentities {
            policy: policy.name().to_owned(),
            first: first.clone(),
            other: other.name().to_owned(),
            other_first: other_first.clone(),
        }),
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.limits.iter().map(Limit::policy).collect();
        f.debug_struct("RateLimitLayerBuilder")
            .field("limiter", &self.limiter)
            .field("policies", &policies)
            .field("missing", &self.missing)
            .finish_non_exhaustive()
    }
}
