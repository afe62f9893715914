//! Encoding of a masked contribution.

use bytes::Bytes;
use longhaul_common::id::WorkerId;

use super::{FixedPoint, FrameKey, PairSecret};
use crate::codec::EncodeError;

/// ```text
/// u8   'm'
/// u8   version: 1
/// u16  0                   (all integers little-endian)
/// u32  values
/// u32  for each value: its word, masked
/// ```
const MAGIC: [u8; 4] = [b'm', 1, 0, 0];
const HEADER_BYTES: usize = 8;

/// Bytes that are not a masked contribution to this fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskedFrameError {
    /// Another format or version.
    #[error("the contribution is not masked, or has another version")]
    Format,
    /// The number of values differs from the fragment's.
    #[error("the masked contribution does not contain {expected} values")]
    Length {
        /// Values of the fragment.
        expected: usize,
    },
}

/// Encodes a site's contribution, masked for these partners: one worker of each other site, with the shared
/// secret.
///
/// # Errors
/// [`EncodeError::NonFinite`]
pub fn seal<'a>(
    format: &FixedPoint,
    weight: u32,
    values: &[f32],
    place: FrameKey,
    me: WorkerId,
    partners: impl IntoIterator<Item = (WorkerId, &'a PairSecret)>,
) -> Result<Bytes, EncodeError> {
    let mut words = format.to_words(weight, values)?;
    for (partner, secret) in partners {
        secret.mask(place, me, partner, &mut words);
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + 4 * words.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&(words.len() as u32).to_le_bytes());
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    Ok(bytes.into())
}

/// Adds a contribution to a sum of the fragment's length. The sum is meaningful once it contains all sites.
///
/// # Errors
/// [`MaskedFrameError`]; the sum is then unchanged.
pub fn add_masked(body: &[u8], sum: &mut [u32]) -> Result<(), MaskedFrameError> {
    let Some((header, rest)) = body.split_first_chunk::<HEADER_BYTES>() else {
        return Err(MaskedFrameError::Format);
    };
    let [m, version, zero, zero_too, count @ ..] = *header;
    if [m, version, zero, zero_too] != MAGIC {
        return Err(MaskedFrameError::Format);
    }
    let (words, odd) = rest.as_chunks::<4>();
    if u32::from_le_bytes(count) as usize != sum.len() || words.len() != sum.len() || !odd.is_empty() {
        return Err(MaskedFrameError::Length { expected: sum.len() });
    }
    sum.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(u32::from_le_bytes(*word)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::id::{FragmentId, Generation, Round};
    use proptest::prelude::*;

    const PLACE: FrameKey = FrameKey { generation: Generation(3), round: Round(7), fragment: FragmentId(2) };
    const FORMAT: FixedPoint = FixedPoint::new(4.0, 64);

    fn secret(a: u32, b: u32) -> PairSecret {
        let (low, high) = (a.min(b) as u8, a.max(b) as u8);
        PairSecret::from_bytes(std::array::from_fn(|at| low ^ high.rotate_left(4) ^ at as u8))
    }

    /// Returns the frames of workers 1..=n, each of its own site.
    fn sealed(updates: &[(u32, Vec<f32>)], place: FrameKey) -> Vec<Bytes> {
        let number = |at: usize| at as u32 + 1;
        let seal_one = |at: usize| {
            let others = (0..updates.len()).filter(|other| *other != at).map(number);
            let secrets: Vec<_> = others.map(|other| (WorkerId(other), secret(number(at), other))).collect();
            let partners = secrets.iter().map(|(worker, secret)| (*worker, secret));
            let (weight, values) = &updates[at];
            seal(&FORMAT, *weight, values, place, WorkerId(number(at)), partners).unwrap()
        };
        (0..updates.len()).map(seal_one).collect()
    }

    fn mean_of<'a>(bodies: impl IntoIterator<Item = &'a Bytes>, len: usize, weight: u64) -> Vec<f32> {
        let (mut sum, mut mean) = (vec![0; len], vec![0.0; len]);
        bodies.into_iter().for_each(|body| add_masked(body, &mut sum).unwrap());
        FORMAT.set_mean(&sum, weight, &mut mean);
        mean
    }

    proptest! {
        #[test]
        fn the_sum_of_all_is_the_weighted_mean_to_the_last_digit(
            updates in (1usize..40).prop_flat_map(|len| {
                prop::collection::vec((1u32..=12, prop::collection::vec(-4.0f32..4.0, len)), 1..6)
            }),
            round in 0u64..1000,
        ) {
            let bodies = sealed(&updates, FrameKey { round: Round(round), ..PLACE });
            let weight: u32 = updates.iter().map(|(weight, _)| weight).sum();
            let len = updates[0].1.len();
            let mean = mean_of(&bodies, len, u64::from(weight));
            let bound = 0.5 * FORMAT.step() * updates.len() as f64 / f64::from(weight);
            for at in 0..len {
                let sum: f64 = updates.iter().map(|(w, values)| f64::from(*w) * f64::from(values[at])).sum();
                let expected = sum / f64::from(weight);
                let gap = (f64::from(mean[at]) - expected).abs();
                // f32 has 24 bits of the mean.
                prop_assert!(gap <= bound + expected.abs() * 2f64.powi(-24), "{} is not {expected}", mean[at]);
            }
        }

        #[test]
        fn bytes_that_are_no_contribution_change_nothing(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut sum = [1, 2, 3];
            let body = sealed(&[(1, vec![0.0; 3])], PLACE).remove(0);
            if bytes.len() != body.len() {
                prop_assert!(add_masked(&bytes, &mut sum).is_err());
                prop_assert_eq!(sum, [1, 2, 3]);
            }
        }
    }

    #[test]
    fn full_values_of_the_greatest_weight_do_not_wrap() {
        let updates = [(32, vec![4.0, -4.0, 1e9, -1e9]), (32, vec![4.0, -4.0, 4.0, -4.0])];
        let mean = mean_of(&sealed(&updates, PLACE), 4, 64);
        assert!(
            mean.iter().zip([4.0, -4.0, 4.0, -4.0]).all(|(mean, all)| (mean - all).abs() < 1e-6),
            "{mean:?}"
        );
    }

    /// The words are 0x00ffffe0, 0xff800010, 0x03ffff80 and 0xfc000080; the mask is from a ChaCha20 written
    /// after RFC 8439 in Python.
    #[test]
    fn a_masked_contribution_has_its_golden_bytes() {
        let secret = PairSecret::from_bytes(std::array::from_fn(|at| at as u8));
        let sent_by = |me: u32, partner: u32| -> String {
            let partners = [(WorkerId(partner), &secret)];
            let body = seal(&FORMAT, 2, &[1.0, -0.5, 4.0, -9.0], PLACE, WorkerId(me), partners).unwrap();
            body.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(sent_by(1, 2), "6d01000004000000537efb41de75b5ad87bd08bce34c62f2");
        assert_eq!(sent_by(2, 1), "6d010000040000006d8104c0428a4a517941f74b1db49d05");
    }

    /// A contribution reveals nothing of an update: its bytes are uniform, and so is its difference from
    /// another's.
    #[test]
    fn one_contribution_by_itself_is_noise() {
        let len = 1 << 16;
        let ramp: Vec<f32> = (0..len).map(|at| at as f32 / len as f32).collect();
        let zeros = vec![0.0; len];
        let of = |values: &[f32], round| {
            let place = FrameKey { round: Round(round), ..PLACE };
            sealed(&[(1, values.to_vec()), (1, zeros.clone()), (1, zeros.clone())], place).remove(0)
        };
        let (of_ramp, of_zeros, again) = (of(&ramp, 0), of(&zeros, 1), of(&ramp, 2));
        let difference: Vec<u8> =
            of_ramp[8..].iter().zip(&again[8..]).map(|(a, b)| a.wrapping_sub(*b)).collect();
        for bytes in [&of_ramp[8..], &of_zeros[8..], &difference] {
            let mut counts = [0u32; 256];
            bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
            let expected = bytes.len() as f64 / 256.0;
            let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
            // 255 degrees of freedom: mean 255, deviation 22.6.
            assert!((chi - 255.0).abs() < 5.0 * 22.6, "{chi}");
            let mean = bytes.iter().map(|byte| f64::from(*byte)).sum::<f64>() / bytes.len() as f64;
            // Deviation 73.9 / √(2¹⁸) = 0.144.
            assert!((mean - 127.5).abs() < 5.0 * 0.145, "{mean}");
        }
    }

    #[test]
    fn without_one_of_them_the_others_sum_is_noise_and_another_places_mask_does_not_fit() {
        let updates = [(1, vec![0.5; 64]), (1, vec![0.25; 64]), (1, vec![0.75; 64])];
        let bodies = sealed(&updates, PLACE);
        let far_off = |mean: &[f32]| mean.iter().filter(|value| (**value - 0.5).abs() > 0.5).count();
        assert!(far_off(&mean_of(&bodies, 64, 3)) == 0);
        assert!(far_off(&mean_of(&bodies[..2], 64, 3)) > 48);
        let places = [
            FrameKey { generation: Generation(4), ..PLACE },
            FrameKey { round: Round(8), ..PLACE },
            FrameKey { fragment: FragmentId(3), ..PLACE },
        ];
        for place in places {
            let elsewhere = sealed(&updates, place);
            assert!(far_off(&mean_of([&bodies[0], &bodies[1], &elsewhere[2]], 64, 3)) > 48, "{place:?}");
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let body = sealed(&[(1, vec![1.0; 3])], PLACE).remove(0);
        let damaged = |at: usize, byte: u8| {
            let mut bytes = body.to_vec();
            bytes[at] = byte;
            add_masked(&bytes, &mut [0; 3])
        };
        for at in 0..4 {
            assert_eq!(damaged(at, 77), Err(MaskedFrameError::Format));
        }
        for (at, byte) in [(4, 2), (4, 4), (7, 255)] {
            assert_eq!(damaged(at, byte), Err(MaskedFrameError::Length { expected: 3 }));
        }
        assert_eq!(add_masked(&body, &mut [0; 4]), Err(MaskedFrameError::Length { expected: 4 }));
        assert_eq!(add_masked(&body[..7], &mut [0; 3]), Err(MaskedFrameError::Format));
    }

    #[test]
    fn an_update_that_is_not_finite_is_not_sent() {
        let refused = seal(&FORMAT, 1, &[0.0, f32::NAN], PLACE, WorkerId(1), []);
        assert_eq!(refused, Err(EncodeError::NonFinite { index: 1 }));
    }
}
