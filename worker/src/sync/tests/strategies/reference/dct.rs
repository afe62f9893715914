//! The orthonormal two-dimensional DCT-II of a tile, by its definition.

use std::f64::consts::PI;

use super::tensors::TILE;

/// C[k][i] = √(2/n)·cos(π(2i + 1)k / 2n), with C[0][i] = √(1/n).
fn cosines() -> Vec<f64> {
    let n = TILE as f64;
    let cosine = |k: usize, i: usize| (PI * (2 * i + 1) as f64 * k as f64 / (2.0 * n)).cos();
    let factor = |k: usize| if k == 0 { (1.0 / n).sqrt() } else { (2.0 / n).sqrt() };
    (0..TILE * TILE).map(|at| factor(at / TILE) * cosine(at / TILE, at % TILE)).collect()
}

/// C·X·Cᵀ
pub fn forward(tile: &[f64]) -> Vec<f64> {
    let c = cosines();
    product(&product(&c, tile), &transposed(&c))
}

/// Cᵀ·X·C
pub fn inverse(tile: &[f64]) -> Vec<f64> {
    let c = cosines();
    product(&product(&transposed(&c), tile), &c)
}

fn transposed(matrix: &[f64]) -> Vec<f64> {
    (0..TILE * TILE).map(|at| matrix[at % TILE * TILE + at / TILE]).collect()
}

fn product(left: &[f64], right: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; TILE * TILE];
    for (row, out) in left.chunks(TILE).zip(product.chunks_mut(TILE)) {
        for (factor, others) in row.iter().zip(right.chunks(TILE)).filter(|(factor, _)| **factor != 0.0) {
            out.iter_mut().zip(others).for_each(|(out, other)| *out += factor * other);
        }
    }
    product
}
