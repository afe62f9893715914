//! Storage whose power fails at a chosen operation.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use redb::StorageBackend;

/// Unit that a disk writes completely or not at all, in bytes.
const SECTOR_BYTES: usize = 512;
/// Images with a part of an unfinished write, besides the one without it and the one with all of it.
const TORN_IMAGES: u64 = 3;

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

#[derive(Debug, Default)]
struct Disk {
    /// Certainly durable content.
    synced: Vec<u8>,
    /// Content seen by readers.
    seen: Vec<u8>,
    /// Content that may be durable too, in any part.
    under_way: Vec<Change>,
    operations: u64,
    fails_at: Option<u64>,
    /// It claims to sync, and does not.
    forgets: bool,
}

/// Clones are the same storage.
#[derive(Clone, Debug)]
pub(super) struct Storage(Arc<Mutex<Disk>>);

impl Storage {
    /// Empty storage that fails at this operation, counted from 1, and for good.
    pub(super) fn new(fails_at: Option<u64>) -> Self {
        Self(Arc::new(Mutex::new(Disk { fails_at, ..Disk::default() })))
    }

    /// The same, losing all content that it claims to have synced.
    pub(super) fn forgetful(fails_at: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk { fails_at: Some(fails_at), forgets: true, ..Disk::default() })))
    }

    /// Storage as it was found after a failure.
    pub(super) fn holding(image: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Disk { synced: image.clone(), seen: image, ..Disk::default() })))
    }

    /// Writes, changes of length and syncs so far.
    pub(super) fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Possible contents: without the unfinished writes, with all of them, and with some torn parts.
    pub(super) fn images(&self, seed: u64) -> Vec<Vec<u8>> {
        let disk = self.lock();
        let mut images = vec![disk.synced.clone(), disk.synced.clone()];
        for change in &disk.under_way {
            apply(&mut images[1], change);
        }
        for part in 0..TORN_IMAGES {
            let mut rng = ChaCha8Rng::seed_from_u64(seed * TORN_IMAGES + part);
            let mut image = disk.synced.clone();
            for change in &disk.under_way {
                apply_some(&mut image, change, &mut rng);
            }
            images.push(image);
        }
        images
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: Change) -> io::Result<()> {
        let mut disk = self.lock();
        let alive = disk.count();
        // The write during the power failure may be present, too.
        if disk.fails_at.is_none_or(|at| disk.operations <= at) {
            apply(&mut disk.seen, &change);
            disk.under_way.push(change);
        }
        alive
    }
}

impl Disk {
    fn count(&mut self) -> io::Result<()> {
        self.operations += 1;
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        match self.fails_at {
            Some(at) if self.operations >= at => Err(io::Error::other("the power has failed")),
            _ => Ok(()),
        }
    }
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Length(length) => image.resize(*length, 0),
        Change::Write { offset, bytes } => {
            let end = offset + bytes.len();
            if image.len() < end {
                image.resize(end, 0);
            }
            image[*offset..end].copy_from_slice(bytes);
        }
    }
}

/// Applies each sector of a write or not. A file is never shorter than its written content.
fn apply_some(image: &mut Vec<u8>, change: &Change, rng: &mut ChaCha8Rng) {
    let Change::Write { offset, bytes } = change else { return apply(image, change) };
    for (sector, piece) in bytes.chunks(SECTOR_BYTES).enumerate() {
        if rng.random() {
            let piece = Change::Write { offset: offset + sector * SECTOR_BYTES, bytes: piece.to_vec() };
            apply(image, &piece);
        }
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.lock();
        let start = offset as usize;
        let found = disk.seen.get(start..start + out.len());
        out.copy_from_slice(found.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Change::Length(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.lock();
        disk.count()?;
        if !disk.forgets {
            disk.synced = disk.seen.clone();
            disk.under_way.clear();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(Change::Write { offset: offset as usize, bytes: data.to_vec() })
    }
}
