//! Speeds of the workers that share a copy of the model, relative to their first speed with the same part: a machine that has become slow is to have a smaller part.
//!
//! Where each worker has the whole model, its share of a step follows its speed (`shares`). With parts, every rank has the same samples, so only the part can shrink,
//! which is the planner's task (`replanning`).

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use crate::run::core::Core;
use crate::run::peer::Peer;
use crate::run::placement::slots::ReplicaSlot;
use crate::run::planning::Planning;

/// Time between looks: the window of a speed (`progress::Meter`).
const LOOK: Duration = Duration::from_secs(10);
/// The fastest of the first looks is the reference: a process that has just begun is slower.
const REFERENCE_LOOKS: u32 = 3;
/// Seconds of computing behind a usable speed.
const COMPUTED_MIN_S: f64 = 0.5;
/// Bound of the relative speed, both ways.
const FACTOR_MAX: f64 = 64.0;
/// Part of a step's work that all samples need, as their losses are computed; the rest is for the selected ones.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// A worker with one part of the model.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Shown {
    slot: ReplicaSlot,
    /// Reference speed, in tokens per second of computing,
    reference: f64,
    /// number of looks,
    looks: u32,
    /// and present speed.
    now: f64,
}

impl Shown {
    fn factor(&self) -> Option<f64> {
        let factor = (self.now / self.reference).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
        (self.looks == REFERENCE_LOOKS).then_some(factor)
    }
}

/// Speeds by worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Speeds {
    next_look: Duration,
    by_worker: BTreeMap<WorkerId, Shown>,
}

impl Speeds {
    /// A worker's speed relative to the reference; 1 where unknown.
    pub fn factor(&self, worker: WorkerId) -> f64 {
        self.known(worker).unwrap_or(1.0)
    }

    /// The same; `None` where unknown.
    pub fn known(&self, worker: WorkerId) -> Option<f64> {
        self.by_worker.get(&worker).and_then(Shown::factor)
    }

    /// The known relative speeds.
    pub fn factors(&self) -> BTreeMap<WorkerId, f64> {
        self.by_worker.iter().filter_map(|(&worker, shown)| Some((worker, shown.factor()?))).collect()
    }
}

impl Planning {
    /// Measures the workers that share a copy at intervals.
    pub(crate) fn look_at_speeds(&mut self, core: &mut Core) {
        if core.ranks() == 1 || core.now < self.speeds.next_look {
            return;
        }
        self.speeds.next_look = core.now + LOOK;
        for (worker, slot, rate) in core.rates() {
            match self.speeds.by_worker.get_mut(&worker).filter(|shown| shown.slot == slot) {
                Some(shown) => {
                    if shown.looks < REFERENCE_LOOKS {
                        (shown.looks, shown.reference) = (shown.looks + 1, shown.reference.max(rate));
                    }
                    shown.now = rate;
                }
                None => {
                    self.remember_speed(core, worker);
                    self.speeds
                        .by_worker
                        .insert(worker, Shown { slot, reference: rate, looks: 1, now: rate });
                }
            }
        }
    }

    /// Keeps the speed of the last part as the machine's speed, as the worker gets another part.
    fn remember_speed(&mut self, core: &mut Core, worker: WorkerId) {
        let factor = self.speeds.factor(worker);
        let Some(peer) = core.peers.get_mut(&worker) else { return };
        if let Some(told) = peer.known.flops_per_s.filter(|_| factor != 1.0) {
            peer.known.flops_per_s = Some((told as f64 * factor).max(1.0) as u64);
            core.state.roster.workers.insert(worker, peer.known.clone());
        }
    }

    /// Handles a new beginning: all workers have other parts, or all of the model.
    pub(crate) fn remember_speeds(&mut self, core: &mut Core) {
        let workers: Vec<WorkerId> = self.speeds.by_worker.keys().copied().collect();
        workers.into_iter().for_each(|worker| self.remember_speed(core, worker));
        self.speeds.by_worker.clear();
    }
}

impl Core {
    /// Tokens per second of computing of each worker with a part. The first rank of a copy counts the tokens of a step; each worker divides by the seconds of its own
    /// steps, as windows that end between two steps differ by one.
    fn rates(&self) -> Vec<(WorkerId, ReplicaSlot, f64)> {
        let mut rates = Vec::new();
        for workers in self.replicas_where(Peer::is_present_member) {
            let peers: Vec<&Peer> = workers.iter().filter_map(|worker| self.peers.get(worker)).collect();
            let Some((steps, done)) = peers.first().and_then(|peer| peer.progress.meter.recent_steps())
            else {
                continue;
            };
            let (all, selected) = (done.tokens as f64, done.selected_tokens as f64);
            let tokens = (FORWARD_SHARE * all + (1.0 - FORWARD_SHARE) * selected) / steps as f64;
            for (worker, peer) in workers.iter().zip(peers) {
                let Some((steps, done)) = peer.progress.meter.recent_steps() else { continue };
                let computes = done.compute_s >= COMPUTED_MIN_S && tokens > 0.0;
                if let Some(slot) = peer.slot.filter(|_| computes) {
                    rates.push((*worker, slot, tokens * steps as f64 / done.compute_s));
                }
            }
        }
        rates
    }
}
