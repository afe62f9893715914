//! The thread that decodes images not requested yet and makes shards. One of all processes that use a folder runs it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::super::cache::{document, read_document};
use super::super::chat::ConversationCounts;
use super::super::folder::{name_into as name_in_folder, seen_of};
use super::super::image::{black, is_large, name_into, sample_bytes, stand_in};
use super::super::named::Named;
use super::super::partial::{Partial, make_once};
use super::super::piece::{BadRecords, classes_of, finish_name, name_of_recipe};
use super::super::prepared::{ListedPiece, PieceList, list_name};
use super::super::shard::{self, Shard};
use super::super::stamp::{FileState, Stamp};
use super::super::text_counts::TextCounts;
use super::*;

/// Interval between retries of failed work, and between checks for a filler that died.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Fills until everything is in shards, by this process or another, or the preparation is stopped.
pub(super) fn run(filling: &Filling) {
    decoders::give_way();
    let mut told = String::new();
    loop {
        match filling.fill() {
            Ok(true) => return filling.ending.set(End::Complete),
            Ok(false) => {}
            Err(error) if is_passing(&error) => {
                let reason = error.to_string();
                if reason != told {
                    tracing::warn!(%error, "a folder of images cannot be prepared further: retrying");
                }
                told = reason;
            }
            Err(error) => {
                let reason = filling.fails(error).to_string();
                return filling.ending.set(End::Failed(reason.into()));
            }
        }
        filling.ending.wait_for(LOOK_AGAIN);
        if filling.ending.is_there() {
            return;
        }
    }
}

/// Whether a retry may succeed: no room at the moment, or a disk is absent.
fn is_passing(error: &DataError) -> bool {
    matches!(error, DataError::Io { .. } | DataError::NoRoom { .. })
}

impl Filling {
    /// Makes the missing shards, unless another process is doing so. Returns whether everything is in shards.
    pub(in super::super) fn fill(&self) -> Result<bool, DataError> {
        let is_sealed = self.is_sealed()?;
        if is_sealed && !self.draft.is_there() {
            return Ok(true);
        }
        let mut place = self.draft.path().with_extension("").into_os_string();
        place.push("-filler");
        let Some(_owner) = Partial::try_lock(Path::new(&place))? else { return Ok(is_sealed) };
        // From the end, where samples are cut off.
        for piece in (0..self.names.len()).rev() {
            self.goes_on()?;
            if self.sealed(piece)?.is_none() {
                self.seal(piece)?;
            }
            self.draft.cut(self.starts[piece])?;
        }
        self.list()?;
        self.draft.remove()?;
        Ok(true)
    }

    fn is_sealed(&self) -> Result<bool, DataError> {
        for piece in 0..self.names.len() {
            self.goes_on()?;
            if self.sealed(piece)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes or finds the shard of a piece.
    fn seal(&self, piece: usize) -> Result<(), DataError> {
        self.draft.cut(self.starts[piece + 1])?;
        let mut missing = self.missing(piece)?;
        let mut hasher = name_of_recipe(&self.recipe.hash(self.origin.path()));
        for image in self.piece(piece) {
            let digest = match missing.get(&image) {
                Some((_, digest)) => *digest,
                None => self.digest(image)?,
            };
            name_into(&mut hasher, [self.images[image as usize].class, 0, 0], &digest);
        }
        let name = finish_name(&hasher);
        self.lease.shard(&name)?;
        let (path, images) = (self.cache.shard(&name), self.piece(piece));
        let found = || Ok(Shard::map(&path)?.filter(|shard| shard.len() == images.end - images.start));
        match found()? {
            // None of it is bad.
            Some(shard) if shard.stand_ins() == 0 => {
                for (image, (_, digest)) in std::mem::take(&mut missing) {
                    self.draft.note(image, digest, Kind::Found)?;
                }
            }
            _ => self.decode(missing)?,
        }
        let shard = make_once(&path, &self.cache, found, || self.samples(piece))?;
        self.draft.seal(piece as u64, &name, shard.hash())?;
        let hash = blake3::Hash::from_bytes(shard.hash()).to_hex().to_string();
        self.names[piece].get_or_init(|| Named { name, hash });
        Ok(())
    }

    /// Reads the images of a piece that are not decoded yet.
    fn missing(&self, piece: usize) -> Result<BTreeMap<u64, (RawImage, blake3::Hash)>, DataError> {
        let mut missing = BTreeMap::new();
        for image in self.piece(piece) {
            if self.look(image)? == UNSEEN {
                self.goes_on()?;
                let raw = read_image(&self.images[image as usize])?;
                let digest = raw.digest();
                self.see(&raw);
                missing.insert(image, (raw, digest));
            }
        }
        Ok(missing)
    }

    fn decode(&self, images: BTreeMap<u64, (RawImage, blake3::Hash)>) -> Result<(), DataError> {
        let decode = |(image, (raw, digest)): (u64, (RawImage, blake3::Hash))| {
            self.goes_on()?;
            // Other threads may wait for a large image, so it is decoded at normal priority.
            let made = match is_large(&raw) {
                true => decoders::wanted(vec![raw], |raw| sample_of(raw, &self.shape)).remove(0),
                false => sample_of(raw, &self.shape),
            };
            self.take(image, digest, made).map(drop)
        };
        decoders::ahead(images.into_iter().collect(), decode).into_iter().collect()
    }

    /// Returns the samples of a piece's shard.
    fn samples(&self, piece: usize) -> Result<Vec<u8>, DataError> {
        let (mut samples, mut is_bad) = (Vec::new(), Vec::new());
        for image in self.piece(piece) {
            let noted = self.draft.noted(image)?;
            // The file may be damaged.
            let is_here = match &noted {
                Some(noted) => self.draft.read_checked(image, noted, &mut samples)?,
                None => false,
            };
            let again = || self.again(image, noted.is_some_and(|noted| noted.kind == Kind::Bad));
            let sample = if is_here { Some(Vec::new()) } else { again()? };
            is_bad.push(sample.is_none());
            samples.extend(sample.unwrap_or_else(|| black(self.images[image as usize].class, &self.shape)));
        }
        let bytes = sample_bytes(&self.shape);
        stand_in(&mut samples, bytes, &is_bad);
        let stand_ins = is_bad.iter().filter(|is_bad| **is_bad).count();
        Ok(shard::encode(&samples, bytes, u32::try_from(stand_ins).unwrap_or(u32::MAX)))
    }

    /// Decodes an image missing from the draft; `None`: it cannot be decoded.
    fn again(&self, image: u64, is_bad: bool) -> Result<Option<Vec<u8>>, DataError> {
        if is_bad {
            return Ok(None);
        }
        self.goes_on()?;
        match sample_of(read_image(&self.images[image as usize])?, &self.shape) {
            Ok(sample) => Ok(Some(sample)),
            Err(reason) => self.note_bad(image, Some(reason)).map(|()| None),
        }
    }

    /// Returns the BLAKE3 of an image's file as read.
    fn digest(&self, image: u64) -> Result<blake3::Hash, DataError> {
        match self.draft.noted(image)? {
            Some(noted) => Ok(noted.digest),
            // The draft had no room for it.
            None => Ok(read_image(&self.images[image as usize])?.digest()),
        }
    }

    /// Writes the list of all pieces: the folder is prepared from now on.
    fn list(&self) -> Result<(), DataError> {
        let folder = self.origin.path();
        let seen = seen_of(&self.images);
        if FileState::of(folder).ok().as_ref() != Some(&seen.state) {
            tracing::warn!(
                folder = %folder.display(),
                "it has changed since the preparation began, so the next start prepares it again; this run has all its data"
            );
            return Ok(());
        }
        let mut hasher = blake3::Hasher::new();
        for (image, listed) in (0..).zip(&self.images) {
            name_in_folder(&mut hasher, listed, &self.digest(image)?);
        }
        let hash = hasher.finalize().to_hex().to_string();
        let name = list_name(&hash, &self.origin, &self.recipe);
        self.lease.list(&name)?;
        self.lease.stamps(&self.origin.stamps()?)?;
        let path = self.cache.list(&name);
        let make = || document(&self.piece_list()?, &path);
        make_once(&path, &self.cache, || read_document::<PieceList>(&path), make)?;
        Stamp::keep(folder, seen, hash, &self.cache).map(drop)
    }

    fn piece_list(&self) -> Result<PieceList, DataError> {
        let bad = self.bad_with_reasons()?;
        let mut pieces = Vec::new();
        for (piece, images) in self.pieces().enumerate() {
            let Some(Named { name, hash }) = self.sealed(piece)?.cloned() else {
                return Err(DataError::Changed { path: self.origin.path().to_owned() });
            };
            let records = self.are_bad(piece).iter().filter(|is_bad| !**is_bad).count() as u64;
            pieces.push(ListedPiece { name, records, items: images, hash });
        }
        let (file, recipe) = (self.origin.path().display().to_string(), self.recipe.to_string());
        let (labels, counts, notes) = (self.labels(), TextCounts::default(), self.notes());
        let classes = classes_of(&labels);
        let conversations = ConversationCounts::default();
        Ok(PieceList { file, recipe, pieces, bad, classes, labels, counts, conversations, notes })
    }

    /// Returns all bad images, with causes for the first ones, which another process may have found.
    fn bad_with_reasons(&self) -> Result<BadRecords, DataError> {
        let unexplained = |(image, reason): (&u64, &Option<String>)| reason.is_none().then_some(*image);
        let images: Vec<u64> = self.bad().iter().take(EXAMPLES_MAX).filter_map(unexplained).collect();
        for image in images {
            let reason = sample_of(read_image(&self.images[image as usize])?, &self.shape).err();
            self.note_bad(image, reason)?;
        }
        Ok(self.told(&self.bad()))
    }
}
