//! Rows of T + 1 words, which hold whole conversations.
//!
//! A word is a token and what training has to know of it. A row of one conversation and padding needs no more than causal attention.

use std::collections::BTreeMap;

use longhaul_common::config::TooLong;

use super::encoded::Encoded;
use super::{Chat, Conversation, ConversationCounts, Tokenizer};
use crate::notes::Notes;
use crate::odd_texts::OddTexts;

/// The token is a target of the loss.
pub const TRAINED: u32 = 1 << 31;
/// The token is the first of a conversation.
pub const START: u32 = 1 << 30;
/// Padding behind the last conversation, or behind a labelled text.
pub const PAD: u32 = 1 << 29;
/// The bits of the token.
pub const TOKEN_MASK: u32 = PAD - 1;
/// Largest vocabulary.
pub(crate) const VOCABULARY_MAX: u32 = PAD;
/// Bytes of a word.
const WORD_BYTES: usize = size_of::<u32>();

/// Returns the bytes of a row for sequences of this many tokens.
pub(crate) fn row_bytes(length: u32) -> usize {
    (length as usize + 1) * WORD_BYTES
}

/// The rows of a piece.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// Words of all rows, little-endian.
    pub(crate) bytes: Vec<u8>,
    pub(crate) counts: ConversationCounts,
    /// Conversations or texts without a use: index and cause.
    pub(crate) bad: Vec<(usize, String)>,
    /// Tokens `unknown` in rows.
    pub(crate) unknown: u64,
    /// The class of each labelled text.
    pub(crate) classes: Vec<u32>,
    /// Odd ones among answers or labelled texts.
    pub(crate) odd: OddTexts,
    /// Notes on conversations.
    pub(crate) notes: Notes,
}

impl Chat {
    /// Makes the rows of conversations in order, as long as `goes_on`.
    ///
    /// # Errors
    /// Those of `goes_on`.
    pub(crate) fn pack<'a, E>(
        &self,
        conversations: impl Iterator<Item = &'a Conversation>,
        tokenizer: &Tokenizer,
        goes_on: impl Fn() -> Result<(), E>,
    ) -> Result<Packed, E> {
        let (mut packed, mut all) = (Packed::default(), Vec::new());
        for (at, conversation) in conversations.enumerate() {
            goes_on()?;
            match self.encode(conversation, tokenizer) {
                Ok(encoded) => {
                    packed.notes.add(&encoded.notes);
                    for answer in conversation.answers(self.train_on) {
                        packed.counts.answers += 1;
                        packed.odd.see_answer(answer);
                    }
                    all.extend(self.fitted(encoded, &mut packed.counts));
                }
                Err(reason) => packed.bad.push((at, reason)),
            }
        }
        let unknown = tokenizer.unknown().map(|unknown| unknown.number);
        let lengths: Vec<usize> = all.iter().map(|encoded| encoded.tokens.len()).collect();
        let rows = if self.packing {
            best_fit(&lengths, self.width())
        } else {
            (0..all.len()).map(|at| vec![at]).collect()
        };
        packed.bytes.reserve(rows.len() * self.row_bytes());
        for row in rows {
            let start = packed.bytes.len();
            for encoded in row.into_iter().map(|at| &all[at]) {
                packed.unknown +=
                    encoded.tokens.iter().filter(|token| Some(**token) == unknown).count() as u64;
                packed.bytes.extend(words(encoded).flat_map(u32::to_le_bytes));
            }
            let missing = self.width() - (packed.bytes.len() - start) / WORD_BYTES;
            packed.bytes.extend(std::iter::repeat_n(PAD.to_le_bytes(), missing).flatten());
        }
        Ok(packed)
    }

    /// Counts a conversation, and cuts it to a row; `None`: it is left out.
    fn fitted(&self, mut encoded: Encoded, counts: &mut ConversationCounts) -> Option<Encoded> {
        let is_cut = encoded.tokens.len() > self.width();
        encoded.tokens.truncate(self.width());
        encoded.trained.truncate(self.width());
        // Nothing predicts the first token.
        encoded.trained.first_mut().into_iter().for_each(|first| *first = false);
        let trained = encoded.trained.iter().filter(|is_trained| **is_trained).count() as u64;
        if trained == 0 || is_cut && self.too_long == TooLong::LeaveOut {
            counts.left_out += 1;
            return None;
        }
        counts.conversations += 1;
        counts.turns += encoded.turns;
        counts.tokens += encoded.tokens.len() as u64;
        counts.trained += trained;
        counts.cut += u64::from(is_cut);
        Some(encoded)
    }
}

fn words(encoded: &Encoded) -> impl Iterator<Item = u32> {
    let flags = encoded.trained.iter().map(|is_trained| if *is_trained { TRAINED } else { 0 });
    let words = encoded.tokens.iter().zip(flags).map(|(token, flags)| token | flags);
    words.enumerate().map(|(at, word)| if at == 0 { word | START } else { word })
}

/// Returns the items in each row of a size, none longer than it: best-fit decreasing (Johnson et al. 1974, "Worst-case performance bounds for simple
/// one-dimensional packing algorithms"). Rows follow the order of their longest items: the end of a source, which may be held out, has some of each length.
fn best_fit(lengths: &[usize], size: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(lengths[*at]));
    let mut rows: Vec<Vec<usize>> = Vec::new();
    // Rows by their room.
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for at in order {
        let room = open.range(lengths[at]..).next().map(|(room, _)| *room);
        let row = room.and_then(|room| {
            let with_it = open.get_mut(&room)?;
            let row = with_it.pop();
            if with_it.is_empty() {
                open.remove(&room);
            }
            row
        });
        let row = row.unwrap_or_else(|| {
            rows.push(Vec::new());
            rows.len() - 1
        });
        rows[row].push(at);
        open.entry(room.unwrap_or(size) - lengths[at]).or_default().push(row);
    }
    rows.sort_by_key(|row| row.first().copied());
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_item_is_in_one_row_that_holds_it(lengths in prop::collection::vec(1_usize..=20, 0..60)) {
            let rows = best_fit(&lengths, 20);
            let mut all: Vec<usize> = rows.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            let sums: Vec<usize> = rows.iter().map(|row| row.iter().map(|at| lengths[*at]).sum()).collect();
            prop_assert!(sums.iter().all(|sum| *sum <= 20));
            // No two rows fit into one: half of each row, on average, is in use.
            prop_assert!(sums.iter().filter(|sum| **sum <= 10).count() <= 1);
        }
    }

    #[test]
    fn the_tightest_room_is_taken() {
        assert_eq!(best_fit(&[3, 7, 6, 4, 10], 10), [vec![1, 0], vec![2, 3], vec![4]]);
    }
}
