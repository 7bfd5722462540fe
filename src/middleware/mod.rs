//! The tower part: who asks, the check, forward or refuse.

mod body;
mod builder;
mod future;
mod layer;
mod service;
mod settlement;
mod shared;

pub use self::body::Body;
pub use self::builder::RateLimitLayerBuilder;
pub use self::future::ResponseFuture;
pub use self::layer::RateLimitLayer;
pub use self::service::RateLimit;
pub use self::settlement::Settlement;
pub use crate::identity::missing::Missing;
