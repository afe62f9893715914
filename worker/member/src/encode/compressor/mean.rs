//! The mean of a site's members.

use super::{CompressError, Local};
use crate::encode::mechanism::GaussianMechanism;

/// Returns the mean after the mechanism.
pub(super) fn outgoing_mean<'a>(
    locals: &[(u32, Local<'a>)],
    len: usize,
    mechanism: Option<&mut GaussianMechanism>,
    share: f64,
    scratch: &'a mut Vec<f32>,
) -> Result<&'a [f32], CompressError> {
    let Some(mechanism) = mechanism else { return weighted_mean(locals, len, scratch) };
    let mut mean = weighted_mean(locals, len, &mut *scratch)?.to_vec();
    mechanism.release(&mut mean, share);
    *scratch = mean;
    Ok(scratch)
}

/// Σ wᵢ·xᵢ / Σ w, in the given order, in f32: the specified reduction order within a site. A single member's update is not copied.
pub(super) fn weighted_mean<'a>(
    locals: &[(u32, Local<'a>)],
    len: usize,
    mean: &'a mut Vec<f32>,
) -> Result<&'a [f32], CompressError> {
    if let [(_, Local::Own(values))] = locals {
        same_length(values.len(), len)?;
        return Ok(values);
    }
    let total: u64 = locals.iter().map(|(weight, _)| u64::from(*weight)).sum();
    mean.clear();
    mean.resize(len, 0.0);
    for (weight, local) in locals {
        let share = *weight as f32 / total.max(1) as f32;
        match local {
            Local::Own(values) => {
                same_length(values.len(), len)?;
                mean.iter_mut().zip(*values).for_each(|(m, v)| *m += share * v);
            }
            Local::Received(bytes) => {
                let (words, rest) = bytes.as_chunks::<4>();
                same_length(if rest.is_empty() { words.len() } else { 0 }, len)?;
                let values = words.iter().map(|word| f32::from_le_bytes(*word));
                mean.iter_mut().zip(values).for_each(|(m, v)| *m += share * v);
            }
            Local::Columns(_) => return Err(CompressError::Kinds),
        }
    }
    Ok(mean)
}

pub(super) fn same_length(got: usize, expected: usize) -> Result<(), CompressError> {
    if got == expected { Ok(()) } else { Err(CompressError::Length { got, expected }) }
}
