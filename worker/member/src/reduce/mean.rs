//! The weighted mean of decoded updates: the same bits on every member, because all decode the same bytes in the same order.

use bytes::Bytes;
use longhaul_proto::codec::{DecodeError, Decoder, Update};
use longhaul_proto::control::message::RefusalReason;
use longhaul_proto::round::{Content, FragmentResult};
use multiversion::multiversion;

/// Largest norm of a valid update. Beyond it, training has diverged; up to it, means and sums of squares over a whole model stay in the range of f32.
pub const NORM_MAX: f64 = 1e15;

/// Adds `scale` times the weighted mean of encoded updates of `values.len()` values. Invalid parts ([`norm_of`]) are left out, on every member alike; returns
/// their number.
pub fn add_weighted_mean(
    parts: &[(u32, &Bytes)],
    scale: f32,
    decoder: &mut Decoder,
    values: &mut [f32],
) -> usize {
    // The decoding that validates a single part suffices to add it.
    if let [(_, body)] = parts {
        let Ok((update, _)) = sound_update(body, values.len(), decoder) else { return 1 };
        update.add_scaled_to(scale, values);
        return 0;
    }
    let mut sound = parts.to_vec();
    sound.retain(|(_, body)| norm_of(body, values.len(), decoder).is_ok());
    let total: u64 = sound.iter().map(|(weight, _)| u64::from(*weight)).sum();
    // Exact up to 2²⁴ samples, and rounded alike everywhere beyond.
    let share = |weight: u32| weight as f32 / total as f32;
    let shares: Vec<_> = sound.iter().map(|(weight, body)| (scale * share(*weight), *body)).collect();
    add_shares(&shares, decoder, values);
    parts.len() - sound.len()
}

/// Adds Σ share·update, in the given order, of valid updates.
pub fn add_shares(shares: &[(f32, &Bytes)], decoder: &mut Decoder, values: &mut [f32]) {
    for (share, body) in shares {
        // It decoded a moment ago.
        let _ = decoder.decode_add(body, values.len(), *share, values);
    }
}

/// Adds `scale` times the mean of a fragment's result to its values; returns the number of invalid updates.
pub fn add_result(result: &FragmentResult, scale: f32, decoder: &mut Decoder, values: &mut [f32]) -> usize {
    let parts: Vec<(u32, &Bytes)> = match &result.content {
        Content::Bundle(parts) => {
            result.contributors.iter().zip(parts).map(|((_, weight), part)| (*weight, part)).collect()
        }
        Content::Mean(mean) if result.contributors.is_empty() => vec![(0, mean); 0],
        Content::Mean(mean) => vec![(1, mean)],
    };
    add_weighted_mean(&parts, scale, decoder, values)
}

/// Returns the norm of an encoded update of `len` values.
///
/// # Errors
/// The update does not decode, is of another length, or exceeds [`NORM_MAX`].
pub fn norm_of(body: &[u8], len: usize, decoder: &mut Decoder) -> Result<f64, RefusalReason> {
    sound_update(body, len, decoder).map(|(_, norm)| norm)
}

/// Returns a decoded update and its norm; fails as [`norm_of`] does.
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
