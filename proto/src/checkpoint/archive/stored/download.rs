//! Reading and verifying checkpoints.

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt as _};

use super::{Archive, MANIFEST_BYTES_MAX, REQUESTS_AT_ONCE};
use crate::checkpoint::archive::{ArchiveError, Archived, Content, Manifest, ModelPart, Piece, Verified};
use crate::checkpoint::sealed;

impl Archive {
    /// Reads a manifest and checks its part, run and round.
    ///
    /// # Errors
    /// [`ArchiveError`]
    pub async fn manifest(&self, of: Archived) -> Result<Manifest, ArchiveError> {
        let path = self.path_of(of);
        let damaged = |reason: String| ArchiveError::damaged(self.shown(&path), reason);
        let bytes = self.get(&path, MANIFEST_BYTES_MAX).await?;
        let manifest: Manifest = sealed::from_bytes(&bytes).map_err(|error| damaged(error.to_string()))?;
        let ModelPart { run, parts, rank } = of.part;
        if (manifest.run.as_str(), manifest.parts, manifest.rank, manifest.next_round)
            != (run.to_string().as_str(), parts, rank, of.next_round)
        {
            return Err(damaged(format!("it is of run {}, {}", manifest.run, manifest.next_round)));
        }
        match manifest.objection() {
            Some(reason) => Err(damaged(reason)),
            None => Ok(manifest),
        }
    }

    /// Reads and verifies a content of `bytes` bytes.
    ///
    /// # Errors
    /// [`ArchiveError`]; [`ArchiveError::Damaged`] if the length differs.
    pub async fn read(
        &self,
        part: ModelPart,
        content: &Content,
        bytes: u64,
    ) -> Result<Vec<u8>, ArchiveError> {
        if content.bytes != bytes {
            let reason = format!("it has {} bytes, and should have {bytes}", content.bytes);
            return Err(ArchiveError::damaged(format!("a vector in {}", self.place()), reason));
        }
        let pieces = stream::iter(content.pieces.iter().map(|piece| self.piece(part, piece)));
        let mut pieces = pieces.buffered(REQUESTS_AT_ONCE);
        let mut all = Vec::new();
        while let Some(piece) = pieces.try_next().await? {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    /// Reads all of a checkpoint once.
    ///
    /// # Errors
    /// The storage does not respond. Missing and damaged objects are reported in the result.
    pub async fn verify(&self, of: Archived) -> Result<Verified, ArchiveError> {
        let mut verified = Verified::default();
        let manifest = match self.manifest(of).await {
            Err(error) if error.is_damage() => {
                verified.damaged.push(error.to_string());
                return Ok(verified);
            }
            manifest => manifest?,
        };
        let reads = manifest.pieces().into_iter().map(|piece| self.piece(of.part, piece));
        let mut reads = stream::iter(reads).buffered(REQUESTS_AT_ONCE);
        while let Some(read) = reads.next().await {
            match read {
                Ok(bytes) => {
                    verified.pieces += 1;
                    verified.bytes += bytes.len() as u64;
                }
                Err(error) if error.is_damage() => verified.damaged.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(verified)
    }

    /// Removes a piece that is damaged in the storage. Otherwise later checkpoints with the same values would
    /// take it, by its length, as stored.
    async fn piece(&self, part: ModelPart, piece: &Piece) -> Result<Bytes, ArchiveError> {
        let path = self.piece_path(part, piece);
        match self.piece_at(&path, piece).await {
            Err(error) if error.is_damage() => {}
            read => return read,
        }
        // The transfer may have damaged it.
        let read = self.piece_at(&path, piece).await;
        if read.as_ref().is_err_and(ArchiveError::is_damage) {
            // A reader without write access leaves it there.
            let _ = self.storage.delete(&path).await;
        }
        read
    }

    async fn piece_at(&self, path: &Path, piece: &Piece) -> Result<Bytes, ArchiveError> {
        let bytes = self.get(path, piece.bytes).await?;
        let damaged = |reason: String| Err(ArchiveError::damaged(self.shown(path), reason));
        if bytes.len() as u64 != piece.bytes {
            return damaged(format!("{} of {} bytes", bytes.len(), piece.bytes));
        }
        if blake3::hash(&bytes).to_hex().as_str() != piece.blake3 {
            return damaged("its hash is not its name".to_owned());
        }
        Ok(bytes)
    }

    /// Reads an object of at most `bytes_max` bytes.
    async fn get(&self, path: &Path, bytes_max: u64) -> Result<Bytes, ArchiveError> {
        let failed = |error: Error| match error {
            Error::NotFound { .. } => ArchiveError::damaged(self.shown(path), "it is missing"),
            error => ArchiveError::storage("read", self.shown(path))(error),
        };
        let object = self.storage.get(path).await.map_err(failed)?;
        if object.meta.size > bytes_max {
            let reason = format!("{} bytes exceed the maximum of {bytes_max}", object.meta.size);
            return Err(ArchiveError::damaged(self.shown(path), reason));
        }
        object.bytes().await.map_err(failed)
    }
}
