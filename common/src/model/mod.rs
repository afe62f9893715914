//! What a model is made of, without a tensor: its parameters by name and shape, and what its blocks cost.

mod classifier;
mod cost;
mod memory;
mod parameters;
mod products;
mod shard;
mod spec;

pub use classifier::{Classifier, ImageLayer, LayerForm};
pub use cost::{Block, BlockCost};
pub use memory::{Memory, PerMemory, StageBytes, parameter_bytes};
pub use parameters::{Initial, ParameterSpec};
pub use products::Product;
pub use shard::{Cut, Shard};
pub use spec::ModelSpec;
