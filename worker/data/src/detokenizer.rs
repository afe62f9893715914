//! Incremental decoding of tokens to text.

use super::Tokenizer;

/// Upper bound of tokens held back because their text ends within a character. A character has at most four bytes, and a token at
/// least one; the margin is for tokens without valid text, which are shown as such beyond it.
const HELD_TOKENS_MAX: usize = 16;

/// Returns the text of tokens as soon as its characters are complete; the joined pieces equal
/// [`Tokenizer::decode`] of all tokens at once.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    /// The tokens emitted last, which determine the white space before the next, and those held back.
    tokens: Vec<u32>,
    /// Number of `tokens` already emitted.
    given: usize,
}

impl<'a> Detokenizer<'a> {
    /// Creates a detokenizer for tokens that follow an already shown text.
    #[must_use]
    pub fn after(tokenizer: &'a Tokenizer, shown: &[u32]) -> Self {
        Self { tokenizer, tokens: shown.to_vec(), given: shown.len() }
    }

    /// Returns the text that `token` completes, possibly empty.
    ///
    /// # Errors
    /// The error of the `tokenizers` library.
    pub fn push(&mut self, token: u32) -> Result<String, String> {
        self.tokens.push(token);
        let text = self.held()?;
        let whole = !text.ends_with(char::REPLACEMENT_CHARACTER);
        if !whole && self.tokens.len() - self.given < HELD_TOKENS_MAX {
            return Ok(String::new());
        }
        self.tokens.drain(..self.given);
        self.given = self.tokens.len();
        Ok(text)
    }

    /// Returns the text still held back, which ends within a character or with an invalid one.
    ///
    /// # Errors
    /// The error of the `tokenizers` library.
    pub fn finish(self) -> Result<String, String> {
        self.held()
    }

    fn held(&self) -> Result<String, String> {
        let before = self.tokenizer.decode(&self.tokens[..self.given])?;
        let text = self.tokenizer.decode(&self.tokens)?;
        // They differ before the end of the first if a decoder looks back at emitted text.
        let same = before.chars().zip(text.chars()).take_while(|(a, b)| a == b);
        let same: usize = same.map(|(character, _)| character.len_utf8()).sum();
        Ok(text[same..].to_owned())
    }
}

#[cfg(test)]
#[cfg(feature = "tokenizers")]
mod tests {
    use super::*;

    /// A byte-level BPE without merges over a few bytes, written as its 256 printable characters.
    const BYTE_LEVEL: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,
        "truncation":null,"padding":null,
        "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false},
        "decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false},
        "model":{"type":"BPE","vocab":{"a":0,"Ġ":1,"Ã":2,"±":3,"â":4,"Ĥ":5,"¬":6},"merges":[]}}"#;
    const WORDS: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,
        "truncation":null,"padding":null,"pre_tokenizer":{"type":"Whitespace"},
        "model":{"type":"WordLevel","vocab":{"[unk]":0,"one":1,"two":2},"unk_token":"[unk]"}}"#;

    fn json(content: &str) -> Tokenizer {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, content).unwrap();
        Tokenizer::load(path.to_str().unwrap()).unwrap()
    }

    /// Returns the emitted pieces, with the rest at the end.
    fn pieces(tokenizer: &Tokenizer, shown: &[u32], tokens: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::after(tokenizer, shown);
        let mut pieces: Vec<String> = tokens.iter().map(|&token| detokenizer.push(token).unwrap()).collect();
        pieces.push(detokenizer.finish().unwrap());
        pieces
    }

    #[test]
    fn a_character_comes_out_when_its_last_byte_is_there() {
        let euro = Tokenizer::Bytes.encode("añ€").unwrap();
        assert_eq!(pieces(&Tokenizer::Bytes, &[97], &euro), ["a", "", "ñ", "", "", "€", ""]);
        let byte_level = json(BYTE_LEVEL);
        let tokens = byte_level.encode("a ñ€").unwrap();
        assert_eq!(tokens, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(pieces(&byte_level, &[0], &tokens), ["a", " ", "", "ñ", "", "", "€", ""]);
    }

    #[test]
    fn the_space_before_a_word_depends_on_what_was_shown() {
        assert_eq!(pieces(&json(WORDS), &[1, 2], &[1, 2, 2]), [" one", " two", " two", ""]);
    }

    #[test]
    fn what_is_no_text_is_shown_as_such() {
        assert_eq!(pieces(&Tokenizer::Bytes, &[97], &[0xff, 98, 0xc3]), ["", "\u{fffd}b", "", "\u{fffd}"]);
        let never = pieces(&Tokenizer::Bytes, &[97], &[0xff; HELD_TOKENS_MAX + 1]);
        assert_eq!(never[HELD_TOKENS_MAX - 1], "\u{fffd}".repeat(HELD_TOKENS_MAX));
        assert_eq!(never[HELD_TOKENS_MAX..], ["", "\u{fffd}"]);
    }

    #[test]
    fn the_pieces_together_are_the_text_of_all_tokens() {
        for (tokenizer, vocabulary) in [(json(BYTE_LEVEL), 7), (json(WORDS), 3)] {
            // All sequences of four tokens after a shown one.
            for number in 0..u32::pow(vocabulary, 5) {
                let all: Vec<u32> = (0..5).map(|place| number / vocabulary.pow(place) % vocabulary).collect();
                let shown = tokenizer.decode(&all[..1]).unwrap();
                if shown.contains(char::REPLACEMENT_CHARACTER) {
                    continue;
                }
                let text = shown + &pieces(&tokenizer, &all[..1], &all[1..]).concat();
                assert_eq!(text, tokenizer.decode(&all).unwrap(), "{all:?}");
            }
        }
    }
}
