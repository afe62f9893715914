//! The token that stands where a tokenizer has no other.

/// As the model names it.
#[cfg_attr(not(feature = "tokenizers"), allow(dead_code, reason = "bytes have none"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownToken {
    pub(crate) number: u32,
    pub(crate) name: String,
    /// Whether a text with its name becomes this token, as a special one does.
    pub(crate) is_added: bool,
}

impl UnknownToken {
    /// How often it is among tokens of so many bytes each, little-endian.
    pub(crate) fn count(&self, tokens: &[u8], token_bytes: usize) -> u64 {
        let number = self.number.to_le_bytes();
        let number = &number[..token_bytes.min(number.len())];
        tokens.chunks_exact(token_bytes).filter(|token| *token == number).count() as u64
    }

    /// How often a text asks for it by name, as a separator may: there nothing is unknown.
    pub(crate) fn mentions(&self, text: &str) -> u64 {
        if self.is_added && !self.name.is_empty() { text.matches(&self.name).count() as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_among_tokens_of_either_width_and_not_across_two() {
        let token = UnknownToken { number: 0x0201, name: "<unk>".to_owned(), is_added: true };
        for (tokens, token_bytes, count) in [
            (&[1, 2, 1, 2, 2, 1][..], 2, 2),
            (&[0, 1, 2, 0], 2, 0),
            (&[1, 2, 0, 0, 1, 2, 1, 0], 4, 1),
            (&[0, 0, 1, 2, 0, 0, 0, 0], 4, 0),
            (&[], 2, 0),
        ] {
            assert_eq!(token.count(tokens, token_bytes), count, "{tokens:?}");
        }
    }

    #[test]
    fn a_text_names_it_only_where_that_becomes_the_token() {
        let mut token = UnknownToken { number: 0, name: "<unk>".to_owned(), is_added: true };
        assert_eq!(token.mentions("the <unk> of <unk><unk> and <UNK>"), 3);
        token.is_added = false;
        assert_eq!(token.mentions("<unk>"), 0);
    }
}
