//! The index of Megatron-LM beside a file of tokens (`a.idx` beside `a.bin`), which lists the type of its numbers, and the length and place of each sequence.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use indicatif::HumanCount;
use longhaul_common::config::DataFormat;

use super::DataError;
use super::counted::counted;
use super::records::is_packed_by_name;

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
/// The only version that Megatron-LM writes and reads.
const VERSION: u64 = 1;
/// Bytes read from the disk at a time.
const BUFFER_BYTES: usize = 1 << 16;
/// Bytes before the lengths: magic, version, type, and the numbers of sequences and documents.
const HEAD_BYTES: u64 = 9 + 8 + 1 + 8 + 8;

/// The part of an index that must agree with its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TokenIndex {
    /// Code of the type of the numbers.
    kind: u8,
    /// Sum of the lengths of all sequences.
    tokens: u64,
    sequences: u64,
    documents: u64,
}

/// A sequence that does not begin at the end of those before it, in bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Misplaced {
    sequence: u64,
    begins: i64,
    expected: u64,
}

/// Refuses a local file of tokens whose index contradicts it. Files without an index of Megatron-LM are accepted. The length of a packed file is not
/// compared.
///
/// # Errors
/// Names the file, its index and the remedy.
pub(super) fn check(path: &Path, format: DataFormat, is_said: bool) -> Result<(), DataError> {
    let is_packed = is_packed_by_name(path);
    let content = if is_packed { path.with_extension("") } else { path.to_owned() };
    let is_named = content.extension().is_some_and(|end| end.eq_ignore_ascii_case("bin"));
    // A missing file is reported when it is opened.
    let Some(file) = std::fs::metadata(path).ok().filter(|_| is_named) else { return Ok(()) };
    let beside = content.with_extension("idx");
    let Some(index) = TokenIndex::beside(&beside)? else { return Ok(()) };
    let contradicted = |reason| DataError::Malformed {
        path: path.to_owned(),
        format: if width(format) == 2 { "tokens-u16" } else { "tokens-u32" },
        place: format!("its index {}", beside.display()),
        reason,
    };
    index.check_kind(format, is_said).map_err(contradicted)?;
    // Before the length, which sequences that come again contradict, too.
    match index.misplaced(&beside, width(format)) {
        Ok(None) if is_packed => Ok(()),
        Ok(None) => index.check_length(file.len(), width(format)).map_err(contradicted),
        Ok(Some(misplaced)) => Err(contradicted(misplaced.told())),
        Err(error) => Err(refused(&beside, error)),
    }
}

/// Returns the error for an index that cannot be read.
fn refused(path: &Path, error: io::Error) -> DataError {
    let malformed = |reason: &str| DataError::Malformed {
        path: PathBuf::from(path),
        format: "an index of Megatron-LM",
        place: "its head, lengths and places".to_owned(),
        reason: format!(
            "{reason}: copy it again, or write it and its .bin anew with the tool that made them; or move it away to train on all tokens of the .bin"
        ),
    };
    match error.kind() {
        ErrorKind::UnexpectedEof => malformed("it is cut off"),
        ErrorKind::InvalidData => malformed(&error.to_string()),
        _ => DataError::io("read", path)(error),
    }
}

/// Returns the bytes of a number.
fn width(format: DataFormat) -> u64 {
    if format == DataFormat::TokensU16 { 2 } else { 4 }
}

impl TokenIndex {
    /// Reads the index at this path; `None`: none of Megatron-LM is there.
    fn beside(path: &Path) -> Result<Option<Self>, DataError> {
        if !std::fs::metadata(path).is_ok_and(|file| file.is_file()) {
            return Ok(None);
        }
        let file = File::open(path).map_err(DataError::io("open", path))?;
        let bytes = file.metadata().map_err(DataError::io("read", path))?.len();
        Self::read(BufReader::with_capacity(BUFFER_BYTES, file), bytes).map_err(|error| refused(path, error))
    }

    /// Reads magic, version, type, number of sequences and of documents, and the length of each sequence, of an index of this many bytes. Behind these are
    /// the places of the sequences, and the first sequence of each document.
    fn read(mut index: impl Read, bytes_there: u64) -> io::Result<Option<Self>> {
        let mut magic = Vec::new();
        index.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if magic != MAGIC {
            return Ok(None);
        }
        let version = u64::from_le_bytes(bytes(&mut index)?);
        if version != VERSION {
            return Err(invalid(format!("it is of version {version}, and only version {VERSION} is read")));
        }
        let [kind] = bytes(&mut index)?;
        let sequences = u64::from_le_bytes(bytes(&mut index)?);
        let documents = u64::from_le_bytes(bytes(&mut index)?);
        let mut tokens = 0_u64;
        for sequence in 0..sequences {
            let length = i32::from_le_bytes(bytes(&mut index)?);
            let length = u64::try_from(length)
                .map_err(|_| invalid(format!("sequence {sequence} has a length of {length}")))?;
            tokens = tokens.saturating_add(length);
        }
        let needed = sequences.saturating_mul(4 + 8).saturating_add(documents.saturating_mul(8));
        if bytes_there < needed.saturating_add(HEAD_BYTES) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Self { kind, tokens, sequences, documents }))
    }

    /// Returns the first sequence that does not follow the one before, where it is at this path.
    fn misplaced(self, path: &Path, width: u64) -> io::Result<Option<Misplaced>> {
        let behind = |start: u64| -> io::Result<BufReader<File>> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(start))?;
            Ok(BufReader::with_capacity(BUFFER_BYTES, file))
        };
        let places = HEAD_BYTES.saturating_add(self.sequences.saturating_mul(4));
        self.find_misplaced(behind(HEAD_BYTES)?, behind(places)?, width)
    }

    /// The same for its lengths and places.
    fn find_misplaced(
        self,
        mut lengths: impl Read,
        mut places: impl Read,
        width: u64,
    ) -> io::Result<Option<Misplaced>> {
        let mut expected = 0_u64;
        for sequence in 0..self.sequences {
            let begins = i64::from_le_bytes(bytes(&mut places)?);
            if u64::try_from(begins) != Ok(expected) {
                return Ok(Some(Misplaced { sequence, begins, expected }));
            }
            let length = u64::try_from(i32::from_le_bytes(bytes(&mut lengths)?)).unwrap_or_default();
            expected = expected.saturating_add(length.saturating_mul(width));
        }
        Ok(None)
    }

    /// Returns the format of its numbers; `None`: none has such numbers.
    fn format(self) -> Option<DataFormat> {
        match self.kind {
            3 | 8 => Some(DataFormat::TokensU16),
            4 => Some(DataFormat::TokensU32),
            _ => None,
        }
    }

    /// Returns numpy's name of the type.
    fn name(self) -> String {
        match self.kind {
            1 => "uint8".to_owned(),
            2 => "int8".to_owned(),
            3 => "int16".to_owned(),
            4 => "int32".to_owned(),
            5 => "int64".to_owned(),
            6 | 7 => "floating-point numbers".to_owned(),
            8 => "uint16".to_owned(),
            other => format!("a type of the unknown code {other}"),
        }
    }

    fn check_kind(self, format: DataFormat, is_said: bool) -> Result<(), String> {
        if self.format() == Some(format) {
            return Ok(());
        }
        let (kind, bytes) = (self.name(), width(format));
        let read = match is_said {
            true => format!("format = \"tokens-u{}\" reads numbers of {bytes} bytes", 8 * bytes),
            false => format!("without `format`, a .bin is read as numbers of {bytes} bytes (\"tokens-u16\")"),
        };
        let remedy = match (self.format(), self.kind) {
            (Some(other), _) => format!("say format = \"tokens-u{}\"", 8 * width(other)),
            (None, 1 | 2 | 5) => format!(
                "write its tokens as `numpy.fromfile(IN, '{kind}').astype('<u4').tofile(OUT)`, without an index beside OUT, and say format = \"tokens-u32\""
            ),
            (None, _) => "write both anew with the tool that made them, as whole numbers".to_owned(),
        };
        Err(format!(
            "it says {kind}, and {read}: {remedy}; if the index belongs to another file, move it away"
        ))
    }

    /// Compares the tokens that it lists with those in a file of this length.
    fn check_length(self, bytes: u64, width: u64) -> Result<(), String> {
        let (listed, held) = (counted(self.tokens, "token"), HumanCount(bytes / width));
        let rest = match bytes % width {
            0 => String::new(),
            rest => format!(" and {}", counted(rest, "byte")),
        };
        match self.tokens.saturating_mul(width).cmp(&bytes) {
            Ordering::Equal => Ok(()),
            Ordering::Less => Err(format!(
                "it lists {listed}, and the .bin holds {held}{rest}, as when its writer was stopped or started again: write both anew with the tool that made them, or move the index away to train on all {held}"
            )),
            Ordering::Greater => Err(format!(
                "it lists {listed}, and the .bin holds {held}{rest}: the .bin is cut off, or the index belongs to another file: copy the .bin again, or write both anew with the tool that made them"
            )),
        }
    }
}

impl Misplaced {
    /// Describes it in words, with a remedy.
    fn told(self) -> String {
        let Self { sequence, begins, expected } = self;
        format!(
            "by it sequence {sequence} begins at byte {begins}, and those before it end at byte {expected}: it takes the sequences in another order, some of them again or not at all, while a .bin is read from its beginning to its end. Write them as it takes them, with d = megatron.core.datasets.indexed_dataset.IndexedDataset(PREFIX), `numpy.concatenate([d[i] for i in range(len(d))]).tofile(OUT)`; or move it away to train on all tokens of the .bin once"
        )
    }
}

fn bytes<const N: usize>(index: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    index.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns an index as Megatron-LM writes it: each sequence is a document.
    pub(in super::super) fn index(kind: u8, width: u64, lengths: &[i32]) -> Vec<u8> {
        let count = lengths.len() as u64;
        let mut index = [&MAGIC[..], &VERSION.to_le_bytes(), &[kind]].concat();
        index.extend([count, count + 1].iter().flat_map(|number| number.to_le_bytes()));
        index.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
        let places = lengths.iter().scan(0, |place, length| {
            let begins = *place;
            *place += i64::from(*length) * width as i64;
            Some(begins)
        });
        index.extend(places.flat_map(i64::to_le_bytes));
        index.extend((0..=count).flat_map(u64::to_le_bytes));
        index
    }

    /// The same with sequences at these places in bytes.
    pub(in super::super) fn index_at(kind: u8, sequences: &[(i32, i64)]) -> Vec<u8> {
        let lengths: Vec<i32> = sequences.iter().map(|(length, _)| *length).collect();
        let (mut index, start) = (index(kind, 2, &lengths), HEAD_BYTES as usize + 4 * lengths.len());
        for (slot, (_, place)) in index[start..].as_chunks_mut().0.iter_mut().zip(sequences) {
            *slot = place.to_le_bytes();
        }
        index
    }

    #[test]
    fn an_index_is_read_and_whatever_its_bytes_are_it_is_an_error_at_most() {
        let whole = index(8, 2, &[3, 0, 7]);
        let read = |bytes: &[u8]| TokenIndex::read(bytes, bytes.len() as u64);
        let expected = TokenIndex { kind: 8, tokens: 10, sequences: 3, documents: 4 };
        assert_eq!(read(&whole).unwrap(), Some(expected));
        // Of several kinds of data, with a byte for each sequence.
        assert_eq!(read(&[&whole[..], &[0; 3]].concat()).unwrap(), Some(expected));
        for end in 0..whole.len() {
            match read(&whole[..end]) {
                Ok(None) => assert!(end < MAGIC.len(), "{end}"),
                Ok(Some(_)) => panic!("{end}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{end}"),
            }
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut other = whole.clone();
                other[at] ^= 1 << bit;
                // Huge counts end with the file.
                let Ok(Some(index)) = read(&other) else { continue };
                let (lengths, places) = (&other[34..], &other[34 + 4 * 3..]);
                let found = index.find_misplaced(lengths, places, 2).unwrap();
                let is_place = (34 + 4 * 3..34 + (4 + 8) * 3).contains(&at);
                assert!(!is_place || found.is_some(), "{at}, {bit}");
            }
        }
        let error = read(&index(8, 2, &[3, -1])).unwrap_err();
        assert_eq!(error.to_string(), "sequence 1 has a length of -1");
    }
}
