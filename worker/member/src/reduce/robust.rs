//! Means that a few contributions cannot move far. The removed parts are in no result and in no residual.
//!
//! Every site counts once: weights in samples are unverified.

use bytes::Bytes;
use longhaul_proto::codec::Decoder;

use crate::reduce::guard::lower_median;
use crate::reduce::mean::add_shares;

/// Adds the mean of updates, after scaling those longer than the round's median norm down to it: centred clipping (Karimireddy, He, Jaggi 2021, arXiv
/// 2012.10333) in its simple form, around zero. Norms of zero do not affect the median. `updates`: norm and bytes, known to be valid.
pub fn add_clipped_mean(updates: &[(f64, &Bytes)], decoder: &mut Decoder, values: &mut [f32]) {
    let lengths: Vec<f64> = updates.iter().map(|(norm, _)| *norm).filter(|norm| *norm > 0.0).collect();
    let Some(radius) = lower_median(&lengths) else { return };
    let scale = |norm: f64| if norm > radius { radius / norm } else { 1.0 };
    let share = |norm: f64| (scale(norm) / updates.len() as f64) as f32;
    let shares: Vec<_> = updates.iter().map(|(norm, body)| (share(*norm), *body)).collect();
    add_shares(&shares, decoder, values);
}

/// Sets `values` to the coordinate-wise trimmed mean (Yin et al. 2018, arXiv 1803.01498): of each coordinate, the `trim` largest and the `trim` smallest are
/// left out, and the others are averaged in ascending order in f64. Of fewer than 2·`trim` + 1 updates, the middle one or two stay, whose mean is the median.
/// Returns the number left out at each end.
///
/// `updates` are known to be valid. Takes their dense size in memory.
pub fn set_trimmed_mean(updates: &[&Bytes], trim: u32, decoder: &mut Decoder, values: &mut [f32]) -> u32 {
    let trim = (trim as usize).min(updates.len().saturating_sub(1) / 2);
    let dense: Vec<Vec<f32>> = updates
        .iter()
        .map(|body| {
            let mut update = vec![0.0; values.len()];
            add_shares(&[(1.0, *body)], decoder, &mut update);
            update
        })
        .collect();
    let mut coordinate = Vec::with_capacity(dense.len());
    for (index, value) in values.iter_mut().enumerate() {
        coordinate.clear();
        coordinate.extend(dense.iter().map(|update| update[index]));
        coordinate.sort_unstable_by(f32::total_cmp);
        let kept = &coordinate[trim..coordinate.len() - trim];
        let sum: f64 = kept.iter().map(|value| f64::from(*value)).sum();
        *value = (sum / kept.len().max(1) as f64) as f32;
    }
    trim as u32
}
