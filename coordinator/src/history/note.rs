//! The curves of one run.

use std::collections::BTreeMap;

use longhaul_common::config::TrainConfig;
use longhaul_common::id::WorkerId;
use longhaul_common::learning_rate::LearningRate;
use longhaul_common::schedule::RoundSchedule;
use longhaul_proto::control::message::Heartbeat;
use serde::{Deserialize, Serialize};

use super::activity::Activity;
use super::done::Done;
use super::points::{RoundPoint, Sample};
use super::thinned::{Pushed, Thinned};
use crate::run::{LinkStatus, Phase, RoundSummary, Status};

/// The layout of what is told and kept. What reads another one says so.
pub const FORMAT: u32 = 1;
/// Between samples, in milliseconds, until they are thinned.
const SAMPLE_MS: u64 = 2000;
/// Samples that are kept: a point for each pixel of a wide screen, and a few megabytes with the most sites.
pub const SAMPLES_MAX: usize = 1024;
/// Rounds that are kept, some joined with their neighbours.
pub const ROUNDS_MAX: usize = 2048;
/// Sites with curves of their own. Those beyond are in the run's.
pub const SITES_MAX: usize = 64;
/// Ways with curves of their own: as many as the status has.
pub const WAYS_MAX: usize = 64;

/// What a history is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// [`FORMAT`]
    pub format: u32,
    /// The run's id.
    pub run: String,
    /// Its name.
    pub name: String,
    /// Unix time in milliseconds of its beginning.
    pub begun_ms: u64,
    /// Whether samples are images.
    pub images: bool,
    /// Steps of the run.
    pub steps: u64,
    /// Samples of a step.
    pub batch: u32,
    /// Values in its configuration that people compare runs by, in words: the model, the strategy.
    pub about: String,
}

/// What is new, for who writes it down.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// A site has got the next place.
    Site(String),
    /// A way, from and to, has.
    Way(String, String),
    /// A sample was added,
    Sample(Sample),
    /// or a round.
    Round(RoundPoint),
    /// What was told before is not so any more.
    Anew,
}

/// How far somebody has come who follows a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// How often points had been changed by then.
    pub changes: u64,
    /// The samples that there were,
    pub samples: usize,
    /// the rounds,
    pub rounds: usize,
    /// and the end of the newest interval of activity, in Unix milliseconds.
    pub activity_ms: u64,
}

/// The curves.
#[derive(Clone, Debug)]
pub struct History {
    meta: Meta,
    sites: Vec<String>,
    ways: Vec<(String, String)>,
    samples: Thinned<Sample>,
    rounds: Thinned<RoundPoint>,
    activity: Activity,
    /// How often points that had been told were changed: thinned, or taken back.
    changes: u64,
    /// When a sample was taken last.
    sampled_ms: u64,
    run: Done,
    by_site: Vec<Done>,
    workers: BTreeMap<WorkerId, Worker>,
}

/// A worker as it was heard last.
#[derive(Clone, Copy, Debug)]
struct Worker {
    heard: Done,
    /// What it had done by the end of the last interval of activity, counted from when it was heard first.
    done: Done,
    interval_from: Done,
}

impl History {
    /// One of a run that has just begun.
    #[must_use]
    pub fn new(meta: Meta) -> Self {
        Self {
            meta,
            sites: Vec::new(),
            ways: Vec::new(),
            samples: Thinned::new(SAMPLES_MAX),
            rounds: Thinned::new(ROUNDS_MAX),
            activity: Activity::default(),
            changes: 0,
            sampled_ms: 0,
            run: Done::default(),
            by_site: Vec::new(),
            workers: BTreeMap::new(),
        }
    }

    /// What was kept of one. Sums go on from the last sample.
    #[must_use]
    pub fn taken_up(
        meta: Meta,
        sites: Vec<String>,
        ways: Vec<(String, String)>,
        samples: Thinned<Sample>,
        rounds: Thinned<RoundPoint>,
        activity: Activity,
    ) -> Self {
        let last = samples.kept().last();
        let mut by_site = last.map(|sample| sample.sites.clone()).unwrap_or_default();
        by_site.resize(sites.len(), Done::default());
        let (run, sampled_ms) = last.map(|sample| (sample.run, sample.at_ms)).unwrap_or_default();
        Self { sites, ways, run, by_site, sampled_ms, rounds, activity, samples, ..Self::new(meta) }
    }

    /// Of which run.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The names of sites, by place.
    #[must_use]
    pub fn sites(&self) -> &[String] {
        &self.sites
    }

    /// The ways between them, by place.
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

    /// What workers did lately.
    #[must_use]
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// All that there is now.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            changes: self.changes,
            samples: self.samples.kept().len(),
            rounds: self.rounds.kept().len(),
            activity_ms: self.activity.intervals().back().map_or(0, |interval| interval.at_ms),
        }
    }

    /// Whether what came after the mark is all that somebody who was there lacks.
    #[must_use]
    pub fn goes_on_from(&self, mark: &Mark) -> bool {
        let now = self.mark();
        mark.changes == now.changes && mark.samples <= now.samples && mark.rounds <= now.rounds
    }

    /// Takes what workers say; call it a few times a second. What is to be written down of it.
    pub fn note<'a>(
        &mut self,
        now_ms: u64,
        status: &Status,
        heartbeats: impl Iterator<Item = (WorkerId, &'a str, &'a Heartbeat)>,
    ) -> Vec<Told> {
        let mut told = Vec::new();
        let mut here = BTreeMap::new();
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
            if let Some(site) = self.place_of(site, &mut told) {
                self.by_site[site].add(new);
            }
            here.insert(id, worker);
        }
        // Who is not here is forgotten; it counts as new when it comes back.
        self.workers = here;
        if status.phase != Phase::Finished {
            self.note_activity(now_ms);
        }
        let last = self.samples.kept().last();
        let is_over = status.phase == Phase::Finished
            && last.is_some_and(|last| (last.step, last.round) == (status.step, status.round));
        if !is_over && now_ms >= self.sampled_ms.saturating_add(SAMPLE_MS) {
            self.sample(now_ms, status, &mut told);
        }
        told
    }

    /// Takes a round that counts. One that had counted before counts anew: the run went back.
    pub fn note_round(&mut self, point: RoundPoint) -> Vec<Told> {
        let number = point.round;
        let mut told = Vec::new();
        if self.rounds.cut_where(|kept| kept.round >= number) {
            self.changes += 1;
            told.push(Told::Anew);
        }
        let pushed = self.rounds.push(point);
        told.extend(self.added(pushed, |history| history.rounds.kept().last().cloned().map(Told::Round)));
        told
    }

    fn sample(&mut self, now_ms: u64, status: &Status, told: &mut Vec<Told>) {
        self.sampled_ms = now_ms;
        let mut ways: Vec<[f32; 2]> = self.last_ways();
        for link in &status.links {
            if let Some(at) = self.place_of_way(link, told) {
                ways.resize(self.ways.len(), [0.0, 0.0]);
                // JSON has no infinity.
                ways[at] =
                    [link.bytes_per_s, link.round_trip_s].map(|value| value.min(f64::from(f32::MAX)) as f32);
            }
        }
        let training = status.members.iter().filter(|member| member.state == "training").count();
        let sample = Sample {
            at_ms: now_ms,
            step: status.step,
            round: status.round,
            training: u32::try_from(training).unwrap_or(u32::MAX),
            run: self.run,
            sites: self.by_site.clone(),
            ways,
        };
        let pushed = self.samples.push(sample);
        told.extend(self.added(pushed, |history| history.samples.kept().last().cloned().map(Told::Sample)));
    }

    fn added(&mut self, pushed: Pushed, newest: impl Fn(&Self) -> Option<Told>) -> Option<Told> {
        match pushed {
            Pushed::Waits => None,
            Pushed::Added => newest(self),
            Pushed::Thinned => {
                self.changes += 1;
                Some(Told::Anew)
            }
        }
    }

    fn last_ways(&self) -> Vec<[f32; 2]> {
        let mut ways = self.samples.kept().last().map(|sample| sample.ways.clone()).unwrap_or_default();
        ways.resize(self.ways.len(), [0.0, 0.0]);
        ways
    }

    fn note_activity(&mut self, now_ms: u64) {
        if !self.activity.is_due(now_ms) {
            return;
        }
        let done =
            self.workers.iter().map(|(id, worker)| (id.to_string(), worker.done.since(worker.interval_from)));
        self.activity.push(now_ms, done);
        self.workers.values_mut().for_each(|worker| worker.interval_from = worker.done);
    }

    fn place_of(&mut self, site: &str, told: &mut Vec<Told>) -> Option<usize> {
        if let Some(at) = self.sites.iter().position(|known| known == site) {
            return Some(at);
        }
        if self.sites.len() == SITES_MAX {
            return None;
        }
        self.sites.push(site.to_owned());
        self.by_site.push(Done::default());
        told.push(Told::Site(site.to_owned()));
        Some(self.sites.len() - 1)
    }

    fn place_of_way(&mut self, link: &LinkStatus, told: &mut Vec<Told>) -> Option<usize> {
        if let Some(at) = self.ways.iter().position(|(from, to)| *from == link.from && *to == link.to) {
            return Some(at);
        }
        if self.ways.len() == WAYS_MAX {
            return None;
        }
        self.ways.push((link.from.clone(), link.to.clone()));
        told.push(Told::Way(link.from.clone(), link.to.clone()));
        Some(self.ways.len() - 1)
    }
}

impl RoundPoint {
    /// A round as the run sums it up.
    #[must_use]
    pub fn of(now_ms: u64, summary: &RoundSummary, schedule: &RoundSchedule, train: &TrainConfig) -> Self {
        let steps = schedule.steps_of(summary.round);
        let rate = LearningRate::new(train, schedule.steps).at(steps.end.saturating_sub(1));
        Self {
            at_ms: now_ms,
            round: summary.round.0,
            step: steps.end,
            every: if schedule.is_opening(summary.round) {
                schedule.opening_every
            } else {
                schedule.pace_in(summary.round).every
            },
            samples: summary.samples,
            learning_rate: rate,
            loss: summary.loss,
            validation_loss: summary.validation_loss.filter(|loss| loss.is_finite()),
            validation_accuracy: summary.validation_accuracy.filter(|share| share.is_finite()),
            residual_ratio: summary.residual_ratio.filter(|ratio| ratio.is_finite()),
        }
    }
}

#[cfg(test)]
mod tests;
