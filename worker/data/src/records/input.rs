//! A file's bytes, decompressed.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longhaul_common::config::{Column, DataFormat};

use super::{content, gzip, prose, text_names};
use crate::remote::{RemoteFile, RemoteReader};
use crate::{DataError, Recipe};

/// Bytes read from the disk at a time.
const BUFFER_BYTES: usize = 1 << 18;
/// The same where only the start of the file is needed.
const LOOK_BYTES: usize = 1 << 12;

/// The byte order mark (U+FEFF), which UTF-8 text may start with.
pub(crate) const MARK: &str = "\u{feff}";

/// Bytes of a file that identify its compression; for a zip archive they include the name of its first file.
const PACKING_BYTES: u64 = 128;

/// The largest zstd window allowed, as a power of two: that of `zstd --long=31`, 2 GiB. Only the part that holds content is touched.
const ZSTD_WINDOW_LOG_MAX: u32 = 31;

/// A file being read, with its position.
pub(crate) struct Input {
    pub(super) path: PathBuf,
    pub(super) reader: Box<dyn Read>,
    pub(super) position: Position,
    /// Bytes of the content skipped at the start.
    pub(super) left_out: u64,
    pub(super) packing: Option<Packing>,
}

/// The evidence for a file's compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Its first bytes.
    ByContent,
    /// The extension: numbers may begin with any bytes.
    ByName,
    /// None; the file is never decompressed. Tables are compressed internally.
    Never,
}

/// Compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Zstd,
    Gzip,
}

/// Whether a file's extension names a compression.
pub(crate) fn is_packed_by_name(path: &Path) -> bool {
    Packing::by_name(path).is_some()
}

impl Packing {
    fn by_name(path: &Path) -> Option<Self> {
        let end = path.extension().and_then(|end| end.to_str())?;
        match end {
            _ if end.eq_ignore_ascii_case("zst") => Some(Self::Zstd),
            _ if end.eq_ignore_ascii_case("gz") => Some(Self::Gzip),
            _ => None,
        }
    }

    /// Returns the extension of such files.
    fn ending(self) -> &'static str {
        match self {
            Self::Zstd => "zst",
            Self::Gzip => "gz",
        }
    }

    /// Detects compression by the first bytes: a zstd frame or skippable frame (RFC 8878), or a gzip member (RFC 1952).
    fn by_content(head: &[u8]) -> Option<Self> {
        match head {
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            _ => None,
        }
    }
}

/// Also the names of the command-line programs.
impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        })
    }
}

/// Returns a shell command, for messages, that runs a program on a file's content.
pub(super) fn command(packing: Option<Packing>, program: &str, out: &str) -> String {
    match packing {
        None => format!("`{program} IN > {out}`"),
        Some(packing) => format!("`{packing} -dc IN | {program} > {out}`"),
    }
}

impl Input {
    /// Opens a file; zstd and gzip are decompressed.
    pub(super) fn open(path: &Path, told: Told) -> Result<Self, DataError> {
        Self::buffered(path, told, BUFFER_BYTES)
    }

    /// The same with a small buffer, to look at the start.
    pub(super) fn look(path: &Path, told: Told) -> Result<Self, DataError> {
        Self::buffered(path, told, LOOK_BYTES)
    }

    fn buffered(path: &Path, told: Told, buffer: usize) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        Self::new(path, Box::new(file), told, buffer)
    }

    /// The same with a remote file.
    pub(super) fn remote(file: &RemoteFile, told: Told) -> Result<Self, DataError> {
        let failed = |source| DataError::Remote { url: file.shown.display().to_string(), source };
        Self::new(&file.shown, Box::new(RemoteReader::new(file).map_err(failed)?), told, BUFFER_BYTES)
    }

    /// Checks the start of the content, and skips the byte order mark of a text.
    pub(super) fn checked(mut self, recipe: &Recipe) -> Result<Self, DataError> {
        let is_text = recipe.format == DataFormat::Text;
        let looked_at = if is_text { prose::PROSE_BYTES } else { content::HEAD_BYTES };
        let mut head = Vec::with_capacity(looked_at);
        let read = self.reader.by_ref().take(looked_at as u64).read_to_end(&mut head);
        read.map_err(DataError::io("read", &self.path))?;
        let other = |what| DataError::OtherContent { path: self.path.clone(), what };
        if head.is_empty() && (self.packing.is_some() || begins_with_something(recipe)) {
            return Err(match self.packing {
                None => DataError::empty(&self.path),
                Some(packing) => {
                    other(format!("{packing} data of nothing: pack it anew, or take it out of the source"))
                }
            });
        }
        match self.packing {
            Some(packing) => check_packed_once(packing, &head, &self.path, recipe).map_err(other)?,
            None => check_packed_tokens(&head, recipe).map_err(other)?,
        }
        let is_by_name = is_text && !recipe.is_said;
        if is_by_name {
            content::check_name(&head, &self.path).map_err(other)?;
        }
        let first = &head[..head.len().min(content::HEAD_BYTES)];
        content::check(first, recipe.format, recipe.is_said).map_err(other)?;
        if is_text {
            prose::check_answer(&head).map_err(other)?;
        }
        if is_by_name {
            prose::check(&head).and_then(|()| text_names::check(&self.path)).map_err(other)?;
        }
        if recipe.format.is_text() && head.starts_with(MARK.as_bytes()) {
            self.left_out = MARK.len() as u64;
            head.drain(..MARK.len());
        }
        self.reader = Box::new(Cursor::new(head).chain(self.reader));
        Ok(self)
    }

    /// Whether the file is compressed and its content is empty. Decompression errors are left to the reader.
    pub(super) fn has_packed_nothing(mut self) -> bool {
        self.packing.is_some() && self.reader.read(&mut [0]).is_ok_and(|read| read == 0)
    }

    /// Returns up to `bytes_max` of the next bytes without consuming them.
    pub(super) fn ahead(&mut self, bytes_max: u64) -> Result<Vec<u8>, DataError> {
        let mut ahead = Vec::new();
        let read = self.reader.by_ref().take(bytes_max).read_to_end(&mut ahead);
        read.map_err(DataError::io("read", &self.path))?;
        let rest = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        self.reader = Box::new(Cursor::new(ahead.clone()).chain(rest));
        Ok(ahead)
    }

    /// The same with bytes in place of a file of this name.
    #[cfg(any(test, fuzzing, feature = "fuzz"))]
    pub(super) fn of_bytes(name: &str, bytes: &[u8]) -> Result<Self, DataError> {
        Self::new(Path::new(name), Box::new(Cursor::new(bytes.to_vec())), Told::ByContent, BUFFER_BYTES)
    }

    fn new(path: &Path, file: Box<dyn Read>, told: Told, buffer: usize) -> Result<Self, DataError> {
        let position = Position::default();
        let mut counted = BufReader::with_capacity(buffer, Counted { file, position: position.clone() });
        let mut head = Vec::new();
        let read = counted.by_ref().take(PACKING_BYTES).read_to_end(&mut head);
        read.map_err(DataError::io("read", path))?;
        if head.is_empty() && Packing::by_name(path).is_some() {
            return Err(DataError::empty(path));
        }
        let packing = match told {
            Told::ByName => Packing::by_name(path),
            Told::ByContent => packing(path, &head)?,
            Told::Never => None,
        };
        let whole = Cursor::new(head).chain(counted);
        let decoder: Box<dyn Read> = match packing {
            Some(Packing::Zstd) => {
                let mut decoder =
                    zstd::Decoder::with_buffer(whole).map_err(DataError::io("decompress", path))?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(DataError::io("decompress", path))?;
                Box::new(decoder)
            }
            Some(Packing::Gzip) => gzip::decompressed(whole)?,
            None => Box::new(whole),
        };
        let reader: Box<dyn Read> = match packing {
            Some(packing) => Box::new(Unpacked { decoder, packing, position: position.clone() }),
            None => decoder,
        };
        Ok(Self { path: path.to_owned(), reader, position, left_out: 0, packing })
    }
}

/// Whether an empty file violates its format. A text may be empty: folders of texts may contain empty files.
fn begins_with_something(recipe: &Recipe) -> bool {
    match recipe.format {
        DataFormat::Csv | DataFormat::Tsv => matches!(recipe.column, Column::Name(_)),
        DataFormat::Parquet | DataFormat::Arrow | DataFormat::Idx | DataFormat::Webdataset => true,
        DataFormat::Text
        | DataFormat::Jsonl
        | DataFormat::TokensU16
        | DataFormat::TokensU32
        | DataFormat::Images => false,
    }
}

/// Refuses a compressed file of tokens whose name does not show the compression: its compressed bytes would be read as tokens.
fn check_packed_tokens(head: &[u8], recipe: &Recipe) -> Result<(), String> {
    let are_by_name = recipe.format == DataFormat::TokensU16 && !recipe.is_said;
    let Some(packing) = Packing::by_content(head).filter(|_| are_by_name) else { return Ok(()) };
    Err(format!(
        "{packing} data, and its name does not end so: rename it to end with `.bin.{}`, and it is unpacked, or say format = \"tokens-u16\" if these are tokens all the same",
        packing.ending()
    ))
}

/// Refuses content that is compressed twice, unless the format is given as numbers, which may have any bytes.
fn check_packed_once(outer: Packing, head: &[u8], path: &Path, recipe: &Recipe) -> Result<(), String> {
    match recipe.format {
        DataFormat::TokensU32 => return Ok(()),
        DataFormat::TokensU16 if recipe.is_said => return Ok(()),
        _ => {}
    }
    if let Some(inner) = Packing::by_content(head) {
        return Err(format!(
            "packed twice, with {inner} and then with {outer}: unpack it once (`{outer} -dc IN > OUT`), and what comes of it can be read"
        ));
    }
    content::check_packing(head, path).map_err(|inner| {
        format!("packed twice: within its {outer} data (`{outer} -dc IN > OUT` unpacks it) is {inner}")
    })
}

/// Returns the compression of a file; refuses one whose extension contradicts its first bytes.
fn packing(path: &Path, head: &[u8]) -> Result<Option<Packing>, DataError> {
    let other = |what: String| DataError::OtherContent { path: path.to_owned(), what };
    content::check_packing(head, path).map_err(other)?;
    let found = Packing::by_content(head);
    match Packing::by_name(path) {
        Some(Packing::Zstd) if found.is_none() => {
            Err(other("no zstd file, though its name ends so: rename it, or get it anew".to_owned()))
        }
        Some(Packing::Gzip) if found.is_none() => {
            Err(other("no gzip file, though its name ends so: rename it, or get it anew".to_owned()))
        }
        // The first bytes identify these formats unless they are cut off.
        None if found.is_none() && OTHER_ENDINGS.iter().any(|ending| has_ending(path, ending)) => Err(other(
            "no packed file that is known, though its name ends so: rename it, or get it anew".to_owned(),
        )),
        _ => Ok(found),
    }
}

/// Extensions of unsupported compressions.
const OTHER_ENDINGS: [&str; 11] = ["7z", "br", "bz2", "lz", "lz4", "lzma", "rar", "sz", "xz", "z", "zip"];

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case(ending))
}

/// Progress in a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Position(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    read: AtomicU64,
    unpacked: AtomicU64,
    /// Whether reading the file failed, as opposed to unpacking it.
    has_failed: AtomicBool,
}

impl Position {
    /// Returns the bytes of the file read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.0.read.load(Ordering::Relaxed)
    }

    /// The same for its content: the decompressed bytes of a compressed file, where these are more.
    pub(super) fn content_bytes(&self) -> u64 {
        self.bytes().max(self.0.unpacked.load(Ordering::Relaxed))
    }
}

struct Counted {
    file: Box<dyn Read>,
    position: Position,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer).inspect_err(|error| {
            let is_failure = error.kind() != io::ErrorKind::Interrupted;
            self.position.0.has_failed.fetch_or(is_failure, Ordering::Relaxed);
        })?;
        self.position.0.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Reader of a compressed file, which reports a premature end and damage as such.
struct Unpacked {
    decoder: Box<dyn Read>,
    packing: Packing,
    position: Position,
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.decoder.read(buffer).map_err(|error| match error.kind() {
            // The reader would otherwise take it for the end of the content.
            io::ErrorKind::UnexpectedEof => io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "it is cut off at byte {}, before its {} data ends: fetch it again",
                    self.position.bytes(),
                    self.packing
                ),
            ),
            // Those of the libraries. Others have their remedy.
            io::ErrorKind::InvalidInput | io::ErrorKind::Other
                if !self.position.0.has_failed.load(Ordering::Relaxed) =>
            {
                io::Error::new(io::ErrorKind::InvalidData, self.damaged(&error))
            }
            _ => error,
        })?;
        self.position.0.unpacked.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl Unpacked {
    /// Returns the message for a library's error, with a remedy.
    fn damaged(&self, error: &io::Error) -> String {
        let packing = self.packing;
        if error.to_string().contains("Dictionary") {
            return format!(
                "its {packing} data needs a dictionary ({error}): unpack it with that (`zstd -dc -D DICTIONARY IN > OUT`)"
            );
        }
        format!(
            "its {packing} data is damaged at byte {} or before it ({error}): fetch it again, or pack it anew",
            self.position.bytes()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (Vec<u8>, u64) {
        let recipe = Recipe::plain(DataFormat::Text);
        let mut input = Input::of_bytes("a.txt", bytes).unwrap().checked(&recipe).unwrap();
        let mut content = Vec::new();
        input.reader.read_to_end(&mut content).unwrap();
        (content, input.left_out)
    }

    #[test]
    fn one_mark_is_left_out_at_the_beginning_and_none_elsewhere() {
        for (bytes, content, left_out) in [
            ("\u{feff}text", "text", 3),
            ("\u{feff}", "", 3),
            ("\u{feff}\u{feff}text", "\u{feff}text", 3),
            ("te\u{feff}xt", "te\u{feff}xt", 0),
            ("ab", "ab", 0),
            ("", "", 0),
        ] {
            assert_eq!(read(bytes.as_bytes()), (content.as_bytes().to_vec(), left_out), "{bytes:?}");
        }
        // Texts that start with only some bytes of the mark.
        for bytes in [&b"\xef\xbb"[..], b"\xef\xbb\xbe"] {
            assert_eq!(read(bytes), (bytes.to_vec(), 0));
        }
    }

    #[test]
    fn content_is_counted_as_it_is_unpacked() {
        let text = "one\ntwo\n".repeat(10_000).into_bytes();
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        for (bytes, content) in [(&text, text.len()), (&zstd, text.len())] {
            let mut input = Input::of_bytes("a.txt", bytes).unwrap();
            input.reader.read_to_end(&mut Vec::new()).unwrap();
            let read = (input.position.bytes(), input.position.content_bytes());
            assert_eq!(read, (bytes.len() as u64, content as u64));
        }
    }

    /// Any name is allowed unless it contradicts the content.
    #[test]
    fn what_a_file_is_packed_with_is_told_by_its_first_bytes() {
        let text = "one\ntwo\n".repeat(100).into_bytes();
        let zstd = zstd::encode_all(&text[..], 3).unwrap();
        let skipped = [&b"\x50\x2a\x4d\x18\x04\0\0\0abcd"[..], &zstd].concat();
        let content = |name: &str, bytes: &[u8]| {
            let mut content = Vec::new();
            let input = Input::of_bytes(name, bytes).map_err(|error| error.to_string())?;
            input
                .checked(&Recipe::plain(DataFormat::Text))
                .unwrap()
                .reader
                .read_to_end(&mut content)
                .unwrap();
            Ok::<_, String>(content)
        };
        for (name, bytes) in
            [("a.txt", &text), ("a.txt", &zstd), ("a.zst", &zstd), ("a.gz", &zstd), ("a", &skipped)]
        {
            assert_eq!(content(name, bytes).unwrap(), text, "{name}");
        }
        for name in ["a.gz", "a.txt.zst", "a.GZ"] {
            assert!(content(name, &text).unwrap_err().contains("though its name ends so"), "{name}");
            assert!(content(name, b"").unwrap_err().contains("is empty (0 bytes)"), "{name}");
        }
        for name in ["a.bz2", "a.txt.XZ", "a.zip"] {
            assert!(content(name, b"BZh9").unwrap_err().contains("no packed file that is known"), "{name}");
        }
        let xz = [&b"\xfd7zXZ\0"[..], &text].concat();
        assert!(content("a.txt", &xz).unwrap_err().contains("a.txt is an xz file: unpack it"));
    }
}
