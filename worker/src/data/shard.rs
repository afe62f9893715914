//! The tokens of a text as a file that is written once, named by what it was made from, and mapped into memory.
//!
//! Layout, little-endian: 64 bytes of header (magic, format version, bytes in a token, tokens, BLAKE3 of the tokens, and the first
//! eight bytes of the BLAKE3 of all that), then the tokens.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use memmap2::Mmap;

use super::text::TextPieces;
use super::{DataError, Tokenizer};

const MAGIC: &[u8; 8] = b"LHTOKENS";
/// Part of a shard's name too: another format is another file.
const FORMAT_VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
/// Header bytes that its checksum covers.
const CHECKED_BYTES: usize = HEADER_BYTES - 8;
/// Vocabularies up to this size take two bytes a token.
const NARROW_VOCABULARY_MAX: u32 = 1 << 16;

/// The tokens of a text, read from a file in the cache.
#[derive(Debug)]
pub(super) struct TokenShard {
    map: Mmap,
    token_bytes: usize,
    hash: [u8; 32],
}

impl TokenShard {
    /// The shard of `source` in the folder `cache`, which is made when it is not there, or is damaged. Workers on the same
    /// machine wait for the first one to make it.
    pub(super) fn open(source: &Path, tokenizer: &Tokenizer, cache: &Path) -> Result<Self, DataError> {
        std::fs::create_dir_all(cache).map_err(DataError::io("create folder", cache))?;
        let name = shard_name(source, tokenizer)?;
        let path = cache.join(format!("tokens-{name}.bin"));
        if let Some(shard) = Self::map(&path)? {
            return Ok(shard);
        }
        let partial = cache.join(format!("tokens-{name}.partial"));
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&partial);
        let file = file.map_err(DataError::io("write", &partial))?;
        file.lock().map_err(DataError::io("lock", &partial))?;
        // Somebody may have made it while this worker waited for the lock.
        if let Some(shard) = Self::map(&path)? {
            // This one is then a new and empty file, or gone already.
            let _ = std::fs::remove_file(&partial);
            return Ok(shard);
        }
        write(&file, &partial, source, tokenizer)?;
        std::fs::rename(&partial, &path).map_err(DataError::io("rename to", &path))?;
        // Not earlier: who waits for the lock must find the shard.
        drop(file);
        let damaged = || std::io::Error::other("it does not read back as it was written");
        Self::map(&path)?.ok_or_else(|| DataError::io("read", &path)(damaged()))
    }

    /// Maps a shard. None when it is not there or not as it was written.
    #[allow(unsafe_code)]
    fn map(path: &Path) -> Result<Option<Self>, DataError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DataError::io("open", path)(error)),
        };
        // SAFETY: the file is in the worker's own cache, and it is never changed under this name: it is written under
        // another one, renamed when complete, and replaced, not overwritten, when damaged.
        let map = unsafe { Mmap::map(&file) }.map_err(DataError::io("map", path))?;
        let Some(header) = map.first_chunk::<HEADER_BYTES>().and_then(Header::parse) else { return Ok(None) };
        let body = &map[HEADER_BYTES..];
        let whole = header.tokens.checked_mul(u64::from(header.token_bytes)) == Some(body.len() as u64);
        if !whole || *blake3::hash(body).as_bytes() != header.hash {
            return Ok(None);
        }
        Ok(Some(Self { token_bytes: header.token_bytes as usize, hash: header.hash, map }))
    }

    /// Tokens in it.
    pub(super) fn len(&self) -> usize {
        (self.map.len() - HEADER_BYTES) / self.token_bytes
    }

    /// BLAKE3 of the tokens as they are stored.
    pub(super) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// The tokens of a range, which must lie inside.
    pub(super) fn tokens(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = u32> + '_ {
        let bytes =
            HEADER_BYTES + range.start * self.token_bytes..HEADER_BYTES + range.end * self.token_bytes;
        self.map[bytes].chunks_exact(self.token_bytes).map(|token| {
            let mut word = [0; 4];
            word[..token.len()].copy_from_slice(token);
            u32::from_le_bytes(word)
        })
    }
}

struct Header {
    token_bytes: u32,
    tokens: u64,
    hash: [u8; 32],
}

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.token_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[24..CHECKED_BYTES].copy_from_slice(&self.hash);
        let checksum = blake3::hash(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&checksum.as_bytes()[..HEADER_BYTES - CHECKED_BYTES]);
        bytes
    }

    fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let tokens = u64::from_le_bytes(*bytes[16..].first_chunk()?);
        let token_bytes = u32::from_le_bytes(*bytes[12..].first_chunk()?);
        let hash = *bytes[24..].first_chunk()?;
        let header = Self { token_bytes, tokens, hash };
        // Magic, version and checksum are compared by writing them again.
        (matches!(token_bytes, 2 | 4) && header.to_bytes() == *bytes).then_some(header)
    }
}

/// Hexadecimal, from the bytes of the source, the tokenizer and the format.
fn shard_name(source: &Path, tokenizer: &Tokenizer) -> Result<String, DataError> {
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(source).map_err(DataError::io("open", source))?;
    hasher.update_reader(&mut file).map_err(DataError::io("read", source))?;
    // What a name ends with decides whether it is decompressed.
    hasher.update(source.extension().unwrap_or_default().as_encoded_bytes());
    hasher.update(tokenizer.hash().as_bytes());
    hasher.update(&FORMAT_VERSION.to_le_bytes());
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

fn write(mut file: &File, path: &Path, source: &Path, tokenizer: &Tokenizer) -> Result<(), DataError> {
    let failed = |error| DataError::io("write", path)(error);
    file.set_len(0).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let token_bytes = if tokenizer.vocabulary() <= NARROW_VOCABULARY_MAX { 2 } else { 4 };
    let mut out = BufWriter::new(file);
    out.write_all(&[0; HEADER_BYTES]).map_err(failed)?;
    let (mut hasher, mut tokens, mut bytes) = (blake3::Hasher::new(), 0, Vec::new());
    let mut text = TextPieces::open(source)?;
    while let Some(piece) = text.next_piece()? {
        let encoded = tokenizer
            .encode(&piece)
            .map_err(|reason| DataError::io("tokenize", source)(std::io::Error::other(reason)))?;
        tokens += encoded.len() as u64;
        bytes.clear();
        bytes.extend(encoded.iter().flat_map(|token| token.to_le_bytes().into_iter().take(token_bytes)));
        hasher.update(&bytes);
        out.write_all(&bytes).map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    drop(out);
    let header = Header { token_bytes: token_bytes as u32, tokens, hash: *hasher.finalize().as_bytes() };
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    file.write_all(&header.to_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn shard_file(cache: &Path) -> PathBuf {
        let mut files: Vec<_> =
            std::fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "bin"));
        assert_eq!(files.len(), 1, "{files:?}");
        files.remove(0)
    }

    #[test]
    fn a_shard_is_written_once_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (source, cache) = (folder.path().join("a.txt"), folder.path().join("cache"));
        std::fs::write(&source, "hello shard").unwrap();
        let first = TokenShard::open(&source, &Tokenizer::Bytes, &cache).unwrap();
        assert_eq!(first.len(), 11);
        assert!(first.tokens(6..11).eq("shard".bytes().map(u32::from)));
        let written = std::fs::metadata(shard_file(&cache)).unwrap().modified().unwrap();
        let second = TokenShard::open(&source, &Tokenizer::Bytes, &cache).unwrap();
        assert_eq!(second.hash(), first.hash());
        assert_eq!(std::fs::metadata(shard_file(&cache)).unwrap().modified().unwrap(), written);
    }

    #[test]
    fn a_damaged_or_truncated_shard_is_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let (source, cache) = (folder.path().join("a.txt"), folder.path().join("cache"));
        std::fs::write(&source, "some text to damage").unwrap();
        let hash = *TokenShard::open(&source, &Tokenizer::Bytes, &cache).unwrap().hash();
        let path = shard_file(&cache);
        let whole = std::fs::read(&path).unwrap();
        for damaged_at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[damaged_at] ^= 0x40;
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, bytes).unwrap();
            assert!(TokenShard::map(&path).unwrap().is_none(), "byte {damaged_at}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(TokenShard::map(&path).unwrap().is_none());
        assert_eq!(*TokenShard::open(&source, &Tokenizer::Bytes, &cache).unwrap().hash(), hash);
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn workers_that_start_together_make_one_shard() {
        let folder = tempfile::tempdir().unwrap();
        let (source, cache) = (folder.path().join("a.txt"), folder.path().join("cache"));
        std::fs::write(&source, "text\n".repeat(100_000)).unwrap();
        let hashes: Vec<_> = std::thread::scope(|scope| {
            let open = || *TokenShard::open(&source, &Tokenizer::Bytes, &cache).unwrap().hash();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(hashes.iter().all(|hash| *hash == hashes[0]));
        shard_file(&cache);
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 1);
    }
}
