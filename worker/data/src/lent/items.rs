//! Valid items of a run's data.

use longhaul_common::config::DataConfig;
use longhaul_proto::little_endian::tokens;

use super::super::Tokenizer;
use super::super::batch::CLASS_BYTES;
use super::super::chat::{TOKEN_MASK, row_bytes};
use super::super::image::class_of;
use super::super::recipe::item_bytes;

/// Bytes of a word of rows.
const WORD_BYTES: usize = size_of::<u32>();

/// Items of a shard.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Items {
    /// Bytes of each.
    pub bytes: usize,
    /// Exclusive upper bound of tokens or classes.
    below: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tokens,
    Rows,
    /// Labelled texts of so many classes.
    Texts(u32),
    Images,
}

impl Items {
    pub fn of(config: &DataConfig, tokenizer: &Tokenizer) -> Self {
        let (image, vocabulary) = (config.image.as_ref(), tokenizer.vocabulary());
        let (kind, bytes) = match (image, &config.conversations, &config.classification) {
            (Some(_), ..) => (Kind::Images, item_bytes(image, vocabulary)),
            (None, Some(_), _) => (Kind::Rows, row_bytes(config.sequence_length)),
            (None, None, Some(texts)) => (Kind::Texts(texts.classes()), row_bytes(config.sequence_length)),
            (None, None, None) => (Kind::Tokens, item_bytes(None, vocabulary)),
        };
        Self { bytes, below: image.map_or(vocabulary, |shape| shape.classes), kind }
    }

    /// Whether a model can use these bytes of a shard, which begin at offset `before`. The class of an image cut within its class is not checked.
    pub fn are_sound(&self, before: usize, bytes: &[u8]) -> bool {
        match self.kind {
            Kind::Tokens => return tokens(bytes, self.bytes).into_iter().all(|token| token < self.below),
            // Blocks end between words.
            Kind::Rows => {
                let mut words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
                return words.all(|word| word & TOKEN_MASK < self.below);
            }
            Kind::Texts(classes) => {
                let (first, words) = (before / WORD_BYTES, self.bytes / WORD_BYTES);
                let all = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
                return all.zip(first + 1..).all(|(word, at)| match at % words {
                    0 => word < classes,
                    _ => word & TOKEN_MASK < self.below,
                });
            }
            Kind::Images => {}
        }
        let first_end = self.bytes - before % self.bytes;
        let ends = (first_end..=bytes.len()).step_by(self.bytes).filter(|end| *end >= CLASS_BYTES);
        ends.map(|end| class_of(&bytes[..end])).all(|class| class < self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_beyond_the_vocabulary_and_classes_that_there_are_not_are_noticed_wherever_an_image_is_cut() {
        let items = Items { bytes: 2, below: 300, kind: Kind::Tokens };
        assert!(items.are_sound(1 << 20, &[43, 1, 0, 0]) && !items.are_sound(0, &[0, 0, 44, 1]));
        let items = Items { bytes: 5, below: 300, kind: Kind::Images };
        let image = |class: u16| [&[255; 3][..], &class.to_le_bytes()].concat();
        let (good, bad) = (image(299).repeat(3), [image(0), image(300), image(0)].concat());
        assert!(items.are_sound(0, &good) && !items.are_sound(0, &bad));
        for cut in 0..=bad.len() {
            assert!(items.are_sound(0, &good[..cut]) && items.are_sound(cut, &good[cut..]));
            let is_noticed = !items.are_sound(0, &bad[..cut]) || !items.are_sound(cut, &bad[cut..]);
            assert_eq!(is_noticed, cut != 9, "cut at {cut}");
        }
        assert!(items.are_sound(0, &[]));
        let items = Items { bytes: 8, below: 300, kind: Kind::Rows };
        let word = |word: u32| word.to_le_bytes();
        assert!(items.are_sound(4, &[word(1 << 31 | 299), word(1 << 29)].concat()));
        assert!(!items.are_sound(0, &[word(0), word(1 << 30 | 300)].concat()));
        let items = Items { bytes: 12, below: 300, kind: Kind::Texts(2) };
        let (good, token) = ([word(1 << 30 | 299), word(1 << 29), word(1)], word(5));
        assert!(items.are_sound(0, &good.concat()) && items.are_sound(8, &[good[2], token].concat()));
        assert!(
            !items.are_sound(0, &[token, token, word(2)].concat())
                && !items.are_sound(4, &[token; 2].concat())
        );
    }
}
