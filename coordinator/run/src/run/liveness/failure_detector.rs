//! The failure detector: signs of life, and workers silent for too long.

use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{Heartbeat, SignOfLife, ToWorker};

use crate::run::core::Core;
use crate::run::liveness::Liveness;
use crate::run::liveness::silence::{LOOK_INTERVAL, Silence};
use crate::run::machine::Run;
use crate::run::peer::Peer;

impl Core {
    pub(crate) fn handle_heartbeat(&mut self, worker: WorkerId, mut heartbeat: Heartbeat) {
        for value in [
            &mut heartbeat.time.compute_s,
            &mut heartbeat.time.wait_s,
            &mut heartbeat.time.data_wait_s,
            &mut heartbeat.time.checkpoint_s,
            &mut heartbeat.time.encode_s,
            &mut heartbeat.time.encode_wait_s,
            &mut heartbeat.time.bubble_s,
        ] {
            *value = if value.is_finite() { value.max(0.0) } else { 0.0 };
        }
        let Some(peer) = self.peers.get_mut(&worker) else { return };
        if self.config.parallel.is_divided() && peer.slot.is_none_or(|slot| slot.rank > 0) {
            // The samples of a copy count once, for the worker that they are assigned to.
            heartbeat.tokens = 0;
            heartbeat.selected_tokens = 0;
        }
        let first = peer.progress.meter.latest().is_none();
        self.state.tally.note(worker, peer.known.incarnation, &heartbeat, first);
        peer.progress.meter.push(self.now, heartbeat);
    }

    /// Records a member's report that others of its site are alive. It proves no more, and not for long (`silence`).
    pub(crate) fn hear_of(&mut self, speaker: WorkerId, others: &[SignOfLife]) {
        let Some(speaking) = self.peers.get(&speaker).filter(|peer| peer.is_present_member()) else { return };
        let site = speaking.known.site;
        for sign in others.iter().filter(|sign| sign.worker != speaker) {
            let is_meant = |peer: &&mut Peer| {
                peer.connection.is_some()
                    && peer.known.site == site
                    && peer.known.incarnation == sign.incarnation
            };
            if let Some(peer) = self.peers.get_mut(&sign.worker).filter(is_meant) {
                let age = Duration::from_millis(sign.age_ms.into());
                peer.silence.heard_of(self.now.saturating_sub(age));
            }
        }
    }
}

impl Liveness {
    /// Discounts silences while this process stood still. Call it before any message is recorded, as that would end a silence that was
    /// none.
    pub(crate) fn forgive_if_late(&mut self, core: &mut Core) {
        if let Some(due) = self.silence_at.filter(|at| *at <= core.now) {
            core.peers.values_mut().for_each(|peer| peer.silence.forgive(due, core.now));
        }
    }

    /// A worker that has been silent for too long, and the time of its last sign.
    fn one_that_is_due(&self, core: &Core) -> Option<(WorkerId, Duration)> {
        let is_over = |(worker, peer): &(&WorkerId, &Peer)| {
            self.silence_over(core, **worker, peer).is_some_and(|at| at <= core.now)
        };
        core.peers.iter().find(is_over).map(|(&worker, peer)| (worker, peer.silence.last()))
    }

    /// Handles a report that these are out of reach: they are asked for a sign of life, and missed earlier. Returns whether the next
    /// look is earlier now.
    pub(crate) fn look_at_doubted(&mut self, core: &mut Core, workers: &[WorkerId]) -> bool {
        self.ask_silent(core, workers);
        let over = |worker: &WorkerId| self.silence_over(core, *worker, core.peers.get(worker)?);
        let Some(first) = workers.iter().filter_map(over).min() else { return false };
        let is_earlier = self.silence_at.is_some_and(|at| first < at);
        if is_earlier {
            self.silence_at = Some(first.max(core.now));
        }
        is_earlier
    }

    /// Asks the silent ones of these for a sign of life: their reporter may have stopped reporting, or never have
    /// begun.
    fn ask_silent(&mut self, core: &mut Core, workers: &[WorkerId]) {
        for &worker in workers {
            let is_doubted = self.reach.is_doubted(worker, core.now);
            let Some(peer) = core.peers.get_mut(&worker).filter(|peer| peer.connection.is_some()) else {
                continue;
            };
            if peer.silence.is_to_be_asked(core.now, is_doubted) {
                core.send(worker, ToWorker::Speak);
            }
        }
    }

    fn ask_all_silent(&self, core: &mut Core) {
        let now = core.now;
        let is_asked = |(worker, peer): (&WorkerId, &mut Peer)| {
            let is_doubted = self.reach.is_doubted(*worker, now);
            let asks = peer.connection.is_some() && peer.silence.is_to_be_asked(now, is_doubted);
            asks.then_some(*worker)
        };
        let asked: Vec<WorkerId> = core.peers.iter_mut().filter_map(is_asked).collect();
        asked.into_iter().for_each(|worker| core.send(worker, ToWorker::Speak));
    }

    /// Time at which a silent worker is taken for lost: earlier, where others wait for it in vain.
    fn silence_over(&self, core: &Core, worker: WorkerId, peer: &Peer) -> Option<Duration> {
        peer.connection?;
        let faults = &core.config.faults;
        Some(if self.reach.is_doubted(worker, core.now) {
            peer.silence.over_for_doubted_at(faults)
        } else if self.reach.is_missing_at(peer.known.site, core.now) {
            peer.silence.over_beside_doubted_at(faults)
        } else {
            peer.silence.over_at(faults)
        })
    }
}

impl Run {
    pub(crate) fn remove_silent(&mut self) {
        if self.liveness.silence_at.is_none_or(|at| at > self.core.now) {
            return;
        }
        // A departure may show that the link of its site is cut; then others of the site are due.
        while let Some((worker, last)) = self.liveness.one_that_is_due(&self.core) {
            let site = self.core.peers.get(&worker).map(|peer| peer.known.site);
            if let Some(site) = site.filter(|_| self.liveness.reach.is_doubted(worker, self.core.now)) {
                self.liveness.reach.miss_at(site, self.core.now);
            }
            let text = format!("is gone: silent for {} ms", self.core.now.saturating_sub(last).as_millis());
            self.lose_connection(worker, &text);
        }
        self.liveness.ask_all_silent(&mut self.core);
        self.part_those_out_of_reach();
        let first = self
            .core
            .peers
            .iter()
            .filter_map(|(&worker, peer)| self.liveness.silence_over(&self.core, worker, peer))
            .min();
        self.liveness.silence_at = first.map(|at| at.min(self.core.now + LOOK_INTERVAL));
    }

    /// From now on, a worker is expected to say something now and then.
    pub(crate) fn listen_for_silence(&mut self) {
        let at =
            Silence::new(self.core.now).over_at(&self.core.config.faults).min(self.core.now + LOOK_INTERVAL);
        self.liveness.silence_at = Some(self.liveness.silence_at.map_or(at, |earlier| earlier.min(at)));
        self.core.members_changed();
    }
}
