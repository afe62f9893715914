//! What a model makes of held-out samples.

/// Over all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean cross entropy, in nats a token, or an image.
    pub loss: f32,
    /// The share of images whose class has the largest logit; none of text.
    pub accuracy: Option<f32>,
}
