//! Structure of a model without tensors: names and shapes of its parameters, and costs of its blocks.

mod classifier;
mod cost;
mod decoder;
mod encoder;
mod evaluation;
mod experts;
mod families;
mod initial;
mod joined;
mod meant;
mod parameters;
mod products;
mod shard;
mod share;
pub(crate) mod spec;
mod stream;
pub mod tiny;
mod tuning;

pub use classifier::{Classifier, ImageLayer, LayerForm};
pub use cost::{Block, BlockCost};
pub use decoder::{Activation, Decoder, NormPlaces, QueryNorm, Rotary};
pub use encoder::{Encoder, EncoderNames, Head, REPLACED};
pub use evaluation::Evaluation;
pub use experts::{Experts, is_of_experts};
pub use initial::{draw_normal, draw_parameters, draw_some};
pub(crate) use meant::is_meant;
pub use parameters::{Initial, ParameterSpec};
pub use products::Product;
pub use shard::{Cut, Shard};
pub use share::SynchronisedLayout;
pub use spec::{GPT2_NORM_EPSILON, ModelSpec};
pub use stream::{FixedValues, Stream};
pub use tuning::{Lora, Tuning, adapter_names, is_adapter, magnitude_name, module_of};
