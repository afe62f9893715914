//! A text file, in chunks of bounded size.

use std::io::{self, Read};
use std::path::PathBuf;

use super::cuts::{Cuts, nowhere};
use super::encoding::NotUtf8;
use super::input::{Input, Packing, Position};
use super::{Record, Records, faults};
use crate::bounds::UNCUT_BYTES_MAX;
use crate::{DataError, Recipe};

/// Bytes of text tokenised at a time: tokenizers work on whole chunks, and a text may exceed memory.
const CHUNK_BYTES: usize = 1 << 20;

/// The chunks of a text, whose joined tokens equal those of the whole: each ends with a line if possible, where the tokenizer permits a cut.
pub(super) struct TextChunks {
    path: PathBuf,
    source: Box<dyn Read>,
    position: Position,
    buffer: Vec<u8>,
    offset: u64,
    chunk_bytes: usize,
    /// Permitted cuts; `None`: at any line, or else anywhere.
    cuts: Option<Cuts>,
    /// The end of the last chunk, if the next one depends on it.
    before: Option<String>,
    /// The separator after the last chunk, and the next chunk if it is read already.
    end: String,
    next: Option<Record>,
    packing: Option<Packing>,
    /// Whether a chunk had characters beyond ASCII.
    has_characters: bool,
    /// Whether the configuration sets the format.
    is_said: bool,
}

impl TextChunks {
    /// Returns the chunks of a file, with the recipe's separator after the last one. An empty file has none.
    pub(super) fn new(input: Input, recipe: &Recipe) -> Self {
        let (cuts, end) = (Cuts::new(&recipe.tokenizer, &recipe.separator), recipe.separator.clone());
        Self { cuts, end, is_said: recipe.is_said, ..Self::with_chunks(input, CHUNK_BYTES) }
    }

    /// Returns chunks of `chunk_bytes`, or more up to the next permitted cut.
    #[cfg(all(test, feature = "tokenizers"))]
    pub(super) fn with_cuts(input: Input, chunk_bytes: usize, cuts: Option<Cuts>) -> Self {
        Self { cuts, ..Self::with_chunks(input, chunk_bytes) }
    }

    pub(super) fn with_chunks(input: Input, chunk_bytes: usize) -> Self {
        let Input { path, reader, position, left_out, packing } = input;
        Self {
            path,
            source: reader,
            position,
            buffer: Vec::new(),
            offset: left_out,
            chunk_bytes,
            cuts: None,
            before: None,
            end: String::new(),
            next: None,
            packing,
            has_characters: false,
            is_said: false,
        }
    }

    /// Returns the next chunk; `None` at the end.
    fn next_chunk(&mut self) -> Result<Option<Record>, DataError> {
        let Some(end) = self.read()? else { return Ok(None) };
        let rest = self.buffer.split_off(end);
        let chunk = String::from_utf8(std::mem::replace(&mut self.buffer, rest)).map_err(|error| {
            let found = NotUtf8::new(error.as_bytes(), error.utf8_error(), self.has_characters);
            let (offset, remedy) = (self.offset + found.offset as u64, found.remedy(self.packing));
            DataError::NotUtf8 { path: self.path.clone(), offset, byte: found.byte, remedy }
        })?;
        if let Some((at, reason)) = faults::found_in(&chunk) {
            return Err(DataError::Malformed {
                path: self.path.clone(),
                format: "text",
                place: format!("byte {}", self.offset + at as u64),
                reason: reason.to_owned(),
            });
        }
        if let Some(what) = faults::seven_bits(&chunk).filter(|_| !self.is_said) {
            return Err(DataError::OtherContent { path: self.path.clone(), what: what.to_owned() });
        }
        self.offset += chunk.len() as u64;
        self.has_characters = self.has_characters || !chunk.is_ascii();
        let before = self.before.as_deref().unwrap_or_default();
        let next = self.cuts.as_ref().map(|cuts| cuts.context(before, &chunk));
        Ok(Some(match std::mem::replace(&mut self.before, next) {
            Some(before) => Record::Continued { before, text: chunk },
            None => Record::Text(chunk),
        }))
    }

    /// Fills the buffer, and returns the end of its first chunk; `None` at the end. A chunk without a permitted cut grows, within bounds.
    fn read(&mut self) -> Result<Option<usize>, DataError> {
        let mut wanted = self.chunk_bytes;
        loop {
            let missing = wanted.saturating_sub(self.buffer.len()) as u64;
            let read = self.source.by_ref().take(missing).read_to_end(&mut self.buffer);
            let at_end = (read.map_err(DataError::io("read", &self.path))? as u64) < missing;
            if at_end {
                return Ok((!self.buffer.is_empty()).then_some(self.buffer.len()));
            }
            if let Some(end) = self.cut()? {
                return Ok(Some(end));
            }
            if wanted as u64 >= UNCUT_BYTES_MAX {
                return Err(nowhere(&self.path, self.offset, wanted));
            }
            wanted *= 2;
        }
    }

    /// Returns the last cut permitted by the tokenizer: see [`Cuts::last`]. Without a tokenizer, cuts after the last line break of the buffer, or else after its
    /// last whole character.
    fn cut(&self) -> Result<Option<usize>, DataError> {
        let valid = match str::from_utf8(&self.buffer) {
            Ok(text) => text,
            Err(error) if error.error_len().is_none() => {
                str::from_utf8(&self.buffer[..error.valid_up_to()]).unwrap_or_default()
            }
            // The caller reports it.
            Err(_) => return Ok(Some(self.buffer.len())),
        };
        let Some(cuts) = &self.cuts else {
            let end = self.buffer.iter().rposition(|&byte| byte == b'\n').map_or(valid.len(), |at| at + 1);
            // Not even one character.
            return Ok(Some(if end == 0 { self.buffer.len() } else { end }));
        };
        let refused = |reason: String| DataError::io("tokenize", &self.path)(io::Error::other(reason));
        cuts.last(self.before.as_deref().unwrap_or_default(), valid).map_err(refused)
    }
}

impl Records for TextChunks {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        let next = match self.next.take() {
            Some(record) => Some(record),
            None => self.next_chunk()?,
        };
        let Some(mut record) = next else { return Ok(None) };
        // The last chunk is known only after reading ahead.
        if !self.end.is_empty() {
            self.next = self.next_chunk()?;
            if let (None, Record::Text(text) | Record::Continued { text, .. }) = (&self.next, &mut record) {
                text.push_str(&self.end);
            }
        }
        Ok(Some(record))
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.position.content_bytes()
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::DataFormat;

    use super::super::input::Told;
    use super::*;

    fn chunks(text: &[u8], chunk_bytes: usize) -> Result<Vec<String>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, text).unwrap();
        let input = Input::open(&path, Told::ByContent)?.checked(&Recipe::plain(DataFormat::Text))?;
        texts(TextChunks::with_chunks(input, chunk_bytes))
    }

    fn texts(mut source: TextChunks) -> Result<Vec<String>, DataError> {
        let records = std::iter::from_fn(|| source.next_record().transpose());
        records.map(|record| record.map(|record| record.as_text().unwrap().1.to_owned())).collect()
    }

    #[test]
    fn chunks_end_with_lines_and_never_within_a_character() {
        assert_eq!(chunks("ab\ncd\nef".as_bytes(), 7).unwrap(), ["ab\ncd\n", "ef"]);
        let long = "äöü€𝄞".repeat(50);
        for chunk_bytes in 4..20 {
            let parts = chunks(long.as_bytes(), chunk_bytes).unwrap();
            assert!(parts.len() > 10 && parts.iter().all(|part| part.len() <= chunk_bytes));
            assert_eq!(parts.concat(), long);
        }
        assert!(chunks(b"", 8).unwrap().is_empty());
    }

    #[test]
    fn what_ends_a_text_stands_behind_its_last_chunk_alone() {
        for (text, expected) in [
            ("ab\ncd\nef", "ab\ncd\nef|"),
            ("ab\ncd\n", "ab\ncd\n|"),
            // One chunk long, and two.
            ("abcdefg", "abcdefg|"),
            ("abcdef\nabcdef\n", "abcdef\nabcdef\n|"),
            ("\u{feff}a", "a|"),
            ("\u{feff}", ""),
            ("", ""),
        ] {
            let recipe = Recipe::plain(DataFormat::Text);
            let input = Input::of_bytes("a.txt", text.as_bytes()).unwrap().checked(&recipe).unwrap();
            let source = TextChunks { end: "|".to_owned(), ..TextChunks::with_chunks(input, 7) };
            assert_eq!(texts(source).unwrap().concat(), expected, "{text:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused_with_their_place() {
        for chunk_bytes in [4, 8, 100] {
            let message = chunks(b"fine\nfine\nb\xe4d\n", chunk_bytes).unwrap_err().to_string();
            assert!(message.contains("not UTF-8 at byte 11") && message.contains("iconv"), "{message}");
        }
        let marked = chunks(b"\xef\xbb\xbffine\nb\xe4d\n", 4).unwrap_err().to_string();
        assert!(marked.contains("not UTF-8 at byte 9"), "{marked}");
        assert!(chunks(b"cut off \xe2\x82", 100).unwrap_err().to_string().contains("byte 8"));
    }

    #[test]
    fn a_compressed_text_reads_like_a_plain_one_and_a_truncated_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.zst");
        let text = "all work and no play\n".repeat(1000);
        let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
        std::fs::write(&path, &packed).unwrap();
        let open = || {
            let input = Input::open(&path, Told::ByContent).unwrap();
            TextChunks::with_chunks(input, CHUNK_BYTES)
        };
        assert_eq!(texts(open()).unwrap(), [text]);
        std::fs::write(&path, &packed[..packed.len() - 5]).unwrap();
        assert!(texts(open()).is_err());
    }
}
