//! The bytes that an owner publishes: what a round made of a fragment.
//!
//! Two forms, told apart by the first byte. A *bundle* holds the contributions as they came, so nothing is rounded twice, and each
//! member takes the weighted mean itself, in site order. A *mean* holds the owner's weighted mean, encoded once; it is what dense
//! updates use, where N contributions side by side would be N times the bytes.
//!
//! Layout, little-endian: form u8, sites u16, then for each site in ascending order: site u32, weight u32, bytes u32 (0 in a mean);
//! then the bodies in the same order (bundle), or the encoded mean.

use bytes::Bytes;
use longhaul_common::id::SiteId;

use crate::codec::{DecodeError, Decoder, Encoder, EncodeError};

/// Sites in one result: far more than a run has, far fewer than would let a hostile count cost memory.
pub const RESULT_SITES_MAX: usize = 1024;

const FORM_BUNDLE: u8 = 1;
const FORM_MEAN: u8 = 2;
const PREFIX_BYTES: usize = 3;
const ENTRY_BYTES: usize = 12;

/// A site's part in a round: who, how many samples stand behind it, and the encoded update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contribution {
    /// Which site.
    pub site: SiteId,
    /// Samples trained on.
    pub weight: u32,
    /// As the site's uploader encoded it.
    pub body: Bytes,
}

/// Bytes that are not a result.
#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    /// The frame of the result is damaged.
    #[error("a damaged result: {0}")]
    Layout(&'static str),
    /// An update in it is damaged.
    #[error("a damaged update in a result: {0}")]
    Update(#[from] DecodeError),
}

/// Publishes contributions side by side. They must be in ascending site order and have a positive total weight.
#[must_use]
pub fn bundle(contributions: &[Contribution]) -> Vec<u8> {
    let mut out = prefix(FORM_BUNDLE, contributions.iter().map(|c| (c.site, c.weight, c.body.len())));
    for contribution in contributions {
        out.extend_from_slice(&contribution.body);
    }
    out
}

/// Publishes the weighted mean of contributions of `len` values, encoded by `encoder`.
///
/// # Errors
/// A contribution that does not decode, or a mean that is not finite.
pub fn mean(
    contributions: &[Contribution],
    len: usize,
    decoder: &mut Decoder,
    encoder: &mut Encoder,
) -> Result<Vec<u8>, MeanError> {
    let mut mean = vec![0.0; len];
    let total: u64 = contributions.iter().map(|c| u64::from(c.weight)).sum();
    for contribution in contributions {
        decoder.decode_add(&contribution.body, len, share(contribution.weight, total), &mut mean)?;
    }
    let mut out = prefix(FORM_MEAN, contributions.iter().map(|c| (c.site, c.weight, 0)));
    encoder.encode(&mean, &mut out)?;
    Ok(out)
}

/// Why a mean could not be published.
#[derive(Debug, thiserror::Error)]
pub enum MeanError {
    /// A contribution does not decode.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The mean is not finite.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// A result, taken apart and checked.
#[derive(Debug)]
pub struct RoundResult<'a> {
    entries: Vec<(SiteId, u32)>,
    bodies: Bodies<'a>,
}

#[derive(Debug)]
enum Bodies<'a> {
    Bundle(Vec<&'a [u8]>),
    Mean(&'a [u8]),
}

impl<'a> RoundResult<'a> {
    /// Takes a result apart. Allocates in proportion to the sites named, which the bytes must be long enough to hold.
    ///
    /// # Errors
    /// [`ResultError::Layout`] says what is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ResultError> {
        let layout = ResultError::Layout;
        let (&form, rest) = bytes.split_first().ok_or(layout("it is empty"))?;
        let (count, mut rest) = rest.split_first_chunk::<2>().ok_or(layout("it ends in the prefix"))?;
        let count = usize::from(u16::from_le_bytes(*count));
        if count == 0 || count > RESULT_SITES_MAX || rest.len() < count * ENTRY_BYTES {
            return Err(layout("its number of sites does not fit"));
        }
        let mut entries: Vec<(SiteId, u32)> = Vec::with_capacity(count);
        let mut lengths = Vec::with_capacity(count);
        for _ in 0..count {
            let (site, weight, length);
            (site, rest) = take_u32(rest).ok_or(layout("it ends among the sites"))?;
            (weight, rest) = take_u32(rest).ok_or(layout("it ends among the sites"))?;
            (length, rest) = take_u32(rest).ok_or(layout("it ends among the sites"))?;
            if entries.last().is_some_and(|(last, _)| last.0 >= site) {
                return Err(layout("its sites are not in order"));
            }
            entries.push((SiteId(site), weight));
            lengths.push(length as usize);
        }
        if entries.iter().all(|(_, weight)| *weight == 0) {
            return Err(layout("it has no weight"));
        }
        let bodies = match form {
            FORM_BUNDLE => Bodies::Bundle(split(rest, &lengths).ok_or(layout("its lengths do not add up"))?),
            FORM_MEAN => Bodies::Mean(rest),
            _ => return Err(layout("its form is unknown")),
        };
        Ok(Self { entries, bodies })
    }

    /// The sites whose contribution is in it, ascending.
    pub fn sites(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.entries.iter().map(|(site, _)| *site)
    }

    /// Adds `scale` times the weighted mean to `values`, the same bits on every machine.
    ///
    /// # Errors
    /// [`ResultError::Update`]; `values` may then be changed in part, so check first what came from a stranger.
    pub fn add_mean(&self, scale: f32, decoder: &mut Decoder, values: &mut [f32]) -> Result<(), ResultError> {
        match &self.bodies {
            Bodies::Mean(body) => decoder.decode_add(body, values.len(), scale, values)?,
            Bodies::Bundle(bodies) => {
                let total: u64 = self.entries.iter().map(|(_, weight)| u64::from(*weight)).sum();
                for ((_, weight), body) in self.entries.iter().zip(bodies) {
                    decoder.decode_add(body, values.len(), scale * share(*weight, total), values)?;
                }
            }
        }
        Ok(())
    }
}

/// A part of the total as a factor. Both conversions are exact up to 2²⁴ samples, and rounded alike everywhere beyond.
fn share(weight: u32, total: u64) -> f32 {
    weight as f32 / total.max(1) as f32
}

fn prefix(form: u8, entries: impl ExactSizeIterator<Item = (SiteId, u32, usize)>) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES + entries.len() * ENTRY_BYTES);
    out.push(form);
    out.extend_from_slice(&u16::try_from(entries.len()).unwrap_or(u16::MAX).to_le_bytes());
    for (site, weight, length) in entries {
        out.extend_from_slice(&site.0.to_le_bytes());
        out.extend_from_slice(&weight.to_le_bytes());
        out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
    out
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*word), rest))
}

fn split<'a>(mut rest: &'a [u8], lengths: &[usize]) -> Option<Vec<&'a [u8]>> {
    let mut bodies = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let body;
        (body, rest) = rest.split_at_checked(length)?;
        bodies.push(body);
    }
    rest.is_empty().then_some(bodies)
}
