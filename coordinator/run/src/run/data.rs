//! Holders of the run's training data, and their announcement to workers.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{
    DATA_HOLDERS_MAX, DATA_NEIGHBOURS_MAX, DataAt, DataHolders, DataName, Hash, ToWorker,
};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::peer::Peer;
use crate::run::state::Phase;

/// Most notices about one worker's data: a session has two, and several sessions may follow each other.
const DATA_NOTICES_MAX: u8 = 8;

/// Holders of the run's data.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DataAvailability {
    /// The holders may differ from the announced ones.
    data_moved: bool,
    /// A notice has reported that no worker has the data.
    told_no_data: bool,
}

impl DataAvailability {
    /// Handles the departure of a worker.
    pub(super) fn departed(&mut self, peer: &Peer) {
        self.data_moved |= peer.data.at.is_some();
    }

    /// Marks the announced holders as outdated.
    pub(super) fn holders_change(&mut self) {
        self.data_moved = true;
    }

    /// Handles a worker's report of its data. It is answered even where it was answered before: the worker may have
    /// forgotten.
    pub(super) fn handle_data(&mut self, core: &mut Core, worker: WorkerId, at: DataAt) {
        self.data_moved = true;
        let Some(peer) = core.peers.get_mut(&worker) else { return };
        (peer.data.told_holders, peer.data.has_to_tell) = (None, false);
        let before = peer.data.at.replace(at);
        if before == Some(at) {
            return;
        }
        let text = match at {
            DataAt::Nowhere => "has none of the run's data, and fetches it from other workers",
            DataAt::Fetched(_) => {
                "has the catalogue of the run's data, and fetches the samples that it trains on"
            }
            // The common case: no news.
            DataAt::Here(_) => return,
        };
        // A worker that keeps changing its report leaves room for other events.
        peer.data.notices = peer.data.notices.saturating_add(1);
        if peer.data.notices <= DATA_NOTICES_MAX {
            core.notice(Severity::Info, Some(worker), text.to_owned());
        }
    }

    /// Sends the holders to workers whose answer has changed.
    pub(super) fn tell_data_holders(&mut self, core: &mut Core) {
        self.say_that_nobody_has_data(core);
        // After a restart a fetching worker goes on with the holders that it knows, until all have reported.
        if !self.data_moved || core.peers.values().any(|peer| peer.data.has_to_tell) {
            return;
        }
        self.data_moved = false;
        let name = core.data_name();
        let mut of_site: BTreeMap<SiteId, DataHolders> = BTreeMap::new();
        let asking: Vec<(WorkerId, SiteId)> = core
            .peers
            .iter()
            .filter(|(_, peer)| peer.data.at.is_some())
            .map(|(worker, peer)| (*worker, peer.known.site))
            .collect();
        for (worker, site) in asking {
            let holders = of_site.entry(site).or_insert_with(|| core.holders_for(site, name));
            let Some(peer) = core.peers.get_mut(&worker) else { continue };
            if peer.data.told_holders.as_ref() != Some(holders) {
                peer.data.told_holders = Some(holders.clone());
                let message = ToWorker::DataHolders(holders.clone());
                core.send(worker, message);
            }
        }
    }

    /// Reports a run whose workers are all here and have no data: it waits for ever.
    fn say_that_nobody_has_data(&mut self, core: &mut Core) {
        // Looked at after every event: the first worker with data ends it.
        let waiting = if core.peers.values().all(has_no_data) { core.waiting_for_data() } else { Vec::new() };
        let is_stuck = !waiting.is_empty();
        let enough = waiting.len() >= core.config.run.workers as usize;
        if is_stuck && enough && core.state.phase != Phase::Finished && !self.told_no_data {
            let text = format!(
                "all {} workers were started with `--data remote`, and none has the run's data: start a worker on a machine that has it, without `--data remote`",
                waiting.len()
            );
            core.notice(Severity::Error, None, text);
        }
        self.told_no_data = is_stuck && enough;
    }
}

impl Core {
    /// Returns the holders of all data; where these are few, also those that have fetched some of it: they may be the only ones at another
    /// site.
    fn holders_for(&self, site: SiteId, name: Option<DataName>) -> DataHolders {
        let has = |peer: &Peer| matches!(peer.data.at, Some(DataAt::Here(at)) if is_of(name, at));
        let fetches = |peer: &Peer| matches!(peer.data.at, Some(DataAt::Fetched(at)) if is_of(name, at));
        let mut holders = of_all_sites(self.members_where(has), site, DATA_HOLDERS_MAX);
        let left = DATA_HOLDERS_MAX - holders.len();
        holders.extend(of_all_sites(self.members_where(fetches), site, left));
        let mut neighbours = self.members_where(|peer| peer.known.site == site && fetches(peer));
        neighbours.truncate(DATA_NEIGHBOURS_MAX);
        DataHolders { name, holders, neighbours }
    }

    pub(super) fn members_where(&self, is_meant: impl Fn(&Peer) -> bool) -> Vec<Member> {
        let meant = self.peers.iter().filter(|(_, peer)| is_meant(peer));
        meant.map(|(worker, peer)| peer.member(*worker)).collect()
    }

    /// Returns the run's data: the members' data; before there are members, the most frequent data. Of its catalogues the most frequent one, so that a single
    /// worker cannot choose the others' data. `None`: no worker has any.
    fn data_name(&self) -> Option<DataName> {
        let here = |peer: &Peer| match peer.data.at {
            Some(DataAt::Here(name)) => Some(name),
            _ => None,
        };
        let fetched = |peer: &Peer| peer.data.at.as_ref().and_then(DataAt::name);
        let known = self.state.lineage.facts.as_ref().map(|facts| facts.data_hash);
        self.most_common(known, here).or_else(|| self.most_common(known, fetched))
    }

    fn most_common(
        &self,
        known: Option<Hash>,
        name_of: impl Fn(&Peer) -> Option<DataName>,
    ) -> Option<DataName> {
        let names = || self.peers.values().filter_map(&name_of);
        let data = known.or_else(|| most(names().map(|name| name.data)))?;
        most(names().filter(|name| name.data == data))
    }

    /// Workers without data, where no worker has usable data.
    pub(super) fn waiting_for_data(&self) -> Vec<WorkerId> {
        let waiting: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| has_no_data(peer)).map(|(worker, _)| *worker).collect();
        if waiting.is_empty() || self.data_name().is_some() { Vec::new() } else { waiting }
    }
}

fn has_no_data(peer: &Peer) -> bool {
    peer.data.at == Some(DataAt::Nowhere)
}

/// Returns the most frequent name: of equally frequent ones, the one of the lowest-numbered worker.
fn most<T: Ord + Copy>(names: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: BTreeMap<T, (usize, Reverse<usize>)> = BTreeMap::new();
    for (place, name) in names.enumerate() {
        counts.entry(name).or_insert((0, Reverse(place))).0 += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name)
}

/// Picks `most` members: half from one site, where others have as many, and one of each other site in turn.
pub(super) fn of_all_sites(members: Vec<Member>, site: SiteId, most: usize) -> Vec<Member> {
    let (mut own, others): (Vec<Member>, Vec<Member>) =
        members.into_iter().partition(|member| member.site == site);
    let mut of_site: BTreeMap<SiteId, usize> = BTreeMap::new();
    let mut others: Vec<(usize, Member)> = others
        .into_iter()
        .map(|member| {
            let before = of_site.entry(member.site).or_default();
            *before += 1;
            (*before, member)
        })
        .collect();
    others.sort_by_key(|(before, member)| (*before, member.worker));
    own.truncate(most - others.len().min(most / 2));
    others.truncate(most - own.len());
    own.extend(others.into_iter().map(|(_, member)| member));
    own
}

/// Whether this is the run's data, whatever its catalogue: shards are named by their content.
fn is_of(name: Option<DataName>, at: DataName) -> bool {
    name.is_some_and(|name| name.data == at.data)
}
