//! Copies of the model that cannot join others in training come in when all begin anew together.
//!
//! Where members make common steps whose gradients are clipped by the norm of all parts, a copy that has missed some cannot make up for them (`Run::copies_may_join`). A
//! generation then ends at a round, all write their state, and all begin with that. It costs a full beginning, so it is rare.

use std::time::Duration;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use crate::run::command::Severity;
use crate::run::machine::Run;
use crate::run::state::Phase;

/// How long workers that could be a copy wait for more of them.
const WAIT: Duration = Duration::from_secs(2);
/// Training time before a joint restart, as a multiple of the time without training at the last one.
const TRAINED_MIN: u32 = 10;

/// Workers that wait outside.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Together {
    /// Since when there have been enough of them for a copy; none: there are not.
    since: Option<Duration>,
    /// The restart was reported.
    is_told: bool,
}

impl Run {
    /// Looks whether there are enough workers without a slot for a copy that cannot join while others train.
    pub(crate) fn look_at_those_outside(&mut self) {
        let may_begin_anew = self.core.state.phase == Phase::Training
            && !self.core.is_closing()
            && !self.accounting.is_held(&self.core)
            && self.generations.waits_until().is_none()
            // Where the plan may change, that is how they come in, if it is worth it.
            && self.core.replan_after().is_none()
            && !self.core.copies_may_join();
        if !may_begin_anew {
            // A generation that ends for them is at its end.
            if !self.core.generation_ends() {
                self.recovery.together = Together::default();
            }
            return;
        }
        let copies = self.liveness.copies_of_waiting(&self.core, &Default::default());
        self.recovery.together.since =
            (!copies.is_empty()).then(|| self.recovery.together.since.unwrap_or(self.core.now));
        if self.together_is_due() && !std::mem::replace(&mut self.recovery.together.is_told, true) {
            let mut workers: Vec<WorkerId> = copies.into_iter().flatten().collect();
            workers.sort_unstable();
            let workers: Vec<String> = workers.iter().map(ToString::to_string).collect();
            let text = format!(
                "{} can get a part of the model when all workers restart together: open rounds are finished and a checkpoint is written first",
                workers.join(", ")
            );
            self.core.notice(Severity::Info, None, text);
        }
    }

    /// When that is looked at, if nothing happens before.
    pub(crate) fn together_at(&self) -> Option<Duration> {
        let waited = self.recovery.together.since? + WAIT;
        let beginning = self.planning.last_beginning();
        let stood_still = self.planning.stood_still();
        let trained = beginning.map(|(began, took)| began + took + took.max(stood_still) * TRAINED_MIN);
        Some(trained.map_or(waited, |trained| waited.max(trained)))
    }

    /// Whether a generation has to end so that all can begin anew.
    pub(crate) fn together_is_due(&self) -> bool {
        let is_time = self.together_at().is_some_and(|at| at <= self.core.now);
        is_time && self.core.state.phase == Phase::Training && !self.core.is_closing()
    }
}
