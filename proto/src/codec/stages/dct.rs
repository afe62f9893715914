//! The two-dimensional discrete cosine transform of 64 × 64 tiles.
//!
//! B. Peng, J. Quesnelle, D. Kingma, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.
//!
//! The orthonormal DCT-II of the columns and then of the rows, C·X·Cᵀ with
//!
//! ```text
//! C[k][i] = √(2/64) · cos(π (2i + 1) k / 128),  C[0][i] = √(1/64)
//! ```
//! The even half of a transform of n values is the transform of the n/2 sums x[i] + x[n−1−i]. The odd half is
//! a matrix times the n/2 differences (Chen, Smith and Fralick 1977). This takes a third of the
//! multiplications of the whole matrix, none by a large factor. Multiplications and additions happen in a
//! fixed order and are never fused.

use std::array;

use serde::{Deserialize, Serialize};

use super::{Effect, LeadingStage};
use crate::codec::reader::Reader;
use crate::codec::{FRAGMENT_VALUES_MAX, SpecError};

/// Values in a row and rows in a tile.
const EDGE: usize = 64;

/// Values in a tile: 64 rows of 64.
pub const TILE_VALUES: usize = EDGE * EDGE;

/// Transforms the fragment's first tiles; the values after them pass unchanged.
///
/// The caller orders the fragment so that a tile is [`TILE_VALUES`] consecutive values, row by row, with all
/// whole tiles first. Coefficient (u, v), of frequency u down the columns and v along the rows, takes the
/// place of the value in row u and column v.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dct {
    /// Tiles at the start of the fragment.
    pub tiles: u32,
}

impl Dct {
    fn values(self) -> usize {
        self.tiles as usize * TILE_VALUES
    }

    fn of_each_tile(self, values: &mut [f32], transform: fn(&mut Strip)) {
        for tile in values[..self.values()].as_chunks_mut().0 {
            transform_columns(tile, transform);
            transform_rows(tile, transform);
        }
    }
}

impl LeadingStage for Dct {
    fn validate(&self) -> Result<(), SpecError> {
        let is_possible = self.tiles as usize <= FRAGMENT_VALUES_MAX / TILE_VALUES;
        if is_possible { Ok(()) } else { Err(SpecError::Tiles { tiles: self.tiles }) }
    }

    fn seen_len(&self, len: usize) -> Option<usize> {
        (self.values() <= len).then_some(len)
    }

    fn effect(&self) -> Effect {
        Effect::Transforms
    }

    /// No sum of 4096 such values overflows: 2^100.
    fn magnitude_end(&self) -> f32 {
        f32::from_bits((127 + 100) << 23)
    }

    fn forward(&self, values: &mut [f32]) {
        self.of_each_tile(values, forward);
    }

    fn inverse(&self, values: &mut [f32]) {
        self.of_each_tile(values, inverse);
    }

    fn write(&self, header: &mut Vec<u8>) {
        header.extend_from_slice(&self.tiles.to_le_bytes());
    }

    fn read(header: &mut Reader<'_>) -> Option<Self> {
        let stage = Self { tiles: header.u32()? };
        stage.validate().is_ok().then_some(stage)
    }
}

/// Vectors transformed together, side by side: four registers of baseline x86-64 or AArch64.
const LANES: usize = 16;

type Lanes = [f32; LANES];

/// [`LANES`] vectors of 64 values, interleaved.
type Strip = [Lanes; EDGE];

fn transform_columns(tile: &mut [f32; TILE_VALUES], transform: fn(&mut Strip)) {
    let rows = tile.as_chunks_mut::<LANES>().0;
    for column in 0..EDGE / LANES {
        let mut strip: Strip = array::from_fn(|row| rows[row * (EDGE / LANES) + column]);
        transform(&mut strip);
        strip.iter().enumerate().for_each(|(row, lanes)| rows[row * (EDGE / LANES) + column] = *lanes);
    }
}

fn transform_rows(tile: &mut [f32; TILE_VALUES], transform: fn(&mut Strip)) {
    for rows in tile.as_chunks_mut::<{ LANES * EDGE }>().0 {
        let mut strip: Strip = array::from_fn(|i| array::from_fn(|row| rows[row * EDGE + i]));
        transform(&mut strip);
        for (row, values) in rows.as_chunks_mut::<EDGE>().0.iter_mut().enumerate() {
            *values = array::from_fn(|i| strip[i][row]);
        }
    }
}

/// Replaces 64 values by their coefficients.
fn forward(strip: &mut Strip) {
    let mut coefficients = [[0.0; LANES]; EDGE];
    let mut differences = [[0.0; LANES]; EDGE / 2];
    let (mut half, mut stride) = (EDGE / 2, 1);
    while half > 0 {
        for i in 0..half {
            let (a, b) = (strip[i], strip[2 * half - 1 - i]);
            strip[i] = array::from_fn(|lane| a[lane] + b[lane]);
            differences[i] = array::from_fn(|lane| a[lane] - b[lane]);
        }
        for (k, cosines) in odd_half(half).chunks_exact(half).enumerate() {
            coefficients[(2 * k + 1) * stride] = combine(differences[..half].iter().zip(cosines));
        }
        (half, stride) = (half / 2, stride * 2);
    }
    coefficients[0] = strip[0].map(|sum| sum * CONSTANT);
    *strip = coefficients;
}

/// Replaces 64 coefficients by their values. Coefficients that are zero in all vectors are free.
fn inverse(strip: &mut Strip) {
    let mut values = [[0.0; LANES]; EDGE];
    values[0] = strip[0].map(|coefficient| coefficient * CONSTANT);
    let (mut half, mut stride) = (1, EDGE / 2);
    while half < EDGE {
        let (mut present, mut count) = ([0; EDGE / 2], 0);
        for k in 0..half {
            present[count] = k;
            count += usize::from(!are_zero(&strip[(2 * k + 1) * stride]));
        }
        let mut odd = [[0.0; LANES]; EDGE / 2];
        // The matrix is symmetric.
        for (odd, cosines) in odd.iter_mut().zip(odd_half(half).chunks_exact(half)) {
            *odd = combine(present[..count].iter().map(|&k| (&strip[(2 * k + 1) * stride], &cosines[k])));
        }
        for i in 0..half {
            let (even, odd) = (values[i], odd[i]);
            values[i] = array::from_fn(|lane| even[lane] + odd[lane]);
            values[2 * half - 1 - i] = array::from_fn(|lane| even[lane] - odd[lane]);
        }
        (half, stride) = (half * 2, stride / 2);
    }
    *strip = values;
}

/// Whether all are zero, of either sign; compares integers, without branches.
fn are_zero(lanes: &Lanes) -> bool {
    lanes.iter().fold(0, |any, value| any | value.to_bits()) << 1 == 0
}

/// Σ lanes · cosine, in order.
fn combine<'a>(terms: impl Iterator<Item = (&'a Lanes, &'a f32)>) -> Lanes {
    let mut sum = [0.0; LANES];
    for (lanes, cosine) in terms {
        for (sum, value) in sum.iter_mut().zip(lanes) {
            *sum += value * cosine;
        }
    }
    sum
}

/// √(1/64).
const CONSTANT: f32 = 0.125;

/// Returns the matrix of the odd half of a transform of 2·`half` values, row by row: √(2/64) · cos(π (2i +
/// 1)(2k + 1) / (4·half)).
fn odd_half(half: usize) -> &'static [f32] {
    // The matrices of 1, 2, 4, … precede it: (half² − 1) / 3 numbers.
    &ODD_HALVES[(half * half - 1) / 3..][..half * half]
}

/// 1 + 4 + 16 + … + 32².
const ODD_HALVES_VALUES: usize = (EDGE * EDGE - 1) / 3;

static ODD_HALVES: [f32; ODD_HALVES_VALUES] = {
    let cosines = cosines();
    let mut table = [0.0; ODD_HALVES_VALUES];
    let (mut at, mut half) = (0, 1);
    while half < EDGE {
        let mut entry = 0;
        while entry < half * half {
            let (k, i) = (entry / half, entry % half);
            let angle = (2 * i + 1) * (2 * k + 1) * (EDGE / 2 / half);
            // √(2/64), the correctly rounded f64.
            table[at + entry] = (cosines[angle % cosines.len()] * 0.176_776_695_296_636_9) as f32;
            entry += 1;
        }
        (at, half) = (at + half * half, half * 2);
    }
    table
};

/// cos(π j / 128) for one turn, by rotations in f64, whose error is far below the last bit of an f32.
const fn cosines() -> [f64; 4 * EDGE] {
    const COS: f64 = 0.999_698_818_696_204_2;
    const SIN: f64 = 0.024_541_228_522_912_288;
    let mut table = [0.0; 4 * EDGE];
    let (mut cos, mut sin) = (1.0, 0.0);
    let mut j = 0;
    while j < EDGE {
        // A quarter turn determines the others.
        table[j] = cos;
        table[j + EDGE] = -sin;
        table[j + 2 * EDGE] = -cos;
        table[j + 3 * EDGE] = sin;
        (cos, sin) = (cos * COS - sin * SIN, sin * COS + cos * SIN);
        j += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// One entry of the transform's matrix, by its formula.
    fn entry(k: usize, i: usize) -> f64 {
        let norm: f64 = if k == 0 { 1.0 / 64.0 } else { 2.0 / 64.0 };
        norm.sqrt() * (PI * ((2 * i + 1) * k) as f64 / 128.0).cos()
    }

    /// matrix · tile · matrixᵀ.
    fn by_formula(tile: &[f32], matrix: fn(usize, usize) -> f64) -> Vec<f64> {
        let sum = |term: &dyn Fn(usize) -> f64| (0..EDGE).map(term).sum::<f64>();
        let at = |n: usize| (n / EDGE, n % EDGE);
        let columns: Vec<f64> = (0..TILE_VALUES)
            .map(|n| sum(&|i| matrix(at(n).0, i) * f64::from(tile[i * EDGE + at(n).1])))
            .collect();
        (0..TILE_VALUES).map(|n| sum(&|i| matrix(at(n).1, i) * columns[at(n).0 * EDGE + i])).collect()
    }

    fn assert_close(values: &[f32], expected: &[f64]) {
        let norm = expected.iter().map(|value| value * value).sum::<f64>().sqrt();
        for (&value, expected) in values.iter().zip(expected) {
            assert!((f64::from(value) - expected).abs() <= 1e-7 * norm, "{value} is not {expected}");
        }
    }

    fn random(seed: u64, len: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    #[test]
    fn the_coefficients_are_those_of_the_formula() {
        let input = random(1, TILE_VALUES);
        let mut values = input.clone();
        Dct { tiles: 1 }.forward(&mut values);
        assert_close(&values, &by_formula(&input, entry));
    }

    #[test]
    fn the_inverse_is_that_of_the_formula_for_few_coefficients_and_for_all() {
        for kept in [0, 1, 20, TILE_VALUES] {
            let mut rng = ChaCha8Rng::seed_from_u64(2);
            let mut input = vec![0.0; TILE_VALUES];
            (0..kept).for_each(|_| input[rng.random_range(0..TILE_VALUES)] = rng.random_range(-1.0..1.0));
            let mut values = input.clone();
            Dct { tiles: 1 }.inverse(&mut values);
            assert_close(&values, &by_formula(&input, |i, k| entry(k, i)));
        }
    }

    #[test]
    fn values_after_the_tiles_pass_as_they_are_and_tiles_do_not_mix() {
        let input = random(3, 2 * TILE_VALUES + 100);
        let mut values = input.clone();
        Dct { tiles: 2 }.forward(&mut values);
        assert_eq!(values[2 * TILE_VALUES..], input[2 * TILE_VALUES..]);
        let mut second = input[TILE_VALUES..2 * TILE_VALUES].to_vec();
        Dct { tiles: 1 }.forward(&mut second);
        assert_eq!(values[TILE_VALUES..2 * TILE_VALUES], second);
    }

    #[test]
    fn the_matrices_are_the_same_on_every_platform() {
        let mut hasher = blake3::Hasher::new();
        let rows = |half| (0..half).map(move |row| (half, row));
        for (half, row) in [1, 2, 4, 8, 16, 32].into_iter().flat_map(rows) {
            for (i, value) in odd_half(half)[row * half..][..half].iter().enumerate() {
                let turns = ((2 * i + 1) * (2 * row + 1)) as f64 / (4 * half) as f64;
                let exact = (2.0_f64 / 64.0).sqrt() * (PI * turns).cos();
                assert!((f64::from(*value) - exact).abs() <= 2.0_f64.powi(-24) * exact.abs());
                hasher.update(&value.to_le_bytes());
            }
        }
        assert_eq!(&hasher.finalize().to_hex()[..32], "e4c367bcd378de8a5517807527b67537");
    }
}
