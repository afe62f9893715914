//! Training with all samples, or with selected ones.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::{SelectionMode, SelectiveBackwardConfig, TrainConfig};
use longhaul_common::model::{Evaluation, ModelSpec};
use longhaul_engine::{Batch, Engine};
use longhaul_worker::train::selection::{Candidate, Selector};

use super::samples::Images;
use crate::kit::clock::thread_time;
use crate::kit::progress;
use crate::kit::selected_step::step_on_selected;

/// Seed of all randomness.
pub const SEED: u64 = 7;

/// A training task.
pub struct Course<'a> {
    /// The model.
    pub spec: ModelSpec,
    /// Training images.
    pub images: &'a Images,
    /// Held-out images.
    pub held_out: Vec<Batch>,
    /// Images that a step trains on, approximately.
    pub batch: u64,
    /// Steps of [`Self::run`]; each `Way` has its own.
    pub steps: u64,
    /// Number of evaluations, which are not timed.
    pub evaluations: u64,
}

/// Result of a training.
pub struct Outcome {
    /// By evaluation: CPU time of the training before it, and its result.
    pub evaluations: Vec<(Duration, Evaluation)>,
    /// Share of examined images that were trained on, after the epochs with all.
    pub share: f64,
    /// Steps made.
    pub steps: u64,
}

impl Outcome {
    /// Returns the CPU seconds of all steps, and the last evaluation.
    pub fn last(&self) -> Result<(f64, Evaluation)> {
        let last = self.evaluations.last().context("a course ends with an evaluation")?;
        Ok((last.0.as_secs_f64(), last.1))
    }

    /// Returns the CPU seconds until the error was at most this.
    pub fn reached(&self, error: f64) -> Option<f64> {
        let is_there = |evaluation: &Evaluation| error_of(evaluation) <= error;
        self.evaluations
            .iter()
            .find(|(_, evaluation)| is_there(evaluation))
            .map(|(took, _)| took.as_secs_f64())
    }
}

/// Returns the error rate.
pub fn error_of(evaluation: &Evaluation) -> f64 {
    1.0 - f64::from(evaluation.accuracy.unwrap_or_default())
}

/// Returns the defaults with these values.
pub fn selective(beta: f64, mode: SelectionMode) -> SelectiveBackwardConfig {
    SelectiveBackwardConfig {
        beta,
        history: 1024,
        mode,
        stale_epochs: None,
        importance: false,
        full_epochs: 1,
    }
}

impl Course<'_> {
    /// Creates an engine with one thread.
    pub fn engine(&self, train: &TrainConfig, steps: u64) -> Result<Engine> {
        Ok(Engine::new(&self.spec, train, steps, SEED, tch::Device::Cpu, NonZeroU32::new(1))?)
    }

    /// Trains from the same initial parameters in all cases.
    pub fn run(&self, train: &TrainConfig, selective: Option<&SelectiveBackwardConfig>) -> Result<Outcome> {
        let mut training = Training::new(self, &Way { train, selective, steps: self.steps })?;
        training.advance_to(self.steps)?;
        Ok(training.into_outcome())
    }

    /// Trains several variants in alternating turns, so that other load affects all alike. Returns the
    /// outcomes, with the seconds per step in each turn.
    pub fn run_in_turns(&self, ways: &[Way<'_>], turns: u64) -> Result<Vec<(Outcome, Vec<f64>)>> {
        let mut trainings = ways.iter().map(|way| Training::new(self, way)).collect::<Result<Vec<_>>>()?;
        let mut seconds = vec![Vec::new(); trainings.len()];
        for turn in 1..=turns {
            for (training, seconds) in trainings.iter_mut().zip(&mut seconds) {
                let (before, first) = (training.took, training.step);
                training.advance_to(training.steps * turn / turns)?;
                let steps = training.step - first;
                if steps > 0 {
                    seconds.push((training.took - before).as_secs_f64() / steps as f64);
                }
            }
            progress(format!("{turn} of {turns} turns"));
        }
        Ok(trainings.into_iter().map(Training::into_outcome).zip(seconds).collect())
    }
}

/// A variant of a training.
pub struct Way<'a> {
    pub train: &'a TrainConfig,
    /// With it a step examines β + 1 times as many images, except in the first epoch.
    pub selective: Option<&'a SelectiveBackwardConfig>,
    /// Steps over which the learning rate decays.
    pub steps: u64,
}

/// A training in progress.
struct Training<'a> {
    course: &'a Course<'a>,
    engine: Engine,
    selector: Option<Selector>,
    /// Images examined per step after the first epoch.
    looked_at: u64,
    /// Total steps, and steps made.
    steps: u64,
    step: u64,
    /// Images examined.
    position: u64,
    took: Duration,
    evaluations: Vec<(Duration, Evaluation)>,
    /// After the first epoch: images examined, and trained on.
    given: u64,
    selected: u64,
}

impl<'a> Training<'a> {
    fn new(course: &'a Course<'a>, way: &Way<'_>) -> Result<Self> {
        let selective = way.selective;
        let more = selective.map_or(1.0, |config| config.beta + 1.0);
        Ok(Self {
            course,
            engine: course.engine(way.train, way.steps)?,
            selector: selective.map(|config| Selector::new(config, SEED, course.images.len())),
            looked_at: (course.batch as f64 * more).round() as u64,
            steps: way.steps,
            step: 0,
            position: 0,
            took: Duration::ZERO,
            evaluations: Vec::new(),
            given: 0,
            selected: 0,
        })
    }

    fn advance_to(&mut self, step: u64) -> Result<()> {
        (self.step..step).try_for_each(|_| self.advance())
    }

    /// Makes one step, and an evaluation if due.
    fn advance(&mut self) -> Result<()> {
        let (course, images) = (self.course, self.course.images);
        let began = thread_time();
        let is_first_epoch = self.position < images.len();
        let count = if is_first_epoch { course.batch } else { self.looked_at };
        let positions = self.position..self.position + count;
        self.position = positions.end;
        let all = images.batch(positions.clone(), SEED);
        let trained = match &mut self.selector {
            None => self.engine.train_step(self.step, &all)?.tokens,
            Some(selector) => {
                let visit = |position| Candidate { position, visit: images.visit(position, SEED) };
                let candidates: Vec<Candidate> = positions.map(visit).collect();
                step_on_selected(&mut self.engine, selector, self.step, &all, &candidates)?
            }
        };
        if !is_first_epoch {
            (self.given, self.selected) = (self.given + count, self.selected + trained);
        }
        self.took += thread_time().saturating_sub(began);
        self.step += 1;
        let due = |step: u64| step * course.evaluations / self.steps;
        if due(self.step) > due(self.step - 1) {
            let evaluation = self.engine.evaluate(&course.held_out)?.context("held-out images")?;
            self.evaluations.push((self.took, evaluation));
        }
        Ok(())
    }

    fn into_outcome(self) -> Outcome {
        let share = self.selected as f64 / f64::max(self.given as f64, 1.0);
        Outcome { evaluations: self.evaluations, share, steps: self.step }
    }
}
