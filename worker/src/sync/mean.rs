//! The weighted mean of decoded updates: the same bits on every member, as all decode the same bytes in the same order.

use bytes::Bytes;
use longhaul_proto::codec::Decoder;
use longhaul_proto::round::{Content, FragmentResult};

/// Adds `scale` times the weighted mean of encoded updates of `values.len()` values. Parts that do not decode are left out, on every
/// member alike; answers how many those were.
pub fn add_weighted_mean(
    parts: &[(u32, &Bytes)],
    scale: f32,
    decoder: &mut Decoder,
    values: &mut [f32],
) -> usize {
    let mut sound = parts.to_vec();
    sound.retain(|(_, body)| decoder.decode(body, values.len()).is_ok());
    let total: u64 = sound.iter().map(|(weight, _)| u64::from(*weight)).sum();
    for (weight, body) in &sound {
        // Exact up to 2²⁴ samples, and rounded alike everywhere beyond.
        let share = *weight as f32 / total as f32;
        // It decoded a moment ago.
        let _ = decoder.decode_add(body, values.len(), scale * share, values);
    }
    parts.len() - sound.len()
}

/// Adds `scale` times the mean of a fragment's result to its values; answers how many updates did not decode.
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
