//! Number formats: values as decoded by a receiver.

use longhaul_common::config::ValueFormat;

/// Number of values that share an absolute maximum as scale.
const BUCKET: usize = 128;

/// Decodes `values`. `levels_of`: the number of values that share the levels of `2bit` and `1bit`.
pub fn reconstructed(format: ValueFormat, values: &[f64], levels_of: usize) -> Vec<f64> {
    let by = |size: usize, block: fn(&[f64]) -> Vec<f64>| values.chunks(size).flat_map(block).collect();
    match format {
        ValueFormat::F32 => values.to_vec(),
        ValueFormat::Bf16 => values.iter().map(|&value| nearest(value, 8)).collect(),
        ValueFormat::F16 => values.iter().map(|&value| nearest(value, 11)).collect(),
        ValueFormat::Int8 => by(BUCKET, |block| steps(block, 127.0)),
        ValueFormat::Int4 => by(BUCKET, |block| steps(block, 7.0)),
        ValueFormat::E3M0 => by(BUCKET, powers_of_two),
        ValueFormat::TwoBit => by(levels_of, two_levels),
        ValueFormat::Sign => by(levels_of, signs),
        ValueFormat::Nf4 => by(BUCKET, normal_quantiles),
    }
}

/// The unit of the last of `bits` significant bits.
fn unit(value: f64, bits: i32) -> f64 {
    (value.abs().log2().floor() + 1.0 - f64::from(bits)).exp2()
}

/// Rounds to `bits` significant bits, ties to even.
fn nearest(value: f64, bits: i32) -> f64 {
    if value == 0.0 { 0.0 } else { (value / unit(value, bits)).round_ties_even() * unit(value, bits) }
}

/// The absolute maximum, rounded up to the eight bits of bf16.
fn scale(block: &[f64]) -> f64 {
    let largest = block.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    if largest == 0.0 { 0.0 } else { (largest / unit(largest, 8)).ceil() * unit(largest, 8) }
}

fn steps(block: &[f64], count: f64) -> Vec<f64> {
    let scale = scale(block);
    let step = |value: &f64| (value / scale * count).round_ties_even() / count * scale;
    block.iter().map(|value| if scale == 0.0 { 0.0 } else { step(value) }).collect()
}

/// E3M0: zero, or the scale times a power of two from 2⁻⁶ to 1, whichever is nearest.
fn powers_of_two(block: &[f64]) -> Vec<f64> {
    let scale = scale(block);
    let levels: Vec<f64> =
        std::iter::once(0.0).chain((-6..=0).map(|c| scale * f64::from(c).exp2())).collect();
    let nearest = |value: &f64| {
        let gap = |level: &&f64| (value.abs() - **level).abs();
        let best = levels.iter().rev().min_by(|a, b| gap(a).total_cmp(&gap(b)));
        best.map_or(0.0, |level| level.copysign(*value))
    };
    block.iter().map(nearest).collect()
}

/// The nearest of QLoRA's NF4 levels, to seven digits.
fn normal_quantiles(block: &[f64]) -> Vec<f64> {
    const ABOVE: [f64; 8] = [0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.562617, 0.7229568, 1.0];
    const BELOW: [f64; 8] = [0.0, 0.09105, 0.1847734, 0.2844414, 0.3949175, 0.5250731, 0.6961928, 1.0];
    let scale = scale(block);
    let levels: Vec<f64> = BELOW.iter().map(|level| -level).chain(ABOVE).map(|level| level * scale).collect();
    let nearest = |value: &f64| {
        let gap = |level: &&f64| (value - **level).abs();
        levels.iter().min_by(|a, b| gap(a).total_cmp(&gap(b))).map_or(0.0, |level| *level)
    };
    block.iter().map(nearest).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The means of the magnitudes on either side of a border: first their mean, then the middle of the two means.
fn two_levels(block: &[f64]) -> Vec<f64> {
    let magnitudes: Vec<f64> = block.iter().map(|value| value.abs()).collect();
    let means = |border: f64| {
        let (small, large): (Vec<f64>, Vec<f64>) = magnitudes.iter().partition(|value| **value < border);
        let of = |part: &[f64], other: &[f64]| mean(if part.is_empty() { other } else { part });
        (of(&small, &large), of(&large, &small))
    };
    let (low, high) = means(mean(&magnitudes));
    let (low, high) = means((low + high) / 2.0);
    let (low, high) = (nearest(low, 8), nearest(high, 8));
    let level = |value: &f64| if value.abs() >= (low + high) / 2.0 { high } else { low };
    block.iter().map(|value| if *value < 0.0 { -level(value) } else { level(value) }).collect()
}

fn signs(block: &[f64]) -> Vec<f64> {
    let magnitudes: Vec<f64> = block.iter().map(|value| value.abs()).collect();
    let scale = nearest(mean(&magnitudes), 8);
    block.iter().map(|value| if *value < 0.0 { -scale } else { scale }).collect()
}
