//! Mixtures of experts: `docs/experts.md`.
#![allow(unsafe_code, reason = "calls C++")]

use std::ffi::c_char;

use longhaul_common::model;
use tch::{Device, Kind, TchError, Tensor};
use torch_sys::C_tensor;

use super::parameters::Parameters;
use super::precision::Products;
use crate::shim::Reason;

/// The experts of a layer.
#[derive(Debug)]
pub(super) struct Experts {
    router: Tensor, // [E, D]
    inner: Tensor,  // [E, 2F, D]: gate, then the other rows
    outer: Tensor,  // [E, D, F]
    chosen: i64,
    are_normalised: bool,
    /// Coefficient of this layer's part of the loss that balances the load.
    balance: f64,
    products: Products,
}

/// The experts of N tokens, k of each.
struct Choice {
    /// Weights [N, k] of a token's experts.
    weights: Tensor,
    /// The choice, of N·k token by token, that each row computes: those of an expert follow each other.
    order: Tensor,
    /// The row of each choice [N·k].
    place: Tensor,
    /// Rows of each expert.
    rows: Vec<i64>,
    /// Tokens of each expert: its first rows. The others repeat a choice, and nothing reads them.
    counts: Vec<i64>,
}

/// Rows of an expert in bf16 on a CPU are a power of two below this, or a multiple of it: oneDNN compiles a product for each number of rows, and keeps
/// it: see `docs/experts.md`.
const ROWS: u64 = 32;

impl Experts {
    /// Creates the experts of a layer, one of `mixtures` layers with some.
    pub(super) fn new(
        of: &model::Experts,
        mixtures: usize,
        parameters: &Parameters,
        layer: u32,
        products: &Products,
    ) -> Self {
        let view = |part: &str| parameters.view(&format!("model.layers.{layer}.mlp.{part}"));
        Self {
            router: view("gate.weight"),
            inner: view("experts.gate_up_proj"),
            outer: view("experts.down_proj"),
            chosen: of.chosen.into(),
            are_normalised: of.are_normalised,
            balance: of.balance / mixtures as f64,
            products: products.clone(),
        }
    }

    /// Returns the sums [B, T, D] of the experts' outputs for x [B, T, D]. Backward passes add the gradient of `share` of the loss that balances their load.
    pub(super) fn forward(&self, x: &Tensor, share: f64) -> Result<Tensor, TchError> {
        let rows = x.f_reshape([-1, self.router.size()[1]])?; // [N, D]
        let choice = self.choose(&rows, share)?;
        let rows = self.products.cast(&rows)?;
        let choice = if is_compiled_by_size(&rows) { choice.padded()? } else { choice };
        let rows = choice.rows(&rows, &self.inner, &self.outer)?; // [N·k, D], or more
        choice.combined(&rows)?.f_view(x.size().as_slice())
    }

    /// Chooses experts for x [N, D], in f32.
    fn choose(&self, x: &Tensor, share: f64) -> Result<Choice, TchError> {
        let experts = self.router.size()[0];
        let router = self.router.f_to_kind(Kind::Float)?;
        let logits = x.f_to_kind(Kind::Float)?.f_linear::<Tensor>(&router, None)?; // [N, E]
        let shares = logits.f_softmax(-1, Kind::Float)?; // [N, E]
        let chosen = shares.f_detach()?.f_topk(self.chosen, -1, true, true)?.1; // [N, k]
        let flat = chosen.f_flatten(0, -1)?; // [N·k]
        let counts = flat.f_bincount::<Tensor>(None, experts)?; // [E]
        let shares = self.balanced(&shares, &counts, share)?;
        let weights = shares.f_gather(-1, &chosen, false)?; // [N, k]
        let weights = match self.are_normalised {
            true => weights.f_div(&weights.f_sum_dim_intlist([-1].as_slice(), true, Kind::Float)?)?,
            false => weights,
        };
        let order = flat.f_argsort_stable(true, 0, false)?;
        let place = order.f_argsort(0, false)?;
        let counts: Vec<i64> = Vec::try_from(counts)?;
        Ok(Choice { weights, order, place, rows: counts.clone(), counts })
    }

    /// Returns the same shares [N, E], whose gradient includes that of E·Σ f·P, where f are the experts' tokens over N, and P their mean shares (Fedus et al.
    /// 2021, equation 4).
    fn balanced(&self, shares: &Tensor, counts: &Tensor, share: f64) -> Result<Tensor, TchError> {
        let factor = self.balance * share;
        if factor == 0.0 || !shares.requires_grad() {
            return Ok(shares.shallow_clone());
        }
        let (tokens, experts) = (shares.size()[0] as f64, shares.size()[1] as f64);
        let gradient = counts.f_to_kind(Kind::Float)?.f_mul_scalar(factor * experts / (tokens * tokens))?; // [E]
        let mut reason = Reason::default();
        // SAFETY: the tensors are borrowed; the shim holds its own references, lets no exception out and writes at most `SIZE` bytes of the reason.
        let same = unsafe {
            longhaul_with_gradient(shares.as_ptr(), gradient.as_ptr(), reason.as_mut_ptr(), Reason::SIZE)
        };
        owned(same).ok_or_else(|| reason.into_error())
    }
}

fn is_compiled_by_size(rows: &Tensor) -> bool {
    rows.kind() == Kind::BFloat16 && rows.device() == Device::Cpu
}

impl Choice {
    /// Adds rows to each expert: see [`ROWS`].
    fn padded(self) -> Result<Self, TchError> {
        let padded = |count: &i64| match count.unsigned_abs() {
            0 => 0,
            few if few < ROWS => few.next_power_of_two() as i64,
            many => many.next_multiple_of(ROWS) as i64,
        };
        let rows: Vec<i64> = self.counts.iter().map(padded).collect();
        // The rows that are added before those of each choice, which stand in the order of experts.
        let mut added = Vec::with_capacity(self.order.numel());
        let mut before = 0;
        for (count, rows) in self.counts.iter().zip(&rows) {
            added.extend(std::iter::repeat_n(before, *count as usize));
            before += rows - count;
        }
        let added = Tensor::f_from_slice(&added)?; // [N·k]
        let place = self.place.f_add(&added.f_index_select(0, &self.place)?)?;
        let choices = Tensor::f_arange(place.numel() as i64, (Kind::Int64, Device::Cpu))?;
        let order = Tensor::f_zeros([rows.iter().sum::<i64>()], (Kind::Int64, Device::Cpu))?;
        let order = order.f_index_copy(0, &place, &choices)?;
        Ok(Self { order, place, rows, ..self })
    }

    /// Returns the experts' outputs for x [N, D], a row [D] for each of `order`.
    fn rows(&self, x: &Tensor, inner: &Tensor, outer: &Tensor) -> Result<Tensor, TchError> {
        let mut reason = Reason::default();
        // SAFETY: as above; the counts are as many as the call says.
        let rows = unsafe {
            longhaul_expert_rows(
                x.as_ptr(),
                inner.as_ptr(),
                outer.as_ptr(),
                self.order.as_ptr(),
                self.place.as_ptr(),
                self.rows.as_ptr(),
                self.rows.len(),
                reason.as_mut_ptr(),
                Reason::SIZE,
            )
        };
        owned(rows).ok_or_else(|| reason.into_error())
    }

    /// Returns the weighted sums [N, D] of each token's rows.
    fn combined(&self, rows: &Tensor) -> Result<Tensor, TchError> {
        let mut reason = Reason::default();
        // SAFETY: as above.
        let sum = unsafe {
            longhaul_combine_rows(
                rows.as_ptr(),
                self.weights.as_ptr(),
                self.order.as_ptr(),
                self.place.as_ptr(),
                self.rows.as_ptr(),
                self.counts.as_ptr(),
                self.rows.len(),
                reason.as_mut_ptr(),
                Reason::SIZE,
            )
        };
        owned(sum).ok_or_else(|| reason.into_error())
    }
}

/// Takes over a tensor made by the shim, if any.
fn owned(tensor: *mut C_tensor) -> Option<Tensor> {
    // SAFETY: the shim transfers tensors that it has made with `new`.
    (!tensor.is_null()).then(|| unsafe { Tensor::from_ptr(tensor) })
}

unsafe extern "C" {
    fn longhaul_expert_rows(
        x: *const C_tensor,
        inner: *const C_tensor,
        outer: *const C_tensor,
        order: *const C_tensor,
        place: *const C_tensor,
        rows: *const i64,
        experts: usize,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
    fn longhaul_combine_rows(
        rows: *const C_tensor,
        weights: *const C_tensor,
        order: *const C_tensor,
        place: *const C_tensor,
        rows_of_experts: *const i64,
        counts: *const i64,
        experts: usize,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
    fn longhaul_with_gradient(
        x: *const C_tensor,
        added: *const C_tensor,
        reason: *mut c_char,
        reason_size: usize,
    ) -> *mut C_tensor;
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPERTS: i64 = 5;

    fn wave(shape: &[i64], from: f64) -> Tensor {
        let values = Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu)) + from;
        values.sin().view(shape).set_requires_grad(true)
    }

    /// Returns the sums, and the gradients of tokens, matrices and weights.
    fn computed(is_padded: bool) -> Vec<Tensor> {
        // Of seven tokens two experts each; the last expert has no token.
        let flat = Tensor::from_slice(&[0_i64, 1, 0, 2, 0, 1, 2, 0, 0, 3, 1, 2, 0, 1]);
        let (order, weights) = (flat.argsort_stable(true, 0, false), wave(&[7, 2], 0.3));
        let place = order.argsort(0, false);
        let counts = vec![6, 4, 3, 1, 0];
        let choice = Choice { weights: weights.shallow_clone(), order, place, rows: counts.clone(), counts };
        let choice = if is_padded { choice.padded().unwrap() } else { choice };
        let rows: &[i64] = if is_padded { &[8, 4, 4, 1, 0] } else { &[6, 4, 3, 1, 0] };
        assert_eq!(choice.rows, rows);
        let (x, inner, outer) =
            (wave(&[7, 4], 1.0), wave(&[EXPERTS, 6, 4], 2.0), wave(&[EXPERTS, 4, 3], 3.0));
        let sums = choice.combined(&choice.rows(&x, &inner, &outer).unwrap()).unwrap();
        (&sums * wave(&[7, 4], 4.0)).sum(Kind::Float).backward();
        std::iter::once(sums.detach()).chain([x, inner, outer, weights].map(|leaf| leaf.grad())).collect()
    }

    #[test]
    fn added_rows_change_neither_sums_nor_gradients() {
        for (padded, plain) in computed(true).iter().zip(computed(false)) {
            let off = (padded - &plain).norm().double_value(&[]) / plain.norm().double_value(&[]);
            assert!(off < 1e-6, "{:?}: {off}", plain.size());
        }
    }
}
