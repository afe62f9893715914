//! Causal attention.

use tch::{Kind, TchError, Tensor};

use super::Pass;
use super::cache::Past;
use super::dropout::Dropout;
use super::precision::Products;

/// A layer's way of attending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Attending {
    /// Factor of scores.
    pub(super) scale: f64,
    /// Tokens attended to, the own one included; `None`: all.
    pub(super) window: Option<i64>,
    /// Soft cap of scores.
    pub(super) cap: Option<f64>,
    /// Index of the layer in the model.
    pub(super) layer: u32,
    /// Index of the first head here.
    pub(super) first_head: i64,
}

impl Products {
    /// softmax(scale·Q·Kᵀ, causal)·V for Q [B, H, T, E], K and V [B, G, T, E] with H a multiple of G; back to [B, T, H·E]. The queries attend to the tokens of
    /// the past too, which stores K and V, and with documents only to those of their own.
    pub(super) fn attention(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        past: Option<Past<'_>>,
        pass: Pass<'_>,
        attending: &Attending,
    ) -> Result<Tensor, TchError> {
        let [batch, heads, length, width] = q.size()[..] else {
            return Err(TchError::Shape(format!("queries must have four dimensions, not {q:?}")));
        };
        let (q, k, v) = (self.cast(q)?, self.cast(k)?, self.cast(v)?);
        let [k, v] = match past {
            Some(past) => past.extended(&k, &v)?,
            None => [k, v],
        }; // [B, G, S, E]
        let seen = k.size()[2];
        let dropout = pass.dropout.filter(|dropout| dropout.drops_attention());
        let has_scores = attending.cap.is_some() || dropout.is_some();
        let mask = match pass.documents {
            Some(documents) => Some(documents.mask(attending.window)?), // [B, 1, T, T]
            None => attending.mask(length, seen, has_scores, q.device())?, // [T, S]
        };
        let mixed = match has_scores {
            true => attending.by_scores(&q, &k, &v, mask.as_ref(), dropout)?,
            false => {
                // libtorch's efficient kernels take a mask, or groups of queries, and not both.
                let groups = heads / k.size()[1];
                let [k, v] = match pass.documents.is_some() && groups > 1 {
                    true => [
                        k.f_repeat_interleave_self_int(groups, 1, None)?,
                        v.f_repeat_interleave_self_int(groups, 1, None)?,
                    ],
                    false => [k, v],
                };
                // libtorch's own causal mask takes the first query for the first token.
                let is_causal = length > 1 && mask.is_none();
                let is_grouped = k.size()[1] != heads;
                Tensor::f_scaled_dot_product_attention(
                    &q,
                    &k,
                    &v,
                    mask,
                    0.0,
                    is_causal,
                    Some(attending.scale),
                    is_grouped,
                )?
            }
        }; // [B, H, T, E]
        mixed.f_transpose(1, 2)?.f_reshape([batch, length, heads * width])
    }
}

impl Attending {
    /// Returns the tokens [T, S] that each query sees; `None`: those before it and itself, with nothing before the first query, or all for
    /// a single query. `has_scores`: only the last of these, as no kernel knows of the others.
    fn mask(
        &self,
        length: i64,
        seen: i64,
        has_scores: bool,
        device: tch::Device,
    ) -> Result<Option<Tensor>, TchError> {
        let before = seen - length;
        let window = self.window.filter(|window| *window < seen);
        if window.is_none() && (length == 1 || before == 0 && !has_scores) {
            return Ok(None);
        }
        let seen = Tensor::f_ones([length, seen], (Kind::Bool, device))?.f_tril(before)?;
        match window {
            Some(window) => Ok(Some(seen.f_triu(before - window + 1)?)),
            None => Ok(Some(seen)),
        }
    }

    /// Attention with scores in memory: bounded smoothly, as in Gemma 2, or with dropout; softmax in f32.
    pub(super) fn by_scores(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
        dropout: Option<&Dropout>,
    ) -> Result<Tensor, TchError> {
        let groups = q.size()[1] / k.size()[1];
        let [k, v] = [k, v].map(|of| of.f_repeat_interleave_self_int(groups, 1, None));
        let scores = q.f_matmul(&k?.f_transpose(-2, -1)?)?.f_mul_scalar(self.scale)?; // [B, H, T, S]
        let scores = match self.cap {
            Some(cap) => scores.f_div_scalar(cap)?.f_tanh()?.f_mul_scalar(cap)?,
            None => scores,
        };
        let scores = match mask {
            Some(mask) => scores.f_masked_fill(&mask.f_logical_not()?, f64::NEG_INFINITY)?,
            None => scores,
        };
        let weights = scores.f_softmax(-1, Kind::Float)?;
        let weights = match dropout {
            Some(dropout) => dropout.of_attention(&weights, self.layer, self.first_head)?,
            None => weights,
        };
        weights.f_to_kind(q.kind())?.f_matmul(&v?)
    }
}
