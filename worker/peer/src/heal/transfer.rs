//! A partly fetched state, from several donors at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use longhaul_common::id::WorkerId;
use longhaul_member::HealedState;
use longhaul_proto::control::message::Hash;

use super::super::request::{Manifest, STATE_PIECE_VALUES};

/// Donors asked for the same piece once all others are requested: one of them may be slow.
const FETCHERS_MAX: usize = 2;

/// The pieces of one state, by hash: equal ones, as of all-zero moments, are fetched once.
#[derive(Debug)]
pub struct Transfer {
    manifest: Manifest,
    pieces: BTreeMap<Hash, Piece>,
    given: Given,
}

/// Bytes by donor.
pub type Given = BTreeMap<WorkerId, u64>;

#[derive(Debug)]
struct Piece {
    /// Expected number of values.
    len: usize,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    /// Donors asked for it, initially none.
    Wanted(Vec<WorkerId>),
    Here(Vec<f32>),
}

impl Transfer {
    /// Creates a transfer of this state, with the pieces received `before`. The caller has checked that the manifest fits this run's model.
    pub fn new(manifest: Manifest, before: Option<Self>) -> Self {
        let mut before = before.map(|transfer| transfer.pieces).unwrap_or_default();
        let mut pieces = BTreeMap::new();
        for vector in &manifest.buffers {
            for (hash, len) in vector.iter().zip(piece_lengths(manifest.values as usize)) {
                let here = before.remove(hash).filter(|piece| matches!(piece.standing, Standing::Here(_)));
                let wanted = || Piece { len, standing: Standing::Wanted(Vec::new()) };
                pieces.entry(*hash).or_insert_with(|| here.unwrap_or_else(wanted));
            }
        }
        Self { manifest, pieces, given: Given::new() }
    }

    /// Returns the state's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the number of received pieces.
    pub fn arrived(&self) -> usize {
        self.pieces.values().filter(|piece| matches!(piece.standing, Standing::Here(_))).count()
    }

    /// Chooses a piece to request from a donor with these pieces: one not requested yet, or else from one other donor only. `None`: none is left.
    pub fn take(&mut self, donor: WorkerId, offered: &BTreeSet<Hash>) -> Option<Hash> {
        let mut best: Option<(&mut Vec<WorkerId>, Hash)> = None;
        for (hash, piece) in self.pieces.iter_mut().filter(|(hash, _)| offered.contains(*hash)) {
            let Standing::Wanted(fetchers) = &mut piece.standing else { continue };
            if fetchers.len() >= FETCHERS_MAX || fetchers.contains(&donor) {
                continue;
            }
            if best.as_ref().is_none_or(|(least, _)| fetchers.len() < least.len()) {
                best = Some((fetchers, *hash));
            }
        }
        let (fetchers, hash) = best?;
        fetchers.push(donor);
        Some(hash)
    }

    /// Releases a failed donor's requests to others.
    pub fn forget(&mut self, donor: WorkerId) {
        for piece in self.pieces.values_mut() {
            if let Standing::Wanted(fetchers) = &mut piece.standing {
                fetchers.retain(|fetcher| *fetcher != donor);
            }
        }
    }

    /// Stores a piece with verified hash from a donor; ignores duplicates.
    ///
    /// # Errors
    /// It has another length than its place.
    pub fn put(&mut self, hash: Hash, donor: WorkerId, values: Vec<f32>) -> Result<()> {
        let Some(piece) = self.pieces.get_mut(&hash) else { return Ok(()) };
        ensure!(values.len() == piece.len, "a piece of the state has the wrong length");
        if matches!(piece.standing, Standing::Wanted(_)) {
            *self.given.entry(donor).or_default() += size_of_val(values.as_slice()) as u64;
            piece.standing = Standing::Here(values);
        }
        Ok(())
    }

    /// Reports whether all pieces are here.
    pub fn is_whole(&self) -> bool {
        self.arrived() == self.pieces.len()
    }

    /// Returns the state, and the bytes from each donor.
    ///
    /// # Errors
    /// It is incomplete, or the manifest is invalid: the same hash in places of different lengths.
    pub fn finish(mut self) -> Result<(HealedState, Given)> {
        let mut uses: BTreeMap<Hash, usize> = BTreeMap::new();
        self.manifest.buffers.iter().flatten().for_each(|hash| *uses.entry(*hash).or_default() += 1);
        let Manifest { next_round, updates, buffers, values } = self.manifest;
        let mut whole = Vec::with_capacity(buffers.len());
        for hashes in buffers {
            let mut vector = Vec::with_capacity(values as usize);
            for hash in hashes {
                let piece = self.pieces.get(&hash).context("a piece of the state is missing")?;
                let Standing::Here(values) = &piece.standing else {
                    anyhow::bail!("a piece has not arrived")
                };
                vector.extend_from_slice(values);
                let left = uses.entry(hash).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    // Avoids a second copy of a large state.
                    self.pieces.remove(&hash);
                }
            }
            ensure!(
                vector.len() == values as usize,
                "the received state is not the state that was announced"
            );
            whole.push(Arc::new(vector));
        }
        Ok((HealedState { next_round, buffers: whole, updates }, self.given))
    }
}

/// Returns the lengths of a vector's pieces.
fn piece_lengths(values: usize) -> impl Iterator<Item = usize> {
    (0..values).step_by(STATE_PIECE_VALUES).map(move |start| STATE_PIECE_VALUES.min(values - start))
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;

    use longhaul_common::id::Round;

    use super::super::super::request::manifest_of;
    use super::*;

    const A: WorkerId = WorkerId(1);
    const B: WorkerId = WorkerId(2);
    const C: WorkerId = WorkerId(3);

    /// Two vectors of three pieces each, the last one of a thousand values, and one of zeros, of which two pieces are the same.
    fn state(seed: u32) -> HealedState {
        let vector = |part: u32| {
            (0..2 * STATE_PIECE_VALUES as u32 + 1000)
                .map(|index| (index * part + seed * part) as f32)
                .collect()
        };
        let buffers = [1, 2, 0].map(|part| Arc::new(vector(part))).into();
        HealedState { next_round: Round(5), buffers, updates: 9 }
    }

    fn values(state: &HealedState, hash: Hash) -> Vec<f32> {
        let manifest = manifest_of(state);
        let mut pieces = manifest
            .buffers
            .iter()
            .zip(&state.buffers)
            .flat_map(|(hashes, buffer)| hashes.iter().zip(buffer.chunks(STATE_PIECE_VALUES)));
        pieces.find(|(of, _)| **of == hash).unwrap().1.to_vec()
    }

    fn offered(manifest: &Manifest, buffers: usize) -> BTreeSet<Hash> {
        manifest.buffers[..buffers].iter().flatten().copied().collect()
    }

    #[test]
    fn each_piece_is_asked_for_once_and_what_is_slow_of_one_other_as_well() {
        let state = state(0);
        let manifest = manifest_of(&state);
        let (all, of_one) = (offered(&manifest, 3), offered(&manifest, 1));
        let mut transfer = Transfer::new(manifest, None);
        let first: Vec<Hash> = from_fn(|| transfer.take(A, &all)).collect();
        assert_eq!(first.len(), 8, "zeros are fetched once");
        let second: Vec<Hash> = from_fn(|| transfer.take(B, &of_one)).collect();
        assert_eq!(second.len(), 3, "B has one of the vectors");
        assert_eq!(transfer.take(C, &of_one), None, "two donors are asked for each of those");
        transfer.forget(B);
        let third: Vec<Hash> = from_fn(|| transfer.take(C, &of_one)).collect();
        assert_eq!(third, second, "all pieces requested from B");
        for hash in first {
            let values = values(&state, hash);
            assert!(transfer.put(hash, A, values[1..].to_vec()).is_err(), "too short");
            assert!(!transfer.is_whole());
            transfer.put(hash, A, values.clone()).unwrap();
            transfer.put(hash, B, values).unwrap();
        }
        assert_eq!((transfer.is_whole(), transfer.take(C, &all)), (true, None));
        let (whole, given) = transfer.finish().unwrap();
        let distinct = 2 * state.buffers[0].len() + STATE_PIECE_VALUES + 1000;
        assert_eq!(given, [(A, 4 * distinct as u64)].into(), "duplicates change nothing");
        assert_eq!((whole.next_round, whole.updates), (Round(5), 9));
        assert_eq!(whole.buffers, state.buffers);
    }

    #[test]
    fn what_another_state_has_as_well_is_not_asked_for_again() {
        let (one, other) = (state(0), state(1));
        let mut transfer = Transfer::new(manifest_of(&one), None);
        let all = offered(&manifest_of(&one), 3);
        let asked: Vec<Hash> = from_fn(|| transfer.take(A, &all)).take(7).collect();
        asked.iter().for_each(|hash| transfer.put(*hash, A, values(&one, *hash)).unwrap());
        assert_eq!((transfer.arrived(), transfer.is_whole()), (7, false));
        assert!(transfer.finish().is_err());

        let mut transfer = Transfer::new(manifest_of(&one), None);
        while let Some(hash) = transfer.take(A, &all) {
            transfer.put(hash, A, values(&one, hash)).unwrap();
        }
        let next = manifest_of(&other);
        let mut transfer = Transfer::new(next.clone(), Some(transfer));
        assert_eq!(transfer.arrived(), 2, "the zeros");
        let all = offered(&next, 3);
        let left: Vec<Hash> = from_fn(|| transfer.take(B, &all)).collect();
        assert_eq!(left.len(), 6);
        left.iter().for_each(|hash| transfer.put(*hash, B, values(&other, *hash)).unwrap());
        assert_eq!(transfer.finish().unwrap().0.buffers, other.buffers);
    }

    #[test]
    fn a_manifest_with_one_hash_for_pieces_of_two_lengths_is_of_no_state() {
        let mut manifest = manifest_of(&state(0));
        manifest.buffers[0][2] = manifest.buffers[0][0];
        let all = offered(&manifest, 3);
        let mut transfer = Transfer::new(manifest, None);
        while let Some(hash) = transfer.take(A, &all) {
            transfer.put(hash, A, values(&state(0), hash)).unwrap();
        }
        let error = transfer.finish().unwrap_err();
        assert!(error.to_string().contains("not the state that was announced"), "{error:#}");
    }
}
