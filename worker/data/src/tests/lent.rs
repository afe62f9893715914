//! Data held by another worker.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::super::lent::{ListedShard, ListedSource};
use super::super::shard::{BLOCK_BYTES, Head, encode};
use super::super::{
    BlockName, BlockProvider, BlockStore, Catalogue, DataError, Dataset, NotTheBlock, Supply, Tokenizer, Work,
};
use super::{Folder, config, held_out};

/// Three sources, one of them held out.
const LINES: &str = "sources = [{ path = \"a.txt\", weight = 3 }, { path = \"b.txt\", weight = 1 }]\nvalidation = [{ path = \"c.txt\" }]\nsequence_length = 64";
/// Bytes of text in a piece: slightly more than two blocks of tokens.
const PIECE_BYTES: u64 = BLOCK_BYTES as u64 + 1000;

/// A worker with data, and the folder of one that fetches them.
struct Pair {
    here: Folder,
    there: Folder,
    whole: Arc<Dataset>,
    provider: Arc<BlockProvider>,
}

/// Fetches from a worker in the same process, and records the blocks.
#[derive(Debug)]
struct Neighbour {
    provider: Arc<BlockProvider>,
    stock: Arc<BlockStore>,
    expected: Mutex<BTreeSet<BlockName>>,
    /// Blocks expected before the first wait.
    expected_before_first: Mutex<Option<BTreeSet<BlockName>>>,
    fetched: Mutex<Vec<BlockName>>,
}

impl Supply for Neighbour {
    fn expect(&self, block: BlockName) -> bool {
        self.expected.lock().unwrap().insert(block)
    }

    fn bring(&self, block: BlockName) -> Result<(), DataError> {
        let expected = || self.expected.lock().unwrap().clone();
        self.expected_before_first.lock().unwrap().get_or_insert_with(expected);
        let lent = self.provider.block(block).unwrap().unwrap();
        self.stock.check(block, &lent.head, &lent.bytes).unwrap();
        self.fetched.lock().unwrap().push(block);
        self.stock.keep(block, &lent.head, &lent.bytes)
    }
}

fn text(seed: usize, bytes: usize) -> String {
    let line = |number: usize| format!("{} is line {number}\n", (number * 7919 + seed) % 10_007);
    (0..)
        .map(line)
        .scan(0, |sum, line| {
            *sum += line.len();
            (*sum <= bytes).then_some(line)
        })
        .collect()
}

/// Opens the data of these lines in a folder without local files.
fn remote(
    provider: &Arc<BlockProvider>,
    lines: &str,
    there: &Folder,
    bytes_max: Option<u64>,
) -> (Arc<Neighbour>, Dataset) {
    let (config, cache) = (config(lines), there.path().join("cache"));
    let catalogue = Catalogue::from_bytes(&provider.catalogue).unwrap();
    let stock = BlockStore::open(&config, &catalogue, &Tokenizer::Bytes, (&cache, bytes_max)).unwrap();
    let neighbour = Arc::new(Neighbour {
        provider: Arc::clone(provider),
        stock: Arc::clone(&stock),
        expected: Mutex::default(),
        expected_before_first: Mutex::default(),
        fetched: Mutex::default(),
    });
    let supply: Arc<dyn Supply> = Arc::<Neighbour>::clone(&neighbour);
    (neighbour, Dataset::elsewhere(&config, &Tokenizer::Bytes, &catalogue, &stock, &supply).unwrap())
}

impl Pair {
    fn new() -> Self {
        let (here, there) = (Folder::new(), Folder::new());
        here.write("a.txt", text(1, 3 << 20));
        here.write("b.txt", text(2, 1 << 19));
        here.write("c.txt", text(3, 3 << 19));
        let whole = here.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &Work::default()).unwrap();
        let whole = Arc::new(whole);
        let provider = Arc::new(BlockProvider::new(Arc::clone(&whole), &Tokenizer::Bytes).unwrap());
        Self { here, there, whole, provider }
    }

    /// Opens the data on the fetching worker, with a limit of room in bytes.
    fn remote(&self, bytes_max: Option<u64>) -> (Arc<Neighbour>, Dataset) {
        remote(&self.provider, LINES, &self.there, bytes_max)
    }

    fn stock(&self) -> Arc<BlockStore> {
        Arc::clone(&self.remote(None).0.stock)
    }

    fn shard_hashes(&self) -> Vec<[u8; 32]> {
        Catalogue::from_bytes(&self.provider.catalogue).unwrap().shard_hashes().collect()
    }

    /// Returns a block of the first shard, which has three.
    fn block(&self, block: u32) -> BlockName {
        let catalogue = Catalogue::from_bytes(&self.provider.catalogue).unwrap();
        BlockName { shard: catalogue.shards().next().unwrap().hash, block }
    }
}

#[test]
fn who_has_no_file_has_the_same_samples_and_held_out_text_as_who_has_all() {
    let pair = Pair::new();
    let (neighbour, remote) = pair.remote(None);
    assert_eq!(remote.data_hash(), pair.whole.data_hash());
    assert_eq!(remote.samples(), pair.whole.samples());
    let batches = |data: &Dataset| (data.batch(0..200, 5).unwrap(), held_out(data, 2, 3));
    assert_eq!(format!("{:?}", batches(&remote)), format!("{:?}", batches(&pair.whole)));
    for source in [0, 1] {
        assert!(remote.peek(source, u64::MAX).unwrap() == pair.whole.peek(source, u64::MAX).unwrap());
    }
    let fetched = neighbour.fetched.lock().unwrap();
    let once: BTreeSet<_> = fetched.iter().collect();
    assert_eq!(once.len(), fetched.len(), "a block was fetched twice");
    assert!(!pair.there.path().join("a.txt").exists());
    // Fetched shards have other names: none identifies a text.
    let names = |folder: &Folder| -> BTreeSet<_> {
        folder.shards().iter().map(|path| path.file_name().unwrap().to_owned()).collect()
    };
    assert!(names(&pair.here).is_disjoint(&names(&pair.there)));
}

/// Images of 1058 bytes with their classes: one of the first shard spans two blocks.
const IMAGES: &str = "image = { channels = 1, height = 32, width = 33, classes = 3, shift = 2, flip = true }\n\
                      sources = [{ path = \"images\", format = \"idx\", labels = \"labels\" }]";

#[test]
fn images_come_from_others_with_their_classes_and_are_moved_alike() {
    let (here, there) = (Folder::new(), Folder::new());
    let (count, pixels) = (1400u32, 32 * 33);
    let head = |kind: u32, sizes: &[u32]| -> Vec<u8> {
        [0x800 + kind].iter().chain(sizes).flat_map(|number| number.to_be_bytes()).collect()
    };
    let bytes = |len: u32| (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8);
    here.write("images", [head(3, &[count, 32, 33]), bytes(count * pixels).collect()].concat());
    here.write("labels", [head(1, &[count]), bytes(count).map(|byte| byte % 3).collect()].concat());
    let whole = here.open_with(IMAGES, &Tokenizer::Bytes, PIECE_BYTES, &Work::default()).unwrap();
    let whole = Arc::new(whole);
    let provider = Arc::new(BlockProvider::new(Arc::clone(&whole), &Tokenizer::Bytes).unwrap());
    let (neighbour, remote) = remote(&provider, IMAGES, &there, None);
    assert_eq!((remote.data_hash(), remote.samples()), (whole.data_hash(), whole.samples()));
    let batches = |data: &Dataset| (data.batch(0..1400, 5).unwrap(), held_out(data, 2, 3));
    assert!(format!("{:?}", batches(&remote)) == format!("{:?}", batches(&whole)));
    assert!(neighbour.fetched.lock().unwrap().len() >= 2);
    // With fewer classes, the same blocks are useless.
    let fewer = IMAGES.replace("classes = 3", "classes = 2");
    let catalogue = Catalogue::from_bytes(&provider.catalogue).unwrap();
    let other = Folder::new();
    let cache = other.path().join("cache");
    let stock = BlockStore::open(&config(&fewer), &catalogue, &Tokenizer::Bytes, (&cache, None)).unwrap();
    let name = BlockName { shard: catalogue.shard_hashes().next().unwrap(), block: 0 };
    let lent = provider.block(name).unwrap().unwrap();
    assert_eq!(stock.check(name, &lent.head, &lent.bytes), Err(NotTheBlock::Items));
}

#[test]
fn what_will_be_read_is_said_before_and_only_what_is_missing() {
    let pair = Pair::new();
    let (neighbour, remote) = pair.remote(None);
    // Several samples of a block fetch it once, and nothing is read from a shard that has only a head so far.
    let expect = |positions: std::ops::Range<u64>| remote.expect(&positions.collect::<Vec<_>>(), 1);
    let bytes = expect(0..8) + expect(0..8);
    let expected = neighbour.expected.lock().unwrap().clone();
    assert_eq!(bytes, (expected.len() * BLOCK_BYTES) as u64);
    assert!(neighbour.fetched.lock().unwrap().is_empty());
    remote.batch(0..8, 1).unwrap();
    let fetched: BTreeSet<_> = neighbour.fetched.lock().unwrap().iter().copied().collect();
    assert_eq!(fetched, expected);
    let before = neighbour.fetched.lock().unwrap().len();
    neighbour.expected.lock().unwrap().clear();
    expect(0..8);
    assert!(neighbour.expected.lock().unwrap().is_empty(), "what is here is expected again");
    remote.batch(0..8, 1).unwrap();
    assert_eq!(neighbour.fetched.lock().unwrap().len(), before);
    // A missing block of a partly fetched shard counts once; present parts count as samples.
    neighbour.expected.lock().unwrap().clear();
    let bytes = expect(0..400);
    let expected = neighbour.expected.lock().unwrap().len();
    assert!(bytes <= (expected * BLOCK_BYTES) as u64 + 400 * 2 * 65, "{bytes} bytes of {expected} blocks");
    // All held-out blocks are requested before the first wait.
    let pair = Pair::new();
    let (neighbour, remote) = pair.remote(None);
    held_out(&remote, 2, 3);
    let first = neighbour.expected_before_first.lock().unwrap().clone();
    let fetched: BTreeSet<_> = neighbour.fetched.lock().unwrap().iter().copied().collect();
    assert!(first == Some(fetched.clone()) && fetched.len() > 1, "{first:?}, and {fetched:?}");
}

#[test]
fn what_was_fetched_stays_and_what_of_it_is_damaged_is_fetched_again() {
    let pair = Pair::new();
    let first = pair.remote(None).1.batch(0..100, 3).unwrap();
    let (neighbour, again) = pair.remote(None);
    assert_eq!(format!("{:?}", again.batch(0..100, 3).unwrap()), format!("{first:?}"));
    assert!(neighbour.fetched.lock().unwrap().is_empty(), "what is in the cache is fetched again");
    // A byte of a block, of the table, of the header, and a cut end.
    let shard = pair.there.shards().into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let whole = std::fs::read(&shard).unwrap();
    for (at, len) in [(whole.len() - 5, whole.len()), (70, whole.len()), (20, whole.len()), (0, 900_000)] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::remove_file(&shard).unwrap();
        std::fs::write(&shard, &damaged[..len]).unwrap();
        let (neighbour, again) = pair.remote(None);
        assert!(again.peek(0, u64::MAX).unwrap() == pair.whole.peek(0, u64::MAX).unwrap());
        assert!(!neighbour.fetched.lock().unwrap().is_empty(), "byte {at} of {len} was not noticed");
        assert!(std::fs::read(&shard).unwrap() == whole);
    }
}

#[test]
fn a_disk_that_changes_a_block_under_a_running_worker_costs_a_fetch_and_no_wrong_token() {
    let pair = Pair::new();
    let (_, first) = pair.remote(None);
    let tokens = first.peek(0, u64::MAX).unwrap();
    drop(first);
    let (neighbour, running) = pair.remote(None);
    running.peek(0, 1).unwrap();
    // In place, as by a failing disk, and in a block not checked since.
    let largest = pair.there.shards().into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let bytes = largest.metadata().unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&largest).unwrap();
    file.write_all_at(&[0; 100], bytes - 200).unwrap();
    assert!(running.peek(0, u64::MAX).unwrap() == tokens);
    assert_eq!(neighbour.fetched.lock().unwrap().len(), 1);
    // A full check finds damage since the last use.
    running.complete().unwrap();
    let before = neighbour.fetched.lock().unwrap().len();
    file.write_all_at(&[0; 100], bytes - 200).unwrap();
    assert_eq!(running.verify(|_| ()).unwrap(), 1);
    assert_eq!(neighbour.fetched.lock().unwrap().len(), before + 1);
    assert_eq!(running.verify(|_| ()).unwrap(), 0);
}

#[test]
fn two_stocks_on_one_folder_have_what_either_fetches() {
    let pair = Pair::new();
    let ((one, first), (two, second)) = (pair.remote(None), pair.remote(None));
    // Both begin the same shard, and each writes blocks that the other has not mapped yet.
    for block in 0..3 {
        let (bringing, other) = if block % 2 == 0 { (&one, &two) } else { (&two, &one) };
        bringing.bring(pair.block(block)).unwrap();
        assert!(other.stock.has(pair.block(block)).unwrap());
    }
    let whole = pair.whole.peek(0, u64::MAX).unwrap();
    std::thread::scope(|scope| {
        for data in [&first, &second] {
            scope.spawn(|| assert!(data.peek(0, u64::MAX).unwrap() == whole));
        }
    });
}

#[test]
fn nothing_but_the_block_that_was_asked_for_is_taken() {
    let pair = Pair::new();
    let (stock, name) = (pair.stock(), pair.block(0));
    let lent = pair.provider.block(name).unwrap().unwrap();
    assert_eq!(stock.check(name, &lent.head, &lent.bytes), Ok(()));
    assert_eq!(stock.head_bytes(&name.shard), Some(lent.head.len()));
    let refused = |head: &[u8], bytes: &[u8]| stock.check(name, head, bytes).unwrap_err();
    for at in [0, lent.bytes.len() / 2, lent.bytes.len() - 1] {
        let mut bytes = lent.bytes.clone();
        bytes[at] ^= 1;
        assert_eq!(refused(&lent.head, &bytes), NotTheBlock::Bytes);
    }
    let wanted = lent.bytes.len();
    for found in [0, wanted - 1, wanted + 1] {
        let mut bytes = lent.bytes.clone();
        bytes.resize(found, 0);
        assert_eq!(refused(&lent.head, &bytes), NotTheBlock::Length { found, wanted });
    }
    for at in 0..lent.head.len() {
        let mut head = lent.head.clone();
        head[at] ^= 1;
        assert_eq!(refused(&head, &lent.bytes), NotTheBlock::Head, "byte {at} of the head");
        assert_eq!(refused(&lent.head[..at], &lent.bytes), NotTheBlock::Head);
    }
    // Another valid block of the run's data is not the requested one.
    let other = pair.provider.block(pair.block(1)).unwrap().unwrap();
    assert!(refused(&other.head, &other.bytes) != NotTheBlock::Head);
    let unknown = BlockName { shard: [9; 32], block: 0 };
    assert_eq!(stock.check(unknown, &lent.head, &lent.bytes), Err(NotTheBlock::Unknown));
    let beyond = BlockName { block: u32::MAX, ..name };
    assert_eq!(stock.check(beyond, &lent.head, &lent.bytes), Err(NotTheBlock::Unknown));
    for name in [unknown, beyond] {
        assert_eq!(pair.provider.block(name).unwrap(), None);
    }
    assert!(!stock.has(name).unwrap());
}

#[test]
fn tokens_that_no_model_can_be_given_are_not_taken_whatever_their_hash_is() {
    let there = Folder::new();
    let body: Vec<u8> = [1u16, 255, 256].iter().flat_map(|token| token.to_le_bytes()).collect();
    let shard = encode(&body, 2, 0);
    let (head, bytes) = shard.split_at(shard.len() - body.len());
    let listed = |hash| {
        let shards = vec![ListedShard { hash, items: 3 }];
        ListedSource { identity: None, shards, held_out: Vec::new() }
    };
    let hash = *head[32..].first_chunk().unwrap();
    let catalogue = Catalogue { tokenizer: None, sources: vec![listed(hash)] };
    let cache = there.path().join("cache");
    let stock = BlockStore::open(&config(LINES), &catalogue, &Tokenizer::Bytes, (&cache, None)).unwrap();
    let name = BlockName { shard: hash, block: 0 };
    assert_eq!(stock.check(name, head, bytes), Err(NotTheBlock::Items));
}

#[test]
fn what_was_fetched_counts_as_used_when_it_is_opened_again() {
    let pair = Pair::new();
    drop(pair.remote(None).1.batch(0..100, 3).unwrap());
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    let old = |path: &std::path::PathBuf| path.metadata().unwrap().modified().unwrap() == long_ago;
    for path in pair.there.shards() {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    }
    drop(pair.stock());
    assert!(!pair.there.shards().iter().any(old));
}

#[test]
fn a_catalogue_that_says_something_else_makes_other_data_or_none() {
    let pair = Pair::new();
    let bytes = pair.provider.catalogue.to_vec();
    let truth = Catalogue::from_bytes(&bytes).unwrap();
    assert_eq!(truth.to_bytes().unwrap(), bytes);
    assert!(truth.size().0 >= 4 && truth.size().1 > 3 << 20);
    for shorter in 0..bytes.len() {
        assert!(Catalogue::from_bytes(&bytes[..shorter]).is_err());
    }
    assert!(Catalogue::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    for at in 0..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 1;
        // It is refused by its hash before parsing; otherwise its content would differ.
        assert!(Catalogue::from_bytes(&other).map_or(true, |other| other != truth));
    }
    let (mut few, stock) = (truth.clone(), pair.stock());
    few.sources.pop();
    let mut of_another_tokenizer = truth.clone();
    of_another_tokenizer.tokenizer = Some([1; 32]);
    let supply: Arc<dyn Supply> = pair.remote(None).0;
    for wrong in [few, of_another_tokenizer] {
        let refused = Dataset::elsewhere(&config(LINES), &Tokenizer::Bytes, &wrong, &stock, &supply);
        assert!(matches!(refused, Err(DataError::Catalogue { .. })), "{refused:?}");
    }
    // Sources without shards take many times their wire size in memory.
    let empty = |sources: usize| {
        let mut bytes = vec![0];
        let mut left = sources;
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes.resize(bytes.len() + 3 * sources, 0);
        Catalogue::from_bytes(&bytes)
    };
    assert_eq!(empty(2 << 10).unwrap().size(), (0, 0));
    assert!(empty((2 << 10) + 1).is_err());
}

#[test]
fn a_cache_that_is_too_small_says_so_and_what_others_use_is_not_thrown_away() {
    let pair = Pair::new();
    let (_, small) = pair.remote(Some(5 << 20));
    let refused = small.peek(0, u64::MAX);
    assert!(matches!(refused, Err(DataError::NoRoom { .. })), "{:?}", refused.map(|tokens| tokens.len()));
    let before = pair.there.shards();
    assert_eq!(before.len(), 1);
    super::super::prune(&pair.there.path().join("cache"), 0).unwrap();
    assert_eq!(pair.there.shards(), before);
    drop(small);
    super::super::prune(&pair.there.path().join("cache"), 0).unwrap();
    assert!(pair.there.shards().is_empty());
}

#[test]
fn a_lender_makes_a_damaged_shard_again_and_one_that_has_fetched_lends_what_is_here() {
    let pair = Pair::new();
    let name = pair.block(0);
    let lent = pair.provider.block(name).unwrap().unwrap();
    let fresh = pair.here.open_with(LINES, &Tokenizer::Bytes, PIECE_BYTES, &Work::default()).unwrap();
    for shard in pair.here.shards() {
        std::fs::remove_file(shard).unwrap();
    }
    let fresh = BlockProvider::new(Arc::new(fresh), &Tokenizer::Bytes).unwrap();
    assert_eq!(fresh.block(name).unwrap(), Some(lent.clone()));
    // A failed rebuild differs from a block that never existed.
    let last = BlockName { shard: *pair.shard_hashes().last().unwrap(), block: 0 };
    pair.here.write("c.txt", text(4, 3 << 19));
    assert!(fresh.block(last).is_err());
    assert_eq!(fresh.block(BlockName { block: 7, ..last }).unwrap(), None);
    let (neighbour, remote) = pair.remote(None);
    let second = BlockProvider::new(Arc::new(remote), &Tokenizer::Bytes).unwrap();
    assert_eq!(second.catalogue_hash(), pair.provider.catalogue_hash());
    assert_eq!(second.block(name).unwrap(), None);
    neighbour.bring(name).unwrap();
    assert_eq!(second.block(name).unwrap(), Some(lent));
    assert_eq!(second.block(pair.block(1)).unwrap(), None);
}

/// Returns a head with a valid hash for any content.
fn head_of(item_bytes: u32, items: u64, table: &[u8]) -> Vec<u8> {
    let sizes = [&item_bytes.to_le_bytes()[..], &items.to_le_bytes(), &(BLOCK_BYTES as u32).to_le_bytes()];
    let fields = [&b"LHTOKENS"[..], &2u32.to_le_bytes(), &sizes.concat(), &[0; 4]].concat();
    let hash = *blake3::Hasher::new().update(&fields).update(table).finalize().as_bytes();
    [&fields[..], &hash, table].concat()
}

proptest! {
    #[test]
    fn whatever_comes_as_a_catalogue_or_a_head_is_refused_or_says_something(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        (item_bytes, items) in (any::<u32>(), any::<u64>()),
    ) {
        if let Ok(catalogue) = Catalogue::from_bytes(&bytes) {
            prop_assert_eq!(Catalogue::from_bytes(&catalogue.to_bytes().unwrap()).unwrap(), catalogue);
        }
        // Random bytes never match the hash; a sender that computes it may claim any size.
        prop_assert!(Head::parse(&bytes).is_none());
        let blocks = bytes.len() / 32;
        let whole = head_of(BLOCK_BYTES as u32, blocks as u64, &bytes[..32 * blocks]);
        prop_assert!(Head::parse(&whole).is_some());
        for head in [whole, head_of(item_bytes, items, &bytes), head_of(item_bytes, items % 300, &bytes)] {
            let Some(head) = Head::parse(&head) else { continue };
            prop_assert!((0..blocks).all(|block| head.place(block).is_some() && head.block_hash(block).is_some()));
            prop_assert!(head.place(blocks).is_none() && head.block_hash(blocks).is_none());
        }
    }
}
