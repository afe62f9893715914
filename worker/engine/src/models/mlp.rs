//! A multi-layer perceptron with ReLU (Rumelhart, Hinton & Williams 1986, "Learning representations by back-propagating errors"), as in meProp's experiments.

use longhaul_common::model::Classifier;
use tch::{TchError, Tensor};

use super::parameters::Parameters;
use super::pixels::{Linear, normalised};
use super::precision::Products;

/// Hidden layers, and an output layer for the classes.
#[derive(Debug)]
pub struct Mlp {
    hidden: Vec<Linear>, // N → F, F → F …
    output: Linear,      // F → K
    products: Products,
}

impl Mlp {
    pub(super) fn new(classifier: &Classifier, parameters: &Parameters, products: Products) -> Self {
        let layer = |at| Linear::new(parameters, &format!("hidden.{at}"), &products);
        Self {
            hidden: (0..classifier.hidden.len()).map(layer).collect(),
            output: Linear::new(parameters, "output", &products),
            products,
        }
    }

    /// Returns values `[B, N]` before the first layer, for pixels `[B, N]`.
    pub(super) fn embed(&self, pixels: &Tensor) -> Result<Tensor, TchError> {
        normalised(pixels)
    }

    /// Returns the output of a hidden layer `[B, F]`, for its input `[B, ..]`; `None`: no such layer.
    pub(super) fn layer(&self, at: usize, x: &Tensor) -> Option<Result<Tensor, TchError>> {
        Some(self.through(self.hidden.get(at)?, x))
    }

    fn through(&self, layer: &Linear, x: &Tensor) -> Result<Tensor, TchError> {
        layer.forward(&x.f_flatten(1, -1)?, &self.products)?.f_relu() // [B, F]
    }

    /// Returns the output of the last hidden layer `[B, F]`, for pixels `[B, N]`.
    pub(super) fn hidden(&self, pixels: &Tensor) -> Result<Tensor, TchError> {
        let mut x = self.embed(pixels)?;
        for layer in &self.hidden {
            x = self.through(layer, &x)?;
        }
        Ok(x)
    }

    /// Returns logits `[B, K]`, for the output of the last hidden layer `[B, ..]`.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.output.forward(&x.f_flatten(1, -1)?, &self.products) // [B, K]
    }
}
