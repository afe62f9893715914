//! Sequences of T + 1 words: the tokens of a text, or of a pair, padding, and the class.

use longhaul_common::config::TooLong;

use super::{LabelledText, Labelling};
use crate::Tokenizer;
use crate::chat::{PAD, Packed, row_bytes};
use crate::tokenizer::Framed;

/// The token is of the second text.
pub const SECOND: u32 = 1 << 30;

impl Labelling {
    /// Returns the bytes of a sequence with its class.
    pub(crate) fn row_bytes(&self) -> usize {
        row_bytes(self.length)
    }

    /// Makes the sequences of labelled texts in order, as long as `goes_on`.
    ///
    /// # Errors
    /// Those of `goes_on`.
    pub(crate) fn pack<'a, E>(
        &self,
        texts: impl Iterator<Item = &'a LabelledText>,
        tokenizer: &Tokenizer,
        goes_on: impl Fn() -> Result<(), E>,
    ) -> Result<Packed, E> {
        let (mut packed, unknown) = (Packed::default(), tokenizer.unknown().map(|unknown| unknown.number));
        for (at, text) in texts.enumerate() {
            goes_on()?;
            packed.odd.see(&text.text);
            // A pair counts once.
            if let Some(pair) = text.pair.as_deref().filter(|_| !text.text.trim().is_empty()) {
                packed.odd.see_second(pair);
            }
            match tokenizer.frame(&text.text, text.pair.as_deref(), self.length as usize) {
                Ok(framed) if framed.is_cut && self.too_long == TooLong::LeaveOut => {
                    packed.counts.left_out += 1;
                }
                Ok(framed) => {
                    packed.unknown +=
                        framed.tokens.iter().filter(|(token, _)| Some(*token) == unknown).count() as u64;
                    self.add(&framed, text.class, &mut packed);
                }
                Err(reason) => packed.bad.push((at, reason)),
            }
        }
        Ok(packed)
    }

    fn add(&self, framed: &Framed, class: u32, packed: &mut Packed) {
        let word = |(token, is_second): &(u32, bool)| if *is_second { token | SECOND } else { *token };
        let padding = std::iter::repeat_n(PAD, self.length as usize - framed.tokens.len());
        let words = framed.tokens.iter().map(word).chain(padding).chain([class]);
        packed.bytes.extend(words.flat_map(u32::to_le_bytes));
        packed.classes.push(class);
        packed.counts.conversations += 1;
        packed.counts.tokens += framed.tokens.len() as u64;
        packed.counts.cut += u64::from(framed.is_cut);
    }
}
