//! Which policies count an MCP request: a tool's for its calls, and for all else
//! the transport's.

use http::{HeaderValue, Method};

use super::message::Message;
use crate::identity::RequestHead;
use crate::limiter::{BuildError, RateLimiter};
use crate::rules::{Bound, Facts, Limit, LimitValues, Rule, Rules, Selection};

/// The tools of one limit.
pub(super) struct Tools {
    pub(super) names: Vec<Box<str>>,
    pub(super) limit: Limit,
}

pub(super) struct McpRules {
    transport: Bound,
    streams: Bound,
    tools: Vec<(Vec<Box<str>>, Bound)>,
    values: LimitValues,
}

impl McpRules {
    /// Makes the policies known to the limiter, each as one that is checked
    /// alone: so is every request but an array of several kinds, and the keys stay
    /// those that other programs count by.
    pub(super) fn new(
        limiter: &RateLimiter,
        transport: Limit,
        streams: Limit,
        tools: Vec<Tools>,
    ) -> Result<Self, BuildError> {
        unique(&tools)?;
        let (names, limits): (Vec<_>, Vec<_>) =
            tools.into_iter().map(|tool| (tool.names, tool.limit)).unzip();
        let limits: Vec<_> = [transport, streams].into_iter().chain(limits).collect();
        // Everything that can be wrong, before anybody knows them.
        limits.iter().cloned().fold(Rule::any(), Rule::limit).check()?;
        let mut handles = Vec::with_capacity(limits.len());
        for limit in &limits {
            let handle = limiter.policy(limit.policy().clone())?;
            handle.count_layer();
            handles.push(handle);
        }
        let bound = Bound::all(&limits, handles, &Facts::new());
        let values = LimitValues::of(&bound);
        let mut bound = bound.into_iter();
        let (Some(transport), Some(streams)) = (bound.next(), bound.next()) else {
            return Err(BuildError::NoPolicy);
        };
        let tools = names.into_iter().zip(bound).collect();
        Ok(Self { transport, streams, tools, values })
    }
}

impl Rules for McpRules {
    fn select(&self, head: &RequestHead<'_>, out: &mut Selection<'_>) {
        let Some(message) = Message::of(head) else { return out.add(&self.transport, head, 1) };
        if message.count() == 0 {
            let by = if head.method() == Method::GET { &self.streams } else { &self.transport };
            return out.add(by, head, 1);
        }
        let mut others = message.count();
        for (names, bound) in &self.tools {
            let calls = names.iter().map(|name| message.calls_of(name)).sum();
            others -= calls;
            if calls > 0 {
                out.add(bound, head, calls);
            }
        }
        if others > 0 {
            out.add(&self.transport, head, others);
        }
    }

    fn limit_value(&self, limit: u64) -> Option<HeaderValue> {
        self.values.get(limit)
    }
}

/// A call is counted once.
fn unique(tools: &[Tools]) -> Result<(), BuildError> {
    let names: Vec<_> = tools.iter().flat_map(|tool| &tool.names).collect();
    let twice = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name));
    match twice {
        Some((_, name)) => Err(BuildError::DuplicateTool { tool: name.to_string() }),
        None => Ok(()),
    }
}
