//! Folders of images in use while they are prepared.

mod changed;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use image::{ImageFormat, RgbImage};

use super::*;
use crate::cache::files;
use crate::filling::{Begun, Filling, Preparing};
use crate::folder::{FolderImage, images_in};
use crate::image_sample;
use crate::lease::Lease;
use crate::origin::Origin;
use crate::partial::Partial;
use crate::side_by_side::When;
use crate::{ReadAhead, ReadRequest};

const SHAPE: &str = "image = { height = 16, width = 16, classes = 2 }";
const HERE: &str = "sources = [{ path = \".\", format = \"images\" }]\nvalidation_share = 0.0";
/// Bytes of a sample.
const SAMPLE: usize = 3 * 16 * 16 + 2;
/// Images per piece; images are smaller than their samples.
const IN_A_PIECE: usize = 4;
const PIECE_BYTES: u64 = IN_A_PIECE as u64 * (8 + SAMPLE as u64);

/// A folder of 22 images of two classes.
struct Images {
    folder: Folder,
    cache: Folder,
}

impl Images {
    fn new() -> Self {
        let images = Self { folder: Folder::new(), cache: Folder::new() };
        for (class, count) in [("a", 15), ("b", 7)] {
            std::fs::create_dir(images.folder.path().join(class)).unwrap();
            for at in 0..count {
                images.write(&format!("{class}/{at:02}.png"), &png(at * 10 + class.as_bytes()[0]));
            }
        }
        images
    }

    /// Writes a file with a time old enough to exclude a later write.
    fn write(&self, name: &str, content: &[u8]) {
        self.folder.write(name, content);
        let file = File::options().write(true).open(self.folder.path().join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }

    fn lines(max: u64) -> String {
        format!("bad_records_max = {max}\n{SHAPE}\n{HERE}")
    }

    fn open_in(&self, cache: &Path, max: u64, when: When) -> Result<Dataset, DataError> {
        let (cache, config) = (Cache::open(cache, None)?, config(&Self::lines(max)));
        let work = Work::default();
        let maker =
            Maker { cache: &cache, tokenizer: &Tokenizer::Bytes, work: &work, piece_bytes: PIECE_BYTES };
        Dataset::opened_by(&config.found_at(self.folder.path()), maker, when)
    }

    fn begin(&self, max: u64) -> Result<Dataset, DataError> {
        self.open_in(self.cache.path(), max, When::Meanwhile)
    }

    /// Opens a folder without a thread: tests fill it explicitly.
    fn filling(&self, max: u64, bytes_max: Option<u64>) -> Result<Filling, DataError> {
        let cache = Cache::open(self.cache.path(), bytes_max)?;
        Filling::open(self.begun(max), &cache, &Arc::new(Lease::new(&cache)?))
    }

    /// Takes the filler's lock, which excludes other fillers. A draft must exist.
    fn as_filler(&self) -> Partial {
        let draft = files(&self.cache.path().join("data/drafts")).unwrap().remove(0);
        let mut place = draft.with_extension("").into_os_string();
        place.push("-filler");
        Partial::try_lock(Path::new(&place)).unwrap().unwrap()
    }

    fn begun(&self, max: u64) -> Begun {
        let (cache, config) = (Cache::open(self.cache.path(), None).unwrap(), config(&Self::lines(max)));
        let config = config.found_at(self.folder.path());
        let work = Work::default();
        let maker =
            Maker { cache: &cache, tokenizer: &Tokenizer::Bytes, work: &work, piece_bytes: PIECE_BYTES };
        let origin = Origin::Local(self.folder.path().join("."));
        Begun {
            images: images_in(origin.path()).unwrap(),
            recipe: maker.recipe(&config.training()[0], &config).unwrap(),
            origin,
            bad_records_max: max,
        }
    }

    /// The same in a separate cache, prepared before use.
    fn prepared(&self, max: u64) -> (Dataset, Folder) {
        let cache = Folder::new();
        (self.open_in(cache.path(), max, When::First).unwrap(), cache)
    }

    fn listed(&self) -> Vec<FolderImage> {
        images_in(self.folder.path()).unwrap()
    }

    /// Damages an image's content.
    fn damage(&self, at: usize) {
        let path = self.listed().remove(at).path;
        self.write(path.to_str().unwrap(), format!("no image, {at}").as_bytes());
    }

    /// Returns the expected samples, from the files themselves.
    fn expected(&self) -> Vec<Vec<u8>> {
        let shape = config(&format!("{SHAPE}\n{HERE}")).image.unwrap();
        let sample =
            |image: &FolderImage| image_sample(std::fs::read(&image.path).unwrap(), image.class, &shape).ok();
        let decoded: Vec<_> = self.listed().iter().map(sample).collect();
        let classes: Vec<u32> = self.listed().iter().map(|image| image.class).collect();
        let stands = |at: usize| {
            let start = at - at % IN_A_PIECE;
            let end = decoded.len().min(start + IN_A_PIECE);
            let before = decoded[start..=at].iter().rev().flatten().next();
            let found = before.or_else(|| decoded[at..end].iter().flatten().next());
            let black = || [&[0; SAMPLE - 2][..], &(classes[at] as u16).to_le_bytes()].concat();
            found.cloned().unwrap_or_else(black)
        };
        (0..decoded.len()).map(stands).collect()
    }
}

fn png(seed: u8) -> Vec<u8> {
    let picture = RgbImage::from_fn(9, 7, |x, y| {
        image::Rgb([seed, (x * 20) as u8 ^ seed, (y * 30) as u8].map(|value| value.wrapping_mul(3)))
    });
    let mut file = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

/// Returns the permanent files of a cache, by folder and name, with the bytes and BLAKE3 of each.
fn kept(cache: &Path) -> BTreeMap<PathBuf, (usize, blake3::Hash)> {
    let mut kept = BTreeMap::new();
    for part in ["stamps", "lists", "shards", "drafts"] {
        for path in files(&cache.join("data").join(part)).unwrap() {
            let name = Path::new(part).join(path.file_name().unwrap());
            let bytes = std::fs::read(&path).unwrap();
            kept.insert(name, (bytes.len(), blake3::hash(&bytes)));
        }
    }
    kept
}

/// Copies a cache. Files that appear or vanish meanwhile stand for either state after a kill.
fn copy(from: &Path, to: &Path) {
    for part in ["stamps", "lists", "shards", "drafts"] {
        std::fs::create_dir_all(to.join("data").join(part)).unwrap();
        for path in files(&from.join("data").join(part)).unwrap() {
            let _ = std::fs::copy(&path, to.join("data").join(part).join(path.file_name().unwrap()));
        }
    }
}

/// Returns samples in their stored form.
fn stored(data: &Dataset) -> Vec<Vec<u8>> {
    let with_class = |(pixels, class): Image| [pixels, (class as u16).to_le_bytes().to_vec()].concat();
    images(data).into_iter().map(with_class).collect()
}

fn read(filling: &Filling, piece: usize, images: std::ops::Range<u64>) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    filling.read(piece, images, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn what_will_be_read_is_decoded_by_then() {
    let images = Images::new();
    let _draft = images.filling(0, None).unwrap();
    let _filler = images.as_filler();
    let data = images.begin(0).unwrap();
    data.expect(&(0..22).collect::<Vec<_>>(), 7);
    for image in images_in(images.folder.path()).unwrap() {
        std::fs::remove_file(image.path).unwrap();
    }
    assert_eq!(data.batch(0..22, 7).unwrap().sequences(), 22);
}

#[test]
fn what_is_used_while_it_is_prepared_is_the_same_and_becomes_the_same_cache_byte_for_byte() {
    let images = Images::new();
    let (data, (prepared, other)) = (images.begin(0).unwrap(), images.prepared(0));
    assert_eq!((data.samples(), data.data_hash()), (22, prepared.data_hash()));
    assert!(data.batch(0..22, 7).unwrap() == prepared.batch(0..22, 7).unwrap());
    assert_eq!(stored(&data), images.expected());
    let data = Arc::new(data);
    let ahead = ReadAhead::start(Arc::clone(&data), 7, |batch, _| batch).unwrap();
    let step = |at: u64| ReadRequest { positions: (4 * at..4 * at + 4).collect(), micro_batch: 4 };
    for at in 0..8 {
        let batch = ahead.take((at..8).map(step)).unwrap();
        assert!(batch == prepared.batch(4 * at..4 * at + 4, 7).unwrap(), "step {at}");
    }
    data.coming().wait().unwrap();
    assert_eq!(kept(images.cache.path()), kept(other.path()));
    assert_eq!(stored(&data), images.expected());
    assert_eq!((data.verify(|_| {}).unwrap(), data.sources()), (0, prepared.sources()));
    // Nothing is left to prepare from then on.
    assert!(!data.coming().is_nothing() && images.begin(0).unwrap().coming().is_nothing());
}

#[test]
fn who_is_killed_at_any_moment_leaves_what_the_next_one_goes_on_from() {
    let images = Images::new();
    images.damage(9);
    let (prepared, other) = images.prepared(1);
    let expected = kept(other.path());
    for turn in 0..12 {
        // The state after a kill: files without locks.
        let (cache, left) = (Folder::new(), Folder::new());
        let data = images.open_in(cache.path(), 1, When::Meanwhile).unwrap();
        data.batch(0..turn, 3).unwrap();
        copy(cache.path(), left.path());
        drop(data);
        let data = images.open_in(left.path(), 1, When::Meanwhile).unwrap();
        assert!(data.batch(0..22, 3).unwrap() == prepared.batch(0..22, 3).unwrap(), "turn {turn}");
        data.coming().wait().unwrap();
        assert_eq!(kept(left.path()), expected, "turn {turn}");
    }
}

#[test]
fn what_was_decoded_is_not_decoded_again_by_the_next_one() {
    let images = Images::new();
    let filling = images.filling(0, None).unwrap();
    let before = read(&filling, 1, 0..4).unwrap();
    drop(filling);
    let filling = images.filling(0, None).unwrap();
    // Its files are removed.
    images.listed()[4..8].iter().for_each(|image| std::fs::remove_file(&image.path).unwrap());
    assert_eq!(read(&filling, 1, 0..4).unwrap(), before);
}

#[test]
fn samples_that_the_disk_has_damaged_are_decoded_again() {
    let images = Images::new();
    let filling = images.filling(0, None).unwrap();
    let before = read(&filling, 1, 0..4).unwrap();
    drop(filling);
    let draft = files(&images.cache.path().join("data/drafts")).unwrap().remove(0);
    let mut bytes = std::fs::read(&draft).unwrap();
    let at = bytes.windows(32).position(|window| window == &before[100..132]).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&draft, bytes).unwrap();
    let filling = images.filling(0, None).unwrap();
    assert_eq!(read(&filling, 1, 0..4).unwrap(), before);
    assert!(filling.fill().unwrap());
    let (_, other) = images.prepared(0);
    assert_eq!(kept(images.cache.path()), kept(other.path()));
}

#[test]
fn several_fill_one_folder_and_when_one_goes_another_goes_on() {
    let images = Images::new();
    let (prepared, other) = images.prepared(0);
    let first = images.begin(0).unwrap();
    let second = images.begin(0).unwrap();
    std::thread::scope(|scope| {
        for data in [&first, &second] {
            scope.spawn(|| assert!(data.batch(0..22, 5).unwrap() == prepared.batch(0..22, 5).unwrap()));
        }
    });
    drop(first);
    second.coming().wait().unwrap();
    assert_eq!(kept(images.cache.path()), kept(other.path()));
    assert_eq!(stored(&second), stored(&prepared));
}

#[test]
fn who_does_not_fill_takes_what_another_has_made_and_gives_it_what_it_decodes() {
    let images = Images::new();
    let (owner, other) = (images.filling(0, None).unwrap(), images.filling(0, None).unwrap());
    let whole = read(&other, 0, 0..4).unwrap();
    // Renaming a folder does not change its files.
    let (there, away) = (images.folder.path(), images.folder.path().with_extension("away"));
    std::fs::rename(there, &away).unwrap();
    assert_eq!(read(&owner, 0, 0..4).unwrap(), whole);
    std::fs::rename(&away, there).unwrap();
    // While one process fills, no other does.
    let held = images.as_filler();
    assert!(!other.fill().unwrap());
    drop(held);
    assert!(owner.fill().unwrap() && other.fill().unwrap());
    let mut bytes = Vec::new();
    assert!(other.read(0, 0..4, &mut bytes).unwrap().is_some() && bytes.is_empty());
    assert_eq!(kept(images.cache.path()), kept(images.prepared(0).1.path()));
}

#[test]
fn in_the_place_of_what_cannot_be_decoded_stands_the_nearest_of_its_piece() {
    for bad in [
        vec![0],
        vec![3, 4],
        vec![6],
        vec![5, 6, 7],
        vec![8, 9, 10],
        vec![20, 21],
        // All of a piece, and everything.
        vec![12, 13, 14, 15],
        (0..22).collect(),
    ] {
        let (images, max) = (Images::new(), bad.len() as u64);
        bad.iter().for_each(|at| images.damage(*at));
        let (data, (prepared, other)) = (images.begin(max).unwrap(), images.prepared(max));
        let expected = images.expected();
        assert_eq!(stored(&prepared), expected, "{bad:?}");
        assert_eq!(stored(&data), expected, "{bad:?}");
        data.coming().wait().unwrap();
        assert_eq!(kept(images.cache.path()), kept(other.path()), "{bad:?}");
        let size = data.sources().remove(0).size;
        assert_eq!((size.bad.count, size.records), (max, 22 - max), "{bad:?}");
        assert_eq!(size.bad.examples, prepared.sources()[0].size.bad.examples, "{bad:?}");
        assert_eq!(size.classes, prepared.sources()[0].size.classes, "{bad:?}");
    }
}

#[test]
fn more_that_cannot_be_decoded_than_may_be_ends_it_with_their_names_also_when_it_is_begun_again() {
    let images = Images::new();
    [2, 11, 17].iter().for_each(|at| images.damage(*at));
    let refused = |error: DataError| {
        let message = error.to_string();
        assert!(message.contains("bad_records_max = 2") && message.contains("3 records"), "{message}");
        for at in [2, 11, 17] {
            let path = images.listed().remove(at).path;
            let path = path.strip_prefix(images.folder.path()).unwrap();
            assert!(message.contains(path.to_str().unwrap()), "{message}");
        }
    };
    let data = images.begin(2).unwrap();
    refused(data.coming().wait().unwrap_err());
    refused(data.batch(0..22, 3).unwrap_err());
    drop(data);
    // From the rest of the draft, from shards without a list, and from the list.
    let draft = images.begin(2).unwrap();
    refused(draft.coming().wait().unwrap_err());
    drop(draft);
    let whole = images.begin(3).unwrap();
    whole.coming().wait().unwrap();
    drop(whole);
    refused(images.begin(2).unwrap_err());
    for part in ["lists", "stamps"] {
        let there = files(&images.cache.path().join("data").join(part)).unwrap();
        there.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
    refused(images.begin(2).unwrap().coming().wait().unwrap_err());
    refused(images.open_in(images.cache.path(), 2, When::First).unwrap_err());
}

#[test]
fn room_is_taken_for_all_before_anything_is_decoded_and_is_enough_for_it() {
    let images = Images::new();
    let filling = images.filling(0, None).unwrap();
    let draft = files(&images.cache.path().join("data/drafts")).unwrap().remove(0);
    let needed = std::fs::metadata(&draft).unwrap().len();
    drop(filling);
    let cache = Cache::open(images.cache.path(), None).unwrap();
    cache.sweep().unwrap();
    assert!(files(&cache.drafts()).unwrap().is_empty(), "what nobody uses stays");
    let message = images.filling(0, Some(needed - 1)).map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("the cache may hold"), "{message}");
    assert!(files(&cache.drafts()).unwrap().is_empty());
    let filling = images.filling(0, Some(needed)).unwrap();
    // Pruning does not remove files in use.
    crate::prune(images.cache.path(), 0).unwrap();
    assert!(filling.fill().unwrap());
    let taken: usize = kept(images.cache.path()).values().map(|(bytes, _)| bytes).sum();
    assert!((taken as u64) < needed, "{taken} of {needed} bytes");
    assert!(read(&filling, 0, 0..1).unwrap().is_empty());
}

#[test]
fn the_stamp_of_a_folder_that_was_filled_stays_as_long_as_it_is_used() {
    let images = Images::new();
    // On this thread: a separate one would use it a moment longer.
    let filling = images.filling(0, None).unwrap();
    assert!(filling.fill().unwrap());
    let stamps = || files(&images.cache.path().join("data/stamps")).unwrap().len();
    crate::prune(images.cache.path(), 0).unwrap();
    assert_eq!(stamps(), 1);
    drop(filling);
    assert_eq!((crate::prune(images.cache.path(), 0).unwrap().left_bytes, stamps()), (0, 0));
}

#[test]
fn a_disk_that_is_away_for_a_moment_is_waited_for() {
    let images = Images::new();
    let filling = images.filling(0, None).unwrap();
    let shards = images.cache.path().join("data/shards");
    std::fs::rename(&shards, shards.with_extension("away")).unwrap();
    let error = filling.fill().unwrap_err();
    assert!(matches!(error, DataError::Io { .. }), "{error}");
    // Requested images are read meanwhile, and the thread retries until it succeeds.
    read(&filling, 0, 0..4).unwrap();
    drop(filling);
    let (cache, begun) = (Cache::open(images.cache.path(), None).unwrap(), images.begun(0));
    std::fs::remove_dir(&shards).unwrap();
    let lease = Arc::new(Lease::new(&cache).unwrap());
    let preparing = Preparing::begin(begun, &cache, &lease).unwrap();
    std::fs::rename(shards.with_extension("away"), &shards).unwrap();
    preparing.filling().wait().unwrap();
    assert_eq!(kept(images.cache.path()), kept(images.prepared(0).1.path()));
}

#[test]
fn who_lets_it_go_stops_it_and_what_reads_is_told() {
    let images = Images::new();
    let cache = Cache::open(images.cache.path(), None).unwrap();
    let lease = Arc::new(Lease::new(&cache).unwrap());
    let preparing = Preparing::begin(images.begun(0), &cache, &lease).unwrap();
    let filling = Arc::clone(preparing.filling());
    let coming = crate::Coming::new(vec![Arc::clone(&filling)]);
    drop(preparing);
    // Unless it was faster.
    match coming.wait() {
        Err(DataError::Stopped) => {
            assert!(matches!(read(&filling, 0, 0..4), Err(DataError::Stopped)));
            assert!(matches!(filling.fill(), Err(DataError::Stopped)));
        }
        ended => ended.unwrap(),
    }
}

#[test]
fn a_damaged_shard_without_a_list_is_made_again_by_whoever_prepares_or_verifies() {
    let images = Images::new();
    images.begin(0).unwrap().coming().wait().unwrap();
    let (_, other) = images.prepared(0);
    for at in [40, 900] {
        for part in ["lists", "stamps"] {
            let there = files(&images.cache.path().join("data").join(part)).unwrap();
            there.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        }
        let shard = files(&images.cache.path().join("data/shards")).unwrap().remove(0);
        let mut bytes = std::fs::read(&shard).unwrap();
        bytes[at] ^= 1;
        std::fs::remove_file(&shard).unwrap();
        std::fs::write(&shard, bytes).unwrap();
        let data = images.open_in(images.cache.path(), 0, When::First).unwrap();
        let damaged = data.verify(|_| {}).unwrap();
        assert_eq!(damaged, u64::from(at == 900), "byte {at}");
        assert_eq!(kept(images.cache.path()), kept(other.path()), "byte {at}");
    }
}

#[test]
fn who_has_it_from_others_trains_on_data_of_the_same_name() {
    let images = Images::new();
    let data = images.begin(0).unwrap();
    let (prepared, _other) = images.prepared(0);
    let before = data.data_hash();
    data.coming().wait().unwrap();
    assert_eq!(data.catalogue(&Tokenizer::Bytes), prepared.catalogue(&Tokenizer::Bytes));
    assert_eq!((before, prepared.data_hash()), (data.data_hash(), data.data_hash()));
    let named = |catalogue: &crate::Catalogue| catalogue.to_bytes().unwrap();
    let catalogue = crate::Catalogue::from_bytes(&named(&data.catalogue(&Tokenizer::Bytes))).unwrap();
    assert_eq!(catalogue.sources[0].identity, prepared.catalogue(&Tokenizer::Bytes).sources[0].identity);
    assert!(catalogue.sources[0].identity.is_some());
}
