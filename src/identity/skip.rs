//! Requests that are not limited because of their address.

use super::client_ip::{ClientIp, ClientIpError, parse_ranges};
use super::head::RequestHead;

/// A predicate for clients in these ranges, by the address that `client_ip`
/// finds.
///
/// # Errors
///
/// [`ClientIpError::Range`] for a text that is no range.
pub(crate) fn from_ranges(
    client_ip: ClientIp,
    ranges: &[String],
) -> Result<impl Fn(&RequestHead<'_>) -> bool + use<>, ClientIpError> {
    let ranges = parse_ranges("skip_ips", ranges)?;
    Ok(move |head: &RequestHead<'_>| client_ip.address(head).is_some_and(|ip| ranges.contains(ip)))
}
