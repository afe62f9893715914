//! A folder of images used for training while it is prepared: see `docs/data.md`, *Training during preparation*.

mod draft;
mod ending;
mod filler;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use longhaul_common::config::ImageConfig;

use self::draft::{Draft, Kind, Layout};
use self::ending::{End, Ending};
use super::bounds::RECORD_BYTES_MAX;
use super::cache::Cache;
use super::folder::{FolderImage, read_image, seen_of};
use super::image::{RawImage, black, sample_bytes, standing};
use super::lease::Lease;
use super::named::Named;
use super::notes::Notes;
use super::origin::Origin;
use super::piece::{BadRecords, EXAMPLES_MAX, classes_of, image_weight, sample_of};
use super::shard::Head;
use super::source_size::SourceSize;
use super::stamp::Seen;
use super::{DataError, Recipe, decoders};

/// State of an image: unknown.
const UNSEEN: u8 = 0;
/// Its sample is in the draft.
const GOOD: u8 = 1;
/// It cannot be decoded.
const BAD: u8 = 2;

/// A folder at the start of its preparation.
pub(super) struct Begun {
    pub(super) origin: Origin,
    pub(super) images: Vec<FolderImage>,
    pub(super) recipe: Recipe,
    pub(super) bad_records_max: u64,
}

/// The images of a folder: some decoded, some in shards, the rest decoded on demand.
#[derive(Debug)]
pub(super) struct Filling {
    cache: Cache,
    lease: Arc<Lease>,
    origin: Origin,
    images: Vec<FolderImage>,
    recipe: Recipe,
    shape: ImageConfig,
    /// Number of images before each piece, then the total.
    starts: Vec<u64>,
    draft: Draft,
    /// State of each image, as known without reading the draft.
    seen: Vec<AtomicU8>,
    /// Shards of the sealed pieces.
    names: Vec<OnceLock<Named>>,
    bad_records_max: u64,
    /// Images that cannot be decoded, each with its cause; `None`: found by another process.
    bad: Mutex<BTreeMap<u64, Option<String>>>,
    notes: Mutex<Notes>,
    ending: Ending,
    has_warned: AtomicBool,
}

/// The outcome for an image.
enum Have {
    /// Its sample is in the draft.
    Kept,
    /// It cannot be decoded.
    Bad,
    /// The draft could not take it.
    Loose(Vec<u8>),
}

/// Handle of the thread that fills a folder; the thread ends when the folder is full or the handle is dropped.
#[derive(Debug)]
pub(super) struct Preparing(Arc<Filling>);

impl Drop for Preparing {
    fn drop(&mut self) {
        self.0.ending.set(End::Stopped);
    }
}

impl Preparing {
    /// Starts the preparation, or resumes that of an earlier process.
    ///
    /// # Errors
    /// There is not enough room, or the folder has other classes.
    pub(super) fn begin(begun: Begun, cache: &Cache, lease: &Arc<Lease>) -> Result<Self, DataError> {
        let filling = Arc::new(Filling::open(begun, cache, lease)?);
        let preparing = Self(Arc::clone(&filling));
        let thread = std::thread::Builder::new().name("fill".into());
        // The thread is not joined: it ends after its current image.
        thread
            .spawn(move || filler::run(&filling))
            .map_err(DataError::io("fill", preparing.0.draft.path()))?;
        Ok(preparing)
    }

    pub(super) fn filling(&self) -> &Arc<Filling> {
        &self.0
    }
}

/// The parts of a dataset that are prepared while it is in use.
#[derive(Debug)]
pub struct Coming(Vec<Arc<Filling>>);

impl Coming {
    pub(super) fn new(all: Vec<Arc<Filling>>) -> Self {
        Self(all)
    }

    /// Whether nothing is left to wait for.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Stops the preparation: later reads of missing images fail.
    pub fn stop(&self) {
        self.0.iter().for_each(|filling| filling.ending.set(End::Stopped));
    }

    /// Waits until everything is prepared, or the dataset is dropped.
    ///
    /// # Errors
    /// The preparation failed, or the dataset was dropped first.
    pub fn wait(&self) -> Result<(), DataError> {
        self.0.iter().try_for_each(|filling| filling.wait())
    }
}

impl Filling {
    pub(super) fn open(begun: Begun, cache: &Cache, lease: &Arc<Lease>) -> Result<Self, DataError> {
        let Begun { origin, images, recipe, bad_records_max } = begun;
        let Some(shape) = recipe.image.clone() else {
            let reason = "[data.image], with the shape of images, is missing".to_owned();
            return Err(DataError::Folder { path: origin.path().to_owned(), reason });
        };
        let starts = cut(&images, &recipe, &shape);
        let sizes = || starts.windows(2).map(|ends| ends[1] - ends[0]);
        let heads: u64 = sizes().map(|images| Head::bytes_of(images, sample_bytes(&shape)) as u64).sum();
        let sample_bytes = sample_bytes(&shape) as u64;
        let layout = Layout {
            pieces: starts.len() as u64 - 1,
            images: images.len() as u64,
            sample_bytes,
            spare: heads + sizes().max().unwrap_or_default() * sample_bytes,
        };
        let mut hasher = blake3::Hasher::new();
        let Seen { state, changed } = seen_of(&images);
        let times = [state.modified_s, state.modified_ns, changed.s, changed.ns].map(|time| time as u64);
        for number in [state.bytes, state.inode].into_iter().chain(times) {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(recipe.hash(origin.path()).as_bytes());
        let path =
            cache.drafts().join(format!("{}.{}", &hasher.finalize().to_hex()[..32], super::partial::ENDING));
        let is_whole = |draft: &Draft| has_shards(draft, layout.pieces, cache, lease);
        let draft = Draft::open(path, layout, cache, is_whole)?;
        Ok(Self {
            cache: cache.clone(),
            lease: Arc::clone(lease),
            origin,
            recipe,
            shape,
            draft,
            seen: images.iter().map(|_| AtomicU8::new(UNSEEN)).collect(),
            names: sizes().map(|_| OnceLock::new()).collect(),
            images,
            starts,
            bad_records_max,
            bad: Mutex::default(),
            notes: Mutex::default(),
            ending: Ending::default(),
            has_warned: AtomicBool::new(false),
        })
    }

    /// Returns the number of images of each piece.
    pub(super) fn pieces(&self) -> impl Iterator<Item = u64> {
        self.starts.windows(2).map(|ends| ends[1] - ends[0])
    }

    /// Returns the images of a piece.
    fn piece(&self, piece: usize) -> Range<u64> {
        self.starts[piece]..self.starts[piece + 1]
    }

    /// Returns the shard of a piece if this process knows it.
    pub(super) fn name(&self, piece: usize) -> Option<&Named> {
        self.names.get(piece)?.get()
    }

    /// The same, with a look at the draft.
    fn sealed(&self, piece: usize) -> Result<Option<&Named>, DataError> {
        if let Some(named) = self.name(piece) {
            return Ok(Some(named));
        }
        let Some(named) = self.draft.sealed(piece as u64)? else { return Ok(None) };
        self.lease.shard(&named.name)?;
        for image in self.piece(piece) {
            if self.draft.noted(image)?.is_some_and(|noted| noted.kind == Kind::Bad) {
                self.note_bad(image, None)?;
            }
        }
        Ok(Some(self.names[piece].get_or_init(|| named)))
    }

    /// Appends the samples of a range of a piece; nothing if they are already in a shard.
    pub(super) fn read(
        &self,
        piece: usize,
        range: Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<&Named>, DataError> {
        self.goes_on()?;
        if let Some(named) = self.sealed(piece)? {
            return Ok(Some(named));
        }
        let (before, start) = (into.len(), self.starts[piece]);
        let mut is_whole = true;
        for image in range {
            is_whole &= self.read_image(piece, start + image, into)?;
        }
        // Samples cut off meanwhile were read as missing.
        match self.sealed(piece)? {
            Some(named) => {
                into.truncate(before);
                Ok(Some(named))
            }
            None if is_whole => Ok(None),
            None => Err(DataError::Unreliable { path: self.draft.path().to_owned() }),
        }
    }

    /// Decodes the missing ones of these images in parallel. Returns at once if none is missing, without queueing behind other requests.
    pub(super) fn bring(&self, mut images: Vec<u64>) -> Result<(), DataError> {
        let is_seen = |image: u64| self.seen[image as usize].load(Ordering::Relaxed) != UNSEEN;
        images.retain(|image| !is_seen(*image) && self.name(self.piece_of(*image)).is_none());
        if images.is_empty() {
            return Ok(());
        }
        let bring = |image: u64| {
            if self.sealed(self.piece_of(image))?.is_none() {
                self.have(image)?;
            }
            Ok(())
        };
        decoders::wanted(images, bring).into_iter().collect()
    }

    /// Whether decoded samples can be kept, as far as known.
    pub(super) fn keeps(&self) -> bool {
        !self.has_warned.load(Ordering::Relaxed)
    }

    fn piece_of(&self, image: u64) -> usize {
        self.starts.partition_point(|start| *start <= image).saturating_sub(1)
    }

    /// Appends an image's sample or its stand-in. Returns whether it was still in the draft.
    fn read_image(&self, piece: usize, image: u64, into: &mut Vec<u8>) -> Result<bool, DataError> {
        let Range { start, end } = self.piece(piece);
        let nearest = std::iter::once(image).chain((start..image).rev()).chain(image + 1..end);
        for image in nearest {
            match self.have(image)? {
                Have::Bad => continue,
                Have::Loose(sample) => into.extend(sample),
                Have::Kept => return self.draft.read(image, into),
            }
            return Ok(true);
        }
        into.extend(black(self.images[image as usize].class, &self.shape));
        Ok(true)
    }

    /// Returns the outcome for an image, and decodes it if it is unknown.
    fn have(&self, image: u64) -> Result<Have, DataError> {
        match self.look(image)? {
            GOOD => Ok(Have::Kept),
            BAD => Ok(Have::Bad),
            _ => {
                self.goes_on()?;
                let raw = read_image(&self.images[image as usize]).map_err(|error| self.fails(error))?;
                self.see(&raw);
                self.take(image, raw.digest(), sample_of(raw, &self.shape))
            }
        }
    }

    /// Returns the state of an image from memory or from the draft.
    fn look(&self, image: u64) -> Result<u8, DataError> {
        let seen = &self.seen[image as usize];
        let known = seen.load(Ordering::Relaxed);
        if known != UNSEEN {
            return Ok(known);
        }
        let found = match self.draft.noted(image)? {
            Some(noted) if noted.kind == Kind::Bad => {
                self.note_bad(image, None)?;
                BAD
            }
            Some(noted) if self.draft.read_checked(image, &noted, &mut Vec::new())? => GOOD,
            _ => UNSEEN,
        };
        seen.store(found, Ordering::Relaxed);
        Ok(found)
    }

    /// Stores the outcome for an image.
    fn take(
        &self,
        image: u64,
        digest: blake3::Hash,
        made: Result<Vec<u8>, String>,
    ) -> Result<Have, DataError> {
        let seen = &self.seen[image as usize];
        match made {
            Ok(sample) => match self.draft.keep(image, digest, &sample) {
                Ok(()) => {
                    seen.store(GOOD, Ordering::Relaxed);
                    Ok(Have::Kept)
                }
                Err(error) => {
                    self.warn_once(&error);
                    Ok(Have::Loose(sample))
                }
            },
            Err(reason) => {
                self.note_bad(image, Some(reason))?;
                self.draft.note(image, digest, Kind::Bad).unwrap_or_else(|error| self.warn_once(&error));
                seen.store(BAD, Ordering::Relaxed);
                Ok(Have::Bad)
            }
        }
    }

    /// Adds an image decoded here to the notes.
    fn see(&self, image: &RawImage) {
        let seen = image.notes();
        if !seen.are_none() {
            self.notes.lock().unwrap_or_else(PoisonError::into_inner).add(&seen);
        }
    }

    /// Returns the notes on the images decoded here.
    fn notes(&self) -> Notes {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that an image cannot be decoded.
    fn note_bad(&self, image: u64, reason: Option<String>) -> Result<(), DataError> {
        let mut bad = self.bad();
        let known = bad.entry(image).or_default();
        *known = reason.or_else(|| known.take());
        if bad.len() as u64 <= self.bad_records_max {
            return Ok(());
        }
        let refused = self.told(&bad);
        drop(bad);
        self.ending.set(End::Bad(refused));
        self.goes_on()
    }

    /// Converts unreadable images to records for messages.
    fn told(&self, bad: &BTreeMap<u64, Option<String>>) -> BadRecords {
        let told = |(image, reason): (&u64, &Option<String>)| {
            let place = || format!("{}: it cannot be decoded", self.images[*image as usize].path.display());
            reason.clone().unwrap_or_else(place)
        };
        BadRecords { count: bad.len() as u64, examples: bad.iter().take(EXAMPLES_MAX).map(told).collect() }
    }

    fn bad(&self) -> MutexGuard<'_, BTreeMap<u64, Option<String>>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the size found so far.
    pub(super) fn size(&self) -> SourceSize {
        let bad = self.told(&self.bad());
        let classes = classes_of(&self.labels());
        SourceSize {
            files: 1,
            bytes: self.images.iter().map(|image| image.state.bytes).sum(),
            records: self.images.len() as u64 - bad.count,
            bad,
            items: self.images.len() as u64,
            classes,
            notes: self.notes(),
            shards: self.names.len() as u64,
            // The caller that listed the folder fills in the rest.
            ..SourceSize::default()
        }
    }

    /// Returns the class of each image in order, with unreadable images as far as known.
    pub(super) fn labels(&self) -> Vec<u32> {
        let mut labels = Vec::with_capacity(self.images.len());
        for piece in 0..self.names.len() {
            let (images, is_bad) = (self.piece(piece), self.are_bad(piece));
            let stands = standing(&is_bad).unwrap_or_else(|| (0..is_bad.len()).collect());
            labels.extend(stands.into_iter().map(|at| self.images[images.start as usize + at].class));
        }
        labels
    }

    /// Marks the images of a piece that are known to be unreadable.
    fn are_bad(&self, piece: usize) -> Vec<bool> {
        let bad = self.bad();
        self.piece(piece).map(|image| bad.contains_key(&image)).collect()
    }

    /// Ends the preparation with a fatal error of an image.
    fn fails(&self, error: DataError) -> DataError {
        if let DataError::Changed { path } = &error {
            self.ending.set(End::Changed(path.clone()));
        }
        error
    }

    fn warn_once(&self, error: &DataError) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "a decoded image cannot be stored: it is decoded again on demand");
        }
    }

    /// Returns an error if the preparation has ended without success.
    fn goes_on(&self) -> Result<(), DataError> {
        if !self.ending.is_there() {
            return Ok(());
        }
        match self.ending.get() {
            End::Open | End::Complete => Ok(()),
            End::Stopped => Err(DataError::Stopped),
            End::Bad(bad) => Err(bad.refused(self.bad_records_max)),
            End::Changed(path) => Err(DataError::Changed { path }),
            End::Failed(reason) => {
                let reason = std::io::Error::other(reason.to_string());
                Err(DataError::io("prepare", self.origin.path())(reason))
            }
        }
    }

    /// Waits until everything is in shards.
    ///
    /// # Errors
    /// The preparation ended otherwise.
    pub(super) fn wait(&self) -> Result<(), DataError> {
        self.ending.wait();
        self.goes_on()
    }
}

/// Returns the number of images before each piece, then the total, as [`super::piece::Pieces`] cuts them.
fn cut(images: &[FolderImage], recipe: &Recipe, shape: &ImageConfig) -> Vec<u64> {
    let (mut starts, mut bytes) = (vec![0], 0);
    for (image, next) in images.iter().zip(1..) {
        let read = if image.state.bytes > RECORD_BYTES_MAX { 0 } else { image.state.bytes };
        bytes += image_weight(read, shape);
        if bytes >= recipe.piece_bytes || next == images.len() as u64 {
            starts.push(next);
            bytes = 0;
        }
    }
    starts
}

/// Whether the shards of all sealed pieces of a draft exist; the lease keeps them from now on.
fn has_shards(draft: &Draft, pieces: u64, cache: &Cache, lease: &Lease) -> Result<bool, DataError> {
    for piece in 0..pieces {
        if let Some(named) = draft.sealed(piece)? {
            lease.shard(&named.name)?;
            if !cache.shard(&named.name).is_file() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
