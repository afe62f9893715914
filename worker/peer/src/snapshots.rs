//! Copies of the state that peers fetch from this worker, piece by piece.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_member::HealedState;
use longhaul_proto::control::message::Hash;
use tokio::time::Instant;

use super::request::{Manifest, STATE_PIECE_VALUES};

/// Parallel copies: each may be as large as the model with its moments. Further peers ask another donor, or retry.
const SNAPSHOTS_MAX: usize = 4;
/// Time without requests after which a connected peer's copy is dropped.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(60);

/// The kept copies.
///
/// A copy serves the peers that asked before it was made, and later ones that got an equal state: after a settlement, older ones may contain void rounds. It
/// is dropped once all of them have closed their connections or been idle for a while; after a lost connection, a peer resumes with it. Each worker has one
/// copy and one pending request.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    kept: Mutex<SnapshotStore>,
}

#[derive(Debug, Default)]
struct SnapshotStore {
    snapshots: Vec<Snapshot>,
    /// Workers with a pending request.
    asking: BTreeSet<WorkerId>,
}

#[derive(Debug)]
struct Snapshot {
    manifest: Manifest,
    buffers: Vec<Arc<Vec<f32>>>,
    /// Receivers, never empty.
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Claim {
    worker: WorkerId,
    /// quinn's number of the requesting connection.
    connection: usize,
    used: Instant,
}

impl Claim {
    fn is_in_use(&self, now: Instant) -> bool {
        now < self.used + UNUSED_MAX
    }
}

impl SnapshotStore {
    fn retain_claims(&mut self, stays: impl Fn(&Claim) -> bool) {
        self.snapshots.retain_mut(|snapshot| {
            snapshot.claims.retain(&stays);
            !snapshot.claims.is_empty()
        });
    }
}

impl Snapshots {
    /// Reserves a slot for a worker's copy, and drops its previous one. `None`: all slots are taken, or its earlier request is pending.
    pub fn ask(&self, worker: WorkerId, now: Instant) -> Option<Asking<'_>> {
        let mut kept = self.lock();
        kept.retain_claims(|claim| claim.worker != worker && claim.is_in_use(now));
        let has_room = kept.snapshots.len() < SNAPSHOTS_MAX;
        (has_room && kept.asking.insert(worker)).then(|| Asking { snapshots: self, worker })
    }

    /// Returns the manifest with this name if it is kept for this worker, and moves it to another connection.
    pub fn again(&self, worker: WorkerId, name: &Hash, connection: usize, now: Instant) -> Option<Manifest> {
        let mut kept = self.lock();
        kept.retain_claims(|claim| claim.is_in_use(now));
        kept.snapshots.iter_mut().find_map(|snapshot| {
            let claim = snapshot.claims.iter_mut().find(|claim| claim.worker == worker)?;
            let is_meant = snapshot.manifest.name() == *name;
            is_meant.then(|| {
                (claim.connection, claim.used) = (connection, now);
                snapshot.manifest.clone()
            })
        })
    }

    /// Returns a piece of the state that is kept for a worker.
    pub fn piece(&self, worker: WorkerId, hash: &Hash, now: Instant) -> Option<KeptPiece> {
        let mut kept = self.lock();
        kept.snapshots.iter_mut().find_map(|snapshot| {
            let claim = snapshot.claims.iter_mut().find(|claim| claim.worker == worker)?;
            let vectors = snapshot.manifest.buffers.iter().zip(&snapshot.buffers);
            let mut found = vectors.filter_map(|(pieces, buffer)| {
                let index = pieces.iter().position(|piece| piece == hash)?;
                Some(KeptPiece { buffer: Arc::clone(buffer), index })
            });
            let piece = found.next()?;
            claim.used = now;
            Some(piece)
        })
    }

    /// Drops the claims of a closed connection.
    pub fn release(&self, connection: usize) {
        self.lock().retain_claims(|claim| claim.connection != connection);
    }

    /// Drops idle copies. Returns the time of the next check; `None`: nothing is kept.
    pub fn forget_unused(&self, now: Instant) -> Option<Instant> {
        let mut kept = self.lock();
        kept.retain_claims(|claim| claim.is_in_use(now));
        let claims = kept.snapshots.iter().flat_map(|snapshot| &snapshot.claims);
        claims.map(|claim| claim.used + UNUSED_MAX).min()
    }

    fn lock(&self) -> MutexGuard<'_, SnapshotStore> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of a kept state.
#[derive(Debug)]
pub(super) struct KeptPiece {
    buffer: Arc<Vec<f32>>,
    index: usize,
}

impl KeptPiece {
    /// Returns its values.
    pub fn values(&self) -> &[f32] {
        self.buffer.chunks(STATE_PIECE_VALUES).nth(self.index).unwrap_or_default()
    }
}

/// A worker's pending request. Its drop frees the slot.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    snapshots: &'a Snapshots,
    worker: WorkerId,
}

impl Asking<'_> {
    /// Keeps a state for the worker during this connection. `false`: all slots are taken.
    pub fn keep(self, connection: usize, manifest: &Manifest, state: HealedState, now: Instant) -> bool {
        let claim = Claim { worker: self.worker, connection, used: now };
        let mut kept = self.snapshots.lock();
        if let Some(same) = kept.snapshots.iter_mut().find(|snapshot| snapshot.manifest == *manifest) {
            same.claims.push(claim);
            return true;
        }
        // Parallel requests may have got other states.
        let has_room = kept.snapshots.len() < SNAPSHOTS_MAX;
        if has_room {
            let (manifest, buffers) = (manifest.clone(), state.buffers);
            kept.snapshots.push(Snapshot { manifest, buffers, claims: vec![claim] });
        }
        has_room
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.snapshots.lock().asking.remove(&self.worker);
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Round;

    use super::super::request::manifest_of;
    use super::*;

    const ZEROS: usize = 0;

    fn state(round: u64) -> HealedState {
        let buffers = [0.0, round as f32].map(|value| Arc::new(vec![value; 3])).into();
        HealedState { next_round: Round(round), buffers, updates: round }
    }

    fn hash(round: u64, buffer: usize) -> Hash {
        manifest_of(&state(round)).buffers[buffer][0]
    }

    fn piece(snapshots: &Snapshots, worker: u32, hash: &Hash, now: Instant) -> Option<Vec<f32>> {
        Some(snapshots.piece(WorkerId(worker), hash, now)?.values().to_vec())
    }

    /// Keeps the state of this round for a worker, over a connection with the worker's number.
    fn keep(snapshots: &Snapshots, worker: u32, round: u64, now: Instant) -> bool {
        let Some(asking) = snapshots.ask(WorkerId(worker), now) else { return false };
        asking.keep(worker as usize, &manifest_of(&state(round)), state(round), now)
    }

    #[test]
    fn a_state_is_kept_until_the_last_connection_of_those_that_asked_for_it_has_ended() {
        let (snapshots, now) = (Snapshots::default(), Instant::now());
        for worker in 1..=SNAPSHOTS_MAX as u32 {
            assert!(keep(&snapshots, worker, u64::from(worker), now));
        }
        let asking = snapshots.ask(WorkerId(9), now);
        assert!(asking.is_none(), "all slots are taken");
        snapshots.release(4);
        assert!(keep(&snapshots, 9, 3, now) && keep(&snapshots, 4, 4, now));
        let of_9 = || piece(&snapshots, 9, &hash(3, 1), now);
        snapshots.release(3);
        assert_eq!(of_9(), Some(vec![3.0; 3]));
        assert_eq!(piece(&snapshots, 3, &hash(3, 1), now), None, "the connection is closed");
        assert!(!keep(&snapshots, 3, 5, now));
        snapshots.release(9);
        assert_eq!(of_9(), None);
        assert!(keep(&snapshots, 3, 5, now));
    }

    #[test]
    fn a_worker_has_one_state_however_often_it_asks() {
        let (snapshots, now) = (Snapshots::default(), Instant::now());
        for round in 0..10 {
            assert!(keep(&snapshots, 1, round, now));
        }
        assert_eq!(piece(&snapshots, 1, &hash(8, 1), now), None);
        assert!(piece(&snapshots, 1, &hash(9, 1), now).is_some());
        let first = snapshots.ask(WorkerId(1), now);
        assert!(first.is_some() && snapshots.ask(WorkerId(1), now).is_none(), "its request is pending");
        drop(first);
        assert!((2..=5).all(|worker| keep(&snapshots, worker, u64::from(worker), now)));
    }

    /// All-zero moments are in each state.
    #[test]
    fn a_state_of_which_nothing_is_asked_for_goes_and_no_other_one_that_has_the_same_vector() {
        let (snapshots, began) = (Snapshots::default(), Instant::now());
        assert!(keep(&snapshots, 1, 1, began) && keep(&snapshots, 2, 2, began));
        let later = began + UNUSED_MAX / 2;
        assert_eq!(piece(&snapshots, 2, &hash(2, ZEROS), later), Some(vec![0.0; 3]));
        assert_eq!(piece(&snapshots, 2, &hash(1, 1), later), None, "a piece of another state");
        assert_eq!(snapshots.forget_unused(began + UNUSED_MAX), Some(later + UNUSED_MAX));
        assert_eq!(piece(&snapshots, 1, &hash(1, ZEROS), later), None);
        assert!(piece(&snapshots, 2, &hash(2, 1), later).is_some());
        assert_eq!(snapshots.forget_unused(later + UNUSED_MAX), None);
        assert_eq!(piece(&snapshots, 2, &hash(2, 1), later), None);
    }
    #[test]
    fn whose_connection_was_lost_goes_on_with_its_state_and_nobody_else_does() {
        let (snapshots, began) = (Snapshots::default(), Instant::now());
        assert!(keep(&snapshots, 1, 1, began) && keep(&snapshots, 2, 2, began));
        let name = manifest_of(&state(1)).name();
        let again = |worker, connection, now| snapshots.again(WorkerId(worker), &name, connection, now);
        assert_eq!(again(2, 20, began), None, "it has its own state");
        assert_eq!(again(3, 30, began), None);
        let later = began + UNUSED_MAX / 2;
        assert_eq!(again(1, 10, later), Some(manifest_of(&state(1))));
        // The lost connection.
        snapshots.release(1);
        assert_eq!(piece(&snapshots, 1, &hash(1, 1), later), Some(vec![1.0; 3]));
        assert_eq!(again(1, 11, later + UNUSED_MAX), None, "idle for too long");
        assert_eq!(piece(&snapshots, 1, &hash(1, 1), later), None);
    }
}
