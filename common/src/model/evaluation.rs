//! Evaluation on held-out samples.

/// Result over all held-out samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean cross entropy, in nats per token or image.
    pub loss: f32,
    /// Share of images whose class has the largest logit; `None` for text.
    pub accuracy: Option<f32>,
}
