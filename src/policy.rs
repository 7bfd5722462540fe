//! What is allowed: a rate, and the rule around it. Units and legal ranges live
//! only here.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The largest limit, and the largest count that every store keeps exactly:
/// 2^53 - 1, the last integer that a Lua number holds without gaps.
pub const MAX_LIMIT: u64 = (1 << 53) - 1;

/// The shortest window.
pub const MIN_WINDOW: Duration = Duration::from_millis(1);

/// The longest window, and the longest block: 366 days.
pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The most policies in one check.
pub const MAX_POLICIES: usize = 8;

/// How much, in how long: `Rate::per_minute(100)` is 100 in each minute.
///
/// A rate that exists is legal: the named constructors take no illegal value,
/// [`Rate::new`] refuses one. A limit of 0 refuses everything; "no limit" is
/// the absence of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    limit: u64,
    window_ms: u64,
}

impl Rate {
    /// `limit` in each second.
    #[must_use]
    pub const fn per_second(limit: u32) -> Self {
        Self::of(limit, 1)
    }

    /// `limit` in each minute.
    #[must_use]
    pub const fn per_minute(limit: u32) -> Self {
        Self::of(limit, 60)
    }

    /// `limit` in each hour.
    #[must_use]
    pub const fn per_hour(limit: u32) -> Self {
        Self::of(limit, 60 * 60)
    }

    /// `limit` in each day of 24 hours.
    #[must_use]
    pub const fn per_day(limit: u32) -> Self {
        Self::of(limit, 24 * 60 * 60)
    }

    /// `limit` in each `window`.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Limit`] above [`MAX_LIMIT`]; [`PolicyError::Window`]
    /// below [`MIN_WINDOW`], above [`MAX_WINDOW`], or with a fraction of a
    /// millisecond.
    pub fn new(limit: u64, window: Duration) -> Result<Self, PolicyError> {
        if limit > MAX_LIMIT {
            return Err(PolicyError::Limit { limit });
        }
        let window_ms = whole_millis(window).ok_or(PolicyError::Window { window })?;
        Ok(Self { limit, window_ms })
    }

    const fn of(limit: u32, seconds: u64) -> Self {
        Self { limit: limit as u64, window_ms: seconds * 1000 }
    }

    /// How much is allowed in one window, 0 to [`MAX_LIMIT`].
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }

    pub(crate) const fn window_ms(&self) -> u64 {
        self.window_ms
    }
}

/// A duration as milliseconds, if it is a legal window or block.
fn whole_millis(duration: Duration) -> Option<u64> {
    if duration < MIN_WINDOW || duration > MAX_WINDOW || !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return None;
    }
    u64::try_from(duration.as_millis()).ok()
}

/// How a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// A window that starts with an identity's first request and is forgotten
    /// when its time is up; later requests do not extend it.
    ///
    /// Not a hard cap over every possible span: around the end of one window
    /// and the start of the next, twice the limit can pass within one window's
    /// length. A `block_for` shorter than the window ends it early, so that
    /// about limit x window / block pass in one window's length.
    FixedWindow,
    /// Two counters, of sub-windows as long as the window and counted from the
    /// epoch of the store's clock. The previous one weighs as much as is left of
    /// the current one, rounded down, so what was used comes back gradually.
    ///
    /// Not a hard cap over every possible span: what the previous counter held
    /// is taken for evenly spread. Requests that came at its very end weigh ever
    /// less, and up to twice the limit can pass within one window's length.
    SlidingWindow,
    /// Tokens, of which there are at most [`burst`](Policy::burst), come back
    /// continuously, as many as the limit in each window. The generic cell rate
    /// algorithm of ITU-T I.371, which keeps one number for each identity.
    ///
    /// Not a hard cap over every possible span: a full bucket and what comes
    /// back meanwhile, burst + limit, can pass within one window's length.
    TokenBucket,
}

/// A named rule: how identities are counted, and what happens at the limit.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Policy, Rate};
///
/// // 5 logins in 15 minutes, then blocked for an hour.
/// let login = Policy::fixed_window("login", Rate::new(5, Duration::from_secs(15 * 60))?)
///     .block_for(Duration::from_secs(60 * 60));
/// # Ok::<(), tower_ratelimit::PolicyError>(())
/// ```
///
/// The name is part of every key in Redis (`login:rl:<identity>`) and of every
/// metric. The same rule under the same name is one count; see
/// [`RateLimiter::policy`](crate::RateLimiter::policy) for another rule under a
/// name that is in use. Names and blocks are checked where a policy meets its
/// limiter, when a layer is built or by [`RateLimiter::policy`](crate::RateLimiter::policy).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a policy does nothing until a limiter or a layer has it"]
pub struct Policy {
    name: Arc<str>,
    algorithm: Algorithm,
    rate: Rate,
    burst: Option<u64>,
    block_for: Option<Duration>,
    reserve_for: Option<Duration>,
    shadow: bool,
    on_store_failure: OnStoreFailure,
}

/// What a policy does with a request while the store cannot decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// Goes on limiting in this process, from the last known counts.
    #[default]
    Local,
    /// Refuses with 503 and `retry-after: 1`: for what must never run
    /// unlimited.
    Deny,
    /// Admits, uncounted: for what must never be refused by a fault of ours.
    Allow,
}

impl Policy {
    /// Counts in a fixed window, see [`Algorithm::FixedWindow`].
    ///
    /// The name is 1 to 64 of `a-z`, `0-9`, `_` and `-`.
    pub fn fixed_window(name: impl Into<Arc<str>>, rate: Rate) -> Self {
        Self::new(name.into(), Algorithm::FixedWindow, rate)
    }

    /// Counts in a sliding window, see [`Algorithm::SlidingWindow`].
    ///
    /// The name is 1 to 64 of `a-z`, `0-9`, `_` and `-`.
    pub fn sliding_window(name: impl Into<Arc<str>>, rate: Rate) -> Self {
        Self::new(name.into(), Algorithm::SlidingWindow, rate)
    }

    /// Takes tokens from a bucket, see [`Algorithm::TokenBucket`]: the rate is
    /// how they come back, [`burst`](Self::burst) how many there are at most.
    ///
    /// The name is 1 to 64 of `a-z`, `0-9`, `_` and `-`.
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Rate};
    ///
    /// // 10 at once, then 2 more in each second.
    /// let search = Policy::token_bucket("search", Rate::per_second(2)).burst(10);
    /// # assert_eq!(search.max_burst(), Some(10));
    /// ```
    pub fn token_bucket(name: impl Into<Arc<str>>, rate: Rate) -> Self {
        Self::new(name.into(), Algorithm::TokenBucket, rate)
    }

    fn new(name: Arc<str>, algorithm: Algorithm, rate: Rate) -> Self {
        Self {
            name,
            algorithm,
            rate,
            burst: None,
            block_for: None,
            reserve_for: None,
            shadow: false,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    /// How many tokens a bucket holds, and so the most that passes at once. 0
    /// refuses everything; burst x window in milliseconds is at most
    /// [`MAX_LIMIT`]. Of a token bucket only. Default: as many as come back in
    /// one window.
    pub fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Holds places open for what is only known after the response: a request
    /// reserves its cost when it is admitted, and is settled later for what it
    /// really came to. A reservation that nobody settles lapses after this time,
    /// 1 ms to 366 days in whole milliseconds.
    ///
    /// Open reservations count against the limit. A refusal for which they alone
    /// are the reason is [`Refusal::Reserved`](crate::Refusal::Reserved). Settled
    /// later than it has lapsed, a request still counts for what it came to.
    /// Default: nothing is held open.
    pub fn reserve_for(mut self, reserve_for: Duration) -> Self {
        self.reserve_for = Some(reserve_for);
        self
    }

    /// The first refusal starts a block of this length, 1 ms to 366 days in
    /// whole milliseconds; tries during the block do not extend it, and after
    /// it the identity has its whole allowance again. Default: no block.
    ///
    /// A refused cost of 0, or above the limit, starts none, nor does a limit of
    /// 0. A block shorter than the window ends it early, which is warned about.
    pub fn block_for(mut self, block_for: Duration) -> Self {
        self.block_for = Some(block_for);
        self
    }

    /// What happens to requests while Redis cannot decide. A policy in shadow
    /// mode refuses nothing in any case, and in memory no store can fail.
    /// Default: [`OnStoreFailure::Local`].
    pub fn on_store_failure(mut self, choice: OnStoreFailure) -> Self {
        self.on_store_failure = choice;
        self
    }

    /// Counts and reports, but never refuses: what it would have refused is told
    /// to [observers](crate::observe), not to the client. Its numbers are not in
    /// headers. Default: enforced.
    pub fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it counts.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How much, in how long.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The most at once of a token bucket, `None` for a window.
    #[must_use]
    pub fn max_burst(&self) -> Option<u64> {
        (self.algorithm == Algorithm::TokenBucket).then(|| self.burst.unwrap_or(self.rate.limit))
    }

    /// How long an open reservation is held.
    #[must_use]
    pub fn reservation(&self) -> Option<Duration> {
        self.reserve_for
    }

    /// How long an identity is blocked after its first refusal.
    #[must_use]
    pub fn block(&self) -> Option<Duration> {
        self.block_for
    }

    /// Whether it only counts and reports.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// What it does while the store cannot decide.
    #[must_use]
    pub fn store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    pub(crate) fn shared_name(&self) -> &Arc<str> {
        &self.name
    }

    /// In how long what a client is told as the limit is allowed: of a bucket, which
    /// tells its burst, the time in which it fills.
    pub(crate) fn quota_window_ms(&self) -> u64 {
        let window = self.rate.window_ms;
        match self.max_burst() {
            Some(burst) if self.rate.limit > 0 => burst.saturating_mul(window).div_ceil(self.rate.limit),
            _ => window,
        }
    }

    /// The block in milliseconds, 0 for none.
    pub(crate) fn block_ms(&self) -> u64 {
        self.block_for.and_then(whole_millis).unwrap_or(0)
    }

    /// How long a reservation is held in milliseconds, 0 if none is.
    pub(crate) fn reserve_ms(&self) -> u64 {
        self.reserve_for.and_then(whole_millis).unwrap_or(0)
    }

    /// # Errors
    ///
    /// What is not legal about this policy.
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        let legal =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if self.name.is_empty() || self.name.len() > 64 || !self.name.bytes().all(legal) {
            return Err(PolicyError::Name { name: self.name.clone() });
        }
        let policy = || self.name.clone();
        if let Some(block_for) = self.block_for
            && whole_millis(block_for).is_none()
        {
            return Err(PolicyError::BlockFor { policy: policy(), block_for });
        }
        if let Some(reserve_for) = self.reserve_for
            && whole_millis(reserve_for).is_none()
        {
            return Err(PolicyError::ReserveFor { policy: policy(), reserve_for });
        }
        match (self.max_burst(), self.burst) {
            (None, Some(burst)) => Err(PolicyError::NoBucket { policy: policy(), burst }),
            // The level of a bucket is kept in 1/window of a token.
            (Some(burst), _)
                if burst.checked_mul(self.rate.window_ms).is_none_or(|level| level > MAX_LIMIT) =>
            {
                Err(PolicyError::Burst { policy: policy(), burst, window: self.rate.window() })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in {:?}", self.name, self.rate.limit, self.rate.window())?;
        match self.algorithm {
            Algorithm::FixedWindow => {}
            Algorithm::SlidingWindow => f.write_str(", sliding")?,
            Algorithm::TokenBucket => write!(f, ", burst {}", self.burst.unwrap_or(self.rate.limit))?,
        }
        if let Some(block) = self.block_for {
            write!(f, ", then blocked for {block:?}")?;
        }
        if self.shadow {
            f.write_str(", shadow")?;
        }
        Ok(())
    }
}

/// What is not legal about a policy. Each names the field and the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The limit is too large to be counted exactly.
    #[error("limit: {limit} is not allowed, the largest is {MAX_LIMIT}")]
    Limit {
        /// The limit given.
        limit: u64,
    },
    /// The window is out of range or not in whole milliseconds.
    #[error("window: {window:?} is not allowed, it takes whole milliseconds from 1 ms to 366 days")]
    Window {
        /// The window given.
        window: Duration,
    },
    /// The block is out of range or not in whole milliseconds.
    #[error(
        "block_for: {block_for:?} of policy {policy} is not allowed, it takes whole milliseconds from 1 ms to 366 days"
    )]
    BlockFor {
        /// The policy.
        policy: Arc<str>,
        /// The block given.
        block_for: Duration,
    },
    /// The time of a reservation is out of range or not in whole milliseconds.
    #[error(
        "reserve_for: {reserve_for:?} of policy {policy} is not allowed, it takes whole milliseconds from 1 ms to 366 days"
    )]
    ReserveFor {
        /// The policy.
        policy: Arc<str>,
        /// The time given.
        reserve_for: Duration,
    },
    /// The burst is too large for a level to be kept exactly.
    #[error(
        "burst: {burst} of policy {policy} is not allowed, burst x window in ms ({window:?}) takes at most {MAX_LIMIT}"
    )]
    Burst {
        /// The policy.
        policy: Arc<str>,
        /// The burst given, or the limit that stands for it.
        burst: u64,
        /// The window.
        window: Duration,
    },
    /// A burst on a policy that is not a token bucket.
    #[error("burst: {burst} has no effect on policy {policy}, which is not a token bucket")]
    NoBucket {
        /// The policy.
        policy: Arc<str>,
        /// The burst given.
        burst: u64,
    },
    /// The name is not 1 to 64 of `a-z`, `0-9`, `_`, `-`.
    #[error("name: {name:?} is not allowed, it takes 1 to 64 of a-z, 0-9, _ and -")]
    Name {
        /// The name given.
        name: Arc<str>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o_win_11_limits_are_exact_to_2_pow_53_and_refused_above() {
        let minute = Duration::from_secs(60);
        assert_eq!(Rate::new(MAX_LIMIT, minute).unwrap().limit(), 9_007_199_254_740_991);
        for limit in [MAX_LIMIT + 1, u64::MAX] {
            let error = Rate::new(limit, minute).unwrap_err();
            assert_eq!(error, PolicyError::Limit { limit });
            assert!(error.to_string().starts_with(&format!("limit: {limit} ")), "{error}");
        }
    }

    #[test]
    fn o_win_7_windows_are_whole_milliseconds_from_1_to_366_days() {
        for window in [MIN_WINDOW, Duration::from_millis(250), Duration::from_secs(365 * 86_400), MAX_WINDOW]
        {
            assert_eq!(Rate::new(1, window).unwrap().window(), window);
        }
        let too_long = MAX_WINDOW + Duration::from_millis(1);
        for window in
            [Duration::ZERO, Duration::from_micros(999), Duration::from_micros(1500), too_long, Duration::MAX]
        {
            assert_eq!(Rate::new(1, window).unwrap_err(), PolicyError::Window { window });
        }
    }

    #[test]
    fn o_blk_3_a_block_above_366_days_is_refused_by_field_name() {
        let policy =
            |seconds| Policy::fixed_window("p", Rate::per_minute(1)).block_for(Duration::from_secs(seconds));
        assert_eq!(policy(366 * 86_400).check(), Ok(()));
        let error = policy(1_000_000_000).check().unwrap_err();
        assert!(error.to_string().starts_with("block_for: 1000000000s "), "{error}");
        assert!(policy(0).check().is_err(), "a block of nothing is no block");
    }

    #[test]
    fn names_are_short_lower_case_words() {
        let check = |name: &str| Policy::fixed_window(name, Rate::per_minute(1)).check();
        for name in ["http", "a", "login-ip", "x_9", &"a".repeat(64)] {
            assert!(check(name).is_ok(), "{name}");
        }
        for name in ["", "Http", "a:b", "a b", "{a}", "é", "a~b", &"a".repeat(65)] {
            assert_eq!(check(name).unwrap_err(), PolicyError::Name { name: name.into() }, "{name}");
        }
    }
    #[test]
    fn the_level_of_a_bucket_is_exact_or_its_burst_refused() {
        let day = Rate::per_day(1);
        let largest = MAX_LIMIT / 86_400_000;
        assert_eq!(Policy::token_bucket("b", day).burst(largest).check(), Ok(()));
        for burst in [largest + 1, u64::MAX] {
            let error = Policy::token_bucket("b", day).burst(burst).check().unwrap_err();
            assert!(error.to_string().starts_with(&format!("burst: {burst} of policy b ")), "{error}");
        }
        let too_fast = Rate::new(MAX_LIMIT, Duration::from_secs(1)).unwrap();
        assert!(Policy::token_bucket("b", too_fast).check().is_err(), "the burst is the limit");
        assert_eq!(Policy::token_bucket("b", too_fast).burst(5).check(), Ok(()));
        assert_eq!(Policy::sliding_window("s", too_fast).check(), Ok(()));
        let error = Policy::sliding_window("s", day).burst(5).check().unwrap_err();
        assert!(error.to_string().starts_with("burst: 5 has no effect on policy s"), "{error}");
    }

    #[test]
    fn a_reservation_lasts_from_1_ms_to_366_days() {
        let policy = |time| Policy::fixed_window("p", Rate::per_minute(1)).reserve_for(time);
        assert_eq!(policy(MAX_WINDOW).check(), Ok(()));
        let error = policy(Duration::ZERO).check().unwrap_err();
        assert!(error.to_string().starts_with("reserve_for: 0ns of policy p "), "{error}");
    }
}
