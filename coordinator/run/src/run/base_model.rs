//! Holders of the pretrained model that a run starts from, and their announcement to workers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_proto::control::message::{Hash, MODEL_HOLDERS_MAX, ModelAt, ModelHolders, ToWorker};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::data::of_all_sites;
use crate::run::peer::Peer;
use crate::run::state::Phase;

/// Most notices about one worker's model: a session has two, and several sessions may follow each other.
const MODEL_NOTICES_MAX: u8 = 8;

/// The run's pretrained model, and its holders.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BaseModelAvailability {
    /// The model: the first that a worker had, while anybody has it.
    model: Option<Hash>,
    /// The holders may differ from the announced ones.
    moved: bool,
    /// A notice has reported that no worker has the model.
    told_nobody: bool,
}

impl BaseModelAvailability {
    /// Handles the departure of a worker.
    pub(super) fn departed(&mut self, peer: &Peer) {
        self.moved |= peer.model.at.is_some();
    }

    /// Handles a worker's report. It is answered even where it was answered before: the worker may have forgotten.
    pub(super) fn handle(&mut self, core: &mut Core, worker: WorkerId, at: ModelAt) {
        self.moved = true;
        let Some(peer) = core.peers.get_mut(&worker) else { return };
        (peer.model.told_holders, peer.model.has_to_tell) = (None, false);
        let before = peer.model.at.replace(at);
        if before == Some(at) {
            return;
        }
        // A worker that keeps changing its report leaves room for other events.
        peer.model.notices = peer.model.notices.saturating_add(1);
        if peer.model.notices > MODEL_NOTICES_MAX {
            return;
        }
        let text = match (before, at) {
            (_, ModelAt::Nowhere) => "does not have the run's model, and takes it from other workers",
            (Some(ModelAt::Nowhere), ModelAt::Here(_)) => "has fetched the run's model",
            // The common case: no news.
            (_, ModelAt::Here(_)) => return,
        };
        core.notice(Severity::Info, Some(worker), text.to_owned());
    }

    /// Sends the holders to workers whose answer has changed. Of each site without the model, one worker gets holders elsewhere: each byte
    /// crosses the slow link once.
    pub(super) fn tell_holders(&mut self, core: &mut Core) {
        self.say_that_nobody_has_it(core);
        // After a restart, the members' model counts, once all have reported.
        if !self.moved || core.peers.values().any(|peer| peer.model.has_to_tell) {
            return;
        }
        self.moved = false;
        self.model = core.base_model(self.model);
        let carriers = core.choose_carriers(self.model);
        let reported =
            core.peers.iter().filter_map(|(worker, peer)| Some((*worker, peer.known.site, peer.model.at?)));
        let reported: Vec<(WorkerId, SiteId, ModelAt)> = reported.collect();
        for (worker, site, at) in reported {
            let may_go_afar = carriers.contains(&worker);
            let holders = core.model_holders_for(self.model, site, may_go_afar);
            let Some(peer) = core.peers.get_mut(&worker) else { continue };
            peer.model.is_carrier = may_go_afar;
            if peer.model.told_holders.as_ref() == Some(&holders) {
                continue;
            }
            peer.model.told_holders = Some(holders.clone());
            core.send(worker, ToWorker::ModelHolders(holders));
            if let (ModelAt::Here(own), Some(model)) = (at, self.model)
                && own != model
            {
                let text =
                    "has another model in that folder than the run, and takes the run's from other workers";
                core.notice(Severity::Warning, Some(worker), text.to_owned());
            }
        }
    }

    /// Reports a run whose workers are all here and lack the model: it waits for ever.
    fn say_that_nobody_has_it(&mut self, core: &mut Core) {
        let waiting = core.waiting_for_model();
        let is_stuck = waiting.len() >= core.config.run.workers as usize;
        if is_stuck && core.state.phase != Phase::Finished && !self.told_nobody {
            let text = format!(
                "none of the {} workers has the run's model: start a worker on a machine that has the folder, with `--model FOLDER` if it is elsewhere than model.from",
                waiting.len()
            );
            core.notice(Severity::Error, None, text);
        }
        self.told_nobody = is_stuck;
    }
}

impl Core {
    /// Returns the run's model: the known one while a worker has it, else the most frequent one, and of equally frequent ones that of the lowest-numbered worker.
    fn base_model(&self, known: Option<Hash>) -> Option<Hash> {
        let mut counts: BTreeMap<Hash, (usize, Reverse<usize>)> = BTreeMap::new();
        for (place, peer) in self.peers.values().enumerate() {
            if let Some(ModelAt::Here(model)) = peer.model.at {
                counts.entry(model).or_insert((0, Reverse(place))).0 += 1;
            }
        }
        let known = known.filter(|known| counts.contains_key(known));
        known.or_else(|| counts.into_iter().max_by_key(|(_, count)| *count).map(|(model, _)| model))
    }

    /// Chooses a worker at each site where none has the model: the one that was chosen before, or the lowest-numbered one.
    fn choose_carriers(&self, model: Option<Hash>) -> BTreeSet<WorkerId> {
        let sites_with: BTreeSet<SiteId> =
            self.peers.values().filter(|peer| has(peer, model)).map(|peer| peer.known.site).collect();
        let mut carriers: BTreeMap<SiteId, (bool, Reverse<WorkerId>)> = BTreeMap::new();
        for (&worker, peer) in &self.peers {
            if peer.model.at.is_some() && peer.connection.is_some() && !sites_with.contains(&peer.known.site)
            {
                let rank = (peer.model.is_carrier, Reverse(worker));
                let of_site = carriers.entry(peer.known.site).or_insert(rank);
                *of_site = rank.max(*of_site);
            }
        }
        carriers.into_values().map(|(_, worker)| worker.0).collect()
    }

    fn model_holders_for(&self, model: Option<Hash>, site: SiteId, may_go_afar: bool) -> ModelHolders {
        let mut holders =
            self.members_where(|peer| has(peer, model) && (may_go_afar || peer.known.site == site));
        holders = of_all_sites(holders, site, MODEL_HOLDERS_MAX);
        ModelHolders { model, holders }
    }

    /// Workers without the model, where no worker has it.
    pub(super) fn waiting_for_model(&self) -> Vec<WorkerId> {
        let is_here = |peer: &Peer| matches!(peer.model.at, Some(ModelAt::Here(_)));
        if self.peers.values().any(is_here) {
            return Vec::new();
        }
        let waits = |peer: &Peer| peer.model.at == Some(ModelAt::Nowhere);
        self.peers.iter().filter(|(_, peer)| waits(peer)).map(|(worker, _)| *worker).collect()
    }
}

fn has(peer: &Peer, model: Option<Hash>) -> bool {
    model.is_some_and(|model| peer.model.at == Some(ModelAt::Here(model)))
}
