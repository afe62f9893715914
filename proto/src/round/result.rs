//! Encoding of results.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use longhaul_common::id::SiteId;

use super::command::Contribution;

/// The result of one fragment in one round: its contributors and the update. The owner publishes its
/// encoding, identified by its BLAKE3 hash.
///
/// ```text
/// u8   form: 0 bundle, 1 mean          (all integers little-endian)
/// u16  contributors
///      for each, by ascending site: u32 site, u32 weight, and in a bundle u32 length
///      bundle: the contributions side by side; mean: one encoded update
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentResult {
    /// Sites and their weights (samples), in site order. Empty: the round does not change this fragment.
    pub contributors: Vec<(SiteId, u32)>,
    /// The update.
    pub content: Content,
}

/// Form of the update in a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The contributions as received, one per contributor; the reader computes their weighted mean in site
    /// order.
    Bundle(Vec<Bytes>),
    /// The weighted mean, encoded.
    Mean(Bytes),
}

/// Bytes that are not a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed result")]
pub struct MalformedResult;

/// Maximum sites in one result. A run has tens; this keeps the table of a hostile result small.
pub const CONTRIBUTORS_MAX: usize = 4096;

const BUNDLE: u8 = 0;
const MEAN: u8 = 1;

impl FragmentResult {
    /// Returns the result of a round that changes nothing.
    #[must_use]
    pub const fn nothing() -> Self {
        Self { contributors: Vec::new(), content: Content::Bundle(Vec::new()) }
    }

    /// Returns the bundle of these contributions.
    #[must_use]
    pub fn bundle(contributions: Vec<Contribution>) -> Self {
        let contributors = contributions.iter().map(|c| (c.site, c.weight)).collect();
        Self { contributors, content: Content::Bundle(contributions.into_iter().map(|c| c.body).collect()) }
    }

    /// Returns the encoded mean of these contributions.
    #[must_use]
    pub fn mean(contributions: &[Contribution], body: Bytes) -> Self {
        let contributors = contributions.iter().map(|c| (c.site, c.weight)).collect();
        Self { contributors, content: Content::Mean(body) }
    }

    /// Whether it contains a site's contribution.
    #[must_use]
    pub fn names(&self, site: SiteId) -> bool {
        self.contributors.iter().any(|(named, _)| *named == site)
    }

    /// Returns its sites, in order.
    pub fn sites(&self) -> impl Iterator<Item = SiteId> + '_ {
        self.contributors.iter().map(|(site, _)| *site)
    }

    /// Returns the bytes to publish.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        let (form, parts) = match &self.content {
            Content::Bundle(parts) => (BUNDLE, parts.as_slice()),
            Content::Mean(mean) => (MEAN, std::slice::from_ref(mean)),
        };
        out.put_u8(form);
        out.put_u16_le(self.contributors.len() as u16);
        for (at, (site, weight)) in self.contributors.iter().enumerate() {
            out.put_u32_le(site.0);
            out.put_u32_le(*weight);
            if form == BUNDLE {
                out.put_u32_le(parts.get(at).map_or(0, |part| part.len() as u32));
            }
        }
        parts.iter().for_each(|part| out.put_slice(part));
        out.freeze()
    }

    /// Decodes published bytes; the parts share their memory.
    ///
    /// # Errors
    /// An unknown form, too many or unordered contributors, a weight of zero, or inconsistent lengths.
    pub fn decode(bytes: &Bytes) -> Result<Self, MalformedResult> {
        let mut rest = bytes.clone();
        let form = rest.try_get_u8().map_err(|_| MalformedResult)?;
        let count = usize::from(rest.try_get_u16_le().map_err(|_| MalformedResult)?);
        if form > MEAN || count > CONTRIBUTORS_MAX {
            return Err(MalformedResult);
        }
        let mut contributors = Vec::new();
        let mut lengths = Vec::new();
        for _ in 0..count {
            let mut word = || rest.try_get_u32_le().map_err(|_| MalformedResult);
            contributors.push((SiteId(word()?), word()?));
            if form == BUNDLE {
                lengths.push(word()? as usize);
            }
        }
        if !contributors.is_sorted_by(|a, b| a.0 < b.0) || contributors.iter().any(|(_, weight)| *weight == 0)
        {
            return Err(MalformedResult);
        }
        let content =
            if form == MEAN { Content::Mean(rest) } else { Content::Bundle(split(rest, &lengths)?) };
        Ok(Self { contributors, content })
    }
}

fn split(mut rest: Bytes, lengths: &[usize]) -> Result<Vec<Bytes>, MalformedResult> {
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        if length > rest.len() {
            return Err(MalformedResult);
        }
        parts.push(rest.split_to(length));
    }
    if rest.is_empty() { Ok(parts) } else { Err(MalformedResult) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn result(parts: &[(u32, u32, &'static [u8])]) -> FragmentResult {
        let contributors = parts.iter().map(|(site, weight, _)| (SiteId(*site), *weight)).collect();
        let content = Content::Bundle(parts.iter().map(|(_, _, body)| Bytes::from_static(body)).collect());
        FragmentResult { contributors, content }
    }

    #[test]
    fn the_encoding_is_pinned() {
        let bundle = result(&[(1, 8, b"ab"), (3, 4, b"c")]);
        let hex: String = bundle.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0002000100000008000000020000000300000004000000010000006162".to_owned() + "63");
        let mean = FragmentResult { content: Content::Mean(Bytes::from_static(b"m")), ..bundle };
        let hex: String = mean.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "01020001000000080000000300000004000000".to_owned() + "6d");
    }

    #[test]
    fn a_result_survives_its_encoding() {
        for original in [result(&[]), result(&[(0, 1, b"")]), result(&[(1, 8, b"ab"), (3, 4, b"c")])] {
            assert_eq!(FragmentResult::decode(&original.encode()), Ok(original));
        }
    }

    #[test]
    fn every_cut_and_every_lengthening_of_a_bundle_is_refused() {
        let whole = result(&[(1, 8, b"ab"), (3, 4, b"c")]).encode();
        for length in 0..whole.len() {
            assert_eq!(FragmentResult::decode(&whole.slice(..length)), Err(MalformedResult));
        }
        let longer = [whole.as_ref(), b"x"].concat();
        assert_eq!(FragmentResult::decode(&longer.into()), Err(MalformedResult));
    }

    #[test]
    fn unordered_sites_and_empty_weights_are_refused() {
        for bad in [
            result(&[(3, 1, b"a"), (1, 1, b"b")]),
            result(&[(1, 1, b"a"), (1, 1, b"b")]),
            result(&[(1, 0, b"")]),
        ] {
            assert_eq!(FragmentResult::decode(&bad.encode()), Err(MalformedResult));
        }
    }

    proptest! {
        #[test]
        fn what_can_be_read_is_written_back_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let bytes = Bytes::from(bytes);
            if let Ok(result) = FragmentResult::decode(&bytes) {
                prop_assert_eq!(result.encode(), bytes);
            }
        }
    }
}
