//! The run's plan, and each worker's share of the work.

pub(super) mod decide;
pub(super) mod replanning;
pub(super) mod shares;
pub(super) mod speeds;
pub(super) mod survey;
pub(super) mod warmup;

use std::time::Duration;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_proto::control::message::MeasuredLink;
use serde::{Deserialize, Serialize};

use self::decide::WorkedOut;
use self::replanning::Replanning;
use self::shares::Shares;
use self::speeds::Speeds;
use self::survey::Surveys;

/// The run's plan, and each worker's part of the work.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Planning {
    /// Message about the workers present, for which no plan fits.
    unfit: Option<String>,
    /// Answers of the workers present for a plan; empty once a plan exists.
    surveys: Surveys,
    worked_out: WorkedOut,
    replanning: Replanning,
    shares: Shares,
    speeds: Speeds,
}

impl Planning {
    /// Handles a worker that joins a run whose plan depends on the workers' answers.
    pub(super) fn joined(&mut self, worker: WorkerId, site: SiteId, memory_bytes: (u64, Option<u64>)) {
        self.surveys.join(worker, site, memory_bytes);
    }

    /// Handles a departure.
    pub(super) fn departed(&mut self, worker: WorkerId) {
        self.forget_unfit();
        self.surveys.leave(worker);
    }

    /// Forgets that no plan fitted the workers then present.
    pub(super) fn forget_unfit(&mut self) {
        self.unfit = None;
    }

    pub(super) fn unfit(&self) -> Option<&str> {
        self.unfit.as_deref()
    }

    pub(super) fn note_links(&mut self, worker: WorkerId, links: &[Option<MeasuredLink>]) {
        self.surveys.note_links(worker, links);
    }

    pub(super) fn preparing_begins(&mut self, now: Duration) {
        (self.replanning.began, self.replanning.coming_back) = (Some(now), None);
    }

    pub(super) fn training_begins(&mut self, now: Duration) {
        let replanning = &mut self.replanning;
        replanning.beginning = replanning.began.map(|at| now.saturating_sub(at));
        replanning.stood_still = replanning.stopped.take().map(|at| now.saturating_sub(at));
    }

    pub(super) fn training_stops(&mut self, now: Duration) {
        self.replanning.stopped.get_or_insert(now);
    }

    /// Time of the last preparation for training, and its duration.
    pub(super) fn last_beginning(&self) -> Option<(Duration, Duration)> {
        self.replanning.began.zip(self.replanning.beginning)
    }

    /// Time without training before that.
    pub(super) fn stood_still(&self) -> Duration {
        self.replanning.stood_still.unwrap_or_default()
    }

    pub(super) fn shares_are_due(&self) -> bool {
        self.shares.are_due()
    }

    pub(super) fn known_speed(&self, worker: WorkerId) -> Option<f64> {
        self.speeds.known(worker)
    }
}

/// Counters for tests.
#[cfg(test)]
impl Planning {
    pub(super) fn surveys_looked_at(&self) -> u64 {
        self.surveys.looked.get()
    }

    pub(super) fn models_worked_out(&self) -> u32 {
        self.worked_out.models
    }

    pub(super) fn speed_factor(&self, worker: WorkerId) -> f64 {
        self.speeds.factor(worker)
    }
}
