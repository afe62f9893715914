//! Retention of checkpoints and their pieces.

use std::collections::BTreeSet;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use longhaul_common::config::Retention;
use longhaul_common::id::Round;
use object_store::path::Path;
use object_store::{Error, ObjectMeta};

use super::{Archive, PIECES, part_path};
use crate::checkpoint::archive::{ArchiveError, Archived, ModelPart};

impl Archive {
    /// Removes surplus checkpoints of a part once the one before `written` is complete, then unreferenced
    /// pieces. Returns the number of checkpoints removed.
    ///
    /// An unreferenced piece may belong to an upload in progress. Only pieces older than the checkpoint
    /// before the newest are removed.
    ///
    /// # Errors
    /// The storage does not respond. The next call retries failed removals.
    pub async fn prune(
        &self,
        part: ModelPart,
        retention: Retention,
        written: Round,
    ) -> Result<usize, ArchiveError> {
        let manifests = self.manifests(part).await?;
        let rounds: Vec<Round> = manifests.iter().map(|(round, _)| *round).collect();
        let surplus: BTreeSet<Round> = retention.surplus(&rounds, written).collect();
        let mut times: Vec<_> = manifests.iter().map(|(_, object)| object.last_modified).collect();
        times.sort_unstable();
        let before_the_newest = times.len().checked_sub(2).and_then(|place| times.get(place).copied());

        let (old, kept): (Vec<_>, Vec<_>) =
            manifests.into_iter().partition(|(round, _)| surplus.contains(round));
        self.remove(old.into_iter().map(|(_, object)| object.location).collect()).await?;
        let Some(before_the_newest) = before_the_newest.filter(|_| !surplus.is_empty()) else { return Ok(0) };
        let named = self.named(part, kept.iter().map(|(round, _)| *round)).await?;
        let pieces = self.path(&format!("{}/{PIECES}", part_path(part)));
        let all: Vec<ObjectMeta> = self
            .storage
            .list(Some(&pieces))
            .try_collect()
            .await
            .map_err(|error| ArchiveError::storage("list", self.shown(&pieces))(error))?;
        let is_waste = |object: &ObjectMeta| {
            let name = object.location.filename().unwrap_or_default();
            !named.contains(name) && object.last_modified < before_the_newest
        };
        let waste = all.into_iter().filter(is_waste).map(|object| object.location);
        self.remove(waste.collect()).await?;
        Ok(surplus.len())
    }

    /// Returns the pieces that these checkpoints reference. A damaged one references none, as it is useless.
    async fn named(
        &self,
        part: ModelPart,
        rounds: impl Iterator<Item = Round>,
    ) -> Result<BTreeSet<String>, ArchiveError> {
        let mut named = BTreeSet::new();
        for next_round in rounds {
            match self.manifest(Archived { part, next_round }).await {
                Ok(manifest) => named.extend(manifest.pieces().into_iter().map(|piece| piece.blake3.clone())),
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(named)
    }

    async fn remove(&self, paths: Vec<Path>) -> Result<(), ArchiveError> {
        if paths.is_empty() {
            return Ok(());
        }
        let mut removed = self.storage.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
        while let Some(result) = removed.next().await {
            match result {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(ArchiveError::storage("remove from", self.place())(error)),
            }
        }
        Ok(())
    }
}
