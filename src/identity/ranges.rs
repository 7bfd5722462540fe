//! Sets of address ranges that an operator names.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Address ranges. IPv4-mapped IPv6 ranges are their IPv4 ranges, as addresses
/// are canonicalised before they are looked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Box<[IpNet]>);

impl Ranges {
    /// From CIDR texts and bare addresses. `Err` is the first that is neither.
    pub(super) fn parse(texts: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, String> {
        texts
            .into_iter()
            .map(|text| parse(text.as_ref().trim()).ok_or_else(|| text.as_ref().to_owned()))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether a range holds `ip`, which must be canonical.
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(&ip))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn parse(text: &str) -> Option<IpNet> {
    let range = match text.parse::<IpAddr>() {
        Ok(ip) => IpNet::from(ip),
        Err(_) => text.parse().ok()?,
    };
    Some(canonical(range.trunc()))
}

fn canonical(range: IpNet) -> IpNet {
    let mapped = match range {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    mapped.and_then(|(ip, prefix)| Ipv4Net::new(ip, prefix).ok()).map_or(range, IpNet::V4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail")]

    use super::*;

    #[test]
    fn bare_addresses_networks_and_mapped_ranges_are_ranges() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("10.1.2.3/8", "10.255.0.1", "11.0.0.1"),
            (" 10.0.0.5 ", "10.0.0.5", "10.0.0.6"),
            ("::ffff:10.0.0.0/104", "10.9.8.7", "11.0.0.1"),
            ("::ffff:a00:5", "10.0.0.5", "10.0.0.6"),
            ("2001:db8::/32", "2001:db8:9::1", "2001:db9::1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
            ("::/0", "2001:db8::1", "10.0.0.5"),
            ("::ffff:0:0/95", "::fffe:0:1", "10.0.0.5"),
        ] {
            let ranges = Ranges::parse([text]).unwrap();
            assert!(ranges.contains(inside.parse().unwrap()), "{text} holds {inside}");
            assert!(!ranges.contains(outside.parse().unwrap()), "{text} lacks {outside}");
        }
    }

    #[test]
    fn the_first_text_that_is_no_range_is_named() {
        for bad in ["", "10.0.0.0/33", "10.0.0/8", "example.org", "::1/129", "10.0.0.1:80"] {
            assert_eq!(Ranges::parse(["10.0.0.0/8", bad, "x"]).unwrap_err(), bad);
        }
    }
}
