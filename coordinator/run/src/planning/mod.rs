//! Which plan the run follows, and which share of the work each worker has.

pub(super) mod decide;
pub(super) mod replanning;
pub(super) mod shares;
pub(super) mod speeds;
pub(super) mod survey;

use std::time::Duration;

use longhaul_common::id::{SiteId, WorkerId};
use longhaul_proto::control::message::MeasuredLink;
use serde::{Deserialize, Serialize};

use self::decide::WorkedOut;
use self::replanning::Replanning;
use self::shares::Shares;
use self::speeds::Speeds;
use self::survey::Surveys;

/// Which plan the run follows, and which part of the work each worker has.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Planning {
    /// What was said of those who are here, for whom no plan fits.
    unfit: Option<String>,
    /// What those who are here have told for a plan; nothing, once there is one.
    surveys: Surveys,
    worked_out: WorkedOut,
    replanning: Replanning,
    shares: Shares,
    speeds: Speeds,
}

impl Planning {
    /// A worker has joined a run whose plan is made of what workers tell.
    pub(super) fn joined(&mut self, worker: WorkerId, site: SiteId, memory_bytes: (u64, Option<u64>)) {
        self.surveys.join(worker, site, memory_bytes);
    }

    /// A worker is not here any more.
    pub(super) fn departed(&mut self, worker: WorkerId) {
        self.forget_unfit();
        self.surveys.leave(worker);
    }

    /// Others are here than those for whom no plan fitted.
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

    /// When training was prepared last, and how long that took.
    pub(super) fn last_beginning(&self) -> Option<(Duration, Duration)> {
        self.replanning.began.zip(self.replanning.beginning)
    }

    /// For how long nobody trained before that.
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

/// What tests count.
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
