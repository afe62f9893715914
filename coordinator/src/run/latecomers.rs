//! Workers that came in too far behind to take part: the next time, rounds wait for them.
//!
//! A joiner fetches a state while the others train on, and then the results of the rounds since, which members keep for [`RESULTS_KEPT_ROUNDS`] rounds at least. Where these are large and
//! its link is slow, more happen than are kept, however often it tries.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::round::RESULTS_KEPT_ROUNDS;
use serde::{Deserialize, Serialize};

use super::command::Severity;
use super::machine::Run;
use super::peer::{Peer, Standing};
use super::state::Phase;

/// Rounds wait for nobody longer than this.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// They wait for twice as long as the state took last time, and this.
const MARGIN: Duration = Duration::from_secs(5);
/// From a time in which they waited for a worker in vain to the next one.
const AGAIN_AFTER: Duration = Duration::from_secs(600);

/// Who was too far behind, and has not taken part since.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Latecomers {
    by_worker: BTreeMap<WorkerId, Latecomer>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Latecomer {
    /// Another process of that worker is another matter.
    incarnation: u64,
    /// What the state took.
    took: Duration,
    /// Rounds do not wait for it before.
    not_before: Duration,
    /// They wait for it until then.
    until: Option<Duration>,
}

impl Latecomer {
    /// How long to wait; none: it would take longer than anybody is waited for.
    fn patience(&self) -> Option<Duration> {
        let wanted = 2 * self.took + MARGIN;
        (wanted <= WAIT_MAX).then_some(wanted)
    }
}

impl Latecomers {
    /// It takes part.
    pub fn takes_part(&mut self, worker: WorkerId) {
        self.by_worker.remove(&worker);
    }

    fn note(&mut self, worker: WorkerId, peer: &Peer, now: Duration) -> &Latecomer {
        let took = peer.ready_at.saturating_sub(peer.healing_since);
        let incarnation = peer.known.incarnation;
        let before = self.by_worker.remove(&worker).filter(|before| before.incarnation == incarnation);
        // Whom rounds have waited for is not helped by that.
        let waited = before.as_ref().is_some_and(|before| before.until.is_some());
        let not_before = before.map_or(Duration::ZERO, |before| before.not_before);
        let not_before = if waited { now + AGAIN_AFTER } else { not_before };
        self.by_worker
            .entry(worker)
            .insert_entry(Latecomer { incarnation, took, not_before, until: None })
            .into_mut()
    }

    fn of(&self, worker: WorkerId, peer: &Peer) -> Option<&Latecomer> {
        self.by_worker.get(&worker).filter(|latecomer| latecomer.incarnation == peer.known.incarnation)
    }
}

impl Run {
    /// A worker goes: whether that is because it was too far behind when it came in.
    pub(super) fn note_latecomer(&mut self, worker: WorkerId, peer: &Peer) {
        let first_round = self.state.generation.as_ref().map(|generation| generation.first_round);
        let its_state = peer.ready.as_ref().map(|ready| ready.next_round);
        let is_late = first_round
            .zip(its_state)
            .is_some_and(|(first, state)| first.0.saturating_sub(state.0) > RESULTS_KEPT_ROUNDS);
        if peer.standing != Standing::Member || peer.state_hash.is_some() || !is_late {
            return;
        }
        let latecomer = self.latecomers.note(worker, peer, self.now);
        if latecomer.patience().is_none() {
            let text = format!(
                "was too far behind when it came in: its link took {:.0} s for the state, and results of so many rounds are not kept. It can come in where results are smaller, as after an opening that exchanges all values (sync.opening_share), or where its link is faster",
                latecomer.took.as_secs_f64()
            );
            self.notice(Severity::Warning, Some(worker), text);
        }
    }

    /// Whether rounds wait for somebody who fetches the state.
    pub(super) fn waits_for_latecomer(&self) -> bool {
        self.state.phase == Phase::Training && self.awaited_latecomers().next().is_some()
    }

    /// When to look whether they have waited for long enough.
    pub(super) fn latecomers_wait_until(&self) -> Option<Duration> {
        self.awaited_latecomers().map(|(_, until)| until).min()
    }

    /// Those whom rounds wait for, and until when: their copies of the model are not complete yet.
    pub(super) fn awaited_latecomers(&self) -> impl Iterator<Item = (WorkerId, Duration)> {
        let heals = |peer: &Peer| {
            let replica = peer.seat.map(|seat| seat.replica);
            let is_of_it = |other: &&Peer| other.seat.map(|seat| seat.replica) == replica;
            self.peers.values().filter(is_of_it).any(|other| other.standing == Standing::Healing)
        };
        self.latecomers.by_worker.keys().filter_map(move |&worker| {
            let peer = self.peers.get(&worker).filter(|peer| heals(peer))?;
            let until = self.latecomers.of(worker, peer)?.until?;
            (until > self.now).then_some((worker, until))
        })
    }

    /// Rounds wait for those who heal and were too late before, and no longer for those who did not become ready in time.
    pub(super) fn look_at_latecomers(&mut self) {
        let heals = |worker: &WorkerId| {
            let peer = self.peers.get(worker).filter(|peer| peer.standing == Standing::Healing)?;
            self.latecomers.of(*worker, peer).map(|_| *worker)
        };
        let healing: Vec<WorkerId> = self.latecomers.by_worker.keys().filter_map(heals).collect();
        for worker in healing {
            let Some(latecomer) = self.latecomers.by_worker.get_mut(&worker) else { continue };
            let text = match (latecomer.until, latecomer.patience()) {
                (Some(until), _) if until <= self.now => {
                    (latecomer.until, latecomer.not_before) = (None, self.now + AGAIN_AFTER);
                    "did not fetch the state in time: training goes on without it".to_owned()
                }
                (None, Some(patience)) if latecomer.not_before <= self.now => {
                    latecomer.until = Some(self.now + patience);
                    let took = latecomer.took.as_secs_f64();
                    format!(
                        "was too far behind when it came in, as more rounds passed than are kept in the {took:.1} s that the state took: rounds wait for it now, for {} s at most",
                        patience.as_secs()
                    )
                }
                _ => continue,
            };
            self.notice(Severity::Warning, Some(worker), text);
        }
    }
}
