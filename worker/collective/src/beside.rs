//! For a collective with another transport that agrees on each call by a ring.

pub use crate::ranges::objection;
pub use crate::ring::{Limit, left, share};
pub use crate::statement::Statement;
