//! Who has the run's training data, and who is told so.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{
    DATA_HOLDERS_MAX, DATA_NEIGHBOURS_MAX, DataAt, DataHolders, DataName, Hash, ToWorker,
};

use super::command::Severity;
use super::machine::Run;
use super::peer::Peer;
use super::state::Phase;

impl Run {
    /// A worker says what it has of the run's data. It is answered even where it was told before: it may have forgotten.
    pub(super) fn handle_data(&mut self, worker: WorkerId, at: DataAt) {
        self.data_moved = true;
        let Some(peer) = self.peers.get_mut(&worker) else { return };
        peer.told_holders = None;
        let before = peer.data.replace(at);
        if before == Some(at) {
            return;
        }
        let text = match at {
            DataAt::Nowhere => "has none of the run's data, and takes it from other workers",
            DataAt::Fetched(_) => "knows what the run's data consists of, and fetches what it trains on",
            // What is said of everybody else, too, is no news.
            DataAt::Here(_) => return,
        };
        self.notice(Severity::Info, Some(worker), text.to_owned());
    }

    /// Tells those whose answer would be another one now.
    pub(super) fn tell_data_holders(&mut self) {
        self.say_that_nobody_has_data();
        if !std::mem::take(&mut self.data_moved) {
            return;
        }
        let name = self.data_name();
        let mut of_site: BTreeMap<SiteId, DataHolders> = BTreeMap::new();
        let asking: Vec<(WorkerId, SiteId)> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.data.is_some())
            .map(|(worker, peer)| (*worker, peer.known.site))
            .collect();
        for (worker, site) in asking {
            let holders = of_site.entry(site).or_insert_with(|| self.holders_for(site, name));
            let Some(peer) = self.peers.get_mut(&worker) else { continue };
            if peer.told_holders.as_ref() != Some(holders) {
                peer.told_holders = Some(holders.clone());
                let message = ToWorker::DataHolders(holders.clone());
                self.send(worker, message);
            }
        }
    }

    fn holders_for(&self, site: SiteId, name: Option<DataName>) -> DataHolders {
        let has = |peer: &Peer| matches!(peer.data, Some(DataAt::Here(at)) if is_of(name, at));
        let fetches = |peer: &Peer| matches!(peer.data, Some(DataAt::Fetched(at)) if is_of(name, at));
        let mut holders = self.members_where(has);
        if holders.is_empty() {
            holders = self.members_where(fetches);
        }
        holders.sort_by_key(|member| (member.site != site, member.worker));
        holders.truncate(DATA_HOLDERS_MAX);
        let mut neighbours = self.members_where(|peer| peer.known.site == site && fetches(peer));
        neighbours.truncate(DATA_NEIGHBOURS_MAX);
        DataHolders { name, holders, neighbours }
    }

    fn members_where(&self, is_meant: impl Fn(&Peer) -> bool) -> Vec<Member> {
        let meant = self.peers.iter().filter(|(_, peer)| is_meant(peer));
        meant.map(|(worker, peer)| peer.member(*worker)).collect()
    }

    /// The run's data: what its members train on, once there are such; before, what the lowest-numbered worker that has any has. Of its catalogues the one that most have,
    /// so that a single worker cannot say what others are to fetch. None: nobody has any.
    fn data_name(&self) -> Option<DataName> {
        let here = |peer: &Peer| match peer.data {
            Some(DataAt::Here(name)) => Some(name),
            _ => None,
        };
        let fetched = |peer: &Peer| peer.data.as_ref().and_then(DataAt::name);
        let known = self.state.facts.as_ref().map(|facts| facts.data_hash);
        self.most_common(known, here).or_else(|| self.most_common(known, fetched))
    }

    fn most_common(
        &self,
        known: Option<Hash>,
        name_of: impl Fn(&Peer) -> Option<DataName>,
    ) -> Option<DataName> {
        let names = || self.peers.values().filter_map(&name_of);
        let data = known.or_else(|| names().next().map(|name| name.data))?;
        let mut counts: BTreeMap<DataName, usize> = BTreeMap::new();
        names().filter(|name| name.data == data).for_each(|name| *counts.entry(name).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(name, count)| (*count, Reverse(*name)));
        most.map(|(name, _)| name)
    }

    /// Workers that have nothing, where nobody has anything that they could have.
    pub(super) fn waiting_for_data(&self) -> Vec<WorkerId> {
        let nowhere = |peer: &Peer| peer.data == Some(DataAt::Nowhere);
        let waiting: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| nowhere(peer)).map(|(worker, _)| *worker).collect();
        if waiting.is_empty() || self.data_name().is_some() { Vec::new() } else { waiting }
    }

    /// Where all that the run waits for are here and have nothing, it waits for ever.
    fn say_that_nobody_has_data(&mut self) {
        let waiting = self.waiting_for_data();
        let is_stuck = !waiting.is_empty() && waiting.len() == self.peers.len();
        let enough = waiting.len() >= self.config.run.workers as usize;
        if is_stuck && enough && self.state.phase != Phase::Finished && !self.told_no_data {
            let text = format!(
                "all {} workers were started with `--data remote`, and nobody has the run's data: start a worker on a machine that has it, without `--data remote`",
                waiting.len()
            );
            self.notice(Severity::Error, None, text);
        }
        self.told_no_data = is_stuck && enough;
    }
}

/// Whether that is the run's data, whatever its catalogue: shards are named by what is in them.
fn is_of(name: Option<DataName>, at: DataName) -> bool {
    name.is_some_and(|name| name.data == at.data)
}
