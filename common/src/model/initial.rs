//! Initial parameters of a run, drawn on the host: equal on every machine.

use std::collections::HashMap;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Initial, ModelSpec, ParameterSpec};

/// Draws all parameters, in the order of [`ModelSpec::parameters`]. Each tensor has its own stream of the
/// run's seed, so its values do not depend on the tensors before it, or on the part of the model. A share of
/// a tensor is a slice of the whole.
#[must_use]
pub fn draw_parameters(spec: &ModelSpec, seed: u64) -> Vec<f32> {
    draw_some(spec, seed, |_| true)
}

/// The same, with zeros for tensors that are not wanted, by name: they have values from elsewhere.
#[must_use]
pub fn draw_some(spec: &ModelSpec, seed: u64, wanted: impl Fn(&str) -> bool) -> Vec<f32> {
    let mut values = Vec::with_capacity(spec.parameter_count() as usize);
    let held: HashMap<String, ParameterSpec> =
        spec.parameters().into_iter().map(|parameter| (parameter.name.clone(), parameter)).collect();
    for (stream, parameter) in spec.whole().parameters().into_iter().enumerate() {
        let Some(own) = held.get(&parameter.name) else { continue };
        let count = own.count() as usize;
        match parameter.initial {
            _ if !wanted(&own.name) => values.resize(values.len() + count, 0.0),
            Initial::Zeros => values.resize(values.len() + count, 0.0),
            Initial::Ones => values.resize(values.len() + count, 1.0),
            Initial::Uniform { bound } => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(stream as u64);
                // Adapters are not divided among a tensor group.
                values.extend((0..count).map(|_| (uniform(&mut rng) * bound) as f32));
            }
            Initial::Orthonormal => {
                let [rows, columns] = [0, 1].map(|at| own.shape.get(at).copied().unwrap_or(1) as usize);
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(DIRECTIONS);
                let (few, many) = (rows.min(columns), rows.max(columns));
                let drawn = orthonormal(rng, few, many);
                match rows <= columns {
                    true => values.extend_from_slice(&drawn),
                    false => values.extend((0..count).map(|at| drawn[at % few * many + at / few])),
                }
            }
            Initial::Normal { deviation } => {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(stream as u64);
                let drawn = normal(rng).take(parameter.count() as usize);
                let whole: Vec<f32> = drawn.map(|value| (value * deviation) as f32).collect();
                own.places(spec.shard).for_each(|place| values.extend_from_slice(&whole[place]));
            }
        }
    }
    values
}

/// Draws standard normal values from a seed: the same bits on every machine.
#[must_use]
pub fn draw_normal(seed: u64, count: usize) -> Vec<f32> {
    normal(ChaCha8Rng::seed_from_u64(seed)).take(count).map(|value| value as f32).collect()
}

/// Stream of [`Initial::Orthonormal`]: no tensor's index.
const DIRECTIONS: u64 = u64::MAX;

/// Draws orthonormal rows [rows, columns], for at most as many rows: Gram-Schmidt in f64, twice, so that rounding does not add up.
pub(super) fn orthonormal(rng: ChaCha8Rng, rows: usize, columns: usize) -> Vec<f32> {
    let mut drawn = normal(rng);
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(rows);
    while basis.len() < rows {
        let mut row: Vec<f64> = drawn.by_ref().take(columns).collect();
        for other in basis.iter().chain(&basis) {
            let along = dot(&row, other);
            row.iter_mut().zip(other).for_each(|(value, other)| *value -= along * other);
        }
        let length = dot(&row, &row).sqrt();
        basis.push(row.into_iter().map(|value| value / length).collect());
    }
    basis.concat().into_iter().map(|value| value as f32).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Returns a number in [-1, 1), of 53 bits.
fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Standard normal values by the polar method (Marsaglia & Bray 1964), which needs only arithmetic with
/// unique IEEE 754 rounding, and a logarithm.
pub(super) fn normal(mut rng: ChaCha8Rng) -> impl Iterator<Item = f64> {
    let mut pair = move || {
        loop {
            let (x, y) = (uniform(&mut rng), uniform(&mut rng));
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * ln(square) / square).sqrt();
                return [x * factor, y * factor];
            }
        }
    };
    std::iter::from_fn(move || Some(pair())).flatten()
}

/// Returns the natural logarithm of a positive normal number. The system's may differ in the last bit between
/// C libraries and processors; this one does not.
fn ln(x: f64) -> f64 {
    const MANTISSA_BITS: u32 = 52;
    const BIAS: i64 = 1023;
    /// Terms of the series below: with s² < 0.0295 the first omitted one is below 1e-17.
    const TERMS: u32 = 11;
    let bits = x.to_bits();
    let mut exponent = (bits >> MANTISSA_BITS) as i64 - BIAS;
    let fraction = bits & ((1 << MANTISSA_BITS) - 1);
    let mut mantissa = f64::from_bits(fraction | (BIAS as u64) << MANTISSA_BITS); // [1, 2)
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2·artanh s = 2·(s + s³/3 + s⁵/5 + …), s = (m − 1)/(m + 1).
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..TERMS).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    2.0 * s * series + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tiny::{tiny_gpt2, tiny_llama};

    #[test]
    fn tensors_that_are_not_wanted_are_zero_and_the_others_as_ever() {
        let spec = tiny_llama();
        let all = draw_parameters(&spec, 3);
        let some = draw_some(&spec, 3, |name| !name.contains("mlp"));
        let (mut start, mut left_out) = (0, 0);
        for tensor in spec.parameters() {
            let place = start..start + tensor.count() as usize;
            start = place.end;
            if tensor.name.contains("mlp") {
                left_out += 1;
                assert!(some[place].iter().all(|value| *value == 0.0), "{}", tensor.name);
            } else {
                assert!(some[place.clone()] == all[place], "{}", tensor.name);
            }
        }
        assert!(left_out > 0 && some.len() == all.len());
    }

    #[test]
    fn the_logarithm_agrees_with_the_systems() {
        for step in 1..100_000 {
            let x = f64::from(step) * 1.37e-5;
            let error = (ln(x) - x.ln()).abs();
            assert!(error <= 4.0 * f64::EPSILON * x.ln().abs().max(1.0), "ln({x}) is off by {error}");
        }
        assert!((ln(f64::MIN_POSITIVE) - f64::MIN_POSITIVE.ln()).abs() < 1e-12);
    }

    #[test]
    fn values_are_distributed_normally() {
        let count = 200_000;
        let mut values: Vec<f64> = normal(ChaCha8Rng::seed_from_u64(5)).take(count).collect();
        values.sort_unstable_by(f64::total_cmp);
        // Kolmogorov-Smirnov: the largest distance between the distribution functions, at tabulated points of
        // the normal one. 1.95/√n is exceeded once in a thousand seeds.
        for (at, expected) in
            [(-3.0, 0.001_349_9), (-1.0, 0.158_655_3), (0.0, 0.5), (0.5, 0.691_462_5), (2.0, 0.977_249_9)]
        {
            let below = values.partition_point(|&value| value < at) as f64 / count as f64;
            assert!((below - expected).abs() < 1.95 / (count as f64).sqrt(), "{below} of all are below {at}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_bits_on_every_machine() {
        let hash = |spec: &ModelSpec| {
            let bytes: Vec<u8> = draw_parameters(spec, 7).iter().flat_map(|v| v.to_le_bytes()).collect();
            blake3::hash(&bytes).to_hex()[..16].to_owned()
        };
        assert_eq!(hash(&tiny_gpt2()), "54e88157b1edc29e");
        assert_eq!(hash(&tiny_llama()), "9795bfb7ec837bb1");
    }

    #[test]
    fn a_share_starts_with_what_is_drawn_for_the_whole_model() {
        for whole in [tiny_gpt2(), tiny_llama()] {
            let all = draw_parameters(&whole, 7);
            for share in whole.shards(2).unwrap() {
                let own = draw_parameters(&share, 7);
                let (mut start, mut rest) = (0, own.as_slice());
                for (tensor, held) in whole.parameters().into_iter().zip(share.parameters()) {
                    for place in held.places(share.shard) {
                        let (values, after) = rest.split_at(place.len());
                        assert_eq!(values, &all[start + place.start..start + place.end], "{}", tensor.name);
                        rest = after;
                    }
                    start += tensor.count() as usize;
                }
                assert_eq!((start, rest.len()), (all.len(), 0));
            }
        }
    }

    #[test]
    fn another_seed_draws_other_values() {
        let spec = tiny_gpt2();
        let (one, two) = (draw_parameters(&spec, 1), draw_parameters(&spec, 2));
        assert_eq!(one.len() as u64, spec.parameter_count());
        assert!(one[..spec.decayed_count() as usize].iter().zip(&two).all(|(a, b)| a != b));
    }
}
