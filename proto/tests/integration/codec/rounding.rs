//! Statistics of stochastic rounding.

use longhaul_proto::codec::{CodecSpec, Encoder, Rounding, Selection, ValueFormat};

use super::{NF4_LEVELS, decode_dense, encode_with_seed};

const DRAWS: usize = 100_000;

/// Permitted standard errors of a mean: exceeded once in two million cases of a normal distribution.
const STANDARD_ERRORS_MAX: f64 = 5.0;

/// A bucket of scale 1, so that its levels are known, with values near and between levels, of all sizes.
const BUCKET: [f32; 16] = [
    1.0, -0.9999, 0.77, -0.5, 0.4999, 0.26, -0.2501, 0.14285715, 0.1, -0.07, 0.03, 0.0157, -0.011, 0.002,
    -1e-5, 0.0,
];

/// Returns the formats with levels on either side of every value.
fn formats() -> impl Iterator<Item = ValueFormat> {
    ValueFormat::ALL.into_iter().filter(|values| values.rounds_at_random())
}

fn stochastic(values: ValueFormat) -> CodecSpec {
    CodecSpec { rounding: Rounding::Stochastic, ..CodecSpec::new(Selection::All, values) }
}

/// Returns the levels below and above a value; twice the same if it is a level.
fn neighbours(values: ValueFormat, value: f32) -> [f64; 2] {
    let steps = |count: i32| (-count..=count).map(|step| f64::from(step) / f64::from(count)).collect();
    let levels: Vec<f64> = match values {
        ValueFormat::Int8 => steps(127),
        ValueFormat::Int4 => steps(7),
        ValueFormat::Nf4 => NF4_LEVELS.to_vec(),
        _ => {
            let powers: Vec<f64> = (0..7).map(|c| 2.0_f64.powi(-c)).collect();
            let negative = powers.iter().map(|level| -level);
            negative.chain([0.0]).chain(powers.iter().rev().copied()).collect()
        }
    };
    let value = f64::from(value);
    let below = levels.iter().copied().rfind(|&level| level <= value).expect("no value is below -1");
    let above = levels.iter().copied().find(|&level| level >= value).expect("no value is above 1");
    [below, above]
}

/// Asserts that the mean of `count` numbers with this sum, sent for `value`, is `value`.
fn assert_unbiased(values: ValueFormat, value: f32, sum: f64, count: usize) {
    let [below, above] = neighbours(values, value);
    // Variance of the number that is one of these two and has the value as its expectation.
    let variance = (above - f64::from(value)) * (f64::from(value) - below);
    // An f32's rounding, and a draw's resolution of 2^-24 of a step, add to the statistics.
    let tolerance = STANDARD_ERRORS_MAX * (variance / count as f64).sqrt() + 2.0_f64.powi(-23);
    let mean = sum / count as f64;
    assert!((mean - f64::from(value)).abs() <= tolerance, "{values}: {mean} ± {tolerance} for {value}");
}

#[test]
fn the_mean_over_seeds_of_what_is_sent_is_the_value() {
    for values in formats() {
        let mut sums = [0.0; BUCKET.len()];
        let mut encoder = Encoder::new(stochastic(values)).unwrap();
        let mut frame = Vec::new();
        for seed in 0..DRAWS as u64 {
            frame.clear();
            encoder.encode(seed, &BUCKET, &mut frame).unwrap();
            let sent = decode_dense(&frame, BUCKET.len());
            sums.iter_mut().zip(sent).for_each(|(sum, sent)| *sum += f64::from(sent));
        }
        BUCKET.iter().zip(sums).for_each(|(&value, sum)| assert_unbiased(values, value, sum, DRAWS));
    }
}

#[test]
fn the_mean_over_positions_of_what_is_sent_is_the_value() {
    for values in formats() {
        let input = BUCKET.repeat(DRAWS);
        let sent = decode_dense(&encode_with_seed(stochastic(values), 11, &input), input.len());
        for (place, &value) in BUCKET.iter().enumerate() {
            let sum = sent.iter().skip(place).step_by(BUCKET.len()).map(|&sent| f64::from(sent)).sum();
            assert_unbiased(values, value, sum, DRAWS);
        }
    }
}

#[test]
fn what_is_sent_is_one_of_the_two_levels_next_to_the_value() {
    for values in formats() {
        let input = BUCKET.repeat(100);
        let sent = decode_dense(&encode_with_seed(stochastic(values), 3, &input), input.len());
        for (&value, sent) in input.iter().zip(sent) {
            let is_level = |level: f64| (f64::from(sent) - level).abs() <= 1e-6;
            assert!(
                neighbours(values, value).into_iter().any(is_level),
                "{values}: {value} was sent as {sent}"
            );
        }
    }
}

#[test]
fn draws_depend_on_the_seed_and_nothing_else() {
    for values in formats() {
        let input = BUCKET.repeat(10);
        let frame = |seed| encode_with_seed(stochastic(values), seed, &input);
        assert_eq!(frame(1), frame(1));
        assert_ne!(frame(1), frame(2));
    }
}
