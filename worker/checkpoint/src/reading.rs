//! Reading of large files: each byte once and in order, by a thread of its own that is a few chunks ahead.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result};
use longhaul_proto::stored_values::{StoredValues, ValueFormat};

/// Bytes read at a time: many pages, and few for a processor's cache.
pub(super) const CHUNK_BYTES: u64 = 2 << 20;
/// Chunks in memory: one in use, and those ahead of it.
const CHUNKS_MAX: usize = 3;

/// A place in one of several files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub file: usize,
    /// At most [`CHUNK_BYTES`].
    pub bytes: Range<u64>,
}

impl Chunk {
    /// Returns the chunks of a whole file.
    pub fn all_of(file: usize, bytes: u64) -> impl Iterator<Item = Self> {
        let starts = (0..bytes.div_ceil(CHUNK_BYTES)).map(|chunk| chunk * CHUNK_BYTES);
        starts.map(move |start| Self { file, bytes: start..bytes.min(start + CHUNK_BYTES) })
    }
}

/// Calls `take` with the content of each chunk, in order. Stops at its first error.
///
/// # Errors
/// A file cannot be read, or is shorter; or that of `take`.
pub(super) fn read_chunks(
    paths: &[PathBuf],
    chunks: &[Chunk],
    mut take: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    // Bounded by the buffers, which come back. This side's ends go before the thread is waited for.
    let ((fill, filled), (give_back, free)) = (channel(), channel());
    std::thread::scope(move |scope| {
        for _ in 0..CHUNKS_MAX {
            // The other end is below.
            let _ = give_back.send(Vec::new());
        }
        scope.spawn(move || read_ahead(paths, chunks, &free, &fill));
        for (at, bytes) in filled.iter().enumerate() {
            let bytes: Vec<u8> = bytes?;
            take(at, &bytes)?;
            // The last ones are not needed any more.
            let _ = give_back.send(bytes);
        }
        Ok(())
    })
}

/// Reads chunks into free buffers, until one of the two ends has gone.
fn read_ahead(paths: &[PathBuf], chunks: &[Chunk], free: &Receiver<Vec<u8>>, fill: &Sender<Result<Vec<u8>>>) {
    let mut current = None;
    for chunk in chunks {
        let Ok(buffer) = free.recv() else { return };
        let path = &paths[chunk.file];
        let read = read_chunk((path, chunk), &mut current, buffer);
        let read = read.with_context(|| format!("read {}", path.display()));
        let failed = read.is_err();
        if fill.send(read).is_err() || failed {
            return;
        }
    }
}

/// Reads a chunk; `current` is the file of the one before.
fn read_chunk(
    (path, Chunk { file, bytes }): (&Path, &Chunk),
    current: &mut Option<(usize, File)>,
    mut buffer: Vec<u8>,
) -> std::io::Result<Vec<u8>> {
    let opened = match current.take() {
        Some((at, opened)) if at == *file => opened,
        _ => open(path)?,
    };
    let (_, opened) = current.insert((*file, opened));
    let wanted = bytes.end - bytes.start;
    buffer.clear();
    opened.seek(SeekFrom::Start(bytes.start))?;
    if opened.take(wanted).read_to_end(&mut buffer)? as u64 == wanted {
        Ok(buffer)
    } else {
        Err(Error::new(ErrorKind::UnexpectedEof, "it was cut off while it was read"))
    }
}

/// Opens a file, of which the system reads more than the usual ahead.
fn open(path: &Path) -> std::io::Result<File> {
    let file = File::open(path)?;
    #[cfg(target_os = "linux")]
    // Only faster: some file systems have no such thing.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
    Ok(file)
}

/// Consecutive values of a parameter in a file.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub file: usize,
    pub bytes: Range<u64>,
    pub format: ValueFormat,
    /// The parameter.
    pub parameter: usize,
    /// The place of its first value there.
    pub first: usize,
}

/// Calls `take` with a parameter, the place of a value in it, and values from there on, for all stretches: in the order of the files, in pieces.
///
/// # Errors
/// As [`read_chunks`].
pub(super) fn read_values(
    paths: &[PathBuf],
    mut stretches: Vec<Stretch>,
    mut take: impl FnMut(usize, usize, StoredValues<'_>) -> Result<()>,
) -> Result<()> {
    stretches.sort_by_key(|stretch| (stretch.file, stretch.bytes.start));
    let (chunks, pieces) = cut(stretches);
    let mut pieces = pieces.into_iter().peekable();
    read_chunks(paths, &chunks, |at, bytes| {
        let start = chunks[at].bytes.start;
        while let Some((_, piece)) = pieces.next_if(|(chunk, _)| *chunk == at) {
            let place = (piece.bytes.start - start) as usize..(piece.bytes.end - start) as usize;
            let bytes = bytes.get(place).context("a piece is in its chunk")?;
            take(piece.parameter, piece.first, StoredValues::new(piece.format, bytes))?;
        }
        Ok(())
    })
}

/// Cuts sorted stretches into pieces, each with its chunk; no value is cut.
fn cut(stretches: Vec<Stretch>) -> (Vec<Chunk>, Vec<(usize, Stretch)>) {
    let (mut chunks, mut pieces) = (Vec::<Chunk>::new(), Vec::with_capacity(stretches.len()));
    for mut rest in stretches {
        let width = rest.format.bytes() as u64;
        while !rest.bytes.is_empty() {
            let start = rest.bytes.start;
            let room = |chunk: &Chunk| (chunk.bytes.start + CHUNK_BYTES).saturating_sub(start) / width;
            if chunks.last().is_none_or(|last| last.file != rest.file || room(last) == 0) {
                chunks.push(Chunk { file: rest.file, bytes: start..start });
            }
            let number = chunks.len() - 1;
            let values = room(&chunks[number]).min((rest.bytes.end - start) / width);
            let end = start + values * width;
            chunks[number].bytes.end = end;
            pieces.push((number, Stretch { bytes: start..end, ..rest.clone() }));
            rest = Stretch { bytes: end..rest.bytes.end, first: rest.first + values as usize, ..rest };
        }
    }
    (chunks, pieces)
}

#[cfg(test)]
mod tests {
    use anyhow::ensure;

    use super::*;

    fn file(bytes: u64) -> (tempfile::TempDir, Vec<PathBuf>, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..bytes).map(|at| (at * 131 % 251) as u8).collect();
        let path = folder.path().join("file");
        std::fs::write(&path, &content).unwrap();
        (folder, vec![path], content)
    }

    #[test]
    fn all_bytes_come_once_and_in_order() {
        for bytes in [0, 1, CHUNK_BYTES, 4 * CHUNK_BYTES + 3] {
            let (_folder, paths, content) = file(bytes);
            let (chunks, mut found) = (Chunk::all_of(0, bytes).collect::<Vec<_>>(), Vec::new());
            read_chunks(&paths, &chunks, |_, bytes| {
                found.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
            assert!(found == content, "{bytes}");
        }
    }

    #[test]
    fn reading_ends_with_the_first_error_of_either_side() {
        let (_folder, paths, _) = file(6 * CHUNK_BYTES);
        let chunks: Vec<Chunk> = Chunk::all_of(0, 6 * CHUNK_BYTES).collect();
        let mut taken = 0;
        let refused = read_chunks(&paths, &chunks, |_, _| {
            taken += 1;
            ensure!(taken < 2, "not this one");
            Ok(())
        });
        assert_eq!((refused.unwrap_err().to_string().as_str(), taken), ("not this one", 2));
        // The file is shorter than it was.
        File::options().write(true).open(&paths[0]).unwrap().set_len(5 * CHUNK_BYTES - 1).unwrap();
        let cut_off = format!("{:#}", read_chunks(&paths, &chunks, |_, _| Ok(())).unwrap_err());
        assert!(cut_off.starts_with(&format!("read {}", paths[0].display())), "{cut_off}");
        assert!(cut_off.ends_with("it was cut off while it was read"), "{cut_off}");
    }

    /// Stretches longer than a chunk, at odd addresses, with gaps of all sizes, and given in another order.
    #[test]
    fn each_value_comes_once_at_its_place() {
        let (_folder, paths, content) = file(6 * CHUNK_BYTES);
        let of = |parameter, start: u64, values: u64, format: ValueFormat| Stretch {
            file: 0,
            bytes: start..start + values * format.bytes() as u64,
            format,
            parameter,
            first: 10,
        };
        let long = CHUNK_BYTES / 2 + 77;
        let stretches = vec![
            of(0, 3 * CHUNK_BYTES, long, ValueFormat::F32),
            of(1, 7, 3, ValueFormat::F32),
            of(2, 19, long, ValueFormat::Bf16),
            of(3, 5 * CHUNK_BYTES + 1001, 1, ValueFormat::F16),
        ];
        let mut found = vec![Vec::new(); 4];
        read_values(&paths, stretches.clone(), |parameter, first, values| {
            assert_eq!(first, 10 + found[parameter].len(), "in order");
            let mut all = vec![0.0; values.len()];
            values.write_f32(&mut all);
            found[parameter].extend(all.into_iter().map(f32::to_bits));
            Ok(())
        })
        .unwrap();
        for stretch in stretches {
            let bytes = &content[stretch.bytes.start as usize..stretch.bytes.end as usize];
            let mut expected = vec![0.0; bytes.len() / stretch.format.bytes()];
            StoredValues::new(stretch.format, bytes).write_f32(&mut expected);
            let expected: Vec<u32> = expected.into_iter().map(f32::to_bits).collect();
            assert!(found[stretch.parameter] == expected, "{}", stretch.parameter);
        }
    }
}
