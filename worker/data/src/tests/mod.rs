//! Sources from files to batches.

mod ahead;
mod conversation_files;
mod conversations;
mod damage;
mod damaged_sources;
mod documents;
#[cfg(all(feature = "gzip", feature = "parquet", feature = "tokenizers"))]
mod formats;
#[cfg(feature = "images")]
mod images;
#[cfg(all(feature = "parquet", feature = "tokenizers"))]
mod labelled;
mod lent;
mod looked;
#[cfg(feature = "tokenizers")]
mod masking;
mod noted;
mod preparing;
#[cfg(feature = "remote-data")]
mod pruning;
#[cfg(all(feature = "gzip", feature = "parquet"))]
mod refused;
#[cfg(all(feature = "gzip", feature = "parquet", feature = "tokenizers"))]
mod remedies;
#[cfg(feature = "remote-data")]
mod remote;
mod samples;
#[cfg(feature = "tokenizers")]
mod separators;
#[cfg(feature = "remote-data")]
mod server;
mod sets;
mod silent;
mod spellings;
#[cfg(feature = "tokenizers")]
mod tables;
mod token_indexes;
#[cfg(feature = "tokenizers")]
mod tokenizers;
#[cfg(feature = "tokenizers")]
mod told;

use std::path::{Path, PathBuf};

use longhaul_common::config::{DataConfig, read_toml};

use super::cache::Cache;
use super::prepared::Maker;
use super::{DataError, Dataset, HostBatch, Tokenizer, Work};

/// `[data]` from its lines.
fn config(lines: &str) -> DataConfig {
    read_toml(lines).unwrap()
}

/// A folder with files and a cache.
#[derive(Debug)]
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(name), content).unwrap();
    }

    /// Overwrites a file in place and restores its `mtime`; its `ctime` changes.
    fn write_in_place(&self, name: &str, content: impl AsRef<[u8]>) {
        use std::os::unix::fs::MetadataExt;
        let path = self.path().join(name);
        let changed = || std::fs::metadata(&path).ok().map(|file| (file.ctime(), file.ctime_nsec()));
        let before = changed();
        while changed() == before {
            self.write(name, &content);
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000))
                .unwrap();
        }
    }

    fn open(&self, lines: &str) -> Result<Dataset, DataError> {
        self.open_with(lines, &Tokenizer::Bytes, 1 << 20, &Work::default())
    }

    /// Relative paths of sources are resolved against the folder.
    fn open_with(
        &self,
        lines: &str,
        tokenizer: &Tokenizer,
        piece_bytes: u64,
        work: &Work,
    ) -> Result<Dataset, DataError> {
        let config = config(lines);
        let place =
            config.path.as_ref().map_or_else(|| self.path().to_owned(), |path| self.path().join(path));
        let cache = Cache::open(&self.path().join("cache"), None)?;
        Dataset::prepared_by(&config.found_at(&place), Maker { cache: &cache, tokenizer, work, piece_bytes })
    }

    /// Returns the existing shards.
    fn shards(&self) -> Vec<PathBuf> {
        let folder = self.path().join("cache/data/shards");
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

/// Returns all tokens of the data, in order.
fn text(data: &Dataset) -> String {
    let tokens = data.peek(0, u64::MAX).unwrap();
    Tokenizer::Bytes.decode(&tokens).unwrap()
}

/// Returns held-out samples.
fn held_out(data: &Dataset, batches: usize, sequences: usize) -> Vec<HostBatch> {
    data.validation(batches, sequences).collect::<Result<_, _>>().unwrap()
}

fn alphabet(len: usize) -> String {
    ('a'..='z').cycle().take(len).collect()
}
