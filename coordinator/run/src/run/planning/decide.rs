//! The cut of the model into copies, where the coordinator decides it: by the workers' reports about themselves and their links.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_common::config::{ParallelConfig, RunConfig};
use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::memory::{Memory, PerMemory, StageBytes};
use longhaul_common::model::ModelSpec;
use longhaul_common::units::Bytes;
use longhaul_proto::control::message::{Profile, ToWorker, Welcome};
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::core::Core;
use crate::run::machine::Run;
use crate::run::planning::Planning;
use crate::run::planning::survey::{Overdue, Way};
use crate::run::planning::warmup::Warmup;
use crate::run::state::{Decided, Phase};
use longhaul_plan::{
    Choice, Device, DeviceId, Divisions, Link, Site, Topology, Workload, choose_with_groups, outline,
    parallel_of, why,
};

/// A link that could not be measured: slow and long, so that no plan depends on it.
const UNKNOWN_WAY: Link = Link { bytes_per_s: 125_000.0, round_trip_s: 0.2 };
/// An unmeasured link within a site: ten gigabits, as most clusters have.
const UNKNOWN_LAN: Link = Link { bytes_per_s: 1.25e9, round_trip_s: 1e-4 };
/// Reason given to a worker that is removed because it has not reported its speed.
const UNTOLD: &str = "it has not reported its speed in time. It may join again; see its log for the cause. \
                      For machines this slow, set `parallel.plan = \"fixed\"`, which measures nothing";

/// Results that follow from the configuration alone, computed once rather than per worker.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WorkedOut {
    /// The configuration with the whole model for every worker, as sent.
    undivided_toml: Option<String>,
    /// Bytes of the whole model in each memory, for the last vocabulary.
    whole_bytes: Option<(u32, PerMemory)>,
    /// Models worked out, for a test to count.
    #[cfg(test)]
    #[serde(skip)]
    pub models: u32,
}

impl Decided {
    /// Writes the plan to the run's configuration.
    pub(crate) fn apply_to(&self, config: &mut RunConfig) {
        config.parallel = self.parallel.clone();
        config.train.recompute = self.recompute;
        config.drop_speed_shares();
        config.decide_redundancy(self.redundant_warmup);
    }
}

impl Run {
    /// Whether a plan exists; otherwise takes the next step towards one.
    pub(crate) fn has_plan(&mut self) -> bool {
        if !self.core.config.is_plan_open() {
            return true;
        }
        let whole_bytes = self.planning.suits_all_undivided(&mut self.core);
        if let Some(bytes) = whole_bytes
            && !self.planning.is_warmup_open(&self.core)
        {
            let is_complete = self.core.has_all_workers();
            if is_complete {
                self.planning.decide_undivided(&mut self.core, bytes, Warmup::default());
            }
            return is_complete;
        }
        self.planning.have_all_attend(&mut self.core);
        let is_untold = self.give_up_waiting(whole_bytes.is_some());
        let is_complete = self.core.has_all_workers();
        if let Some(bytes) = whole_bytes.filter(|_| is_untold && is_complete) {
            let warmup = Warmup::exchanged("a worker has not reported its speed in time");
            self.planning.decide_undivided(&mut self.core, bytes, warmup);
        } else if is_complete
            && self.planning.surveys.have_all_profiles()
            && !self.planning.is_probing(&mut self.core)
        {
            match whole_bytes {
                Some(bytes) => {
                    let warmup = self.planning.choose_warmup(&self.core);
                    self.planning.decide_undivided(&mut self.core, bytes, warmup);
                }
                None => self.planning.choose(&mut self.core),
            }
        }
        !self.core.config.is_plan_open()
    }

    /// Goes on without overdue answers: removes workers without a speed, unless each holds the whole model, and treats unreported links as unknown. Returns whether a
    /// speed is missing.
    fn give_up_waiting(&mut self, is_undivided: bool) -> bool {
        let mut is_untold = false;
        for overdue in self.planning.surveys.take_overdue(self.core.now) {
            match overdue {
                Overdue::Profile(_) if is_undivided => is_untold = true,
                Overdue::Profile(worker) => self.refuse(worker, UNTOLD),
                Overdue::Ways(worker, sites) => {
                    let name = |site: &SiteId| self.core.state.roster.sites.get(site.0 as usize).cloned();
                    let names: Vec<String> = sites.iter().filter_map(name).collect();
                    let text = format!(
                        "has not reported in time the speed of the links from {}: the plan takes unmeasured links to be as slow as the slowest measured one",
                        names.join(", ")
                    );
                    self.core.notice(Severity::Warning, Some(worker), text);
                }
            }
        }
        is_untold
    }
}

impl Planning {
    /// Workers whose answers a plan still needs, where all have joined.
    pub(crate) fn untold(&self, core: &Core) -> Vec<WorkerId> {
        if core.config.is_plan_open() && core.has_all_workers() { self.surveys.owing() } else { Vec::new() }
    }

    /// Deadline of the answers that a plan needs.
    pub(crate) fn telling_ends(&self, core: &Core) -> Option<Duration> {
        self.surveys.next_due().filter(|_| core.state.phase == Phase::Gathering)
    }

    /// Returns the configuration for a worker's welcome. It names the whole model as long as every worker could hold it; no answers are needed then.
    pub(crate) fn config_for(&mut self, core: &mut Core, worker: WorkerId) -> String {
        if !core.config.is_plan_open() {
            return core.config_toml.clone();
        }
        if self.suits_all_undivided(core).is_none() || self.is_warmup_open(core) {
            self.surveys.attend(worker, core.now);
            return core.config_toml.clone();
        }
        if let Some(text) = &self.worked_out.undivided_toml {
            return text.clone();
        }
        let mut config = core.config.clone();
        core.undivided().apply_to(&mut config);
        // A configuration that serialised once also serialises with other numbers.
        let text = config.to_toml().unwrap_or_else(|_| core.config_toml.clone());
        self.worked_out.undivided_toml.insert(text).clone()
    }

    /// Describes the size of the whole model, for the memories present.
    pub(super) fn told_bytes(&self, bytes: PerMemory) -> String {
        let told = |memory: Memory| {
            self.surveys.least_bytes(memory)?;
            let bytes = Bytes(bytes[memory] as u64);
            Some(match memory {
                Memory::Machine => bytes.to_string(),
                Memory::Gpu => format!("{bytes} on a GPU"),
                Memory::Host => format!("{bytes} of host memory"),
            })
        };
        Memory::ALL.into_iter().filter_map(told).collect::<Vec<_>>().join(", ")
    }

    /// Returns the size of the whole model per worker, where all present workers have that much memory and no cut would be faster, given that traffic follows the links.
    /// `None`: not so, or not known yet.
    fn suits_all_undivided(&mut self, core: &mut Core) -> Option<PerMemory> {
        if !core.config.sync.adapt {
            return None;
        }
        let vocabulary = self.vocabulary(core)?;
        let bytes = match self.worked_out.whole_bytes {
            Some((of, bytes)) if of == vocabulary => bytes,
            _ => {
                let work = self.workload(core)?;
                let tokens = work.micro_tokens_most(core.config.run.workers as usize);
                let (recompute, each) = (core.config.train.recompute, work.parameter_bytes);
                PerMemory::of(|memory| StageBytes::of(memory, &work.blocks, recompute, tokens, each).with(1))
            }
        };
        self.worked_out.whole_bytes = Some((vocabulary, bytes));
        let suits = |memory: &Memory| {
            self.surveys.least_bytes(*memory).is_none_or(|least| bytes[*memory] <= least as f64)
        };
        Memory::ALL.iter().all(suits).then_some(bytes)
    }

    /// Workers with another vocabulary are refused once they have built the model; until then, the largest one fits
    /// all.
    fn vocabulary(&self, core: &Core) -> Option<u32> {
        let told = || self.surveys.vocabulary().or(core.state.plans.vocabulary);
        core.config.vocabulary().or_else(told)
    }

    /// The work of a step, once the vocabulary is known.
    pub(crate) fn workload(&mut self, core: &mut Core) -> Option<Workload> {
        #[cfg(test)]
        {
            self.worked_out.models += 1;
        }
        Some(Workload::of(&core.config, &self.spec(core)?))
    }

    /// The whole model, once the vocabulary is known.
    pub(crate) fn spec(&self, core: &Core) -> Option<ModelSpec> {
        ModelSpec::of(&core.config, self.vocabulary(core)?).ok()
    }

    /// A machine's speed outlives the plan it was measured for.
    pub(crate) fn note_profile(&mut self, core: &mut Core, worker: WorkerId, profile: Profile) {
        self.surveys.note_profile(worker, profile);
        let flops_per_s = self.surveys.device(worker).map(|device| device.flops_per_s as u64);
        if let Some(peer) = core.peers.get_mut(&worker).filter(|_| flops_per_s.is_some()) {
            peer.known.flops_per_s = flops_per_s;
            core.state.roster.workers.insert(worker, peer.known.clone());
        }
    }

    /// Notifies workers that counted on holding the whole model.
    fn have_all_attend(&mut self, core: &mut Core) {
        for worker in self.surveys.absent() {
            core.welcome_again(worker);
            self.surveys.attend(worker, core.now);
        }
    }

    /// Whether reports about links between sites are missing; asks for those not asked for yet.
    fn is_probing(&mut self, core: &mut Core) -> bool {
        for (worker, others) in self.surveys.ask_for_ways(core.now) {
            let member = |other: &WorkerId| Some(core.peers.get(other)?.member(*other));
            let peers = others.iter().filter_map(member).collect();
            core.send(worker, ToWorker::Probe { peers });
        }
        !self.surveys.is_complete()
    }

    /// Chooses the best plan for the workers present.
    fn choose(&mut self, core: &mut Core) {
        if self.unfit.is_some() {
            return;
        }
        let by_site = self.surveys.by_site();
        let device = |worker| self.surveys.device(worker);
        let (Some(topology), Some(spec)) = (self.topology_of(core, &by_site, device), self.spec(core)) else {
            return;
        };
        match choose_with_groups(topology, &Divisions::of(&core.config, &spec), true) {
            Ok((topology, choice)) => self.take(core, &choice, &topology, &by_site),
            Err(error) => {
                let text = format!("{error}. The run waits for other workers");
                core.notice(Severity::Error, None, text.clone());
                self.unfit = Some(text);
            }
        }
    }

    fn take(
        &mut self,
        core: &mut Core,
        choice: &Choice,
        topology: &Topology,
        by_site: &BTreeMap<SiteId, Vec<WorkerId>>,
    ) {
        let decided = core.decided_of(choice, topology, by_site, why(choice));
        self.decide(core, decided);
    }

    pub(super) fn decide(&mut self, core: &mut Core, decided: Decided) {
        let why = decided.why.clone();
        core.state.plans.vocabulary = self.vocabulary(core);
        core.follow_plan(decided);
        for ((from, to), link) in self.surveys.known_ways() {
            core.state.ways.measured(from, to, link);
        }
        core.persist();
        core.notice(Severity::Info, None, why);
        // From now on the first welcome carries the plan.
        for worker in std::mem::take(&mut self.surveys).attending() {
            core.welcome_again(worker);
        }
    }

    /// Builds the topology of these machines, with capacities from `device`, and of their links. `None`: `device` lacks
    /// one of them.
    pub(crate) fn topology_of(
        &self,
        core: &Core,
        by_site: &BTreeMap<SiteId, Vec<WorkerId>>,
        device: impl Fn(WorkerId) -> Option<Device>,
    ) -> Option<Topology> {
        let lan = |site: SiteId| match self.surveys.way(site, site) {
            Some(Way::Known(link)) => Some(link),
            _ => core.state.ways.between(site, site),
        };
        let sites: Option<Vec<Site>> = by_site
            .iter()
            .map(|(&site, workers)| {
                let name = core.state.roster.sites.get(site.0 as usize)?.clone();
                let devices = workers.iter().map(|worker| device(*worker)).collect::<Option<_>>()?;
                let (knows_lan, lan) = (lan(site).is_some(), lan(site).unwrap_or(UNKNOWN_LAN));
                Some(Site { name, devices, lan, knows_lan })
            })
            .collect();
        let places: Vec<SiteId> = by_site.keys().copied().collect();
        Topology::new(sites?, self.links(core, &places)).ok()
    }

    /// Links between these sites, by the places of both.
    pub(crate) fn links(&self, core: &Core, sites: &[SiteId]) -> BTreeMap<(usize, usize), Link> {
        let pairs = (0..sites.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        let told: BTreeMap<(usize, usize), Way> =
            pairs.map(|(a, b)| ((a, b), self.way_between(core, sites[a], sites[b]))).collect();
        let known = |way: &Way| match way {
            Way::Known(link) => Some(*link),
            Way::Broken | Way::Untold => None,
        };
        let slowest = told.values().filter_map(known).reduce(slower).unwrap_or(UNKNOWN_WAY);
        let link = |way| match way {
            Way::Known(link) => link,
            Way::Broken => UNKNOWN_WAY,
            Way::Untold => slowest,
        };
        told.into_iter().map(|(pair, way)| (pair, link(way))).collect()
    }

    /// The known directions of a link; of two, the slower one counts.
    fn way_between(&self, core: &Core, a: SiteId, b: SiteId) -> Way {
        let ways = [self.surveys.way(a, b), self.surveys.way(b, a)];
        if ways.iter().all(Option::is_none)
            && let Some(link) = core.state.ways.between(a, b)
        {
            return Way::Known(link);
        }
        match ways.map(|way| way.unwrap_or(Way::Untold)) {
            [Way::Known(one), Way::Known(other)] => Way::Known(slower(one, other)),
            [Way::Known(link), _] | [_, Way::Known(link)] => Way::Known(link),
            [Way::Broken, _] | [_, Way::Broken] => Way::Broken,
            [Way::Untold, Way::Untold] => Way::Untold,
        }
    }
}

impl Core {
    /// Whether as many workers have joined as the run begins with.
    pub(crate) fn has_all_workers(&self) -> bool {
        self.peers.len() >= self.config.run.workers as usize
    }

    pub(super) fn undivided(&self) -> Decided {
        Decided {
            parallel: ParallelConfig::undivided(),
            recompute: self.config.train.recompute,
            copies: Vec::new(),
            redundant_warmup: false,
            why: String::new(),
        }
    }

    fn welcome_again(&mut self, worker: WorkerId) {
        let Some(site) = self.peers.get(&worker).map(|peer| peer.known.site) else { return };
        let welcome = Welcome { run: self.state.run, config: self.config_toml.clone(), site, resumed: false };
        self.send(worker, ToWorker::Welcome(welcome));
        // A survey takes no notice of it.
        self.tell_best_to(worker);
    }

    /// Converts a choice to the run's form.
    pub(crate) fn decided_of(
        &self,
        choice: &Choice,
        topology: &Topology,
        by_site: &BTreeMap<SiteId, Vec<WorkerId>>,
        why: String,
    ) -> Decided {
        let (plan, prediction) = &choice.best;
        let workers: Vec<&Vec<WorkerId>> = by_site.values().collect();
        let members = choice.tensor as usize;
        // A site's groups are all alike: any of its workers may form one.
        let of_rank =
            |id: &DeviceId| workers[id.site].iter().skip(id.device * members).take(members).copied();
        let copies = match plan.pipeline.ranks {
            1 => Vec::new(),
            _ => plan.replicas.iter().map(|ranks| ranks.iter().flat_map(of_rank).collect()).collect(),
        };
        let why = format!(
            "the plan: {} (copies × workers of each), {:.3} s a step expected. {why}",
            outline(choice),
            prediction.step_s
        );
        Decided {
            parallel: parallel_of(topology, choice, &self.config.parallel),
            recompute: plan.recompute || self.config.train.recompute,
            copies,
            redundant_warmup: self.state.plans.decided.as_ref().is_some_and(|plan| plan.redundant_warmup),
            why,
        }
    }

    /// Makes this plan part of the configuration.
    pub(crate) fn follow_plan(&mut self, decided: Decided) {
        let asked = self.config.train.shares;
        let was_redundant = self.config.sync.is_redundant_in(true);
        decided.apply_to(&mut self.config);
        if was_redundant && !self.config.sync.is_redundant_in(true) {
            let text = "under this plan the warm-up is exchanged, despite sync.warmup_redundant = \"always\": a member has only a part of the model";
            self.notice(Severity::Warning, None, text.to_owned());
        }
        if self.config.train.shares != asked {
            let text = "under this plan shares are even, despite train.shares = by_speed: a copy of the model on several workers is as fast as \
                        its slowest part";
            self.notice(Severity::Warning, None, text.to_owned());
        }
        // A configuration that serialised once also serialises with other numbers.
        if let Ok(written) = self.config.to_toml() {
            self.config_toml = written;
        }
        self.state.plans.decided = Some(decided);
    }
}

/// Combines the lower bandwidth and the longer round trip of two links.
pub(crate) fn slower(one: Link, other: Link) -> Link {
    Link {
        bytes_per_s: one.bytes_per_s.min(other.bytes_per_s),
        round_trip_s: one.round_trip_s.max(other.round_trip_s),
    }
}
