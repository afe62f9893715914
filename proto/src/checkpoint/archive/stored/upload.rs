//! Writing a checkpoint: pieces first, manifest last.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::{Error, ObjectStoreExt as _};

use super::{Archive, MANIFEST_BYTES_MAX, REQUESTS_AT_ONCE};
use crate::checkpoint::archive::{
    ArchiveError, Archived, Content, Manifest, ModelPart, PIECE_BYTES_MAX, Piece,
};
use crate::checkpoint::sealed;
use crate::little_endian::of_f32;

/// A checkpoint being uploaded. An abandoned upload is not listed; a later [`Archive::prune`] removes its
/// pieces.
#[derive(Debug)]
pub struct Upload<'a> {
    archive: &'a Archive,
    part: ModelPart,
    /// Bytes of a piece.
    piece_bytes: usize,
    /// Pieces already present.
    found: BTreeSet<Piece>,
    sent_bytes: u64,
}

impl Archive {
    /// Starts a checkpoint. Vectors are cut into pieces of `piece_values` values (a fragment's), or fewer
    /// where those exceed the maximum.
    #[must_use]
    pub fn upload(&self, part: ModelPart, piece_values: u32) -> Upload<'_> {
        let piece_bytes = (u64::from(piece_values.max(1)) * 4).min(PIECE_BYTES_MAX) as usize;
        Upload { archive: self, part, piece_bytes, found: BTreeSet::new(), sent_bytes: 0 }
    }
}

impl Upload<'_> {
    /// Stores a vector.
    ///
    /// # Errors
    /// [`ArchiveError::Storage`]
    pub async fn values(&mut self, values: &[f32]) -> Result<Content, ArchiveError> {
        let pieces = values.chunks(self.piece_bytes / 4);
        self.pieces(pieces.map(|values| Bytes::copy_from_slice(of_f32(values)))).await
    }

    /// Stores a string of bytes.
    ///
    /// # Errors
    /// [`ArchiveError::Storage`]
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<Content, ArchiveError> {
        self.pieces(bytes.chunks(self.piece_bytes).map(Bytes::copy_from_slice)).await
    }

    /// Writes the manifest, which lists the checkpoint.
    ///
    /// # Errors
    /// The storage refuses it, or another writer has removed pieces that were already present. The checkpoint
    /// is then not listed.
    pub async fn finish(self, manifest: &Manifest) -> Result<Archived, ArchiveError> {
        let of = Archived { part: self.part, next_round: manifest.next_round };
        let (storage, path) = (&self.archive.storage, self.archive.path_of(of));
        let shown = self.archive.shown(&path);
        let text = sealed::to_text(manifest).map_err(|error| ArchiveError::damaged(&shown, error))?;
        if text.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ArchiveError::damaged(&shown, format!("it would have {} bytes", text.len())));
        }
        storage.put(&path, text.into()).await.map_err(ArchiveError::storage("write", &shown))?;
        // From here on no writer removes the referenced pieces; one that looked earlier may have done so.
        let looks = self.found.iter().map(|piece| self.archive.is_here(self.part, piece));
        let here: Result<Vec<bool>, _> = stream::iter(looks).buffered(REQUESTS_AT_ONCE).try_collect().await;
        let reason = match here {
            Ok(here) if here.iter().all(|is_here| *is_here) => return Ok(of),
            Ok(_) => ArchiveError::damaged(&shown, "another writer has removed pieces of it meanwhile"),
            Err(error) => error,
        };
        // A manifest that cannot be removed is reported as damaged by verification.
        let _ = storage.delete(&path).await;
        Err(reason)
    }

    /// Returns the bytes sent, without pieces already present.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    async fn pieces(&mut self, pieces: impl Iterator<Item = Bytes>) -> Result<Content, ArchiveError> {
        let (archive, part) = (self.archive, self.part);
        let stored = stream::iter(pieces.map(|bytes| archive.store(part, bytes)));
        let mut stored = stored.buffered(REQUESTS_AT_ONCE);
        let mut content = Content::default();
        while let Some((piece, was_here)) = stored.try_next().await? {
            content.bytes += piece.bytes;
            if was_here {
                self.found.insert(piece.clone());
            } else {
                self.sent_bytes += piece.bytes;
            }
            content.pieces.push(piece);
        }
        Ok(content)
    }
}

impl Archive {
    /// Stores a piece unless present; returns whether it was.
    async fn store(&self, part: ModelPart, bytes: Bytes) -> Result<(Piece, bool), ArchiveError> {
        let blake3 = blake3::hash(&bytes).to_hex().to_string();
        let piece = Piece { bytes: bytes.len() as u64, blake3 };
        if self.is_here(part, &piece).await? {
            return Ok((piece, true));
        }
        let path = self.piece_path(part, &piece);
        let put = self.storage.put(&path, bytes.into()).await;
        put.map_err(|error| ArchiveError::storage("write", self.shown(&path))(error))?;
        Ok((piece, false))
    }

    async fn is_here(&self, part: ModelPart, piece: &Piece) -> Result<bool, ArchiveError> {
        let path = self.piece_path(part, piece);
        match self.storage.head(&path).await {
            // A piece of another length is damaged and is written again.
            Ok(object) => Ok(object.size == piece.bytes),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(ArchiveError::storage("look for", self.shown(&path))(error)),
        }
    }
}
