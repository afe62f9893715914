//! The archive in a folder or in object storage.

mod download;
mod open;
mod prune;
#[cfg(test)]
mod tests;
mod upload;

pub use upload::Upload;

use std::sync::Arc;

use longhaul_common::id::{Round, RunId};
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore};

use super::{ArchiveError, Archived, ModelPart, Piece};
use crate::checkpoint::{folder_name, parse_folder_name, parse_part_name, part_name};

/// Maximum bytes of a manifest. A model of 10¹⁰ parameters takes about half.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Concurrent requests: enough to fill a link over a round trip. Memory holds as many pieces.
const REQUESTS_AT_ONCE: usize = 4;

/// An archive of any number of runs.
#[derive(Clone, Debug)]
pub struct Archive {
    storage: Arc<dyn ObjectStore>,
    /// Common prefix of all names, with a trailing slash unless empty.
    prefix: String,
    /// Display name.
    place: String,
}

impl Archive {
    /// Creates an archive under `prefix` of a storage; `place` is its display name.
    #[must_use]
    pub fn on(storage: Arc<dyn ObjectStore>, prefix: &str, place: String) -> Self {
        let slash = if prefix.is_empty() { "" } else { "/" };
        Self { storage, prefix: format!("{prefix}{slash}"), place }
    }

    /// Returns the display name.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Lists the checkpoints of all runs, or of one, by part, newest first.
    ///
    /// # Errors
    /// The storage does not respond.
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
                let part = ModelPart { run, parts, rank };
                let manifests = self.manifests(part).await?;
                archived.extend(manifests.into_iter().map(|(next_round, _)| Archived { part, next_round }));
            }
        }
        archived.sort_by_key(|of| (of.part.run, std::cmp::Reverse(of.next_round), of.part));
        Ok(archived)
    }

    /// Returns the display name of a checkpoint.
    #[must_use]
    pub fn name_of(&self, of: Archived) -> String {
        format!("{}/{}", self.place, manifest_path(of))
    }

    /// Lists the names of folders in a folder.
    async fn folders(&self, folder: &str) -> Result<Vec<String>, ArchiveError> {
        let path = self.path(folder);
        let listed = self.storage.list_with_delimiter(Some(&path)).await;
        let listed = listed.map_err(ArchiveError::storage("list", self.shown(&path)))?;
        let names = listed.common_prefixes.iter().filter_map(Path::filename);
        Ok(names.map(str::to_owned).collect())
    }

    /// Lists the manifests of a part, newest first.
    async fn manifests(&self, part: ModelPart) -> Result<Vec<(Round, ObjectMeta)>, ArchiveError> {
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

    fn piece_path(&self, part: ModelPart, piece: &Piece) -> Path {
        self.path(&format!("{}/{PIECES}/{}", part_path(part), piece.blake3))
    }

    /// Formats a path for display.
    fn shown(&self, path: &Path) -> String {
        match path.as_ref().strip_prefix(&self.prefix) {
            Some(below) if !below.is_empty() => format!("{}/{below}", self.place),
            _ => self.place.clone(),
        }
    }
}

impl ArchiveError {
    /// Wraps an error of the storage with the operation and the place.
    fn storage(operation: &'static str, place: impl ToString) -> impl FnOnce(Error) -> Self {
        move |error| Self::Storage {
            operation,
            place: place.to_string(),
            remedy: remedy(&error),
            source: error.into(),
        }
    }

    fn damaged(place: impl ToString, reason: impl ToString) -> Self {
        Self::Damaged { place: place.to_string(), reason: reason.to_string() }
    }
}

fn remedy(error: &Error) -> &'static str {
    match error {
        Error::Unauthenticated { .. } | Error::PermissionDenied { .. } => {
            "; the environment of this process must have credentials for it, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        }
        Error::Generic { store: "S3" | "GCS", .. } => {
            "; is the bucket there (checkpoint.to), and is checkpoint.endpoint where it is?"
        }
        Error::NotFound { .. } => "; is the folder there (checkpoint.to)?",
        _ => "",
    }
}

/// Folder of a part's pieces.
const PIECES: &str = "pieces";

fn part_path(part: ModelPart) -> String {
    format!("{}/{}", part.run, part_name(part.rank, part.parts))
}

fn manifest_path(of: Archived) -> String {
    format!("{}/{}.json", part_path(of.part), folder_name(of.next_round))
}
