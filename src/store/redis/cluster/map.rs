//! Which node of a cluster has which slot, as one of them told.

use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::Value;

use crate::store::redis::node::Node;

/// The slots from `start` to `end`, and where their master listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u16,
    pub(super) end: u16,
    /// `None`: where the node listens that has told this.
    pub(super) host: Option<String>,
    pub(super) port: u16,
}

impl Range {
    /// Reads an answer to `CLUSTER SLOTS`: for each range its two ends, then its
    /// nodes, the master first, each as host, port and more. `None` when it is
    /// nothing of the kind.
    pub(super) fn all(reply: &Value) -> Option<Vec<Self>> {
        let Value::Array(ranges) = reply else { return None };
        ranges.iter().map(Self::one).collect()
    }

    fn one(range: &Value) -> Option<Self> {
        let Value::Array(range) = range else { return None };
        let [Value::Int(start), Value::Int(end), Value::Array(master), ..] = &range[..] else { return None };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::BulkString(host) => std::str::from_utf8(host).ok()?,
            Value::SimpleString(host) => host,
            Value::Nil => "",
            _ => return None,
        };
        // `?` where a node has a name to announce and does not know it yet.
        let host = Some(host).filter(|host| !host.is_empty() && *host != "?").map(str::to_owned);
        let [start, end, port] = [start, end, port].map(|&number| u16::try_from(number).ok());
        Some(Self { start: start?, end: end?, host, port: port? })
    }
}

/// The nodes by slot.
#[derive(Default)]
pub(super) struct Map {
    /// First slot, last slot, node; in order.
    ranges: Vec<(u16, u16, Arc<Node>)>,
}

impl Map {
    pub(super) fn new(mut ranges: Vec<(u16, u16, Arc<Node>)>) -> Self {
        ranges.sort_by_key(|(start, ..)| *start);
        Self { ranges }
    }

    pub(super) fn node(&self, slot: u16) -> Option<&Arc<Node>> {
        let at = self.ranges.partition_point(|(_, end, _)| *end < slot);
        self.ranges.get(at).filter(|(start, ..)| *start <= slot).map(|(.., node)| node)
    }

    pub(super) fn slots_of(&self, address: &str) -> impl Iterator<Item = RangeInclusive<u16>> {
        let own = self.ranges.iter().filter(move |(.., node)| node.link.address() == address);
        own.map(|(start, end, _)| *start..=*end)
    }

    /// All nodes, some of them several times.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.ranges.iter().map(|(.., node)| node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_master_stands_first_and_may_be_the_one_that_answers() {
        let master = |host| Value::Array(vec![host, Value::Int(7000), text("id"), Value::Array(vec![])]);
        let range = |start, end, host| {
            Value::Array(vec![Value::Int(start), Value::Int(end), master(host), master(text("a replica"))])
        };
        let reply = Value::Array(vec![
            range(0, 5460, text("10.0.0.1")),
            range(5461, 9, Value::Nil),
            range(9, 9, text("")),
            range(9, 9, text("?")),
        ]);
        let ranges = Range::all(&reply).unwrap();
        let hosts: Vec<_> = ranges.iter().map(|range| range.host.as_deref()).collect();
        assert_eq!(hosts, [Some("10.0.0.1"), None, None, None]);
        assert_eq!((ranges[0].start, ranges[0].end, ranges[0].port), (0, 5460, 7000));
        for reply in [Value::Okay, Value::Array(vec![Value::Nil]), Value::Array(vec![Value::Array(vec![])])] {
            assert_eq!(Range::all(&reply), None);
        }
    }
}
