//! A copy of the model on several workers: what its ranks hand on to each other, and sums within its tensor groups, over the network.

mod activation_cache;
mod drawn;
mod group;
mod outbox;
mod pipe;
#[cfg(test)]
mod tests;

pub use self::group::{GroupError, GroupSeat};
pub use self::outbox::PipeError;
pub use self::pipe::{BoundaryFormats, NetworkPipe};
