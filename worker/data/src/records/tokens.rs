//! Existing tokens, as a file of numbers.

use std::io::Read;
use std::path::PathBuf;

use longhaul_common::config::DataConfig;

use super::input::{Input, Position};
use super::width::{self, WideNumbers};
use super::{Record, Records};
use crate::DataError;

/// Bytes of a file per record: a multiple of either width.
const CHUNK_BYTES: usize = 1 << 20;

/// Numbers of two or four bytes, little-endian.
pub(super) struct Tokens {
    path: PathBuf,
    reader: Box<dyn Read>,
    position: Position,
    width: usize,
    vocabulary: u32,
    read: u64,
    /// Width detection, if only the name gives the width.
    wide: Option<WideNumbers>,
    /// Consecutive zeros read last.
    zeros: u64,
}

/// Consecutive zeros that rule out tokens: a preallocated file left unfilled, as by `numpy.memmap`.
const ZEROS_MAX: u64 = 1 << 14;

impl Tokens {
    pub(super) fn new(input: Input, width: usize, vocabulary: u32) -> Self {
        let Input { path, reader, position, .. } = input;
        Self { path, reader, position, width, vocabulary, read: 0, wide: None, zeros: 0 }
    }

    /// Reads two-byte numbers as the file's name declares, and scans all of it for wider ones.
    pub(super) fn by_name(input: Input, vocabulary: u32) -> Self {
        Self { wide: Some(WideNumbers::default()), ..Self::new(input, 2, vocabulary) }
    }

    fn malformed(&self, index: u64, reason: String) -> DataError {
        DataError::Malformed {
            path: self.path.clone(),
            format: if self.width == 2 { "tokens-u16" } else { "tokens-u32" },
            place: format!("token {index}"),
            reason,
        }
    }

    /// Refuses long runs of zeros.
    fn check_zeros(&mut self, tokens: &[u32], first: u64) -> Result<(), DataError> {
        for (index, token) in (first..).zip(tokens) {
            self.zeros = if *token == 0 { self.zeros + 1 } else { 0 };
            if self.zeros > ZEROS_MAX {
                let reason = format!(
                    "{} zeros are in a row up to here, as in a file that was laid out and not filled: write it anew; or say format = \"tokens-u16\" if that is a token",
                    self.zeros
                );
                return Err(self.malformed(index, reason));
            }
        }
        Ok(())
    }

    /// Returns the message for an invalid token, with a remedy.
    fn beyond(&self, token: u32, tokens: &[u32]) -> String {
        if self.are_swapped(tokens) {
            let bytes = self.width;
            return format!(
                "{token} is beyond the tokenizer's vocabulary of {}, and with the other order of bytes (big-endian) all tokens are within it: `numpy.fromfile(IN, '>u{bytes}').astype('<u{bytes}').tofile(OUT)` writes them in the order that is read",
                self.vocabulary
            );
        }
        let signed = token.cast_signed();
        if self.width == 4 && (NEGATIVE_MIN..0).contains(&signed) {
            return format!(
                "{token} is {signed} as a signed number, and no token: such numbers mask targets in files of labels; name the file of the tokens"
            );
        }
        let default = match self.vocabulary {
            DataConfig::BYTES_VOCABULARY => " (by default it is \"bytes\", which has no more)",
            _ => "",
        };
        let other = if self.width == 2 { "u32" } else { "u16" };
        format!(
            "{token} is beyond the tokenizer's vocabulary of {}: name in data.tokenizer{default} the one that these tokens were made with, as the model's vocabulary is its; \
             or say format = \"tokens-{other}\" if that is how wide they are",
            self.vocabulary
        )
    }
}

/// Lowest number that masks targets: PyTorch's `ignore_index` is -100.
const NEGATIVE_MIN: i32 = -100;
/// Minimum of tokens to decide their byte order.
const SWAPPED_MIN: usize = 8;

impl Tokens {
    /// Whether many tokens are all in the vocabulary after a byte swap.
    fn are_swapped(&self, tokens: &[u32]) -> bool {
        let swapped = |token: &u32| token.swap_bytes() >> (32 - 8 * self.width as u32);
        tokens.len() >= SWAPPED_MIN && tokens.iter().all(|token| swapped(token) < self.vocabulary)
    }
}

impl Records for Tokens {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        let mut bytes = Vec::new();
        let read = self.reader.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut bytes);
        read.map_err(DataError::io("read", &self.path))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let tokens: Vec<u32> = bytes.chunks(self.width).map(number).collect();
        let first = self.read;
        self.read += tokens.len() as u64;
        if !bytes.len().is_multiple_of(self.width) {
            let reason = format!(
                "it ends within a number of {} bytes: it was cut off, or has numbers of another width or something else",
                self.width
            );
            return Err(self.malformed(self.read - 1, reason));
        }
        if let Some(wide) = &mut self.wide {
            let other = |what| DataError::OtherContent { path: self.path.clone(), what };
            wide.see(&tokens).map_err(other)?;
            self.check_zeros(&tokens, first)?;
        }
        if first == 0 && self.width == 2 && self.wide.is_none() {
            let other = |what| DataError::OtherContent { path: self.path.clone(), what };
            width::check_said(&tokens).map_err(other)?;
        }
        if let Some(at) = tokens.iter().position(|token| *token >= self.vocabulary) {
            return Err(self.malformed(first + at as u64, self.beyond(tokens[at], &tokens)));
        }
        Ok(Some(Record::Tokens(tokens)))
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.position.content_bytes()
    }
}

/// Decodes a number of up to four bytes.
fn number(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(word)
}
