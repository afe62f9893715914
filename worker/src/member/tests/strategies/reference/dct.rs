//! The orthonormal two-dimensional DCT-II of a tile, by definition.

use std::f64::consts::PI;
use std::sync::LazyLock;

use tch::Tensor;

use super::tensors::TILE;

/// C[k][i] = √(2/n)·cos(π(2i + 1)k / 2n), with C[0][i] = √(1/n).
static COSINES: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let n = TILE as f64;
    let cosine = |k: usize, i: usize| (PI * (2 * i + 1) as f64 * k as f64 / (2.0 * n)).cos();
    let factor = |k: usize| if k == 0 { (1.0 / n).sqrt() } else { (2.0 / n).sqrt() };
    (0..TILE * TILE).map(|at| factor(at / TILE) * cosine(at / TILE, at % TILE)).collect()
});

/// C·X·Cᵀ
pub fn forward(tile: &[f64]) -> Vec<f64> {
    product(&product(&COSINES, tile), &transposed(&COSINES))
}

/// Cᵀ·X·C
pub fn inverse(tile: &[f64]) -> Vec<f64> {
    product(&product(&transposed(&COSINES), tile), &COSINES)
}

fn transposed(matrix: &[f64]) -> Vec<f64> {
    (0..TILE * TILE).map(|at| matrix[at % TILE * TILE + at / TILE]).collect()
}

/// Uses libtorch, as unoptimised loops are slow.
fn product(left: &[f64], right: &[f64]) -> Vec<f64> {
    let matrix = |values: &[f64]| Tensor::from_slice(values).view([TILE as i64; 2]);
    Vec::try_from(matrix(left).matmul(&matrix(right)).flatten(0, 1)).expect("a tensor of f64")
}
