//! Cases by their id.
