//! What is known of an MCP request: left in its extensions by
//! [`Look`](super::Look).

use std::sync::Arc;

use bytes::Bytes;

use crate::identity::RequestHead;

pub(super) const TOOLS_CALL: &str = "tools/call";

/// What a request to an MCP server asks for, in the request's extensions. Cheap
/// to clone.
///
/// ```
/// use tower_ratelimit::identity::RequestHead;
/// use tower_ratelimit::mcp::Message;
///
/// // For `Limit::cost_by`: the calls of one tool, of which an array may hold many.
/// fn searches(head: &RequestHead<'_>) -> u64 {
///     Message::of(head).map_or(0, |message| message.calls_of("search"))
/// }
/// ```
#[derive(Clone)]
pub struct Message(Arc<Facts>);

pub(super) struct Facts {
    /// Whether it declares a protocol of 2026-07-28 or later.
    pub(super) modern: bool,
    pub(super) batch: bool,
    /// One unless it is a batch or has no message at all.
    pub(super) items: Vec<Item>,
}

/// One JSON-RPC message.
#[derive(Default)]
pub(super) struct Item {
    pub(super) method: Option<Box<str>>,
    /// The name in the `params` of a `tools/call`.
    pub(super) tool: Option<Box<str>>,
    /// The JSON text of a string or a number.
    pub(super) id: Option<Bytes>,
}

impl Item {
    pub(super) fn is_call(&self) -> bool {
        self.method.as_deref() == Some(TOOLS_CALL)
    }

    /// The id of a request; a notification has none, and a response that of
    /// somebody else's request.
    pub(super) fn request_id(&self) -> Option<&str> {
        self.method.as_ref().and(self.id.as_deref()).and_then(|id| std::str::from_utf8(id).ok())
    }
}

impl Message {
    pub(super) fn new(facts: Facts) -> Self {
        Self(Arc::new(facts))
    }

    /// Of a request without a JSON-RPC message: a GET, a DELETE.
    pub(super) fn none() -> Self {
        Self::new(Facts { modern: false, batch: false, items: Vec::new() })
    }

    /// The message of a request that has passed a [`Look`](super::Look).
    #[must_use]
    pub fn of<'a>(head: &RequestHead<'a>) -> Option<&'a Self> {
        head.extensions().get()
    }

    /// The method, `tools/call`. `None` for a response, an array, and a request
    /// without a message, such as GET.
    #[must_use]
    pub fn method(&self) -> Option<&str> {
        self.single()?.method.as_deref()
    }

    /// The tool that is called. `None` if none is, and for an array.
    #[must_use]
    pub fn tool(&self) -> Option<&str> {
        self.single()?.tool.as_deref()
    }

    /// The id of a request as JSON, a number or a string with its quotes. `None`
    /// for what has none, for an array, and where the body was not read.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.single()?.request_id()
    }

    /// Whether it is a JSON array of messages, which only the protocol of
    /// 2025-03-26 allows.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        self.0.batch
    }

    /// How many messages it holds: 1 unless it is an array, 0 for a request
    /// without one, such as GET.
    #[must_use]
    pub fn count(&self) -> u64 {
        count(self.0.items.iter())
    }

    /// How many of them call a tool.
    #[must_use]
    pub fn calls(&self) -> u64 {
        count(self.0.items.iter().filter(|item| item.is_call()))
    }

    /// How many of them call this tool.
    #[must_use]
    pub fn calls_of(&self, tool: &str) -> u64 {
        count(self.0.items.iter().filter(|item| item.tool.as_deref() == Some(tool)))
    }

    /// Whether results carry a `resultType`.
    pub(super) fn is_modern(&self) -> bool {
        self.0.modern
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.0.items
    }

    fn single(&self) -> Option<&Item> {
        self.0.items.first().filter(|_| !self.0.batch)
    }
}

fn count<'a>(items: impl Iterator<Item = &'a Item>) -> u64 {
    items.map(|_| 1).sum()
}

/// Names and ids are the client's: not for logs.
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("batch", &self.0.batch)
            .field("count", &self.count())
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}
