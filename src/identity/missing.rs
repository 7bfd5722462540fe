//! What becomes of a request that does not say who is asking.

use http::StatusCode;

use super::{ClientIp, Identified, Identify, Notes, RequestHead};
use crate::key::{Key, KeyBuilder};

/// What happens to a request that does not say who is asking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missing {
    /// It is limited by its address, found as
    /// [`client_ip`](crate::middleware::RateLimitLayerBuilder::client_ip) says.
    #[default]
    ByIp,
    /// It is not limited by that policy. A client that can leave the identity
    /// out is then not limited at all.
    Skip,
    /// It is answered with this status, 400 to 499, and an empty body; a gRPC call
    /// with `UNAUTHENTICATED` for 401, `PERMISSION_DENIED` for 403, otherwise
    /// `INVALID_ARGUMENT`.
    Reject(StatusCode),
    /// All such requests share one bucket.
    Shared,
}

impl Missing {
    /// The key of a request under one identity; nothing when it is not limited
    /// by it, a status when it is turned away for want of one.
    pub(crate) fn key_of(
        self,
        identity: &dyn Identify,
        head: &RequestHead<'_>,
        client_ip: &ClientIp,
        notes: &mut Notes,
    ) -> Result<Option<Key>, StatusCode> {
        let identified = match identity.identify(head, KeyBuilder::default()) {
            Identified::Missing(key) => match self {
                Self::ByIp => client_ip.identify(head, key),
                Self::Shared => Identified::Known(key.missing(), Notes::default()),
                Self::Skip => return Ok(None),
                Self::Reject(status) => return Err(status),
            },
            known @ Identified::Known(..) => known,
        };
        match identified {
            Identified::Known(key, noted) => {
                *notes = notes.with(noted);
                Ok(Some(key.finish()))
            }
            // An address is never missing.
            Identified::Missing(key) => Ok(Some(key.finish())),
        }
    }
}
