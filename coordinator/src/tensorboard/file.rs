//! Event files: records with their lengths and checksums (TensorFlow's `TFRecord`), written by a thread of its own.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use super::event::{Content, Event};

/// Most records waiting for the disk: a quarter of an hour of them. Later ones are dropped.
const WAITING_MAX: usize = 1024;
/// How long the end of the coordinator waits for the last records to be written.
const LAST_WORDS_MAX: Duration = Duration::from_secs(5);
/// File names tried for one second and one process.
const FILES_TRIED: u32 = 100;

/// A file that events are written to. It never stops a run, nor does the run wait for it.
#[derive(Debug)]
pub struct EventFile {
    /// `None`: the file has to end.
    events: Option<SyncSender<Event>>,
    /// Nothing is ever sent; it is closed when the thread has ended.
    ended: Receiver<()>,
    lost: u64,
}

impl EventFile {
    /// Begins a file in this folder, which is created if needed. It voids `step` and later ones in earlier files.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(folder: &Path, now_ms: u64, step: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (path, mut file) = new_file(folder, now_ms)?;
        for (step, content) in [(0, Content::Version), (step, Content::Restart)] {
            write_record(&mut file, &Event { at_ms: now_ms, step, content }.encode())?;
        }
        file.flush()?;
        let (events, queue) = sync_channel(WAITING_MAX);
        let (has_ended, ended) = sync_channel(1);
        thread::Builder::new().name("tensorboard".to_owned()).spawn(move || {
            if let Err(error) = write_all(&mut file, &queue) {
                tracing::warn!(%error, file = %path.display(), "TensorBoard's curves are no longer written; the run goes on. Is the disk full?");
            }
            drop::<SyncSender<()>>(has_ended);
        })?;
        Ok(Self { events: Some(events), ended, lost: 0 })
    }

    /// Has an event written soon.
    pub fn put(&mut self, event: Event) {
        let Some(events) = &self.events else { return };
        match events.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.lost += 1;
                if self.lost == 1 {
                    tracing::warn!("the disk is slow: TensorBoard's curves lack points");
                }
            }
            // It has spoken of that.
            Err(TrySendError::Disconnected(_)) => self.events = None,
        }
    }
}

/// It ends when all is written, or when that takes too long.
impl Drop for EventFile {
    fn drop(&mut self) {
        self.events = None;
        if self.ended.recv_timeout(LAST_WORDS_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the disk is slow: the end of TensorBoard's curves may be missing");
        }
    }
}

/// A file that was not there, with a name by which TensorBoard knows it.
fn new_file(folder: &Path, now_ms: u64) -> io::Result<(PathBuf, BufWriter<fs::File>)> {
    let (second, process) = (now_ms / 1000, std::process::id());
    let mut taken = None;
    for number in 0..FILES_TRIED {
        let path = folder.join(format!("events.out.tfevents.{second}.longhaul.{process}.{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, BufWriter::new(file))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(taken.unwrap_or_else(|| io::ErrorKind::AlreadyExists.into()))
}

/// Writes incoming records, and flushes whenever none waits.
fn write_all(file: &mut impl Write, queue: &Receiver<Event>) -> io::Result<()> {
    while let Ok(event) = queue.recv() {
        write_record(file, &event.encode())?;
        while let Ok(event) = queue.try_recv() {
            write_record(file, &event.encode())?;
        }
        file.flush()?;
    }
    Ok(())
}

/// Length, its checksum, the bytes, their checksum.
fn write_record(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = (bytes.len() as u64).to_le_bytes();
    to.write_all(&length)?;
    to.write_all(&masked(crc32c(&length)).to_le_bytes())?;
    to.write_all(bytes)?;
    to.write_all(&masked(crc32c(bytes)).to_le_bytes())
}

/// As TensorFlow masks checksums, so that one of bytes which hold checksums is still one.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's checksum (RFC 3720, section 12.1), a bit at a time: a few hundred bytes each second or two.
fn crc32c(bytes: &[u8]) -> u32 {
    /// The polynomial, its bits reversed.
    const CASTAGNOLI: u32 = 0x82f6_3b78;
    let shifted = |rest: u32, _| if rest & 1 == 1 { (rest >> 1) ^ CASTAGNOLI } else { rest >> 1 };
    !bytes.iter().fold(!0, |rest, byte| (0..8).fold(rest ^ u32::from(*byte), shifted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorboard::Scalar;

    #[test]
    fn checksums_are_those_of_the_rfc() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }

    #[test]
    fn a_file_has_all_records_and_their_checksums() {
        let folder = tempfile::tempdir().unwrap();
        let event = |step| {
            let content = Content::Scalars(vec![Scalar { tag: "train/loss".into(), value: step as f32 }]);
            Event { at_ms: 7000, step, content }
        };
        {
            let mut file = EventFile::begin(folder.path(), 5000, 1).unwrap();
            (1..=3).for_each(|step| file.put(event(step)));
            // Another one at the same time.
            EventFile::begin(folder.path(), 5000, 1).unwrap();
        }
        let mut paths: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert_eq!(paths.len(), 2);
        let bytes = fs::read(&paths[0]).unwrap();
        let (mut rest, mut records) = (bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            let (length, after) = rest.split_at(8);
            let len = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            assert_eq!(after[..4], masked(crc32c(length)).to_le_bytes());
            let (record, after) = after[4..].split_at(len);
            assert_eq!(after[..4], masked(crc32c(record)).to_le_bytes());
            records.push(record.to_vec());
            rest = &after[4..];
        }
        let restart = Event { at_ms: 5000, step: 1, content: Content::Restart };
        assert_eq!(records[1], restart.encode());
        assert_eq!(records[2..], [1, 2, 3].map(|step| event(step).encode()));
    }

    #[test]
    fn a_disk_that_fails_stops_nobody() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        EventFile::begin(&folder.path().join("file"), 5000, 1).unwrap_err();
    }
}
