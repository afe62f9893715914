//! A text file, in chunks of bounded size.

use std::io::Read;
use std::path::PathBuf;

use super::encoding::NotUtf8;
use super::input::{Input, Packing, Position};
use super::{Record, Records};
use crate::DataError;

/// Bytes of text that are tokenised at a time: tokenizers work on whole chunks, and a text may exceed the memory.
const CHUNK_BYTES: usize = 1 << 20;

/// The chunks of a text. Each ends with a line where it can: so most tokenizers see the same words as in the whole text.
pub(super) struct TextChunks {
    path: PathBuf,
    source: Box<dyn Read>,
    position: Position,
    buffer: Vec<u8>,
    offset: u64,
    chunk_bytes: usize,
    /// What stands behind the last chunk, and, where there is such, the chunk that comes next.
    end: String,
    next: Option<String>,
    packing: Option<Packing>,
    /// Whether there was a chunk with characters beyond ASCII.
    has_characters: bool,
}

impl TextChunks {
    pub(super) fn new(input: Input) -> Self {
        Self::with_chunks(input, CHUNK_BYTES)
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
            end: String::new(),
            next: None,
            packing,
            has_characters: false,
        }
    }

    /// The same with this behind its last chunk. A file without text has none.
    pub(super) fn ending_with(self, end: &str) -> Self {
        Self { end: end.to_owned(), ..self }
    }

    /// The next chunk; none at the end.
    fn next_chunk(&mut self) -> Result<Option<String>, DataError> {
        let missing = self.chunk_bytes.saturating_sub(self.buffer.len()) as u64;
        let read = self.source.by_ref().take(missing).read_to_end(&mut self.buffer);
        let at_end = (read.map_err(DataError::io("read", &self.path))? as u64) < missing;
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let end = if at_end { self.buffer.len() } else { self.cut() };
        let rest = self.buffer.split_off(end);
        let chunk = String::from_utf8(std::mem::replace(&mut self.buffer, rest)).map_err(|error| {
            let found = NotUtf8::new(error.as_bytes(), error.utf8_error(), self.has_characters);
            let (offset, remedy) = (self.offset + found.offset as u64, found.remedy(self.packing));
            DataError::NotUtf8 { path: self.path.clone(), offset, byte: found.byte, remedy }
        })?;
        self.offset += chunk.len() as u64;
        self.has_characters = self.has_characters || !chunk.is_ascii();
        Ok(Some(chunk))
    }

    /// After the last line break of the buffer, or else after its last whole character.
    fn cut(&self) -> usize {
        if let Some(at) = self.buffer.iter().rposition(|&byte| byte == b'\n') {
            return at + 1;
        }
        match str::from_utf8(&self.buffer) {
            Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
            // Whole, or not UTF-8 at all, which the caller reports.
            _ => self.buffer.len(),
        }
    }
}

impl Records for TextChunks {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        let next = match self.next.take() {
            Some(chunk) => Some(chunk),
            None => self.next_chunk()?,
        };
        let Some(mut chunk) = next else { return Ok(None) };
        // Whether it is the last one is known when there is none behind it.
        if !self.end.is_empty() {
            self.next = self.next_chunk()?;
            if self.next.is_none() {
                chunk += &self.end;
            }
        }
        Ok(Some(Record::Text(chunk)))
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
    use crate::Recipe;

    fn chunks(text: &[u8], chunk_bytes: usize) -> Result<Vec<String>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, text).unwrap();
        let input = Input::open(&path, Told::ByContent)?.checked(&Recipe::plain(DataFormat::Text))?;
        let mut source = TextChunks::with_chunks(input, chunk_bytes);
        std::iter::from_fn(|| source.next_chunk().transpose()).collect()
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
            // As long as one chunk, and as two.
            ("abcdefg", "abcdefg|"),
            ("abcdef\nabcdef\n", "abcdef\nabcdef\n|"),
            ("\u{feff}a", "a|"),
            ("\u{feff}", ""),
            ("", ""),
        ] {
            let recipe = Recipe::plain(DataFormat::Text);
            let input = Input::of_bytes("a.txt", text.as_bytes()).unwrap().checked(&recipe).unwrap();
            let mut source = TextChunks::with_chunks(input, 7).ending_with("|");
            let chunks = std::iter::from_fn(|| source.next_record().transpose()).map(|record| {
                let Record::Text(text) = record.unwrap() else { panic!("a text has nothing else") };
                text
            });
            assert_eq!(chunks.collect::<String>(), expected, "{text:?}");
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
        let mut source = TextChunks::new(Input::open(&path, Told::ByContent).unwrap());
        assert_eq!(source.next_chunk().unwrap().unwrap(), text);
        std::fs::write(&path, &packed[..packed.len() - 5]).unwrap();
        assert!(TextChunks::new(Input::open(&path, Told::ByContent).unwrap()).next_chunk().is_err());
    }
}
