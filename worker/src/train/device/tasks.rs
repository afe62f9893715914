//! Scores of `evaluate.tasks`.

use std::sync::Arc;

use anyhow::Result;
use longhaul_common::id::Round;
use longhaul_data::tasks::TaskFile;
use longhaul_engine::Generator;
use longhaul_member::activity::Activity;
use longhaul_member::message::FromDevice;
use longhaul_proto::control::message::TaskScore;

use super::Device;
use crate::evaluate::{Judge, Outcome, Reading};

/// The questions of a run, with what their reading needs.
#[derive(Clone, Debug)]
pub struct RunTasks {
    /// The files.
    pub files: Arc<[TaskFile]>,
    /// Texts to tokens.
    pub reading: Reading,
    /// The last scored state.
    pub scored: Option<Round>,
}

impl Device<'_> {
    pub(super) fn score_after(&mut self, round: Round) -> Result<()> {
        if self.config.evaluates_before(round.next()) { self.score(round.next()) } else { Ok(()) }
    }

    /// Scores this worker's part of the questions with the state before `next_round`, once.
    pub(super) fn score(&mut self, next_round: Round) -> Result<()> {
        let Some(tasks) = self.tasks.as_ref().filter(|tasks| tasks.scored != Some(next_round)) else {
            return Ok(());
        };
        let step = self.schedule().steps_of(Round(next_round.0.saturating_sub(1))).start;
        let Some((place, workers)) = self.barrier.place(step, self.worker) else { return Ok(()) };
        let scoring = self.progress.begin(Activity::Evaluate);
        let outcomes = self.outcomes(tasks, place, workers);
        drop(scoring);
        let scores = match outcomes {
            Ok(None) => return Ok(()),
            Ok(Some(outcomes)) => Some(sums(&outcomes)),
            // Training does not depend on it.
            Err(error) => {
                tracing::warn!(
                    %next_round,
                    error = format!("{error:#}"),
                    "questions of evaluate.tasks were not scored, so this state has no scores"
                );
                None
            }
        };
        self.tasks.iter_mut().for_each(|tasks| tasks.scored = Some(next_round));
        scores.map_or(Ok(()), |scores| self.tell(FromDevice::Scores { next_round, scores }))
    }

    /// Scores the questions of the worker at `place` among `workers`; `None`: training was stopped.
    fn outcomes(&self, tasks: &RunTasks, place: usize, workers: usize) -> Result<Option<Vec<Outcome>>> {
        let generator = Generator::of(&self.engine)?;
        let judge = Judge { generator, reading: &tasks.reading, shows: false };
        let stopped = || self.barrier.is_stopped();
        let (mut outcomes, mut before) = (Vec::new(), 0);
        for file in &*tasks.files {
            // The places go on from file to file, so that all have equally many.
            let first = (place + workers - before % workers) % workers;
            before += file.questions.len();
            let outcome = judge.task(&file.part(first, workers), &stopped)?;
            if !outcome.is_whole() {
                return Ok(None);
            }
            outcomes.push(outcome);
        }
        Ok(Some(outcomes))
    }

    /// Forgets the scores of a state after `round`, from which training goes on.
    pub(super) fn score_again_after(&mut self, round: Round) {
        if let Some(tasks) = &mut self.tasks {
            tasks.scored = tasks.scored.filter(|scored| *scored <= round);
        }
    }
}

/// Returns one score of each kind.
fn sums(outcomes: &[Outcome]) -> Vec<TaskScore> {
    let mut sums: Vec<TaskScore> = Vec::new();
    for score in outcomes.iter().filter_map(Outcome::score) {
        match sums.iter_mut().find(|sum| sum.kind == score.kind) {
            Some(sum) => {
                sum.questions = sum.questions.saturating_add(score.questions);
                for (sum, right) in sum.right.iter_mut().zip(score.right) {
                    *sum = sum.saturating_add(right);
                }
            }
            None => sums.push(score),
        }
    }
    sums
}
