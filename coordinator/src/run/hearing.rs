//! Who is heard, or heard of, and who has been silent for too long.

use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::{SignOfLife, ToWorker};

use super::machine::Run;
use super::peer::Peer;
use super::silence::{LOOK_INTERVAL, Silence};

impl Run {
    /// A member of the generation speaks for others of its site. That they are alive is all that it can say of them, and not for long (`silence`).
    pub(super) fn hear_of(&mut self, speaker: WorkerId, others: &[SignOfLife]) {
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

    /// Where this process stood still, nobody was silent. To be asked before anybody is heard, as the silence that ends then was none.
    pub(super) fn forgive_if_late(&mut self) {
        if let Some(due) = self.silence_at.filter(|at| *at <= self.now) {
            self.peers.values_mut().for_each(|peer| peer.silence.forgive(due, self.now));
        }
    }

    pub(super) fn remove_silent(&mut self) {
        if self.silence_at.is_none_or(|at| at > self.now) {
            return;
        }
        let is_over = |(worker, peer): &(&WorkerId, &Peer)| {
            self.silence_over(**worker, peer).is_some_and(|at| at <= self.now)
        };
        let silent = self.peers.iter().filter(is_over);
        let silent: Vec<_> = silent.map(|(&worker, peer)| (worker, peer.silence.last())).collect();
        for (worker, last) in silent {
            let site = self.peers.get(&worker).map(|peer| peer.known.site);
            if let Some(site) = site.filter(|_| self.reach.is_doubted(worker, self.now)) {
                self.reach.miss_at(site, self.now);
            }
            let text = format!("is gone: silent for {} ms", self.now.saturating_sub(last).as_millis());
            self.lose_connection(worker, &text);
        }
        self.ask_silent();
        self.part_those_out_of_reach();
        let first = self.peers.iter().filter_map(|(&worker, peer)| self.silence_over(worker, peer)).min();
        self.silence_at = first.map(|at| at.min(self.now + LOOK_INTERVAL));
    }

    /// Somebody says that these are out of reach: they are asked to speak, and missed earlier.
    pub(super) fn look_at_doubted(&mut self, workers: &[WorkerId]) {
        self.ask_silent();
        let over = |worker: &WorkerId| self.silence_over(*worker, self.peers.get(worker)?);
        let Some(first) = workers.iter().filter_map(over).min() else { return };
        let at = first.max(self.now);
        self.silence_at = self.silence_at.map(|earlier| earlier.min(at));
    }

    /// Whoever spoke for them may not do so any more, or never have.
    fn ask_silent(&mut self) {
        let now = self.now;
        let reach = &self.reach;
        let is_due = |worker: WorkerId, peer: &mut Peer| {
            peer.connection.is_some() && peer.silence.is_to_be_asked(now, reach.is_doubted(worker, now))
        };
        let due = self.peers.iter_mut().filter_map(|(&worker, peer)| is_due(worker, peer).then_some(worker));
        for worker in due.collect::<Vec<_>>() {
            self.send(worker, ToWorker::Speak);
        }
    }

    /// When a worker that is here is taken for lost, if it says nothing: earlier, where others wait for it in vain.
    fn silence_over(&self, worker: WorkerId, peer: &Peer) -> Option<Duration> {
        peer.connection?;
        let faults = &self.config.faults;
        Some(if self.reach.is_doubted(worker, self.now) {
            peer.silence.over_for_doubted_at(faults)
        } else if self.reach.is_missing_at(peer.known.site, self.now) {
            peer.silence.over_beside_doubted_at(faults)
        } else {
            peer.silence.over_at(faults)
        })
    }

    /// From now on, a worker is expected to say something now and then.
    pub(super) fn listen_for_silence(&mut self) {
        let at = Silence::new(self.now).over_at(&self.config.faults).min(self.now + LOOK_INTERVAL);
        self.silence_at = Some(self.silence_at.map_or(at, |earlier| earlier.min(at)));
        self.roll = None;
    }
}
