//! What a model is made of, without a tensor: its parameters by name and shape, and what its blocks cost.

mod cost;
mod parameters;
mod spec;

pub use cost::{Block, BlockCost};
pub use parameters::{Initial, ParameterSpec};
pub use spec::ModelSpec;
