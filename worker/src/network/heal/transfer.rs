//! A state of the run of which some has arrived, from several donors at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, ensure};
use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::Hash;

use super::super::request::{Manifest, STATE_FRAME_VALUES, STATE_PIECE_FRAMES};
use crate::sync::{HealedState, hash_of};

/// Values of a piece.
const PIECE_VALUES: usize = STATE_FRAME_VALUES * STATE_PIECE_FRAMES as usize;
/// Donors that the same piece is asked of, when there is nothing else to ask for: one of them may be slow.
const FETCHERS_MAX: usize = 2;

/// A piece to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its vector's hash.
    pub buffer: Hash,
    index: usize,
}

impl Piece {
    /// Its first frame.
    pub fn first_frame(&self) -> u32 {
        self.index as u32 * STATE_PIECE_FRAMES
    }
}

/// The pieces of one state.
#[derive(Debug)]
pub struct Transfer {
    manifest: Manifest,
    /// By hash: moments that are all zero are one vector.
    buffers: BTreeMap<Hash, Buffer>,
    given: Given,
}

/// Bytes of it that came from each donor.
pub type Given = BTreeMap<WorkerId, u64>;

#[derive(Debug)]
struct Buffer {
    values: Vec<f32>,
    pieces: Vec<Standing>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    /// Who is asked for it: nobody, at first.
    Wanted(Vec<WorkerId>),
    Here,
}

impl Buffer {
    fn empty(len: usize) -> Self {
        let pieces = vec![Standing::Wanted(Vec::new()); len.div_ceil(PIECE_VALUES)];
        Self { values: vec![0.0; len], pieces }
    }

    /// Nobody is asked for anything any more.
    fn forget_fetchers(mut self) -> Self {
        let wanted = self.pieces.iter_mut().filter(|piece| **piece != Standing::Here);
        wanted.for_each(|piece| *piece = Standing::Wanted(Vec::new()));
        self
    }
}

impl Transfer {
    /// Of this state, with what has come of it `before`. The caller has checked that the manifest is of this run's model.
    pub fn new(manifest: Manifest, before: Option<Self>) -> Self {
        let mut before = before.map(|transfer| transfer.buffers).unwrap_or_default();
        let len = manifest.values as usize;
        let mut buffer =
            |hash: &Hash| before.remove(hash).map_or_else(|| Buffer::empty(len), Buffer::forget_fetchers);
        let hashes: BTreeSet<Hash> = manifest.buffers.iter().copied().collect();
        let buffers = hashes.into_iter().map(|hash| (hash, buffer(&hash))).collect();
        Self { manifest, buffers, given: Given::new() }
    }

    /// What it is of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What to ask a donor for that has these vectors: what nobody is asked for, or else what one other is asked for. None: nothing.
    pub fn take(&mut self, donor: WorkerId, offered: &[Hash]) -> Option<Piece> {
        let mut best: Option<(&mut Vec<WorkerId>, Piece)> = None;
        let offered = self.buffers.iter_mut().filter(|(hash, _)| offered.contains(hash));
        let pieces = offered.flat_map(|(hash, buffer)| {
            buffer
                .pieces
                .iter_mut()
                .zip(0..)
                .map(|(standing, index)| (standing, Piece { buffer: *hash, index }))
        });
        for (standing, piece) in pieces {
            let Standing::Wanted(fetchers) = standing else { continue };
            if fetchers.len() >= FETCHERS_MAX || fetchers.contains(&donor) {
                continue;
            }
            if best.as_ref().is_none_or(|(least, _)| fetchers.len() < least.len()) {
                best = Some((fetchers, piece));
            }
        }
        let (fetchers, piece) = best?;
        fetchers.push(donor);
        Some(piece)
    }

    /// A donor has failed: what it was asked for is for others.
    pub fn forget(&mut self, donor: WorkerId) {
        for piece in self.buffers.values_mut().flat_map(|buffer| &mut buffer.pieces) {
            if let Standing::Wanted(fetchers) = piece {
                fetchers.retain(|fetcher| *fetcher != donor);
            }
        }
    }

    /// A piece has arrived from a donor. One that was here already changes nothing.
    ///
    /// # Errors
    /// It has another length.
    pub fn put(&mut self, piece: Piece, donor: WorkerId, values: &[f32]) -> Result<()> {
        let Some((place, standing)) = self.place_of(piece) else { return Ok(()) };
        ensure!(values.len() == place.len(), "a piece of the state has the wrong length");
        if *standing != Standing::Here {
            place.copy_from_slice(values);
            *standing = Standing::Here;
            *self.given.entry(donor).or_default() += size_of_val(values) as u64;
        }
        Ok(())
    }

    /// Whether all of it is here.
    pub fn is_whole(&self) -> bool {
        self.buffers.values().flat_map(|buffer| &buffer.pieces).all(|piece| *piece == Standing::Here)
    }

    /// The whole state, and who gave it. Reads all of it: not for a thread that others wait for.
    ///
    /// # Errors
    /// Some of it is not what was announced. What is, to go on with.
    pub fn finish(mut self) -> Result<(HealedState, Given), Self> {
        self.buffers.retain(|hash, buffer| hash_of(&buffer.values) == *hash);
        let shared = |buffer: Buffer| Arc::new(buffer.values);
        let Manifest { next_round, updates, buffers: hashes, .. } = &self.manifest;
        if !hashes.iter().all(|hash| self.buffers.contains_key(hash)) {
            return Err(self);
        }
        let sound: BTreeMap<Hash, _> =
            self.buffers.into_iter().map(|(hash, buffer)| (hash, shared(buffer))).collect();
        let buffers = hashes.iter().filter_map(|hash| sound.get(hash).cloned()).collect();
        Ok((HealedState { next_round: *next_round, buffers, updates: *updates }, self.given))
    }

    fn place_of(&mut self, piece: Piece) -> Option<(&mut [f32], &mut Standing)> {
        let Buffer { values, pieces } = self.buffers.get_mut(&piece.buffer)?;
        Some((values.chunks_mut(PIECE_VALUES).nth(piece.index)?, pieces.get_mut(piece.index)?))
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Round;

    use super::super::super::request::manifest_of;
    use super::*;

    const A: WorkerId = WorkerId(1);
    const B: WorkerId = WorkerId(2);
    const C: WorkerId = WorkerId(3);

    /// Two vectors of three pieces each, the last one of a thousand values, and one of zeros twice.
    fn state(seed: u32) -> HealedState {
        let vector = |part: u32| {
            (0..2 * PIECE_VALUES as u32 + 1000).map(|index| (index * part + seed * part) as f32).collect()
        };
        let buffers = [1, 0, 0].map(|part| Arc::new(vector(part))).into();
        HealedState { next_round: Round(5), buffers, updates: 9 }
    }

    fn values(state: &HealedState, piece: Piece) -> Vec<f32> {
        let at = manifest_of(state).buffers.iter().position(|hash| *hash == piece.buffer).unwrap();
        state.buffers[at].chunks(PIECE_VALUES).nth(piece.index).unwrap().to_vec()
    }

    #[test]
    fn each_piece_is_asked_for_once_and_what_is_slow_of_one_other_as_well() {
        let state = state(0);
        let manifest = manifest_of(&state);
        let mut transfer = Transfer::new(manifest.clone(), None);
        let first: Vec<Piece> = std::iter::from_fn(|| transfer.take(A, &manifest.buffers)).collect();
        assert_eq!(first.len(), 6, "zeros are fetched once");
        let offered = &manifest.buffers[..1];
        let second: Vec<Piece> = std::iter::from_fn(|| transfer.take(B, offered)).collect();
        assert_eq!(second.len(), 3, "B has one of the vectors");
        assert_eq!(transfer.take(C, offered), None, "two are asked for each of those");
        transfer.forget(B);
        let third: Vec<Piece> = std::iter::from_fn(|| transfer.take(C, offered)).collect();
        assert_eq!(third, second, "all that B was asked for");
        for piece in first {
            assert!(transfer.put(piece, A, &values(&state, piece)[1..]).is_err(), "too short");
            transfer.put(piece, A, &values(&state, piece)).unwrap();
            transfer.put(piece, B, &vec![7.0; values(&state, piece).len()]).unwrap();
        }
        assert_eq!((transfer.is_whole(), transfer.take(C, &manifest.buffers)), (true, None));
        let (whole, given) = transfer.finish().unwrap();
        assert_eq!(
            given,
            [(A, 2 * 4 * state.buffers[0].len() as u64)].into(),
            "what was here already changes nothing"
        );
        assert_eq!((whole.next_round, whole.updates), (Round(5), 9));
        assert_eq!(whole.buffers, state.buffers);
    }

    #[test]
    fn of_a_state_that_is_not_the_announced_one_what_is_sound_is_kept() {
        let (honest, other) = (state(0), state(1));
        let manifest = manifest_of(&honest);
        let mut transfer = Transfer::new(manifest.clone(), None);
        while let Some(piece) = transfer.take(A, &manifest.buffers) {
            let lies = manifest.buffers[0] == piece.buffer;
            let values = if lies {
                other.buffers[0].chunks(PIECE_VALUES).nth(piece.index).unwrap().to_vec()
            } else {
                values(&honest, piece)
            };
            transfer.put(piece, A, &values).unwrap();
        }
        let rest = transfer.finish().unwrap_err();
        // The moments are of the next state as well.
        let next = manifest_of(&other);
        assert_eq!(manifest.buffers[1..], next.buffers[1..]);
        let mut transfer = Transfer::new(next.clone(), Some(rest));
        let left: Vec<Piece> = std::iter::from_fn(|| transfer.take(A, &next.buffers)).collect();
        assert!(left.len() == 3 && left.iter().all(|piece| piece.buffer == next.buffers[0]), "{left:?}");
        left.iter().for_each(|piece| transfer.put(*piece, B, &values(&other, *piece)).unwrap());
        assert_eq!(transfer.finish().unwrap().0.buffers, other.buffers);
    }
}
