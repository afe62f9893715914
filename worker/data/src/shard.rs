//! The tokens or images of a piece, as a file that is written once and mapped into memory.
//!
//! Layout, little-endian: a header of 64 bytes (magic, format version, bytes in an item, items, bytes in a block, stand-ins, and from byte 32 on the BLAKE3
//! of all that and of the table), a table with the BLAKE3 of each block, then the items, which are
//! tokens, or images with their classes. Stand-ins are copies that replace undecodable images. A block is checked on its first use.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Advice, Mmap};

use super::DataError;

const MAGIC: &[u8; 8] = b"LHTOKENS";
const FORMAT_VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;
/// Header bytes before the hash.
const FIELDS_BYTES: usize = 32;
const HASH_BYTES: usize = 32;
/// Bytes per check: a first use costs a fraction of a millisecond, and the table is a 32,768th of the items.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// The items of a piece, mapped from a file in the cache.
#[derive(Debug)]
pub(super) struct Shard {
    map: Mmap,
    header: Header,
    /// Blocks found valid.
    checked: Marks,
    /// Blocks announced for a check.
    expected: Marks,
}

/// One bit per block.
#[derive(Debug)]
struct Marks(Vec<AtomicU64>);

impl Marks {
    fn new(blocks: usize) -> Self {
        Self((0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn get(&self, block: usize) -> bool {
        self.0[block / 64].load(Ordering::Relaxed) & (1 << (block % 64)) != 0
    }

    /// Sets a bit and returns whether it was set before.
    fn set(&self, block: usize) -> bool {
        let bit = 1 << (block % 64);
        self.0[block / 64].fetch_or(bit, Ordering::Relaxed) & bit != 0
    }
}

/// A damaged block.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damaged;

impl Shard {
    /// Maps a shard; `None` if it is missing or its header or table is damaged.
    #[allow(unsafe_code)]
    pub(super) fn map(path: &Path) -> Result<Option<Self>, DataError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(DataError::io("open", path)(error)),
        };
        // SAFETY: the file is in the worker's own cache, and the parts in use never change under this name: it is written under
        // another name, renamed when complete, and replaced, not overwritten, when damaged. In a fetched shard only unused blocks
        // are written: each is hashed before use, and during the write its hash does not match.
        let map = unsafe { Mmap::map(&file) }.map_err(DataError::io("map", path))?;
        // Samples are read in random order: the system's read-ahead is wasted, and may cover the whole file once the header is touched. `expect` announces
        // the needed parts. Without the advice reads are only slower.
        let _ = map.advise(Advice::Random);
        let Some(header) = Header::parse(&map) else { return Ok(None) };
        let [checked, expected] = [(); 2].map(|()| Marks::new(header.blocks()));
        Ok(Some(Self { map, header, checked, expected }))
    }

    /// Returns the number of items.
    pub(super) fn len(&self) -> u64 {
        self.header.items
    }

    /// Returns the number of stand-ins for undecodable items.
    pub(super) fn stand_ins(&self) -> u32 {
        self.header.stand_ins
    }

    /// Returns the identity of the items: the hash of the table of their hashes.
    pub(super) fn hash(&self) -> [u8; 32] {
        self.header.hash
    }

    /// Returns the bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Returns the bytes of a range of items, which must be in bounds.
    pub(super) fn read(&self, range: Range<u64>) -> Result<&[u8], Damaged> {
        let bytes = self.bytes_of(range);
        blocks_of(&bytes).try_for_each(|block| self.check(block))?;
        Ok(&self.body()[bytes])
    }

    /// Announces the read of a range, which must be in bounds, to the operating system, and returns the bytes that may come into memory: all of each
    /// block not checked yet.
    pub(super) fn expect(&self, range: Range<u64>) -> u64 {
        let bytes = self.bytes_of(range);
        let expect = |block| {
            let place = self.place(block);
            let wanted = match self.checked.get(block) {
                true => place.start.max(bytes.start)..place.end.min(bytes.end),
                // For another sample, all of it.
                false if self.expected.set(block) => return 0,
                false => place,
            };
            self.advise(wanted.clone());
            wanted.len() as u64
        };
        blocks_of(&bytes).map(expect).sum()
    }

    /// The same for checked blocks only.
    pub(super) fn expect_sound(&self, range: Range<u64>) -> u64 {
        let bytes = self.bytes_of(range);
        let expect = |block| {
            let place = self.place(block);
            let wanted = place.start.max(bytes.start)..place.end.min(bytes.end);
            self.advise(wanted.clone());
            wanted.len() as u64
        };
        blocks_of(&bytes).filter(|&block| self.checked.get(block)).map(expect).sum()
    }

    /// Returns header and table.
    pub(super) fn head(&self) -> &[u8] {
        &self.map[..self.header.body()]
    }

    /// Returns a valid block; an index out of range counts as damaged.
    pub(super) fn block(&self, block: usize) -> Result<&[u8], Damaged> {
        if block >= self.header.blocks() {
            return Err(Damaged);
        }
        self.check(block)?;
        Ok(&self.body()[self.place(block)])
    }

    /// Returns the damaged blocks of a range of items, which must be in bounds.
    pub(super) fn damaged(&self, range: Range<u64>) -> Vec<usize> {
        let blocks = blocks_of(&self.bytes_of(range));
        blocks.filter(|&block| self.check(block).is_err()).collect()
    }

    /// Checks every block.
    pub(super) fn check_all(&self) -> Result<(), Damaged> {
        (0..self.header.blocks()).try_for_each(|block| self.check(block))
    }

    fn check(&self, block: usize) -> Result<(), Damaged> {
        if self.checked.get(block) {
            return Ok(());
        }
        self.advise(self.place(block));
        let hash = blake3::hash(&self.body()[self.place(block)]);
        let place = HEADER_BYTES + block * HASH_BYTES;
        if hash.as_bytes()[..] != self.map[place..place + HASH_BYTES] {
            return Err(Damaged);
        }
        self.checked.set(block);
        Ok(())
    }

    /// Asks the operating system to read bytes of the body ahead. On failure, the read itself waits.
    fn advise(&self, bytes: Range<usize>) {
        if !bytes.is_empty() {
            let _ = self.map.advise_range(Advice::WillNeed, self.header.body() + bytes.start, bytes.len());
        }
    }

    /// Returns the items' bytes.
    fn body(&self) -> &[u8] {
        &self.map[self.header.body()..]
    }

    /// Returns the range of a block in the body.
    fn place(&self, block: usize) -> Range<usize> {
        self.header.place(block)
    }

    /// Returns the range of items in the body.
    fn bytes_of(&self, items: Range<u64>) -> Range<usize> {
        let each = self.header.item_bytes as usize;
        items.start as usize * each..items.end as usize * each
    }
}

/// Returns the blocks of a range of items, for `item_bytes` per item.
pub(super) fn blocks_with(range: &Range<u64>, item_bytes: usize) -> Range<usize> {
    blocks_of(&(range.start as usize * item_bytes..range.end as usize * item_bytes))
}

/// Header and table of a shard without its items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    header: Header,
    table: &'a [u8],
}

impl<'a> Head<'a> {
    /// Parses a head; `None` unless header and table are complete and valid.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, whole) = Header::read(bytes)?;
        (whole >= header.body() && bytes.len() == header.body() && header.is_of(bytes))
            .then(|| Self { header, table: &bytes[HEADER_BYTES..] })
    }

    /// Whether it belongs to a shard with this hash, number of items and bytes per item.
    pub(super) fn is_of(&self, hash: [u8; HASH_BYTES], items: u64, item_bytes: usize) -> bool {
        let Header { hash: own, items: has, item_bytes: each, .. } = self.header;
        (own, has, each as usize) == (hash, items, item_bytes)
    }

    /// Returns the bytes of the head of a shard of `items` items.
    pub(super) fn bytes_of(items: u64, item_bytes: usize) -> usize {
        Header { item_bytes: item_bytes as u32, items, stand_ins: 0, hash: [0; HASH_BYTES] }.body()
    }

    /// Returns the range of a block in the items' bytes; `None`: no such block exists.
    pub(super) fn place(&self, block: usize) -> Option<Range<usize>> {
        (block < self.header.blocks()).then(|| self.header.place(block))
    }

    pub(super) fn block_hash(&self, block: usize) -> Option<blake3::Hash> {
        let hash = self.table.chunks_exact(HASH_BYTES).nth(block)?;
        blake3::Hash::from_slice(hash).ok()
    }

    /// Returns the bytes of the whole shard.
    pub(super) fn file_bytes(&self) -> u64 {
        (self.header.body() + self.header.body_bytes()) as u64
    }
}

/// Returns the blocks that overlap these bytes.
fn blocks_of(bytes: &Range<usize>) -> Range<usize> {
    if bytes.is_empty() { 0..0 } else { bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES) }
}

/// Encodes a shard, with its bytes per item and its number of stand-ins.
pub(super) fn encode(body: &[u8], item_bytes: usize, stand_ins: u32) -> Vec<u8> {
    let items = (body.len() / item_bytes) as u64;
    let table: Vec<u8> = body.chunks(BLOCK_BYTES).flat_map(|block| *blake3::hash(block).as_bytes()).collect();
    let header = Header { item_bytes: item_bytes as u32, items, stand_ins, hash: [0; HASH_BYTES] };
    let mut file = Vec::with_capacity(HEADER_BYTES + table.len() + body.len());
    file.extend(header.fields());
    file.extend(Header::hash(&header.fields(), &table));
    file.extend(table);
    file.extend(body);
    file
}

#[derive(Clone, Copy, Debug)]
struct Header {
    item_bytes: u32,
    items: u64,
    stand_ins: u32,
    hash: [u8; HASH_BYTES],
}

impl Header {
    fn fields(&self) -> [u8; FIELDS_BYTES] {
        let mut bytes = [0; FIELDS_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.item_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.items.to_le_bytes());
        bytes[24..28].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&self.stand_ins.to_le_bytes());
        bytes
    }

    fn hash(fields: &[u8; FIELDS_BYTES], table: &[u8]) -> [u8; HASH_BYTES] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(fields);
        hasher.update(table);
        *hasher.finalize().as_bytes()
    }

    /// Parses the header of a whole file; `None` unless header, table and length are valid.
    fn parse(file: &[u8]) -> Option<Self> {
        let (header, whole) = Self::read(file)?;
        (file.len() == whole && header.is_of(file)).then_some(header)
    }

    /// Parses the first bytes of a file, and returns the header with the file's length; `None`: impossible values.
    fn read(file: &[u8]) -> Option<(Self, usize)> {
        let item_bytes = u32::from_le_bytes(*file.get(12..)?.first_chunk()?);
        let items = u64::from_le_bytes(*file.get(16..)?.first_chunk()?);
        let stand_ins = u32::from_le_bytes(*file.get(28..)?.first_chunk()?);
        let hash = *file.get(FIELDS_BYTES..)?.first_chunk()?;
        let header = Self { item_bytes, items, stand_ins, hash };
        let whole = (item_bytes > 0).then(|| header.file_bytes())??;
        Some((header, whole))
    }

    /// Returns the length of the file; `None`: overflow.
    fn file_bytes(&self) -> Option<usize> {
        let body = self.items.checked_mul(self.item_bytes.into())?;
        let body = usize::try_from(body).ok()?;
        let table = body.div_ceil(BLOCK_BYTES).checked_mul(HASH_BYTES)?;
        HEADER_BYTES.checked_add(table)?.checked_add(body)
    }

    /// Whether a file with a complete head begins with this header and a table that matches its hash.
    fn is_of(&self, file: &[u8]) -> bool {
        // Magic, version and block size are compared by writing them again.
        let fields = self.fields();
        let table = file.get(HEADER_BYTES..self.body());
        file[..FIELDS_BYTES] == fields && table.is_some_and(|table| Self::hash(&fields, table) == self.hash)
    }

    fn body_bytes(&self) -> usize {
        self.items as usize * self.item_bytes as usize
    }

    /// Returns the range of a block in the body.
    fn place(&self, block: usize) -> Range<usize> {
        block * BLOCK_BYTES..self.body_bytes().min((block + 1) * BLOCK_BYTES)
    }

    fn blocks(&self) -> usize {
        self.body_bytes().div_ceil(BLOCK_BYTES)
    }

    /// Returns the offset of the items.
    fn body(&self) -> usize {
        HEADER_BYTES + self.blocks() * HASH_BYTES
    }
}
