//! Who has the run's training data, and who is told so.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::{
    DATA_HOLDERS_MAX, DATA_NEIGHBOURS_MAX, DataAt, DataHolders, DataName, Hash, ToWorker,
};
use serde::{Deserialize, Serialize};

use crate::command::Severity;
use crate::core::Core;
use crate::peer::Peer;
use crate::state::Phase;

/// How often it is told of a worker what it has of the data: what one says in a session is two, and some sessions may follow each other.
const DATA_NOTICES_MAX: u8 = 8;

/// Who has the run's data.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DataAvailability {
    /// They may be others than were told.
    data_moved: bool,
    /// People were told that nobody has it.
    told_no_data: bool,
}

impl DataAvailability {
    /// A worker is not here any more.
    pub(super) fn departed(&mut self, peer: &Peer) {
        self.data_moved |= peer.data.at.is_some();
    }

    /// Others may have it than were told.
    pub(super) fn holders_change(&mut self) {
        self.data_moved = true;
    }

    /// A worker says what it has of the run's data. It is answered even where it was told before: it may have forgotten.
    pub(super) fn handle_data(&mut self, core: &mut Core, worker: WorkerId, at: DataAt) {
        self.data_moved = true;
        let Some(peer) = core.peers.get_mut(&worker) else { return };
        (peer.data.told_holders, peer.data.has_to_tell) = (None, false);
        let before = peer.data.at.replace(at);
        if before == Some(at) {
            return;
        }
        let text = match at {
            DataAt::Nowhere => "has none of the run's data, and takes it from other workers",
            DataAt::Fetched(_) => "knows what the run's data consists of, and fetches what it trains on",
            // What is said of everybody else, too, is no news.
            DataAt::Here(_) => return,
        };
        // Who says now this and now that leaves others their place among the events.
        peer.data.notices = peer.data.notices.saturating_add(1);
        if peer.data.notices <= DATA_NOTICES_MAX {
            core.notice(Severity::Info, Some(worker), text.to_owned());
        }
    }

    /// Tells those whose answer would be another one now.
    pub(super) fn tell_data_holders(&mut self, core: &mut Core) {
        self.say_that_nobody_has_data(core);
        // After a restart who fetches goes on with those it knows of, until it is known again who there is.
        if core.peers.values().any(|peer| peer.data.has_to_tell) {
            return;
        }
        if !std::mem::take(&mut self.data_moved) {
            return;
        }
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

    /// Where all that the run waits for are here and have nothing, it waits for ever.
    fn say_that_nobody_has_data(&mut self, core: &mut Core) {
        let waiting = core.waiting_for_data();
        let is_stuck = !waiting.is_empty() && waiting.len() == core.peers.len();
        let enough = waiting.len() >= core.config.run.workers as usize;
        if is_stuck && enough && core.state.phase != Phase::Finished && !self.told_no_data {
            let text = format!(
                "all {} workers were started with `--data remote`, and nobody has the run's data: start a worker on a machine that has it, without `--data remote`",
                waiting.len()
            );
            core.notice(Severity::Error, None, text);
        }
        self.told_no_data = is_stuck && enough;
    }
}

impl Core {
    /// Those who have all of it; where these are few, also those who have fetched some, which may be the only ones of another site that do.
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

    fn members_where(&self, is_meant: impl Fn(&Peer) -> bool) -> Vec<Member> {
        let meant = self.peers.iter().filter(|(_, peer)| is_meant(peer));
        meant.map(|(worker, peer)| peer.member(*worker)).collect()
    }

    /// The run's data: what its members train on, once there are such; before, what most of those have that have any. Of its catalogues the one that most have,
    /// so that a single worker cannot say what others are to fetch. None: nobody has any.
    fn data_name(&self) -> Option<DataName> {
        let here = |peer: &Peer| match peer.data.at {
            Some(DataAt::Here(name)) => Some(name),
            _ => None,
        };
        let fetched = |peer: &Peer| peer.data.at.as_ref().and_then(DataAt::name);
        let known = self.state.facts.as_ref().map(|facts| facts.data_hash);
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

    /// Workers that have nothing, where nobody has anything that they could have.
    pub(super) fn waiting_for_data(&self) -> Vec<WorkerId> {
        let nowhere = |peer: &Peer| peer.data.at == Some(DataAt::Nowhere);
        let waiting: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| nowhere(peer)).map(|(worker, _)| *worker).collect();
        if waiting.is_empty() || self.data_name().is_some() { Vec::new() } else { waiting }
    }
}

/// What is named most often: of those that are as often, what the lowest-numbered worker has.
fn most<T: Ord + Copy>(names: impl Iterator<Item = T>) -> Option<T> {
    let mut counts: BTreeMap<T, (usize, Reverse<usize>)> = BTreeMap::new();
    for (place, name) in names.enumerate() {
        counts.entry(name).or_insert((0, Reverse(place))).0 += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name)
}

/// So many members: of one site half of them, where others have as many, and of the others one after the other, each time one of each.
fn of_all_sites(members: Vec<Member>, site: SiteId, most: usize) -> Vec<Member> {
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

/// Whether that is the run's data, whatever its catalogue: shards are named by what is in them.
fn is_of(name: Option<DataName>, at: DataName) -> bool {
    name.is_some_and(|name| name.data == at.data)
}
