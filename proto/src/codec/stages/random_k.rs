//! A random mask that is never sent, as all members derive it from the same seed.
//!
//! J. Wang et al., "CocktailSGD: Fine-tuning Foundation Models over 500Mbps Networks", ICML 2023.

use serde::{Deserialize, Serialize};

use super::{Effect, LeadingStage};
use crate::codec::chunks::{self, Chunk, Chunks};
use crate::codec::random::MaskDraws;
use crate::codec::reader::Reader;
use crate::codec::{CHUNK_VALUES_MAX, SpecError};

/// Chooses `keep` positions of each `chunk` values; all sets of that size are equally likely. Later stages
/// see only their values. Members with the same seed choose the same positions.
///
/// The values are not scaled up: with error feedback, masked values are sent later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomK {
    /// Values in a chunk: a power of two, at most [`CHUNK_VALUES_MAX`]. The fragment's last chunk may be shorter.
    pub chunk: u32,
    /// Positions chosen of each chunk, `1..=chunk`; a shorter chunk gives at most all.
    pub keep: u32,
}

const WORD_BITS: u32 = u64::BITS;
const MASK_WORDS_MAX: usize = (CHUNK_VALUES_MAX / WORD_BITS) as usize;

impl RandomK {
    /// Returns the positions chosen of `len` values by this seed, ascending.
    #[must_use]
    pub fn positions(self, seed: u64, len: usize) -> Vec<u32> {
        let mut positions = Vec::new();
        self.choose(seed, len, &mut positions);
        positions
    }

    fn chunks(self, len: usize) -> Chunks {
        Chunks { len, chunk: self.chunk as usize, keep: self.keep as usize }
    }
}

impl LeadingStage for RandomK {
    fn validate(&self) -> Result<(), SpecError> {
        chunks::validate(self.chunk, self.keep)
    }

    fn seen_len(&self, len: usize) -> Option<usize> {
        Some(self.chunks(len).kept_total())
    }

    fn seen_share(&self) -> f64 {
        f64::from(self.keep) / f64::from(self.chunk)
    }

    fn effect(&self) -> Effect {
        Effect::Chooses
    }

    fn is_seeded(&self) -> bool {
        true
    }

    fn choose(&self, seed: u64, len: usize, positions: &mut Vec<u32>) {
        let chunks = self.chunks(len);
        positions.reserve(chunks.kept_total());
        let mut mask = [0; MASK_WORDS_MAX];
        for (index, chunk) in chunks.iter().enumerate() {
            let mask = &mut mask[..chunk.len.div_ceil(WORD_BITS as usize)];
            draw_mask(&mut MaskDraws::new(seed, index as u64), chunk, mask);
            append_positions(mask, chunk.start as u32, positions);
        }
    }

    fn write(&self, header: &mut Vec<u8>) {
        header.push(self.chunk.trailing_zeros() as u8);
        header.extend_from_slice(&self.keep.to_le_bytes());
    }

    fn read(header: &mut Reader<'_>) -> Option<Self> {
        let chunk = 1_u32.checked_shl(header.u8()?.into())?;
        let stage = Self { chunk, keep: header.u32()? };
        stage.validate().is_ok().then_some(stage)
    }
}

/// Sets a bit for each kept position, by R. Floyd's algorithm (Bentley and Floyd 1987): one draw each for the
/// kept or the other positions, whichever are fewer.
fn draw_mask(draws: &mut MaskDraws, chunk: Chunk, mask: &mut [u64]) {
    mask.fill(0);
    let (len, kept) = (chunk.len as u32, chunk.kept as u32);
    let drawn = kept.min(len - kept);
    for last in len - drawn..len {
        let position = draws.below(last + 1);
        let is_taken = mask[(position / WORD_BITS) as usize] >> (position % WORD_BITS) & 1 == 1;
        let position = if is_taken { last } else { position };
        mask[(position / WORD_BITS) as usize] |= 1 << (position % WORD_BITS);
    }
    if drawn < kept {
        mask.iter_mut().for_each(|word| *word = !*word);
        if len % WORD_BITS > 0
            && let Some(word) = mask.last_mut()
        {
            *word &= (1 << (len % WORD_BITS)) - 1;
        }
    }
}

fn append_positions(mask: &[u64], start: u32, positions: &mut Vec<u32>) {
    for (word_start, &word) in (start..).step_by(WORD_BITS as usize).zip(mask) {
        let mut rest = word;
        while rest != 0 {
            positions.push(word_start + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_gives_exactly_its_number_of_positions_in_order() {
        for (chunk, keep) in
            [(1, 1), (2, 1), (64, 63), (64, 64), (256, 3), (256, 129), (4096, 410), (65_536, 60_000)]
        {
            let stage = RandomK { chunk, keep };
            for len in [0, 1, 63, 64, 65, 1000, 200_001] {
                let positions = stage.positions(3, len);
                assert!(positions.is_sorted_by(|a, b| a < b));
                assert_eq!(positions.len(), stage.seen_len(len).unwrap());
                let mut rest = &positions[..];
                for of in stage.chunks(len).iter() {
                    let (here, after) = rest.split_at(of.kept);
                    let chunk = of.start as u32..(of.start + of.len) as u32;
                    assert!(here.iter().all(|position| chunk.contains(position)));
                    rest = after;
                }
            }
        }
    }

    #[test]
    fn every_set_of_a_size_is_equally_likely() {
        for keep in [2, 3, 4] {
            // Chunks of six: as long as the last one of a fragment of six values. C(6, 2) = C(6, 4) = 15,
            // C(6, 3) = 20.
            let sets = if keep == 3 { 20 } else { 15 };
            let mut counts = std::collections::BTreeMap::<Vec<u32>, u32>::new();
            for seed in 0..30_000 {
                *counts.entry(RandomK { chunk: 8, keep }.positions(seed, 6)).or_default() += 1;
            }
            assert_eq!(counts.len(), sets);
            let expected = 30_000.0 / sets as f64;
            let chi_square: f64 =
                counts.values().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
            // 19 degrees of freedom: beyond 43.8 in a thousandth of all cases; with 14 even fewer.
            assert!(chi_square < 43.8, "{keep}: {chi_square}");
        }
    }

    #[test]
    fn chunks_and_seeds_give_different_masks() {
        let stage = RandomK { chunk: 4096, keep: 410 };
        let positions = stage.positions(1, 8192);
        let (first, second) = positions.split_at(410);
        let common = first.iter().filter(|&&position| second.contains(&(position + 4096))).count();
        let again = stage.positions(2, 4096).iter().filter(|position| first.contains(position)).count();
        // A tenth of 410, with a standard deviation of 6.
        assert!((20..62).contains(&common) && (20..62).contains(&again), "{common} {again}");
    }

    #[test]
    fn masks_are_the_same_on_every_platform() {
        assert_eq!(RandomK { chunk: 64, keep: 6 }.positions(42, 150), MASK_OF_42);
    }

    const MASK_OF_42: [u32; 18] =
        [10, 11, 25, 46, 48, 57, 66, 69, 78, 105, 117, 120, 128, 132, 134, 137, 142, 144];
}
