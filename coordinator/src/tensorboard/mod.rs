#![doc = include_str!("../../../docs/book/src/tensorboard.md")]

mod event;
mod file;
mod scalars;

pub use event::{Content, Event};
pub use file::EventFile;
pub use scalars::{Scalar, of_round, of_sample, of_scores, of_validation};
