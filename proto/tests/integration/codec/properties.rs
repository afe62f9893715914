//! Numerical properties, against f64.

use longhaul_proto::codec::{
    CodecSpec, Decoder, Encoder, RandomK, Selection, Stage, Threshold, TopK, ValueFormat,
};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{NF4_LEVELS, SEED, chains, decode_dense, encode, gradient_like, specs};

fn squared_norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum()
}

fn squared_error(sent: &[f32], input: &[f32]) -> f64 {
    squared_norm(sent.iter().zip(input).map(|(&sent, &input)| f64::from(sent) - f64::from(input)))
}

#[test]
fn all_values_in_f32_come_back_as_they_were() {
    let input = gradient_like(1, 5000);
    let spec = CodecSpec::new(Selection::All, ValueFormat::F32);
    assert_eq!(decode_dense(&encode(spec, &input), input.len()), input);
}

#[test]
fn what_was_sent_and_what_remains_add_up_to_what_came_in() {
    const ROUNDS: u64 = 12;
    for spec in chains(2) {
        let len = 9_000;
        let mut encoder = Encoder::new(spec).unwrap();
        let mut decoder = Decoder::new();
        let mut residual = vec![0.0; len];
        let (mut came_in, mut sent, mut moved) = (vec![0.0_f64; len], vec![0.0_f64; len], vec![0.0_f64; len]);
        for round in 0..ROUNDS {
            let delta = gradient_like(round, len);
            let mut frame = Vec::new();
            encoder.encode_with_feedback(round, &delta, &mut residual, 1.0, &mut frame).unwrap();
            let mut received = vec![0.0; len];
            decoder.decode(&frame, len).unwrap().add_scaled_to(1.0, &mut received);
            for i in 0..len {
                came_in[i] += f64::from(delta[i]);
                sent[i] += f64::from(received[i]);
                // Each round has two roundings, each relative to the possible magnitude of p or of the sent
                // value.
                moved[i] += 2.0 * (f64::from(residual[i]).abs() + f64::from(received[i]).abs())
                    + f64::from(delta[i]).abs();
            }
        }
        for i in 0..len {
            let gap = (came_in[i] - sent[i] - f64::from(residual[i])).abs();
            assert!(gap <= moved[i] * f64::from(f32::EPSILON), "{spec:?} at {i}: {gap}");
        }
    }
}

#[test]
fn a_decayed_residual_is_what_the_definition_says() {
    let spec = CodecSpec::new(Selection::TopK(TopK { chunk: 256, keep: 8 }), ValueFormat::TwoBit);
    let (delta, before) = (gradient_like(1, 2000), gradient_like(2, 2000));
    let (mut residual, mut frame) = (before.clone(), Vec::new());
    Encoder::new(spec).unwrap().encode_with_feedback(SEED, &delta, &mut residual, 0.95, &mut frame).unwrap();
    let sent = decode_dense(&frame, 2000);
    for i in 0..2000 {
        let (before, delta, sent) = (f64::from(before[i]), f64::from(delta[i]), f64::from(sent[i]));
        let expected = before * f64::from(0.95_f32) + delta - sent;
        // Three roundings, each at most half an epsilon of a number no larger than this.
        let largest = before.abs() + delta.abs() + sent.abs();
        assert!((f64::from(residual[i]) - expected).abs() <= 1.5 * f64::from(f32::EPSILON) * largest);
    }
}

#[test]
fn a_feedback_frame_is_the_plain_frame_of_the_sum_and_leaves_what_it_does_not_hold() {
    for spec in chains(1) {
        let (delta, mut residual) = (gradient_like(1, 5000), gradient_like(2, 5000));
        let mut sum: Vec<f32> =
            residual.iter().zip(&delta).map(|(residual, delta)| residual * 0.5 + delta).collect();
        let mut frame = Vec::new();
        Encoder::new(spec)
            .unwrap()
            .encode_with_feedback(SEED, &delta, &mut residual, 0.5, &mut frame)
            .unwrap();
        assert_eq!(frame, encode(spec, &sum), "{spec:?}");
        // Bit by bit, so it is the decoder's arithmetic.
        Decoder::new().decode(&frame, 5000).unwrap().add_scaled_to(-1.0, &mut sum);
        assert!(sum.iter().zip(&residual).all(|(a, b)| a.to_bits() == b.to_bits()), "{spec:?}");
    }
}

/// The purpose of `nf4`: the same bytes as `int4` and `e3m0`, with less error.
#[test]
fn of_normal_and_of_laplacian_values_nf4_loses_a_quarter_less_than_the_other_formats_of_four_bits() {
    let mut rng = ChaCha8Rng::seed_from_u64(21);
    let normal: Vec<f32> =
        (0..1 << 16).map(|_| (0..12).map(|_| rng.random_range(-0.5_f32..0.5)).sum()).collect();
    let laplacian: Vec<f32> = (0..1 << 16)
        .map(|_| -rng.random_range(1e-6_f32..1.0).ln() * if rng.random::<bool>() { 1.0 } else { -1.0 })
        .collect();
    for input in [normal, laplacian] {
        let loss = |values| {
            let spec = CodecSpec { entropy: false, ..CodecSpec::new(Selection::All, values) };
            let frame = encode(spec, &input);
            (frame.len(), squared_error(&decode_dense(&frame, input.len()), &input))
        };
        let [nf4, int4, e3m0] = [ValueFormat::Nf4, ValueFormat::Int4, ValueFormat::E3M0].map(loss);
        assert!(nf4.0 == int4.0 && nf4.0 == e3m0.0);
        assert!(nf4.1 < 0.75 * int4.1 && nf4.1 < 0.75 * e3m0.1, "{nf4:?}, {int4:?}, {e3m0:?}");
    }
}

/// The predicted cost of a chain equals the size of its frames, without entropy coding, for fragments of
/// whole chunks.
#[test]
fn frames_take_the_bits_that_their_chain_is_said_to_cost() {
    const LEN: usize = 1 << 18;
    const HEADER_BITS: f64 = 8.0 * 40.0;
    let input = gradient_like(22, LEN);
    for selection in [
        Selection::All,
        Selection::TopK(TopK { chunk: 4096, keep: 64 }),
        Selection::TopK(TopK { chunk: 256, keep: 128 }),
        Selection::Threshold(Threshold { chunk: 4096, keep: 41 }),
    ] {
        for values in ValueFormat::ALL {
            for stage in [None, Some(Stage::RandomK(RandomK { chunk: 4096, keep: 1024 }))] {
                let spec = CodecSpec { stage, entropy: false, ..CodecSpec::new(selection, values) };
                let bits = 8.0 * encode(spec, &input).len() as f64;
                let said = spec.bits_per_value() * LEN as f64 + HEADER_BITS;
                // A threshold keeps 0.8 to 1.3 times the requested number.
                let (least, most) =
                    if matches!(selection, Selection::Threshold(_)) { (0.7, 1.35) } else { (0.95, 1.02) };
                assert!(
                    (least * said..=most * said).contains(&bits),
                    "{spec:?}: {bits} bits, {said} were said"
                );
            }
        }
    }
}

#[test]
fn top_k_is_contractive() {
    for (chunk, keep) in [(4096, 64), (256, 3), (64, 32), (16, 16)] {
        let spec = CodecSpec::new(Selection::TopK(TopK { chunk, keep }), ValueFormat::F32);
        // Equal magnitudes are the worst case, which meets the bound exactly.
        let equal: Vec<f32> = (0..8192).map(|i| if i % 3 == 0 { 1.0 } else { -1.0 }).collect();
        for input in [gradient_like(1, 8192), equal] {
            let error = squared_error(&decode_dense(&encode(spec, &input), input.len()), &input);
            let bound = 1.0 - f64::from(keep) / f64::from(chunk);
            assert!(
                error <= bound * squared_norm(input.iter().map(|&value| f64::from(value))),
                "{keep} of {chunk}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn no_format_makes_an_error_larger_than_the_values_themselves(
        input in prop::collection::vec(prop_oneof![-1.0_f32..1.0, -1e-4_f32..1e-4, Just(0.0), -3e38_f32..3e38], 1..600),
    ) {
        let whole = squared_norm(input.iter().map(|&value| f64::from(value)));
        for spec in specs() {
            let error = squared_error(&decode_dense(&encode(spec, &input), input.len()), &input);
            prop_assert!(error <= whole, "{:?}: {} of {}", spec, error, whole);
        }
    }

    #[test]
    fn frames_of_any_length_and_magnitude_decode_to_finite_values(
        bits in prop::collection::vec(any::<u32>(), 0..700), chunk_log2 in 0_u32..=10, part in 0.0..=1.0_f64,
    ) {
        let input: Vec<f32> = bits.into_iter().map(f32::from_bits).filter(|value| value.is_finite()).collect();
        let chunk = 1 << chunk_log2;
        let keep = (part * f64::from(chunk)).ceil().max(1.0) as u32;
        let selections =
            [Selection::All, Selection::TopK(TopK { chunk, keep }), Selection::Threshold(Threshold { chunk, keep })];
        for (selection, values) in selections.iter().flat_map(|&s| ValueFormat::ALL.map(|values| (s, values))) {
            for stage in [None, Some(Stage::RandomK(RandomK { chunk, keep }))] {
                let spec = CodecSpec { stage, ..CodecSpec::new(selection, values) };
                let sent = decode_dense(&encode(spec, &input), input.len());
                prop_assert!(sent.iter().all(|value| value.is_finite()));
            }
        }
    }
}

/// Rounds a magnitude up to the next number with eight significant bits, in f64.
fn bf16_up(magnitude: f64) -> f64 {
    let unit = 2.0_f64.powi(magnitude.log2().floor() as i32 - 7);
    (magnitude / unit).ceil() * unit
}

fn nearest(candidates: impl Iterator<Item = f64>, value: f64) -> f64 {
    candidates.fold(f64::INFINITY, |best, c| if (c - value).abs() < (best - value).abs() { c } else { best })
}

/// Returns the closest of the format's levels to each value of a bucket, by trying all.
fn quantised_by_search(bucket: &[f32], values: ValueFormat) -> Vec<f64> {
    let scale = bf16_up(bucket.iter().map(|value| f64::from(value.abs())).fold(0.0, f64::max));
    let steps = |count: i32| (-count..=count).map(|i| f64::from(i) / f64::from(count)).collect::<Vec<_>>();
    let levels = match values {
        ValueFormat::Int8 => steps(127),
        ValueFormat::Int4 => steps(7),
        ValueFormat::Nf4 => NF4_LEVELS.to_vec(),
        ValueFormat::E3M0 => {
            let powers = (1..=7).map(|c| 2.0_f64.powi(c - 7));
            powers.clone().map(|level| -level).chain([0.0]).chain(powers).collect()
        }
        other => panic!("{other} has no bucket"),
    };
    bucket.iter().map(|&value| nearest(levels.iter().map(|level| level * scale), value.into())).collect()
}

#[test]
fn bucket_formats_send_the_nearest_of_their_levels() {
    let input = gradient_like(12, 1000);
    for values in [ValueFormat::Int8, ValueFormat::Int4, ValueFormat::E3M0, ValueFormat::Nf4] {
        let sent = decode_dense(&encode(CodecSpec::new(Selection::All, values), &input), input.len());
        for (bucket, sent) in input.chunks(128).zip(sent.chunks(128)) {
            let expected = quantised_by_search(bucket, values);
            for ((&value, &sent), expected) in bucket.iter().zip(sent).zip(expected) {
                let (value, sent) = (f64::from(value), f64::from(sent));
                // In a near tie between two levels, f32 may choose the other side.
                let slack = 1e-6 * value.abs();
                let is_close = (sent - expected).abs() <= 1e-6 * expected.abs();
                let is_tie = ((sent - value).abs() - (expected - value).abs()).abs() <= slack;
                assert!(is_close || is_tie, "{values}: {value} was sent as {sent}, not {expected}");
            }
        }
    }
}

#[test]
fn sixteen_bit_formats_round_to_nearest_and_saturate() {
    let input = gradient_like(13, 3000);
    for (values, half_unit) in [(ValueFormat::Bf16, 2.0_f64.powi(-9)), (ValueFormat::F16, 2.0_f64.powi(-12))]
    {
        let spec = CodecSpec::new(Selection::All, values);
        for (&value, sent) in input.iter().zip(decode_dense(&encode(spec, &input), input.len())) {
            let error = (f64::from(sent) - f64::from(value)).abs();
            // Half the last of 8 or 11 significant bits; f16 is subnormal below 2^-14, with units of 2^-24.
            let subnormal = if values == ValueFormat::F16 { 2.0_f64.powi(-25) } else { 0.0 };
            assert!(error <= (2.0 * half_unit * f64::from(value.abs())).max(subnormal));
        }
        let extremes = decode_dense(&encode(spec, &[f32::MAX, f32::MIN]), 2);
        let max = if values == ValueFormat::F16 { 65504.0 } else { 3.389_531_4e38 };
        assert_eq!(extremes, [max, -max]);
    }
}

#[test]
fn two_bit_levels_are_means_of_magnitudes_on_either_side_of_a_border() {
    let input = gradient_like(14, 64 * 20);
    let selection = Selection::TopK(TopK { chunk: 64, keep: 64 });
    let sent = decode_dense(&encode(CodecSpec::new(selection, ValueFormat::TwoBit), &input), input.len());
    for (chunk, sent) in input.chunks(64).zip(sent.chunks(64)) {
        let magnitudes: Vec<f64> = chunk.iter().map(|value| f64::from(value.abs())).collect();
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let means = |border: f64| {
            let (lower, upper): (Vec<f64>, Vec<f64>) = magnitudes.iter().partition(|value| **value < border);
            [mean(&lower), mean(&upper)]
        };
        let [lower, upper] = means(mean(&magnitudes));
        let levels = means(0.5 * (lower + upper));
        for (&value, &sent) in chunk.iter().zip(sent) {
            let expected = nearest(levels.into_iter(), f64::from(value.abs())).copysign(value.into());
            assert!(
                (f64::from(sent) - expected).abs() <= 2.0_f64.powi(-8) * expected.abs(),
                "{value}: {sent}"
            );
        }
    }
}

#[test]
fn a_sign_stands_for_the_mean_magnitude_of_its_chunk() {
    let input = gradient_like(15, 4096 + 100);
    let spec = CodecSpec::new(Selection::All, ValueFormat::Sign);
    let sent = decode_dense(&encode(spec, &input), input.len());
    for (chunk, sent) in input.chunks(4096).zip(sent.chunks(4096)) {
        let mean = chunk.iter().map(|value| f64::from(value.abs())).sum::<f64>() / chunk.len() as f64;
        for (&value, &sent) in chunk.iter().zip(sent) {
            assert!((f64::from(sent) - mean.copysign(value.into())).abs() <= 2.0_f64.powi(-8) * mean);
        }
    }
}
