//! Training with all samples, or with those that are selected.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use longhaul_common::config::{SelectionMode, SelectiveBackwardConfig, TrainConfig};
use longhaul_common::model::ModelSpec;
use longhaul_worker::data::Batch;
use longhaul_worker::engine::{Engine, Evaluation};
use longhaul_worker::train::selection::{Candidate, Selector};

use crate::images::Images;
use crate::selected_step::step_on_selected;

/// Everything random follows from it.
pub const SEED: u64 = 7;

/// What is trained, and how long.
pub struct Course<'a> {
    /// The model.
    pub spec: ModelSpec,
    /// What is trained on.
    pub images: &'a Images,
    /// What it is judged by.
    pub held_out: Vec<Batch>,
    /// Images that a step trains on, about.
    pub batch: u64,
    /// Steps, whichever images are trained on.
    pub steps: u64,
    /// Steps from one evaluation to the next, which take no time.
    pub evaluate_every: u64,
}

/// What became of it.
pub struct Outcome {
    /// By evaluation: seconds of training before it, and what it said.
    pub evaluations: Vec<(Duration, Evaluation)>,
    /// The share of the images that were looked at, behind the epochs in which all are, that were trained on.
    pub share: f64,
}

impl Outcome {
    /// Seconds of all steps, and the last evaluation.
    pub fn last(&self) -> Result<(f64, Evaluation)> {
        let last = self.evaluations.last().context("a course ends with an evaluation")?;
        Ok((last.0.as_secs_f64(), last.1))
    }

    /// Seconds until at most this share of the images was not told.
    pub fn reached(&self, error: f64) -> Option<f64> {
        let is_there = |evaluation: &Evaluation| error_of(evaluation) <= error;
        self.evaluations
            .iter()
            .find(|(_, evaluation)| is_there(evaluation))
            .map(|(took, _)| took.as_secs_f64())
    }
}

/// The share of the images that is not told.
pub fn error_of(evaluation: &Evaluation) -> f64 {
    1.0 - f64::from(evaluation.accuracy.unwrap_or_default())
}

/// With defaults but for these.
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
    /// An engine with one thread.
    pub fn engine(&self, train: &TrainConfig) -> Result<Engine> {
        Ok(Engine::new(&self.spec, train, self.steps, SEED, tch::Device::Cpu, NonZeroU32::new(1))?)
    }

    /// From the same parameters whatever is asked for. With selection a step looks at β + 1 times as many images, but in the first epoch.
    pub fn run(&self, train: &TrainConfig, selective: Option<&SelectiveBackwardConfig>) -> Result<Outcome> {
        let mut engine = self.engine(train)?;
        let mut selector = selective.map(|config| Selector::new(config, SEED, self.images.len()));
        let more = selective.map_or(1.0, |config| config.beta + 1.0);
        let looked_at = (self.batch as f64 * more).round() as u64;
        let (mut took, mut evaluations, mut position) = (Duration::ZERO, Vec::new(), 0);
        let (mut given, mut selected) = (0, 0);
        for step in 0..self.steps {
            let began = Instant::now();
            let is_first_epoch = position < self.images.len();
            let positions = position..position + if is_first_epoch { self.batch } else { looked_at };
            position = positions.end;
            let all = self.images.batch(positions.clone(), SEED);
            let trained = match &mut selector {
                None => engine.train_step(step, &all)?.tokens,
                Some(selector) => {
                    let visit = |position| Candidate { position, visit: self.images.visit(position, SEED) };
                    let candidates: Vec<Candidate> = positions.clone().map(visit).collect();
                    step_on_selected(&mut engine, selector, step, &all, &candidates)?
                }
            };
            if !is_first_epoch {
                (given, selected) = (given + (positions.end - positions.start), selected + trained);
            }
            took += began.elapsed();
            if (step + 1) % self.evaluate_every == 0 || step + 1 == self.steps {
                evaluations.push((took, engine.evaluate(&self.held_out)?.context("held-out images")?));
            }
        }
        Ok(Outcome { evaluations, share: selected as f64 / f64::max(given as f64, 1.0) })
    }
}
