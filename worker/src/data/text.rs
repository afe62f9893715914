//! A text file, plain or compressed, in pieces of bounded size.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::DataError;

/// Bytes of text held at a time: tokenizers work on whole pieces, and a text may exceed the memory.
const PIECE_BYTES: usize = 1 << 20;

/// The pieces of a text. Each ends with a line where it can: so most tokenizers see the same words as in the whole text.
pub(super) struct TextPieces {
    path: PathBuf,
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    offset: u64,
    piece_bytes: usize,
}

impl TextPieces {
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        Self::open_with(path, PIECE_BYTES)
    }

    fn open_with(path: &Path, piece_bytes: usize) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        let source: Box<dyn Read> = if path.extension().is_some_and(|extension| extension == "zst") {
            Box::new(zstd::Decoder::new(file).map_err(DataError::io("decompress", path))?)
        } else {
            Box::new(BufReader::new(file))
        };
        Ok(Self { path: path.to_owned(), source, buffer: Vec::new(), offset: 0, piece_bytes })
    }

    /// The next piece; none at the end.
    pub(super) fn next_piece(&mut self) -> Result<Option<String>, DataError> {
        let missing = self.piece_bytes.saturating_sub(self.buffer.len()) as u64;
        let read = self.source.by_ref().take(missing).read_to_end(&mut self.buffer);
        let at_end = (read.map_err(DataError::io("read", &self.path))? as u64) < missing;
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let end = if at_end { self.buffer.len() } else { self.cut() };
        let rest = self.buffer.split_off(end);
        let piece = String::from_utf8(std::mem::replace(&mut self.buffer, rest)).map_err(|error| {
            let offset = self.offset + error.utf8_error().valid_up_to() as u64;
            DataError::NotUtf8 { path: self.path.clone(), offset }
        })?;
        self.offset += piece.len() as u64;
        Ok(Some(piece))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &[u8], piece_bytes: usize) -> Result<Vec<String>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, text).unwrap();
        let mut source = TextPieces::open_with(&path, piece_bytes)?;
        std::iter::from_fn(|| source.next_piece().transpose()).collect()
    }

    #[test]
    fn pieces_end_with_lines_and_never_within_a_character() {
        assert_eq!(pieces("ab\ncd\nef".as_bytes(), 7).unwrap(), ["ab\ncd\n", "ef"]);
        let long = "äöü€𝄞".repeat(50);
        for piece_bytes in 4..20 {
            let parts = pieces(long.as_bytes(), piece_bytes).unwrap();
            assert!(parts.len() > 10 && parts.iter().all(|part| part.len() <= piece_bytes));
            assert_eq!(parts.concat(), long);
        }
        assert!(pieces(b"", 8).unwrap().is_empty());
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused_with_their_place() {
        for piece_bytes in [4, 8, 100] {
            let message = pieces(b"fine\nfine\nb\xe4d\n", piece_bytes).unwrap_err().to_string();
            assert!(message.contains("not UTF-8 at byte 11") && message.contains("iconv"), "{message}");
        }
        assert!(pieces(b"cut off \xe2\x82", 100).unwrap_err().to_string().contains("byte 8"));
    }

    #[test]
    fn a_compressed_text_reads_like_a_plain_one_and_a_truncated_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.zst");
        let text = "all work and no play\n".repeat(1000);
        let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
        std::fs::write(&path, &packed).unwrap();
        let mut source = TextPieces::open(&path).unwrap();
        assert_eq!(source.next_piece().unwrap().unwrap(), text);
        std::fs::write(&path, &packed[..packed.len() - 5]).unwrap();
        assert!(TextPieces::open(&path).unwrap().next_piece().is_err());
    }
}
