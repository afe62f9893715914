//! The workers' answers before a plan exists, indexed so that one answer does not require a scan over all workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_common::memory::Memory;
use longhaul_proto::control::message::{MeasuredLink, PROBED_MAX, Profile};
use serde::{Deserialize, Serialize};

use crate::run::ways::is_sound;
use longhaul_plan::{Device, Link};

/// Believable speeds, in FLOPs a second; others are rejected.
const FLOPS_PER_S: std::ops::RangeInclusive<f64> = 1e6..=1e18;
/// A worker measures itself in at least three steps of one layer with embedding and head. They take two minutes on a slow CPU with a model that is far too large for it;
/// loading libtorch over a network takes another one or two.
const PROFILE_WITHIN: Duration = Duration::from_secs(300);
/// A worker gives up on each link after ten seconds, and measures one after the other.
const WAY_WITHIN: Duration = Duration::from_secs(10);
/// For question and answer, and for a machine that is busy otherwise.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The link from a worker at another site.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// A measured link.
    Known(Link),
    /// It carried nothing.
    Broken,
    /// The worker has not answered.
    Untold,
}

/// Bytes of memory of a worker, and, where they are a GPU's, of the machine around it.
pub(crate) type Room = (u64, Option<u64>);

/// Lists a worker's memories with their sizes.
fn shares((bytes, host_bytes): Room) -> impl Iterator<Item = (Memory, u64)> {
    let own = if host_bytes.is_some() { Memory::Gpu } else { Memory::Machine };
    std::iter::once((own, bytes)).chain(host_bytes.map(|bytes| (Memory::Host, bytes)))
}

/// The answers of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Survey {
    site: SiteId,
    room: Room,
    /// Whether it knows that no plan exists yet, and so sends answers.
    attends: bool,
    profile: Option<Profile>,
    /// Sites it was asked about and has not reported on.
    asked: Vec<SiteId>,
    /// It has missed a deadline and is not asked again: a late answer would pass for one to the next question.
    is_mute: bool,
    /// By site: the link from a worker there to this one.
    ways: BTreeMap<SiteId, Way>,
    /// Deadline of its missing answers; `None`: none is missing.
    due: Option<Duration>,
}

/// An answer that missed its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// A worker's speed.
    Profile(WorkerId),
    /// A worker's links from these sites.
    Ways(WorkerId, Vec<SiteId>),
}

/// The answers of all workers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Surveys {
    by_worker: BTreeMap<WorkerId, Survey>,
    by_site: BTreeMap<SiteId, BTreeSet<WorkerId>>,
    by_memory: BTreeSet<(Memory, u64, WorkerId)>,
    /// Workers that have reported their speed.
    by_vocabulary: BTreeSet<(u32, WorkerId)>,
    /// Workers that do not know that no plan exists.
    absent: BTreeSet<WorkerId>,
    /// Workers with missing answers, by deadline.
    owing: BTreeSet<(Duration, WorkerId)>,
    /// All possible questions have been asked, save to workers with open answers, and no worker has come or left since.
    is_asked: bool,
    /// Workers and sites examined, for a test to count.
    #[cfg(test)]
    #[serde(skip)]
    pub looked: std::cell::Cell<u64>,
}

impl Surveys {
    /// Adds a worker.
    pub fn join(&mut self, worker: WorkerId, site: SiteId, room: Room) {
        let survey = Survey::of(site, room);
        self.by_worker.insert(worker, survey);
        self.by_site.entry(site).or_default().insert(worker);
        self.by_memory.extend(shares(room).map(|(memory, bytes)| (memory, bytes, worker)));
        self.absent.insert(worker);
        self.is_asked = false;
    }

    pub fn leave(&mut self, worker: WorkerId) {
        self.forget_words(worker);
        self.is_asked = false;
        let Some(Survey { site, room, .. }) = self.by_worker.remove(&worker) else { return };
        for (memory, bytes) in shares(room) {
            self.by_memory.remove(&(memory, bytes, worker));
        }
        self.absent.remove(&worker);
        if let Some(workers) = self.by_site.get_mut(&site) {
            workers.remove(&worker);
            if workers.is_empty() {
                self.by_site.remove(&site);
            }
        }
    }

    /// Records that, from `now` on, a worker knows that no plan exists, and sends all answers from the beginning.
    pub fn attend(&mut self, worker: WorkerId, now: Duration) {
        self.forget_words(worker);
        let Some(survey) = self.by_worker.get_mut(&worker) else { return };
        *survey = Survey { attends: true, ..Survey::of(survey.site, survey.room) };
        self.is_asked = false;
        self.absent.remove(&worker);
        self.expect(worker, Some(now + PROFILE_WITHIN));
    }

    pub fn note_profile(&mut self, worker: WorkerId, profile: Profile) {
        let Some(survey) = self.by_worker.get_mut(&worker) else { return };
        let flops_per_s = if profile.flops_per_s.is_finite() { profile.flops_per_s } else { 0.0 };
        let flops_per_s = flops_per_s.clamp(*FLOPS_PER_S.start(), *FLOPS_PER_S.end());
        let told = survey.profile.replace(Profile { flops_per_s, ..profile });
        let is_asked = !survey.asked.is_empty();
        if let Some(told) = told {
            self.by_vocabulary.remove(&(told.vocabulary, worker));
        }
        self.by_vocabulary.insert((profile.vocabulary, worker));
        if !is_asked {
            self.expect(worker, None);
        }
    }

    /// Sites missing from a short answer were not reached.
    pub fn note_links(&mut self, worker: WorkerId, links: &[Option<MeasuredLink>]) {
        let Some(survey) = self.by_worker.get_mut(&worker).filter(|survey| !survey.asked.is_empty()) else {
            return;
        };
        let known = |link: MeasuredLink| {
            Way::Known(Link { bytes_per_s: link.bytes_per_s, round_trip_s: link.round_trip_s })
        };
        let mut answers = links.iter().map(|link| link.filter(is_sound).map_or(Way::Broken, known));
        for site in std::mem::take(&mut survey.asked) {
            survey.ways.insert(site, answers.next().unwrap_or(Way::Broken));
        }
        self.expect(worker, None);
    }

    /// The smallest size of a memory over the workers, in bytes; `None`: no worker has such a memory.
    pub fn least_bytes(&self, memory: Memory) -> Option<u64> {
        let first = (memory, 0, WorkerId(0));
        let least = self.by_memory.range(first..).next();
        least.filter(|(of, ..)| *of == memory).map(|(_, bytes, _)| *bytes)
    }

    /// The largest reported vocabulary.
    pub fn vocabulary(&self) -> Option<u32> {
        self.by_vocabulary.last().map(|(vocabulary, _)| *vocabulary)
    }

    /// Workers that do not know that no plan exists.
    pub fn absent(&self) -> Vec<WorkerId> {
        self.look(self.absent.iter().copied()).collect()
    }

    /// Workers that know it.
    pub fn attending(&self) -> Vec<WorkerId> {
        let all = self.by_worker.iter();
        all.filter(|(_, survey)| survey.attends).map(|(&worker, _)| worker).collect()
    }

    pub fn have_all_profiles(&self) -> bool {
        self.by_vocabulary.len() == self.by_worker.len()
    }

    /// Whether all workers had the same bits of a gradient.
    pub fn compute_alike(&self) -> bool {
        let mut hashes =
            self.by_worker.values().map(|survey| survey.profile.map_or(0, |of| of.gradient_hash));
        let first = hashes.next();
        first != Some(0) && hashes.all(|hash| Some(hash) == first)
    }

    /// Number of sites with workers.
    pub fn sites(&self) -> usize {
        self.by_site.len()
    }

    /// Workers with missing answers.
    pub fn owing(&self) -> Vec<WorkerId> {
        let mut workers: Vec<WorkerId> = self.owing.iter().map(|(_, worker)| *worker).collect();
        workers.sort_unstable();
        workers
    }

    pub fn is_complete(&self) -> bool {
        self.owing.is_empty() && self.have_all_profiles()
    }

    /// Next deadline of a missing answer.
    pub fn next_due(&self) -> Option<Duration> {
        self.owing.first().map(|(at, _)| *at)
    }

    /// Takes the workers whose deadline has passed. Links they were asked about become untold.
    pub fn take_overdue(&mut self, now: Duration) -> Vec<Overdue> {
        let mut overdue = Vec::new();
        while let Some(&(at, worker)) = self.owing.first().filter(|(at, _)| *at <= now) {
            self.owing.remove(&(at, worker));
            let Some(survey) = self.by_worker.get_mut(&worker) else { continue };
            survey.due = None;
            if survey.profile.is_none() {
                overdue.push(Overdue::Profile(worker));
                continue;
            }
            survey.is_mute = true;
            let sites = std::mem::take(&mut survey.asked);
            survey.ways.extend(sites.iter().map(|&site| (site, Way::Untold)));
            overdue.push(Overdue::Ways(worker, sites));
        }
        overdue
    }

    /// Pairs workers to measure links: the first worker of each site with the first ones of the others, and with the second one of its own. Their deadlines start now.
    pub fn ask_for_ways(&mut self, now: Duration) -> Vec<(WorkerId, Vec<WorkerId>)> {
        // Workers that have answered since are asked about others once all have.
        if self.is_asked && !self.owing.is_empty() {
            return Vec::new();
        }
        self.is_asked = true;
        let mut questions = Vec::new();
        for (&site, workers) in self.look(self.by_site.iter()) {
            let Some((first, survey)) = workers.first().and_then(|w| self.by_worker.get_key_value(w)) else {
                continue;
            };
            if !survey.asked.is_empty() || survey.is_mute {
                continue;
            }
            let other = |(&of, workers): (&SiteId, &BTreeSet<WorkerId>)| {
                let other = if of == site { workers.iter().nth(1) } else { workers.first() };
                Some((of, *other?))
            };
            let others = self.look(self.by_site.iter()).filter_map(other).take(PROBED_MAX);
            let unknown: Vec<_> = others.filter(|(of, _)| !survey.ways.contains_key(of)).collect();
            if !unknown.is_empty() {
                questions.push((*first, unknown));
            }
        }
        let ask = |(worker, unknown): (WorkerId, Vec<(SiteId, WorkerId)>)| {
            let (sites, peers): (Vec<SiteId>, Vec<WorkerId>) = unknown.into_iter().unzip();
            let count = u32::try_from(sites.len()).unwrap_or(u32::MAX);
            self.expect(worker, Some(now + ANSWER_WITHIN + WAY_WITHIN * count));
            if let Some(survey) = self.by_worker.get_mut(&worker) {
                survey.asked = sites;
            }
            (worker, peers)
        };
        questions.into_iter().map(ask).collect()
    }

    /// Workers by site.
    pub fn by_site(&self) -> BTreeMap<SiteId, Vec<WorkerId>> {
        let workers = |workers: &BTreeSet<WorkerId>| self.look(workers.iter().copied()).collect();
        self.by_site.iter().map(|(&site, of_site)| (site, workers(of_site))).collect()
    }

    /// The device of a worker.
    pub fn device(&self, worker: WorkerId) -> Option<Device> {
        let survey = self.by_worker.get(&worker)?;
        Some(Device::told(survey.profile?.flops_per_s, survey.room))
    }

    /// The link from one site to another as the first worker there reported it; `None`: not asked.
    pub fn way(&self, from: SiteId, to: SiteId) -> Option<Way> {
        let first = self.by_site.get(&to)?.first()?;
        self.by_worker.get(first)?.ways.get(&from).copied()
    }

    /// All measured links, by source and destination site.
    pub fn known_ways(&self) -> Vec<((SiteId, SiteId), Link)> {
        let of_one = |survey: &Survey| {
            let to = survey.site;
            let link = move |(&from, way): (&SiteId, &Way)| match way {
                Way::Known(link) => Some(((from, to), *link)),
                Way::Broken | Way::Untold => None,
            };
            survey.ways.iter().filter_map(link).collect::<Vec<_>>()
        };
        self.by_worker.values().flat_map(of_one).collect()
    }

    fn expect(&mut self, worker: WorkerId, due: Option<Duration>) {
        let Some(survey) = self.by_worker.get_mut(&worker) else { return };
        if let Some(before) = survey.due.take() {
            self.owing.remove(&(before, worker));
        }
        survey.due = due;
        self.owing.extend(due.map(|at| (at, worker)));
    }

    fn forget_words(&mut self, worker: WorkerId) {
        self.expect(worker, None);
        if let Some(told) = self.by_worker.get_mut(&worker).and_then(|survey| survey.profile.take()) {
            self.by_vocabulary.remove(&(told.vocabulary, worker));
        }
    }

    #[cfg(not(test))]
    fn look<T>(&self, all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        all
    }

    #[cfg(test)]
    fn look<T>(&self, all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        all.inspect(|_| self.looked.set(self.looked.get() + 1))
    }
}

impl Survey {
    fn of(site: SiteId, room: Room) -> Self {
        Self {
            site,
            room,
            attends: false,
            profile: None,
            asked: Vec::new(),
            is_mute: false,
            ways: BTreeMap::new(),
            due: None,
        }
    }
}
