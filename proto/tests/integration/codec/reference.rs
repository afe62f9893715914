//! Whole chains compared with a naive computation in f64: the transform by its formula, selection by sorting,
//! quantisation by trying all levels.

use std::f64::consts::PI;

use longhaul_proto::codec::{CodecSpec, Dct, RandomK, Selection, Stage, Threshold, TopK, ValueFormat};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{SEED, decode_dense, encode, encode_with_seed, gradient_like, seen_by_selection};

const EDGE: usize = 64;
const TILE: usize = EDGE * EDGE;

/// Entry (k, i) of the orthonormal DCT-II of 64 values.
fn cosine(k: usize, i: usize) -> f64 {
    let norm: f64 = if k == 0 { 1.0 / 64.0 } else { 2.0 / 64.0 };
    norm.sqrt() * (PI * ((2 * i + 1) * k) as f64 / 128.0).cos()
}

/// Returns C·X·Cᵀ of each of the first `tiles` tiles, for the given matrix C.
fn transformed(values: &[f64], tiles: usize, matrix: fn(usize, usize) -> f64) -> Vec<f64> {
    let mut out = values.to_vec();
    for (tile, out) in values.chunks(TILE).zip(out.chunks_mut(TILE)).take(tiles) {
        let mut columns = vec![0.0; TILE];
        for n in 0..TILE {
            columns[n] = (0..EDGE).map(|i| matrix(n / EDGE, i) * tile[i * EDGE + n % EDGE]).sum();
        }
        for n in 0..TILE {
            out[n] = (0..EDGE).map(|i| matrix(n % EDGE, i) * columns[n / EDGE * EDGE + i]).sum();
        }
    }
    out
}

/// Zeroes all but the largest magnitudes: `keep` of each chunk of the listed positions.
fn top_k(values: &[f64], among: &[u32], chunk: usize, keep: usize) -> Vec<f64> {
    let mut out = vec![0.0; values.len()];
    for chunk in among.chunks(chunk) {
        let mut order = chunk.to_vec();
        order.sort_by(|&a, &b| values[b as usize].abs().total_cmp(&values[a as usize].abs()).then(a.cmp(&b)));
        order.iter().take(keep).for_each(|&at| out[at as usize] = values[at as usize]);
    }
    out
}

fn to_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

/// Smooth tiles, whose transform has few large coefficients, with some noise.
fn smooth(len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    (0..len)
        .map(|n| {
            ((n % EDGE) as f32 * 0.1).sin() * ((n / EDGE) as f32 * 0.07).cos() + rng.random_range(-0.1..0.1)
        })
        .collect()
}

#[test]
fn demo_s_chain_is_the_inverse_transform_of_the_largest_coefficients_of_each_tile() {
    let (tiles, keep) = (2, 32);
    let input = smooth(tiles * TILE + 500);
    let stage = Some(Stage::Dct(Dct { tiles: tiles as u32 }));
    let selection = Selection::TopK(TopK { chunk: TILE as u32, keep });
    let spec = CodecSpec { stage, ..CodecSpec::new(selection, ValueFormat::F32) };
    let sent = to_f64(&decode_dense(&encode(spec, &input), input.len()));

    let all: Vec<u32> = (0..input.len() as u32).collect();
    let coefficients = transformed(&to_f64(&input), tiles, cosine);
    let expected = transformed(&top_k(&coefficients, &all, TILE, keep as usize), tiles, |i, k| cosine(k, i));
    let norm = distance(&expected, &vec![0.0; expected.len()]);
    assert!(distance(&sent, &expected) <= 1e-6 * norm, "{} of {norm}", distance(&sent, &expected));
}

#[test]
fn cocktail_sgd_s_chain_is_the_largest_values_under_the_mask_in_four_bits() {
    let input = gradient_like(21, 30_000);
    let stage = Some(Stage::RandomK(RandomK { chunk: 4096, keep: 410 }));
    let selection = Selection::TopK(TopK { chunk: 4096, keep: 819 });
    let spec = CodecSpec { stage, ..CodecSpec::new(selection, ValueFormat::Int4) };
    let sent = to_f64(&decode_dense(&encode(spec, &input), input.len()));

    let mask = seen_by_selection(spec, input.len());
    assert_eq!(mask.len(), 8 * 410);
    let selected = top_k(&to_f64(&input), &mask, 4096, 819);
    let kept: Vec<usize> = (0..input.len()).filter(|&n| selected[n] != 0.0).collect();
    for bucket in kept.chunks(128) {
        let absmax = bucket.iter().map(|&n| selected[n].abs()).fold(0.0, f64::max);
        // The scale is the absolute maximum, rounded up to eight significant bits.
        let unit = 2.0_f64.powi(absmax.log2().floor() as i32 - 7);
        let step = (absmax / unit).ceil() * unit / 7.0;
        for &n in bucket {
            assert!((sent[n] - selected[n]).abs() <= step * (0.5 + 1e-5), "{n}");
            let steps = sent[n] / step;
            assert!((steps - steps.round()).abs() <= 1e-5, "{n}: {steps} steps");
        }
    }
    let others = (0..input.len()).filter(|n| kept.binary_search(n).is_err());
    assert!(others.into_iter().all(|n| sent[n] == 0.0));
}

#[test]
fn members_with_the_same_seed_have_the_same_mask_and_others_do_not() {
    let stage = Some(Stage::RandomK(RandomK { chunk: 4096, keep: 41 }));
    let spec = CodecSpec { stage, ..CodecSpec::new(Selection::All, ValueFormat::F32) };
    let support = |seed: u64, input: &[f32]| -> Vec<usize> {
        let sent = decode_dense(&encode_with_seed(spec, seed, input), input.len());
        (0..sent.len()).filter(|&n| sent[n] != 0.0).collect()
    };
    let (a, b) = (gradient_like(1, 20_000), gradient_like(2, 20_000));
    assert_eq!(support(SEED, &a), support(SEED, &b));
    assert_eq!(support(SEED, &a).len(), 5 * 41);
    assert_ne!(support(SEED, &a), support(SEED + 1, &a));
}

#[test]
fn a_threshold_sends_the_largest_values_of_the_fragment_wherever_they_are() {
    // The second half is a hundred times larger than the first.
    let mut input = gradient_like(3, 200_000);
    input[100_000..].iter_mut().for_each(|value| *value *= 100.0);
    for (keep, chunk) in [(4, 4096), (41, 4096), (1, 4)] {
        let spec = CodecSpec::new(Selection::Threshold(Threshold { chunk, keep }), ValueFormat::F32);
        let sent = to_f64(&decode_dense(&encode(spec, &input), input.len()));
        let count = sent.iter().filter(|&&value| value != 0.0).count();
        let wanted = 200_000.0 * f64::from(keep) / f64::from(chunk);
        assert!((0.8 * wanted..=1.3 * wanted.ceil()).contains(&(count as f64)), "{count} of {wanted}");
        let all: Vec<u32> = (0..input.len() as u32).collect();
        assert_eq!(sent, top_k(&to_f64(&input), &all, input.len(), count));
    }
}
