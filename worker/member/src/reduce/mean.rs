//! The weighted mean of decoded updates: the same bits on every member, because all decode the same bytes in the same order.

use bytes::Bytes;
use longhaul_proto::codec::{DecodeError, Decoder, Update};
use longhaul_proto::control::message::RefusalReason;
use longhaul_proto::round::{Content, FragmentResult};
use multiversion::multiversion;

/// Largest norm of a valid update. Beyond it, training has diverged; up to it, means and sums of squares over a whole model stay in the range of f32.
pub const NORM_MAX: f64 = 1e15;

/// Sets values to the weighted mean of encoded updates of as many values, each decoded once. Invalid parts ([`sound_update`]) are left out, on every member alike; returns
/// their number.
pub fn set_weighted_mean(parts: &[(u32, &Bytes)], decoder: &mut Decoder, values: &mut [f32]) -> usize {
    let is_damaged = add_all(parts, decoder, values);
    let damaged = is_damaged.iter().filter(|damaged| **damaged).count();
    if damaged > 0 {
        let sound = parts.iter().zip(is_damaged).filter(|(_, damaged)| !damaged);
        let sound: Vec<_> = sound.map(|(part, _)| *part).collect();
        add_all(&sound, decoder, values);
    }
    damaged
}

/// Sets values to Σ share·update of valid updates, in the given order; returns which are none.
fn add_all(parts: &[(u32, &Bytes)], decoder: &mut Decoder, values: &mut [f32]) -> Vec<bool> {
    values.fill(0.0);
    let total: u64 = parts.iter().map(|(weight, _)| u64::from(*weight)).sum();
    // Exact up to 2²⁴ samples, and rounded alike everywhere beyond.
    let share = |weight: u32| if parts.len() == 1 { 1.0 } else { weight as f32 / total as f32 };
    let mut add = |(weight, body): &(u32, &Bytes)| {
        let added = sound_update(body, values.len(), decoder);
        added.map(|(update, _)| update.add_scaled_to(share(*weight), values)).is_err()
    };
    parts.iter().map(&mut add).collect()
}

/// Adds Σ share·update, in the given order, of valid updates.
pub fn add_shares(shares: &[(f32, &Bytes)], decoder: &mut Decoder, values: &mut [f32]) {
    for (share, body) in shares {
        // It decoded a moment ago.
        let _ = decoder.decode_add(body, values.len(), *share, values);
    }
}

/// Sets values to the mean of a fragment's result; returns the number of invalid updates.
pub fn set_result(result: &FragmentResult, decoder: &mut Decoder, values: &mut [f32]) -> usize {
    let parts: Vec<(u32, &Bytes)> = match &result.content {
        Content::Bundle(parts) => {
            result.contributors.iter().zip(parts).map(|((_, weight), part)| (*weight, part)).collect()
        }
        Content::Mean(mean) if result.contributors.is_empty() => vec![(0, mean); 0],
        Content::Mean(mean) => vec![(1, mean)],
    };
    set_weighted_mean(&parts, decoder, values)
}

/// Decodes an update of `len` values; returns it and its norm.
///
/// # Errors
/// The update does not decode, is of another length, or exceeds [`NORM_MAX`].
pub fn sound_update<'a>(
    body: &[u8],
    len: usize,
    decoder: &'a mut Decoder,
) -> Result<(&'a Update, f64), RefusalReason> {
    let update = decoder.decode(body, len).map_err(|error| match error {
        DecodeError::Length { .. } => RefusalReason::WrongLength,
        DecodeError::NonFinite { .. } => RefusalReason::NotFinite,
        _ => RefusalReason::Undecodable,
    })?;
    let norm = norm(update.values());
    if norm <= NORM_MAX { Ok((update, norm)) } else { Err(RefusalReason::NotFinite) }
}

/// Returns √Σ v².
#[multiversion(targets = "simd")]
pub fn norm(values: &[f32]) -> f64 {
    /// Parallel sums, for the vector units; their number affects the result's bits.
    const LANES: usize = 8;
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for block in blocks {
        for (sum, value) in sums.iter_mut().zip(block) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    let rest: f64 = rest.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    (sums.iter().sum::<f64>() + rest).sqrt()
}
