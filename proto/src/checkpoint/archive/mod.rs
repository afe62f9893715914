//! Checkpoints of a run in one place that all its workers reach, a folder or object storage.
//!
//! ```text
//! <place>/<run>/part-1-of-2/round-000120.json      what the checkpoint is: written last, and whole or not at all
//! <place>/<run>/part-1-of-2/pieces/<BLAKE3>        its bytes, cut by fragment; what is there is not stored again
//! ```
//!
//! Reads and writes are bounded by the storage's timeouts and retries; no object is larger than a piece, so nothing is ever half an object.

mod download;
mod error;
mod manifest;
mod open;
mod prune;
mod upload;

pub use download::Verified;
pub use error::ArchiveError;
pub use manifest::{Content, Manifest, Piece, Private};
pub use upload::Upload;

use std::sync::Arc;

use longhaul_common::id::{Round, RunId};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::{folder_name, parse_folder_name, parse_part_name, part_name};

/// Bytes of a piece, at most: a fragment has an eighth of it by default.
pub const PIECE_BYTES_MAX: u64 = 8 << 20;
/// Bytes of a manifest, at most: a model of 10¹⁰ parameters takes about half of it.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Requests at a time: enough to fill a link over a round trip, and as many pieces in memory.
const REQUESTS_AT_ONCE: usize = 4;

/// The archive of whatever runs.
#[derive(Clone, Debug)]
pub struct Archive {
    storage: Arc<dyn ObjectStore>,
    /// What all names begin with, with a slash where it is not empty.
    prefix: String,
    /// For people.
    place: String,
}

/// A part of the model of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// Which run.
    pub run: RunId,
    /// Of how many parts it is,
    pub parts: u32,
    /// and which, from 0.
    pub rank: u32,
}

/// A checkpoint of a part that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Archived {
    /// Of what.
    pub part: Part,
    /// The round that follows the ones it contains.
    pub next_round: Round,
}

impl Archive {
    /// On some storage, under `prefix`; `place` is its name for people.
    #[must_use]
    pub fn on(storage: Arc<dyn ObjectStore>, prefix: &str, place: String) -> Self {
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self { storage, prefix: format!("{prefix}{slash}"), place }
    }

    /// Its name for people.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The checkpoints of all runs, or of one, by part, newest first.
    ///
    /// # Errors
    /// The storage cannot be asked.
    pub async fn list(&self, run: Option<RunId>) -> Result<Vec<Archived>, ArchiveError> {
        let runs = match run {
            Some(run) => vec![run],
            None => self.folders("").await?.iter().filter_map(|name| name.parse().ok()).collect(),
        };
        let mut archived = Vec::new();
        for run in runs {
            for (rank, parts) in
                self.folders(&format!("{run}")).await?.iter().filter_map(|name| parse_part_name(name))
            {
                let part = Part { run, parts, rank };
                let manifests = self.manifests(part).await?;
                archived.extend(manifests.into_iter().map(|(next_round, _)| Archived { part, next_round }));
            }
        }
        archived.sort_by_key(|of| (of.part.run, std::cmp::Reverse(of.next_round), of.part));
        Ok(archived)
    }

    /// What a checkpoint is called, for people.
    #[must_use]
    pub fn name_of(&self, of: Archived) -> String {
        format!("{}/{}", self.place, manifest_path(of))
    }

    /// Names of folders in a folder.
    async fn folders(&self, folder: &str) -> Result<Vec<String>, ArchiveError> {
        let path = self.path(folder);
        let listed = self.storage.list_with_delimiter(Some(&path)).await;
        let listed = listed.map_err(ArchiveError::storage("list", self.shown(&path)))?;
        let names = listed.common_prefixes.iter().filter_map(Path::filename);
        Ok(names.map(str::to_owned).collect())
    }

    /// The manifests of a part, newest first.
    async fn manifests(&self, part: Part) -> Result<Vec<(Round, ObjectMeta)>, ArchiveError> {
        let path = self.path(&part_path(part));
        let listed = self.storage.list_with_delimiter(Some(&path)).await;
        let listed = listed.map_err(ArchiveError::storage("list", self.shown(&path)))?;
        let round = |object: ObjectMeta| {
            let round = parse_folder_name(object.location.filename()?.strip_suffix(".json")?)?;
            Some((round, object))
        };
        let mut manifests: Vec<_> = listed.objects.into_iter().filter_map(round).collect();
        manifests.sort_by_key(|(round, _)| std::cmp::Reverse(*round));
        Ok(manifests)
    }

    fn path(&self, below: &str) -> Path {
        Path::from(format!("{}{below}", self.prefix))
    }

    fn path_of(&self, of: Archived) -> Path {
        self.path(&manifest_path(of))
    }

    fn piece_path(&self, part: Part, piece: &Piece) -> Path {
        self.path(&format!("{}/{PIECES}/{}", part_path(part), piece.blake3))
    }

    /// A path for people.
    fn shown(&self, path: &Path) -> String {
        match path.as_ref().strip_prefix(&self.prefix) {
            Some(below) if !below.is_empty() => format!("{}/{below}", self.place),
            _ => self.place.clone(),
        }
    }
}

/// Where a part's pieces are.
const PIECES: &str = "pieces";

fn part_path(part: Part) -> String {
    format!("{}/{}", part.run, part_name(part.rank, part.parts))
}

fn manifest_path(of: Archived) -> String {
    format!("{}/{}.json", part_path(of.part), folder_name(of.next_round))
}

#[cfg(test)]
mod tests;
