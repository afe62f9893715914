//! PowerSGD, after algorithms 1 and 2 of the paper (Vogels et al., 1905.13727).

use longhaul_common::model::draw_normal;

use super::tensors::TensorAt;

pub struct LowRank {
    rank: usize,
    /// By tensor: Q of a matrix sent as a product.
    columns: Vec<Option<Vec<f64>>>,
    /// By member: the unsent remainder.
    pub errors: Vec<Vec<f64>>,
}

impl LowRank {
    /// The seed determines the first Q, a constant of the protocol.
    pub fn new(tensors: &[TensorAt], rank: usize, seed: u64, members: usize, len: usize) -> Self {
        let pays = |[n, m]: [usize; 2]| 2 * (n + m) * rank < n * m;
        let sizes: Vec<_> =
            tensors.iter().map(|t| t.shape.filter(|s| pays(*s)).map(|[_, m]| m * rank)).collect();
        let drawn = draw_normal(seed, sizes.iter().flatten().sum());
        let mut drawn = drawn.into_iter().map(f64::from);
        let columns = sizes.iter().map(|size| size.map(|size| drawn.by_ref().take(size).collect())).collect();
        Self { rank, columns, errors: vec![vec![0.0; len]; members] }
    }

    /// The update that all members apply, from the gradients of a step.
    pub fn step(&mut self, tensors: &[TensorAt], weights: &[f64], gradients: &[Vec<f64>]) -> Vec<f64> {
        let len = gradients[0].len();
        for (error, gradient) in self.errors.iter_mut().zip(gradients) {
            error.iter_mut().zip(gradient).for_each(|(error, gradient)| *error += gradient);
        }
        let at =
            |i: usize| self.errors.iter().zip(weights).map(|(error, weight)| weight * error[i]).sum::<f64>();
        let mut applied: Vec<f64> = (0..len).map(at).collect();
        for (tensor, q) in tensors.iter().zip(&mut self.columns) {
            if let (Some([_, m]), Some(q)) = (tensor.shape, q) {
                round_of_power_iteration(&mut applied[tensor.range.clone()], m, q, self.rank);
            }
        }
        for (tensor, q) in tensors.iter().zip(&self.columns) {
            for error in &mut self.errors {
                let error = error[tensor.range.clone()].iter_mut().zip(&applied[tensor.range.clone()]);
                error.for_each(|(error, sent)| *error = if q.is_some() { *error - sent } else { 0.0 });
            }
        }
        applied
    }
}

/// M ← P̂·Qᵀ with P̂ = orthonormalise(M·Q) and Q ← Mᵀ·P̂.
fn round_of_power_iteration(matrix: &mut [f64], m: usize, q: &mut [f64], rank: usize) {
    let n = matrix.len() / m;
    let entry = |i: usize, c: usize| (0..m).map(|j| matrix[i * m + j] * q[j * rank + c]).sum::<f64>();
    let mut p: Vec<f64> = (0..n * rank).map(|at| entry(at / rank, at % rank)).collect();
    orthonormalise(&mut p, rank);
    for (j, c) in (0..m).flat_map(|j| (0..rank).map(move |c| (j, c))) {
        q[j * rank + c] = (0..n).map(|i| matrix[i * m + j] * p[i * rank + c]).sum();
    }
    for (at, value) in matrix.iter_mut().enumerate() {
        *value = (0..rank).map(|c| p[at / m * rank + c] * q[at % m * rank + c]).sum();
    }
}

fn orthonormalise(p: &mut [f64], rank: usize) {
    let dot = |p: &[f64], a: usize, b: usize| p.chunks(rank).map(|row| row[a] * row[b]).sum::<f64>();
    for c in 0..rank {
        for before in 0..c {
            let along = dot(p, before, c);
            p.chunks_mut(rank).for_each(|row| row[c] -= along * row[before]);
        }
        let norm = dot(p, c, c).sqrt();
        p.chunks_mut(rank).for_each(|row| row[c] /= norm);
    }
}
