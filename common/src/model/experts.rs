//! Mixtures of experts: `worker/engine/docs/experts.md`.

use super::Decoder;

/// Experts in place of a layer's feed-forward part (Shazeer et al. 2017, arXiv 1701.06538; Fedus et al. 2021, "Switch transformers", arXiv 2101.03961).
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: u32,
    /// Experts that compute each token.
    pub chosen: u32,
    /// Inner width of an expert.
    pub width: u32,
    /// Whether the weights of a token's experts sum to one.
    pub are_normalised: bool,
    /// Coefficient of the loss that balances their load.
    pub balance: f64,
    /// Layers with an ordinary feed-forward part, in order.
    pub dense_layers: Vec<u32>,
}

impl Decoder {
    /// Returns the experts of a layer; `None`: it has an ordinary feed-forward part.
    #[must_use]
    pub fn experts_of(&self, layer: u32) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.dense_layers.binary_search(&layer).is_err())
    }
}

/// Whether a tensor is a matrix of experts, which no single product multiplies by.
#[must_use]
pub fn is_of_experts(name: &str) -> bool {
    name.contains(".mlp.experts.")
}

/// Whether a tensor chooses experts.
#[must_use]
pub fn is_router(name: &str) -> bool {
    name.ends_with(".mlp.gate.weight")
}
