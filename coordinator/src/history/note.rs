//! The curves of one run.

use std::collections::{BTreeMap, VecDeque};

use longhaul_common::id::WorkerId;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::Heartbeat;
use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::done::Done;
use super::points::{RoundPoint, Sample};
use super::thinned::{Pushed, Thinned};
use longhaul_run::{LinkStatus, Phase, RoundSummary, ScoreStatus, Status, plausible};

/// Version of the layout. Readers of another one report it.
pub const FORMAT: u32 = 1;
/// Time between samples, in milliseconds, until they are thinned.
const SAMPLE_MS: u64 = 2000;
/// Most samples kept: a point for each pixel of a wide screen, and a few megabytes with the most sites.
pub const SAMPLES_MAX: usize = 1024;
/// Most rounds kept, some merged with their neighbours.
pub const ROUNDS_MAX: usize = 2048;
/// Samples kept unthinned: about half a minute of them shows the present state.
const RECENT_KEPT: usize = 16;
/// Most sites with curves of their own. Others are in the run's.
pub const SITES_MAX: usize = 64;
/// Most links with curves of their own: as many as the status has.
pub const LINKS_MAX: usize = 64;

/// The run of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// [`FORMAT`]
    pub format: u32,
    /// The run's id.
    pub run: String,
    /// Its name.
    pub name: String,
    /// Start of the run, as Unix time in milliseconds.
    pub begun_ms: u64,
    /// Whether samples are images.
    pub images: bool,
    /// Steps of the run.
    pub steps: u64,
    /// Samples of a step.
    pub batch: u32,
    /// Configuration values by which people compare runs, as text: the model, the strategy.
    pub about: String,
}

/// The curves.
#[derive(Clone, Debug)]
pub struct History {
    meta: Meta,
    sites: Vec<String>,
    ways: Vec<(String, String)>,
    samples: Thinned<Sample>,
    recent: VecDeque<Sample>,
    rounds: Thinned<RoundPoint>,
    activity: Activity,
    /// Number of changes to announced points: thinned, or taken back.
    changes: u64,
    /// Time of the last sample.
    sampled_ms: u64,
    /// Steps of the last noted scores.
    scored: u64,
    run: Done,
    by_site: Vec<Done>,
    encodings: Vec<Option<[f32; 2]>>,
    workers: BTreeMap<WorkerId, Worker>,
}

/// The kept part of a history.
#[derive(Clone, Debug)]
pub struct RetainedHistory {
    /// The run.
    pub meta: Meta,
    /// The names of sites, by place.
    pub sites: Vec<String>,
    /// The links between them, by place.
    pub ways: Vec<(String, String)>,
    /// The run over time.
    pub samples: Thinned<Sample>,
    /// Its rounds.
    pub rounds: Thinned<RoundPoint>,
    /// The newest samples.
    pub recent: Vec<Sample>,
    /// Recent activity of workers.
    pub activity: Activity,
}

/// A worker as of its last heartbeat.
#[derive(Clone, Copy, Debug)]
struct Worker {
    heard: Done,
    /// Its work at the end of the last interval of activity, counted from its first heartbeat.
    done: Done,
    interval_from: Done,
}

impl History {
    /// Creates the history of a new run.
    #[must_use]
    pub fn new(meta: Meta) -> Self {
        Self {
            meta,
            sites: Vec::new(),
            ways: Vec::new(),
            samples: Thinned::new(SAMPLES_MAX),
            recent: VecDeque::new(),
            rounds: Thinned::new(ROUNDS_MAX),
            activity: Activity::default(),
            changes: 0,
            sampled_ms: 0,
            scored: 0,
            run: Done::default(),
            by_site: Vec::new(),
            encodings: Vec::new(),
            workers: BTreeMap::new(),
        }
    }

    /// Resumes a kept history. Sums go on from the last sample. Samples later than now are dropped: the clock may have been set back, and
    /// they would keep new ones away for as long. Rounds are dated now.
    #[must_use]
    pub fn taken_up(kept: RetainedHistory, now_ms: u64) -> Self {
        let RetainedHistory { meta, sites, ways, mut samples, mut rounds, mut recent, mut activity } = kept;
        let last = samples.newest();
        let mut by_site = last.map(|sample| sample.sites.clone()).unwrap_or_default();
        by_site.resize(sites.len(), Done::default());
        let run = last.map(|sample| sample.run).unwrap_or_default();
        samples.cut_where(|sample| sample.at_ms > now_ms);
        rounds.each_mut(|round| round.at_ms = round.at_ms.map(|at_ms| at_ms.min(now_ms)));
        activity.cut_after(now_ms);
        recent.retain(|sample| sample.at_ms <= now_ms);
        let sampled_ms = samples.newest().map_or(0, |sample| sample.at_ms);
        let recent = recent.split_off(recent.len().saturating_sub(RECENT_KEPT)).into();
        Self { sites, ways, run, by_site, sampled_ms, rounds, activity, samples, recent, ..Self::new(meta) }
    }

    /// Sets the run's number of steps.
    pub fn set_steps(&mut self, steps: u64) {
        self.meta.steps = steps;
    }

    /// The run.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The names of sites, by place.
    #[must_use]
    pub fn sites(&self) -> &[String] {
        &self.sites
    }

    /// The links between them, by place.
    #[must_use]
    pub fn ways(&self) -> &[(String, String)] {
        &self.ways
    }

    /// The run over time.
    #[must_use]
    pub fn samples(&self) -> &Thinned<Sample> {
        &self.samples
    }

    /// Its rounds.
    #[must_use]
    pub fn rounds(&self) -> &Thinned<RoundPoint> {
        &self.rounds
    }

    /// Recent activity of workers.
    #[must_use]
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The newest samples, unthinned.
    #[must_use]
    pub fn recent(&self) -> &VecDeque<Sample> {
        &self.recent
    }

    /// Number of changes to announced points.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Records the workers' reports; call it a few times a second.
    pub fn note<'a>(
        &mut self,
        now_ms: u64,
        status: &Status,
        heartbeats: impl Iterator<Item = (WorkerId, &'a str, &'a Heartbeat)>,
    ) {
        if status.run.phase == Phase::Finished
            && self.workers.values().any(|worker| worker.done != worker.interval_from)
        {
            // At the run's end all have left: no more reports follow.
            self.end_interval(now_ms);
        }
        let mut here = BTreeMap::new();
        self.encodings.fill(None);
        for (id, site, heartbeat) in heartbeats {
            let heard = Done::of(heartbeat);
            let mut worker = self.workers.get(&id).copied().unwrap_or(Worker {
                heard,
                done: Done::default(),
                interval_from: Done::default(),
            });
            let new = heard.since(worker.heard);
            worker.heard = heard;
            worker.done.add(new);
            self.run.add(new);
            if let Some(site) = self.place_of(site) {
                self.by_site[site].add(new);
                self.encodings.resize(self.sites.len(), None);
                let said = plausible(heartbeat.encoding);
                let known = &mut self.encodings[site];
                *known = known.or(said.map(|encoding| [encoding.density, encoding.value_bits]));
            }
            here.insert(id, worker);
        }
        // An absent worker is forgotten; it counts as new when it comes back.
        self.workers = here;
        self.note_scores(&status.training.scores);
        if status.run.phase == Phase::Finished {
            self.finish(now_ms, status);
            return;
        }
        if self.activity.is_due(now_ms) {
            self.end_interval(now_ms);
        }
        if now_ms >= self.sampled_ms.saturating_add(SAMPLE_MS) {
            self.sample(now_ms, status);
        }
    }

    /// Records a round that counts. One that counted before counts anew: the run went back.
    pub fn note_round(&mut self, point: RoundPoint) {
        let number = point.round;
        let is_cut = self.rounds.cut_where(|kept| kept.round >= number);
        if is_cut {
            self.scored = self.scored.min(point.step.saturating_sub(1));
        }
        let pushed = self.rounds.push(point);
        self.changes += u64::from(is_cut || pushed == Pushed::Thinned);
    }

    /// Closes the history: open points are kept as they are, and the last validation, which no round reports, is added to the last
    /// round.
    fn finish(&mut self, now_ms: u64, status: &Status) {
        let newest = self.samples.newest();
        if newest
            .is_none_or(|newest| (newest.step, newest.round) != (status.progress.step, status.progress.round))
        {
            self.sample(now_ms, status);
        }
        for pushed in [self.samples.close(), self.rounds.close()] {
            self.changes += u64::from(pushed == Pushed::Thinned);
        }
        let Some(last) = self.rounds.last_kept_mut() else { return };
        let finite = |value: Option<f32>| value.filter(|value| value.is_finite());
        let (loss, accuracy) =
            (finite(status.training.validation_loss), finite(status.training.validation_accuracy));
        let told = (last.validation_loss, last.validation_accuracy);
        (last.validation_loss, last.validation_accuracy) = (loss.or(told.0), accuracy.or(told.1));
        self.changes += u64::from((last.validation_loss, last.validation_accuracy) != told);
    }

    /// Adds the newest scores to the round after which the model had them.
    fn note_scores(&mut self, scores: &[ScoreStatus]) {
        let Some(step) = scores.first().map(|score| score.step).filter(|step| *step > self.scored) else {
            return;
        };
        let named = |score: &ScoreStatus| (format!("{}_{}", score.task, score.measure), score.value as f32);
        let named: BTreeMap<String, f32> = scores.iter().map(named).collect();
        if self.rounds.first_mut_where(|round| round.step >= step).map(|round| round.scores = named).is_some()
        {
            self.scored = step;
            self.changes += 1;
        }
    }

    fn sample(&mut self, now_ms: u64, status: &Status) {
        self.sampled_ms = now_ms;
        let mut ways: Vec<[f32; 2]> = self.last_ways();
        for link in &status.cluster.links {
            if let Some(at) = self.place_of_way(link) {
                ways.resize(self.ways.len(), [0.0, 0.0]);
                // JSON has no infinity.
                ways[at] =
                    [link.bytes_per_s, link.round_trip_s].map(|value| value.min(f64::from(f32::MAX)) as f32);
            }
        }
        let training = status.cluster.members.iter().filter(|member| member.work.state == "training").count();
        let sample = Sample {
            at_ms: now_ms,
            step: status.progress.step,
            round: status.progress.round,
            training: u32::try_from(training).unwrap_or(u32::MAX),
            run: self.run,
            sites: self.by_site.clone(),
            ways,
            encodings: self.encodings.clone(),
        };
        if self.recent.len() == RECENT_KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(sample.clone());
        self.changes += u64::from(self.samples.push(sample) == Pushed::Thinned);
    }

    fn last_ways(&self) -> Vec<[f32; 2]> {
        let mut ways = self.samples.newest().map(|sample| sample.ways.clone()).unwrap_or_default();
        ways.resize(self.ways.len(), [0.0, 0.0]);
        ways
    }

    fn end_interval(&mut self, now_ms: u64) {
        let done =
            self.workers.iter().map(|(id, worker)| (id.to_string(), worker.done.since(worker.interval_from)));
        self.activity.push(now_ms, done);
        self.workers.values_mut().for_each(|worker| worker.interval_from = worker.done);
    }

    fn place_of(&mut self, site: &str) -> Option<usize> {
        if let Some(at) = self.sites.iter().position(|known| known == site) {
            return Some(at);
        }
        if self.sites.len() == SITES_MAX {
            return None;
        }
        self.sites.push(site.to_owned());
        self.by_site.push(Done::default());
        Some(self.sites.len() - 1)
    }

    fn place_of_way(&mut self, link: &LinkStatus) -> Option<usize> {
        if let Some(at) = self.ways.iter().position(|(from, to)| *from == link.from && *to == link.to) {
            return Some(at);
        }
        if self.ways.len() == LINKS_MAX {
            return None;
        }
        self.ways.push((link.from.clone(), link.to.clone()));
        Some(self.ways.len() - 1)
    }
}

impl RoundPoint {
    /// Returns a round from the run's summary, with its time where known.
    #[must_use]
    pub fn of(at_ms: Option<u64>, summary: &RoundSummary, schedule: &RoundSchedule) -> Self {
        Self {
            at_ms,
            round: summary.round.0,
            step: schedule.steps_of(summary.round).end,
            every: if schedule.is_warmup(summary.round) {
                schedule.warmup_every
            } else {
                schedule.pace_in(summary.round).every
            },
            samples: summary.samples,
            learning_rate: summary.learning_rate,
            loss: summary.loss,
            gradient_norm: summary.gradient_norm.filter(|norm| norm.is_finite()),
            validation_loss: summary.validation_loss.filter(|loss| loss.is_finite()),
            validation_accuracy: summary.validation_accuracy.filter(|share| share.is_finite()),
            residual_ratio: summary.residual_ratio.filter(|ratio| ratio.is_finite()),
            scores: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests;
