//! A copy of the model on several workers: transfers between its ranks and sums within its tensor groups, over the network.

mod activation_cache;
mod drawn;
mod group;
mod outbox;
mod pipe;
#[cfg(test)]
mod tests;

pub use self::group::{GroupConnection, GroupError};
pub use self::outbox::PipeError;
pub use self::pipe::{BoundaryFormats, NetworkPipe};
