//! Texts and pairs of texts in sequences of an encoder, with padding behind them.

use tch::{Kind, TchError, Tensor};

/// Token types and padding of sequences.
#[derive(Debug)]
pub struct Segments {
    types: Option<Tensor>, // [B, T]
    seen: Option<Tensor>,  // [B, 1, 1, T]
}

impl Segments {
    /// Reads which tokens [B, T] are of the second text, if any are, and which are padding, if any are.
    ///
    /// # Errors
    /// libtorch fails: out of memory, mostly.
    pub(crate) fn new(second: Option<&Tensor>, padding: Option<&Tensor>) -> Result<Self, TchError> {
        let types = second.map(|second| second.f_to_kind(Kind::Int64)).transpose()?;
        let seen = padding.map(|padding| padding.f_logical_not()?.f_unsqueeze(1)?.f_unsqueeze(1));
        Ok(Self { types, seen: seen.transpose()? })
    }

    /// Returns the type of each token [B, T]; `None`: all have the first.
    pub(super) fn types(&self) -> Option<&Tensor> {
        self.types.as_ref()
    }

    /// Returns the tokens that all queries see, [B, 1, 1, T]; `None`: all.
    pub(super) fn seen(&self) -> Option<&Tensor> {
        self.seen.as_ref()
    }
}
