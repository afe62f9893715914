//! A residual stream within a fixed subspace (Ramasinghe et al. 2025, "Protocol models", arXiv 2506.01260): `docs/pipeline.md`.

use longhaul_common::model::{FixedValues, ModelSpec};
use tch::{Device, TchError, Tensor};

use super::documents::Documents;

/// The subspace, and the fixed part of the embeddings: not trained, and the same in every stage and run.
#[derive(Debug)]
pub struct Subspace {
    basis: Tensor,     // [k, D], orthonormal rows
    tokens: Tensor,    // [V, D]
    positions: Tensor, // [C, D]
}

impl Subspace {
    /// Draws that of a model; `None`: its stream is in none.
    ///
    /// # Errors
    /// libtorch fails: out of memory, mostly.
    pub(super) fn of(spec: &ModelSpec, device: Device) -> Result<Option<Self>, TchError> {
        let Some(FixedValues { basis, tokens, positions }) = spec.fixed_values() else { return Ok(None) };
        let table = |values: &[f32]| {
            Tensor::f_from_slice(values)?.f_view([-1, spec.width.into()])?.f_to_device(device)
        };
        Ok(Some(Self { basis: table(&basis)?, tokens: table(&tokens)?, positions: table(&positions)? }))
    }

    /// Shares the memory.
    pub(super) fn shallow_clone(&self) -> Self {
        let [basis, tokens, positions] =
            [&self.basis, &self.tokens, &self.positions].map(Tensor::shallow_clone);
        Self { basis, tokens, positions }
    }

    /// Returns the fixed part [B, T, D] of the stream of tokens [B, T] that follow `start` others.
    ///
    /// # Errors
    /// libtorch fails.
    pub(crate) fn fixed(
        &self,
        tokens: &Tensor,
        start: i64,
        documents: Option<&Documents>,
    ) -> Result<Tensor, TchError> {
        let positions = match documents {
            Some(documents) => {
                Tensor::f_embedding(&self.positions, documents.positions(), -1, false, false)? // [B, T, D]
            }
            None => self.positions.f_narrow(0, start, tokens.size()[1])?, // [T, D]
        };
        Tensor::f_embedding(&self.tokens, tokens, -1, false, false)?.f_add(&positions)
    }

    /// Returns the stream [B, T, D] with this fixed part, for its values c [B, T, k] in the subspace.
    pub(super) fn composed(&self, c: &Tensor, fixed: &Tensor) -> Result<Tensor, TchError> {
        fixed.f_add(&c.f_matmul(&self.basis)?)
    }

    /// Returns the values [B, T, k] of x [B, T, D] along the subspace.
    pub(super) fn along(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_linear::<&Tensor>(&self.basis, None)
    }

    /// Returns the fixed part [V, D] of the token embedding.
    pub(super) fn tokens(&self) -> &Tensor {
        &self.tokens
    }
}
