//! Copies of the state that peers fetch from this worker, piece by piece.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::Hash;
use tokio::time::Instant;

use super::request::Manifest;
use crate::sync::HealedState;

/// States at a time: each may be as large as the model with its moments. Who asks for another one meanwhile asks another donor, or again.
const SNAPSHOTS_MAX: usize = 4;
/// Who is still connected, and has asked for no piece for so long, has no state kept for it any more.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(60);

/// What is kept.
///
/// A copy is for those who asked before it was made, and who asked when it was the same as one made for them: one from before a settlement may have
/// rounds that do not count any more. It goes when the last of them is gone. Each worker has one, and waits for one, however often it asks and over however many
/// connections.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    snapshots: Vec<Snapshot>,
    /// Who is about to have one.
    asking: BTreeSet<WorkerId>,
}

#[derive(Debug)]
struct Snapshot {
    manifest: Manifest,
    buffers: Vec<Arc<Vec<f32>>>,
    /// For whom it is; never nobody.
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Claim {
    worker: WorkerId,
    /// quinn's number of the connection over which it has asked.
    connection: usize,
    used: Instant,
}

impl Claim {
    fn is_in_use(&self, now: Instant) -> bool {
        now < self.used + UNUSED_MAX
    }
}

impl Kept {
    fn retain_claims(&mut self, stays: impl Fn(&Claim) -> bool) {
        self.snapshots.retain_mut(|snapshot| {
            snapshot.claims.retain(&stays);
            !snapshot.claims.is_empty()
        });
    }
}

impl Snapshots {
    /// A place for a state that a worker asks for. What was kept for it before goes. None: there is no room, or it has asked already and has no answer yet.
    pub fn ask(&self, worker: WorkerId, now: Instant) -> Option<Asking<'_>> {
        let mut kept = self.lock();
        kept.retain_claims(|claim| claim.worker != worker && claim.is_in_use(now));
        let has_room = kept.snapshots.len() < SNAPSHOTS_MAX;
        (has_room && kept.asking.insert(worker)).then(|| Asking { snapshots: self, worker })
    }

    /// A vector of the state that is kept for a worker.
    pub fn buffer(&self, worker: WorkerId, hash: &Hash, now: Instant) -> Option<Arc<Vec<f32>>> {
        let mut kept = self.lock();
        kept.snapshots.iter_mut().find_map(|snapshot| {
            let claim = snapshot.claims.iter_mut().find(|claim| claim.worker == worker)?;
            let at = snapshot.manifest.buffers.iter().position(|buffer| buffer == hash)?;
            claim.used = now;
            snapshot.buffers.get(at).cloned()
        })
    }

    /// A connection has ended.
    pub fn release(&self, connection: usize) {
        self.lock().retain_claims(|claim| claim.connection != connection);
    }

    /// Drops what nobody asks for any more. When to look again; none: nothing is kept.
    pub fn forget_unused(&self, now: Instant) -> Option<Instant> {
        let mut kept = self.lock();
        kept.retain_claims(|claim| claim.is_in_use(now));
        let claims = kept.snapshots.iter().flat_map(|snapshot| &snapshot.claims);
        claims.map(|claim| claim.used + UNUSED_MAX).min()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker that waits for its state. Dropping it gives its place up.
#[derive(Debug)]
pub(super) struct Asking<'a> {
    snapshots: &'a Snapshots,
    worker: WorkerId,
}

impl Asking<'_> {
    /// Keeps a state for the worker while this connection of it lasts. False: there is no room.
    pub fn keep(self, connection: usize, manifest: &Manifest, state: HealedState, now: Instant) -> bool {
        let claim = Claim { worker: self.worker, connection, used: now };
        let mut kept = self.snapshots.lock();
        if let Some(same) = kept.snapshots.iter_mut().find(|snapshot| snapshot.manifest == *manifest) {
            same.claims.push(claim);
            return true;
        }
        // Others that asked at the same time may have been given other states.
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
        manifest_of(&state(round)).buffers[buffer]
    }

    /// A worker asks over a connection of its own number, and is given the state of this round.
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
        assert!(asking.is_none(), "there is no room");
        snapshots.release(4);
        assert!(keep(&snapshots, 9, 3, now) && keep(&snapshots, 4, 4, now));
        let of_9 = || snapshots.buffer(WorkerId(9), &hash(3, 1), now);
        snapshots.release(3);
        assert_eq!(of_9(), Some(Arc::new(vec![3.0; 3])));
        assert_eq!(snapshots.buffer(WorkerId(3), &hash(3, 1), now), None, "it has hung up");
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
        assert_eq!(snapshots.buffer(WorkerId(1), &hash(8, 1), now), None);
        assert!(snapshots.buffer(WorkerId(1), &hash(9, 1), now).is_some());
        let first = snapshots.ask(WorkerId(1), now);
        assert!(first.is_some() && snapshots.ask(WorkerId(1), now).is_none(), "it waits for an answer");
        drop(first);
        assert!((2..=5).all(|worker| keep(&snapshots, worker, u64::from(worker), now)));
    }

    /// Moments that are all zero are in each state.
    #[test]
    fn a_state_of_which_nothing_is_asked_for_goes_and_no_other_one_that_has_the_same_vector() {
        let (snapshots, began) = (Snapshots::default(), Instant::now());
        assert!(keep(&snapshots, 1, 1, began) && keep(&snapshots, 2, 2, began));
        let later = began + UNUSED_MAX / 2;
        assert_eq!(snapshots.buffer(WorkerId(2), &hash(2, ZEROS), later), Some(Arc::new(vec![0.0; 3])));
        assert_eq!(snapshots.buffer(WorkerId(2), &hash(1, 1), later), None, "it is not of its state");
        assert_eq!(snapshots.forget_unused(began + UNUSED_MAX), Some(later + UNUSED_MAX));
        assert_eq!(snapshots.buffer(WorkerId(1), &hash(1, ZEROS), later), None);
        assert!(snapshots.buffer(WorkerId(2), &hash(2, 1), later).is_some());
        assert_eq!(snapshots.forget_unused(later + UNUSED_MAX), None);
        assert_eq!(snapshots.buffer(WorkerId(2), &hash(2, 1), later), None);
    }
}
