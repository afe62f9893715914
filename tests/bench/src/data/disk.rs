//! Raw speed of the disk for the same bytes in the same sizes, for comparison.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::fs::OFlags;

use crate::kit::clock::seconds_of;

/// Alignment of reads that bypass the page cache.
const PAGE: usize = 4096;
/// Bytes per sequential read.
const CHUNK_BYTES: usize = 1 << 20;
/// Reads in flight: sequential, and random.
const IN_HAND: [usize; 2] = [8, 64];
/// Coprime to the number of reads, a power of two: each is made once, far from the previous one.
const STRIDE: usize = 0x9e37_79b1;

/// Returns the bytes per second of a whole file, bypassing the page cache: sequential, and random in reads of
/// this size.
pub fn speeds(path: &Path, read_bytes: usize) -> Result<[f64; 2]> {
    let options = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
    let file = options.with_context(|| format!("open {} past the system's cache", path.display()))?;
    let bytes = file.metadata().context("ask for a file's size")?.len() as usize;
    let of = |read_bytes: usize, in_hand, order: fn(usize, usize) -> usize| -> Result<f64> {
        let reads = bytes / read_bytes;
        if !reads.is_power_of_two() {
            bail!("{bytes} bytes are not a power of two of reads of {read_bytes}");
        }
        let part = |first| {
            let of_thread = (first..reads).step_by(in_hand).map(move |at| order(at, reads));
            let file = &file;
            move || read_all(file, of_thread, read_bytes)
        };
        let seconds = seconds_of(|| {
            thread::scope(|scope| {
                let readers: Vec<_> = (0..in_hand).map(|first| scope.spawn(part(first))).collect();
                let read = |reader: thread::ScopedJoinHandle<'_, Result<()>>| {
                    reader.join().map_err(|_| anyhow!("a reader panicked"))?
                };
                readers.into_iter().try_for_each(read)
            })
        })?;
        Ok((reads * read_bytes) as f64 / seconds)
    };
    let at_random = |at: usize, reads: usize| at.wrapping_mul(STRIDE) % reads;
    Ok([of(CHUNK_BYTES, IN_HAND[0], |at, _| at)?, of(read_bytes, IN_HAND[1], at_random)?])
}

fn read_all(file: &File, reads: impl Iterator<Item = usize>, read_bytes: usize) -> Result<()> {
    let mut room = vec![0; read_bytes + PAGE];
    let aligned = room.as_ptr().align_offset(PAGE);
    let place = &mut room[aligned..aligned + read_bytes];
    for at in reads {
        file.read_exact_at(place, (at * read_bytes) as u64).context("read past the system's cache")?;
    }
    Ok(())
}
