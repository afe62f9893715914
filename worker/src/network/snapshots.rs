//! Copies of the state that peers fetch from this worker, piece by piece.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_proto::control::message::Hash;
use tokio::time::Instant;

use super::request::Manifest;
use crate::sync::HealedState;

/// States at a time: each may be as large as the model with its moments. Who asks for another one meanwhile asks another donor, or again.
const SNAPSHOTS_MAX: usize = 4;
/// One that nobody has asked for a piece of for so long is dropped.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(60);

/// What is kept.
///
/// A copy is for those who asked before it was made, and who asked when it was the same as one made for them: one from before a settlement may have
/// rounds that do not count any more.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    kept: Mutex<Vec<Snapshot>>,
}

#[derive(Debug)]
struct Snapshot {
    manifest: Manifest,
    buffers: Vec<Arc<Vec<f32>>>,
    used: Instant,
}

impl Snapshots {
    /// Whether there is room for another one.
    pub fn has_room(&self, now: Instant) -> bool {
        let mut kept = self.lock();
        kept.retain(|snapshot| now < snapshot.used + UNUSED_MAX);
        kept.len() < SNAPSHOTS_MAX
    }

    /// Keeps a state, unless it is kept already. False: there is no room.
    pub fn keep(&self, manifest: &Manifest, state: HealedState, now: Instant) -> bool {
        let mut kept = self.lock();
        if let Some(same) = kept.iter_mut().find(|snapshot| snapshot.manifest == *manifest) {
            same.used = now;
            return true;
        }
        let has_room = kept.len() < SNAPSHOTS_MAX;
        if has_room {
            kept.push(Snapshot { manifest: manifest.clone(), buffers: state.buffers, used: now });
        }
        has_room
    }

    /// A vector, of whatever state.
    pub fn buffer(&self, hash: &Hash, now: Instant) -> Option<Arc<Vec<f32>>> {
        let mut kept = self.lock();
        kept.iter_mut().find_map(|snapshot| {
            let at = snapshot.manifest.buffers.iter().position(|buffer| buffer == hash)?;
            snapshot.used = now;
            snapshot.buffers.get(at).cloned()
        })
    }

    /// Drops what nobody asks for any more. When to look again; none: nothing is kept.
    pub fn forget_unused(&self, now: Instant) -> Option<Instant> {
        let mut kept = self.lock();
        kept.retain(|snapshot| now < snapshot.used + UNUSED_MAX);
        kept.iter().map(|snapshot| snapshot.used + UNUSED_MAX).min()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Snapshot>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Round;

    use super::super::request::manifest_of;
    use super::*;

    fn state(round: u64) -> HealedState {
        let buffers = [0.0, round as f32].map(|value| Arc::new(vec![value; 3])).into();
        HealedState { next_round: Round(round), buffers, updates: round }
    }

    #[test]
    fn states_are_kept_while_somebody_asks_and_no_more_of_them_than_there_is_room_for() {
        let (snapshots, began) = (Snapshots::default(), Instant::now());
        let keep = |round| snapshots.keep(&manifest_of(&state(round)), state(round), began);
        let last = SNAPSHOTS_MAX as u64;
        (0..last).for_each(|round| assert!(snapshots.has_room(began) && keep(round)));
        assert!(!snapshots.has_room(began) && !keep(last));
        assert!(keep(1), "it is there already");

        let hash = manifest_of(&state(2)).buffers[1];
        let later = began + UNUSED_MAX / 2;
        assert_eq!(snapshots.buffer(&hash, later), Some(Arc::new(vec![2.0; 3])));
        assert_eq!(snapshots.buffer(&[0; 32], later), None);
        assert_eq!(snapshots.forget_unused(began + UNUSED_MAX), Some(later + UNUSED_MAX));
        assert!(snapshots.has_room(began + UNUSED_MAX) && snapshots.buffer(&hash, later).is_some());
        assert_eq!(snapshots.forget_unused(later + UNUSED_MAX), None);
        assert_eq!(snapshots.buffer(&hash, later), None);
    }
}
