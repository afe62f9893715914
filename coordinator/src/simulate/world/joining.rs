//! What workers do before they take part.

use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::model::ModelSpec;
use longhaul_proto::control::message::{MeasuredLink, Profile, Ready, ToCoordinator, Welcome};

use super::super::worker::hash_after;
use super::{Happening, SAMPLES, World};

impl World {
    pub(super) fn link_from(&self, place: usize, other: WorkerId) -> Option<MeasuredLink> {
        let other = &self.workers[self.place_of(other)?];
        let link = self.setup.topology.link(self.workers[place].device.site, other.device.site);
        Some(MeasuredLink { bytes_per_s: link.bytes_per_s, round_trip_s: link.round_trip_s })
    }

    pub(super) fn welcomed(&mut self, place: usize, welcome: &Welcome) {
        (self.workers[place].site, self.workers[place].process.is_welcome) = (welcome.site, true);
        // Most are welcomed with what the last one was.
        if self.welcome != welcome.config
            && let Ok(config) = RunConfig::parse(&welcome.config)
        {
            let parts = self.setup.spec.parts(&config.parallel, config.data.sequence_length);
            self.costs.parameters = parts.iter().flatten().map(ModelSpec::parameter_count).collect();
            (self.config, self.welcome) = (config, welcome.config.clone());
        }
        if self.config.is_plan_open() {
            let machine = self.setup.topology.device(self.workers[place].device);
            let profile =
                Profile { flops_per_s: machine.flops_per_s, vocabulary: self.setup.spec.vocabulary };
            self.say(place, ToCoordinator::Profile(profile));
        } else if !self.config.parallel.is_divided() {
            self.workers[place].rank = Some(0);
        }
    }

    /// Loads a state of a round, or the newest that others have.
    pub(super) fn load(&mut self, place: usize, takes: Duration, from: Option<Round>) {
        if self.workers[place].is_in_training() {
            return self.restart(place);
        }
        self.workers[place].work.task += 1;
        let task = self.workers[place].work.task;
        self.agenda.queue.push(self.agenda.now + takes, Happening::Loaded(place, task, from));
    }

    pub(super) fn loaded(&mut self, place: usize, from: Option<Round>) {
        let Some(rank) = self.workers[place].rank else { return };
        let next_round = from.or_else(|| Some(self.groups.get(&rank)?.complete)).unwrap_or_default();
        let parameters = self.costs.parameters.get(rank as usize).copied();
        (self.workers[place].applied, self.workers[place].computed) = (next_round, next_round);
        let ready = Ready {
            next_round,
            state_hash: hash_after(next_round, rank),
            rank,
            parameters: parameters.unwrap_or_default(),
            samples: SAMPLES,
            data_hash: [0; 32],
        };
        self.say(place, ToCoordinator::Ready(ready));
    }
}
