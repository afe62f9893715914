//! How copies of the model are cut, where that is the coordinator's to decide: by what the workers tell of themselves and of the ways between them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::config::{ParallelConfig, RunConfig};
use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::model::{ModelSpec, StageBytes};
use longhaul_common::units::Bytes;
use longhaul_proto::control::message::{MeasuredLink, PROBED_MAX, Profile, ToWorker, Welcome};

use super::command::Severity;
use super::machine::Run;
use super::peer::Peer;
use super::state::Decided;
use crate::plan::{
    Choice, Device, DeviceId, Link, Site, Topology, Workload, choose_among, parallel_of, shape, why,
};

/// A way that could not be measured: slow and long, so that no plan rests on it.
const UNKNOWN_WAY: Link = Link { bytes_per_s: 125_000.0, round_trip_s: 0.2 };
/// A way within a site that nobody could measure: ten gigabits, which most machines of one cluster have between them.
const UNKNOWN_LAN: Link = Link { bytes_per_s: 1.25e9, round_trip_s: 1e-4 };
/// Nobody computes slower or faster than this, in FLOPs a second: whoever says so is not believed.
const FLOPS_PER_S: std::ops::RangeInclusive<f64> = 1e6..=1e18;

/// What a worker has told for a plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    /// Whether it knows that there is no plan yet, and so tells.
    attends: bool,
    profile: Option<Profile>,
    /// Sites that it was asked about, and has not answered.
    asked: Vec<SiteId>,
    /// By site: the way from a worker there to this one.
    ways: BTreeMap<SiteId, Option<MeasuredLink>>,
}

impl Survey {
    pub fn note_profile(&mut self, profile: Profile) {
        let flops_per_s = if profile.flops_per_s.is_finite() { profile.flops_per_s } else { 0.0 };
        let flops_per_s = flops_per_s.clamp(*FLOPS_PER_S.start(), *FLOPS_PER_S.end());
        self.profile = Some(Profile { flops_per_s, ..profile });
    }

    /// Who answers too little has not reached the rest.
    pub fn note_links(&mut self, links: &[Option<MeasuredLink>]) {
        let is_sound = |link: &MeasuredLink| {
            link.bytes_per_s.is_finite()
                && link.bytes_per_s >= 1.0
                && link.round_trip_s.is_finite()
                && link.round_trip_s >= 0.0
        };
        let mut answers = links.iter().map(|link| link.filter(is_sound));
        for site in std::mem::take(&mut self.asked) {
            self.ways.insert(site, answers.next().flatten());
        }
    }
}

impl Decided {
    /// Puts it in its place in the run's configuration.
    pub(super) fn apply_to(&self, config: &mut RunConfig) {
        config.parallel = self.parallel.clone();
        config.train.recompute = self.recompute;
    }
}

impl Run {
    /// Whether there is a plan; does what leads to one, where there is not.
    pub(super) fn has_plan(&mut self) -> bool {
        if !self.config.is_plan_open() {
            return true;
        }
        let is_complete = self.peers.len() >= self.config.run.workers as usize;
        if let Some(bytes) = self.suits_all_undivided() {
            if is_complete {
                let text = format!(
                    "every worker holds the whole model ({}), and what they exchange follows their links",
                    Bytes(bytes as u64)
                );
                self.decide(self.undivided(), text);
            }
            return is_complete;
        }
        self.have_all_attend();
        let has_told = |peer: &Peer| peer.survey.profile.is_some();
        if is_complete && self.peers.values().all(has_told) && !self.is_probing() {
            self.choose();
        }
        !self.config.is_plan_open()
    }

    /// Who has not told yet what a plan wants to know, where all have joined.
    pub(super) fn untold(&self) -> Vec<WorkerId> {
        let is_complete = self.peers.len() >= self.config.run.workers as usize;
        if !self.config.is_plan_open() || !is_complete {
            return Vec::new();
        }
        let owes = |peer: &Peer| peer.survey.profile.is_none() || !peer.survey.asked.is_empty();
        self.peers.iter().filter(|(_, peer)| owes(peer)).map(|(&worker, _)| worker).collect()
    }

    /// The configuration that a worker is welcomed with. As long as everybody could hold the whole model it says so, and nobody has to tell anything.
    pub(super) fn config_for(&mut self, worker: WorkerId) -> String {
        let attends = self.config.is_plan_open() && self.suits_all_undivided().is_none();
        if let Some(peer) = self.peers.get_mut(&worker) {
            peer.survey.attends = attends;
        }
        if attends {
            return self.config_toml.clone();
        }
        let mut config = self.config.clone();
        if config.is_plan_open() {
            self.undivided().apply_to(&mut config);
        }
        // What could be written once can be written with other numbers.
        config.to_toml().unwrap_or_else(|_| self.config_toml.clone())
    }

    fn undivided(&self) -> Decided {
        Decided {
            parallel: self.config.parallel.joined(),
            recompute: self.config.train.recompute,
            copies: Vec::new(),
        }
    }

    /// What the whole model takes of a worker, where everybody who is here has that much and no cut would be faster, as what is exchanged follows the links. None: that is
    /// not so, or not known yet.
    fn suits_all_undivided(&self) -> Option<f64> {
        let work = self.workload().filter(|_| self.config.sync.adapt)?;
        let tokens = work.micro_tokens_most(self.config.run.workers as usize);
        let bytes = StageBytes::of(&work.blocks, self.config.train.recompute, tokens).with(1);
        self.peers.values().all(|peer| bytes <= peer.memory_bytes as f64).then_some(bytes)
    }

    /// What a step asks for, once the vocabulary is known.
    fn workload(&self) -> Option<Workload> {
        // Those that differ are refused when they have built the model; until then, the largest one fits all.
        let told =
            self.peers.values().filter_map(|peer| peer.survey.profile).map(|told| told.vocabulary).max();
        let vocabulary = self.config.vocabulary().or(told)?;
        let spec = ModelSpec::resolve(&self.config.model, vocabulary).ok()?;
        Some(Workload::of(&self.config, &spec))
    }

    /// Tells those who took it for certain that they would hold the whole model.
    fn have_all_attend(&mut self) {
        let absent = |peer: &Peer| !peer.survey.attends;
        let workers: Vec<WorkerId> =
            self.peers.iter().filter(|(_, peer)| absent(peer)).map(|(&worker, _)| worker).collect();
        for &worker in &workers {
            self.welcome_again(worker);
            if let Some(peer) = self.peers.get_mut(&worker) {
                peer.survey = Survey { attends: true, ..Survey::default() };
            }
        }
    }

    fn welcome_again(&mut self, worker: WorkerId) {
        let Some(site) = self.peers.get(&worker).map(|peer| peer.known.site) else { return };
        let welcome = Welcome { run: self.state.run, config: self.config_toml.clone(), site, resumed: false };
        self.send(worker, ToWorker::Welcome(welcome));
    }

    /// Whether something about the ways between sites is still to be told; asks for what nobody was asked about. The first worker of each site looks at the others', and at the
    /// second of its own.
    fn is_probing(&mut self) -> bool {
        let by_site = self.workers_by_site();
        let mut asked = Vec::new();
        for (site, workers) in &by_site {
            let Some(peer) = workers.first().and_then(|first| self.peers.get(first)) else { continue };
            let is_wanted = |other: &SiteId| other != site || workers.len() > 1;
            let sites = by_site.keys().copied().filter(is_wanted).take(PROBED_MAX);
            let unknown: Vec<SiteId> = sites.filter(|site| !peer.survey.ways.contains_key(site)).collect();
            if peer.survey.asked.is_empty() && !unknown.is_empty() {
                asked.push((workers[0], unknown));
            }
        }
        for (worker, sites) in asked {
            let own = self.peers.get(&worker).map(|peer| peer.known.site);
            let other = |site: &SiteId| by_site[site][usize::from(Some(*site) == own)];
            let members = sites.iter().map(other);
            let peers = members.filter_map(|other| Some(self.peers.get(&other)?.member(other))).collect();
            if let Some(peer) = self.peers.get_mut(&worker) {
                peer.survey.asked = sites;
            }
            self.send(worker, ToWorker::Probe { peers });
        }
        self.peers.values().any(|peer| !peer.survey.asked.is_empty())
    }

    fn workers_by_site(&self) -> BTreeMap<SiteId, Vec<WorkerId>> {
        let mut by_site: BTreeMap<SiteId, Vec<WorkerId>> = BTreeMap::new();
        for (&worker, peer) in &self.peers {
            by_site.entry(peer.known.site).or_default().push(worker);
        }
        by_site
    }

    /// The best plan for those who are here.
    fn choose(&mut self) {
        if self.unfit.is_some() {
            return;
        }
        let by_site = self.workers_by_site();
        let (Some(topology), Some(work)) = (self.topology(&by_site), self.workload()) else { return };
        let devices = topology.devices().count();
        // A rank has a block at least.
        let most = devices.min(work.blocks.len());
        let permitted: BTreeSet<usize> = (1..=most).filter(|&ranks| self.permits(ranks)).collect();
        let admits = |rows: &[Vec<DeviceId>]| {
            let ranks = rows.first().map_or(0, Vec::len);
            permitted.contains(&ranks) && rows.len() == devices / ranks
        };
        match choose_among(&topology, &work, admits) {
            Ok(choice) => self.take(&choice, &topology, &by_site),
            Err(error) => {
                let text = format!("{error}. The run waits for other workers");
                self.notice(Severity::Error, None, text.clone());
                self.unfit = Some(text);
            }
        }
    }

    fn take(&mut self, choice: &Choice, topology: &Topology, by_site: &BTreeMap<SiteId, Vec<WorkerId>>) {
        let (plan, prediction) = &choice.best;
        let workers: Vec<&Vec<WorkerId>> = by_site.values().collect();
        let worker = |id: &DeviceId| workers[id.site][id.device];
        let copies = match plan.pipeline.ranks {
            1 => Vec::new(),
            _ => plan.replicas.iter().map(|ranks| ranks.iter().map(worker).collect()).collect(),
        };
        let text = format!(
            "the plan: {} (copies × workers of each), {:.3} s a step expected. {}",
            shape(plan),
            prediction.step_s,
            why(choice)
        );
        let decided = Decided {
            parallel: parallel_of(topology, plan, &self.config.parallel),
            recompute: plan.recompute || self.config.train.recompute,
            copies,
        };
        self.decide(decided, text);
    }

    fn decide(&mut self, decided: Decided, text: String) {
        decided.apply_to(&mut self.config);
        // What could be written once can be written with other numbers.
        if let Ok(written) = self.config.to_toml() {
            self.config_toml = written;
        }
        self.state.plan = Some(decided);
        self.persist();
        self.notice(Severity::Info, None, text);
        let attending = self.peers.iter().filter(|(_, peer)| peer.survey.attends);
        let workers: Vec<WorkerId> = attending.map(|(&worker, _)| worker).collect();
        for worker in workers {
            self.welcome_again(worker);
            if let Some(peer) = self.peers.get_mut(&worker) {
                peer.survey = Survey::default();
            }
        }
    }

    /// Whether the run may have copies on so many workers each.
    fn permits(&self, ranks: usize) -> bool {
        let Ok(stages) = u32::try_from(ranks) else { return false };
        let parallel = ParallelConfig { stages, ..self.undivided().parallel };
        let config = RunConfig { parallel, ..self.config.clone() };
        config.to_toml().is_ok_and(|text| RunConfig::parse(&text).is_ok())
    }

    /// The machines that are here, and the ways between them.
    fn topology(&self, by_site: &BTreeMap<SiteId, Vec<WorkerId>>) -> Option<Topology> {
        let way = |from: SiteId, to: SiteId| {
            let first = by_site.get(&to)?.first()?;
            let link = self.peers.get(first)?.survey.ways.get(&from).copied().flatten()?;
            Some(Link { bytes_per_s: link.bytes_per_s, round_trip_s: link.round_trip_s })
        };
        let device = |worker: &WorkerId| {
            let peer = self.peers.get(worker)?;
            let flops_per_s = peer.survey.profile?.flops_per_s;
            Some(Device { flops_per_s, memory_bytes: peer.memory_bytes as f64 })
        };
        let sites: Option<Vec<Site>> = by_site
            .iter()
            .map(|(&site, workers)| {
                let name = self.state.sites.get(site.0 as usize)?.clone();
                let devices = workers.iter().map(device).collect::<Option<_>>()?;
                Some(Site { name, devices, lan: way(site, site).unwrap_or(UNKNOWN_LAN) })
            })
            .collect();
        let places: Vec<SiteId> = by_site.keys().copied().collect();
        let mut links = BTreeMap::new();
        for (b, &of_b) in places.iter().enumerate() {
            for (a, &of_a) in places[..b].iter().enumerate() {
                // The slower direction counts.
                let ways = [way(of_a, of_b), way(of_b, of_a)].into_iter().flatten();
                let slower = ways.reduce(|one, other| Link {
                    bytes_per_s: one.bytes_per_s.min(other.bytes_per_s),
                    round_trip_s: one.round_trip_s.max(other.round_trip_s),
                });
                links.insert((a, b), slower.unwrap_or(UNKNOWN_WAY));
            }
        }
        Topology::new(sites?, links).ok()
    }
}
