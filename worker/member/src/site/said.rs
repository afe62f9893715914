//! Messages between the members of a site before each reduction.

use longhaul_collective::Word;
use longhaul_common::id::Round;

use super::vector::SiteVector;

/// A member's message before a reduction, in 16 bytes: the round (u64, little-endian), its samples (u32), the number of its ready fragments (u32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub round: Round,
    pub samples: u32,
    pub ready: u32,
}

impl Said {
    pub fn to_word(self) -> Word {
        let mut word = [0; 16];
        word[..8].copy_from_slice(&self.round.0.to_le_bytes());
        word[8..12].copy_from_slice(&self.samples.to_le_bytes());
        word[12..].copy_from_slice(&self.ready.to_le_bytes());
        word
    }

    pub fn from_word(word: Word) -> Self {
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        // Four bytes make a u32.
        let [samples, ready] = [&word[8..12], &word[12..]].map(|bytes| number(bytes) as u32);
        Self { round: Round(number(&word[..8])), samples, ready }
    }
}

/// Returns the end of the turns that all members have.
///
/// # Errors
/// The rank of a member with an impossible number: it must exceed the reduced fragments and not the total.
pub(super) fn agreed_turn(said: &[Said], vector: &SiteVector) -> Result<usize, usize> {
    let count = vector.layout().count();
    let least = if count == 0 { 0 } else { vector.reduced() + 1 };
    match said.iter().position(|said| !(least..=count).contains(&(said.ready as usize))) {
        Some(rank) => Err(rank),
        None => Ok(said.iter().map(|said| said.ready as usize).min().unwrap_or(count)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longhaul_common::plan::FragmentLayout;

    use super::super::layout::{Placed, SiteLayout};
    use super::super::slot::Piece;
    use super::*;

    #[test]
    fn a_word_survives_its_bytes() {
        let said = Said { round: Round(0x0102_0304_0506_0708), samples: 0x0a0b_0c0d, ready: 0x1112_1314 };
        let word = said.to_word();
        assert_eq!(word, [8, 7, 6, 5, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!(Said::from_word(word), said);
    }
    #[test]
    fn members_reduce_what_all_have_and_name_who_says_what_cannot_be() {
        let of = FragmentLayout { values: 60, fragment_values: 10 };
        let placed: Vec<_> = of.fragments().map(|fragment| Placed { fragment, rank: 0 }).collect();
        let layout = Arc::new(SiteLayout::new(of, 3, placed.into_iter()));
        let mut vector = SiteVector::new(layout);
        vector.take(vec![Piece::Whole(vec![0.0; 60])]);
        let turn = |vector: &SiteVector, ready: [u32; 3]| {
            agreed_turn(&ready.map(|ready| Said { round: Round(1), samples: 1, ready }), vector)
        };
        assert_eq!(turn(&vector, [6, 1, 2]), Ok(1));
        assert_eq!(turn(&vector, [6, 1, 0]), Err(2), "rank 2 reports nothing");
        vector.next_part(2);
        assert_eq!(turn(&vector, [6, 3, 6]), Ok(3));
        assert_eq!(turn(&vector, [6, 2, 6]), Err(1), "two are reduced already");
        assert_eq!(turn(&vector, [7, 3, 6]), Err(0), "only six exist");
        let nothing = SiteVector::new(Arc::new(SiteLayout::new(of, 3, std::iter::empty())));
        assert_eq!(turn(&nothing, [0; 3]), Ok(0));
        assert_eq!(turn(&nothing, [0, 0, 1]), Err(2));
    }
}
