//! Engines and pipelines of threads, for tests of the transfers between them.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "this is all test code")]

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use longhaul_common::config::TrainConfig;
use longhaul_common::model::{ModelSpec, draw_parameters};
use longhaul_common::pipeline::{Pipeline, PipelineSchedule, RankTask, Task};
use longhaul_data::HostBatch;
use tch::{Device, Tensor};

use crate::models::FrozenWeights;
use crate::{Batch, Engine, EngineError, Gift, Pipe, PipelineRank, choose_device};

/// Returns the device of tests: the CPU, or the one in `LONGHAUL_TEST_DEVICE`.
#[must_use]
pub fn test_device() -> Device {
    choose_device(&std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned())).unwrap()
}

/// Subject of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum About {
    Task(Task),
    Number(u32),
    Announced,
    Carried(u32),
}

/// Channels between the ranks of one process.
struct Channels {
    pipeline: Pipeline,
    rank: u32,
    to: Vec<Sender<(About, Tensor)>>,
    inbox: Receiver<(About, Tensor)>,
    early: HashMap<About, VecDeque<Tensor>>,
}

impl Channels {
    fn between(pipeline: &Pipeline) -> Vec<Self> {
        let (to, inboxes): (Vec<_>, Vec<_>) = (0..pipeline.ranks).map(|_| channel()).unzip();
        let end = |(rank, inbox)| {
            let (pipeline, to) = (pipeline.clone(), to.clone());
            Self { pipeline, rank, to, inbox, early: HashMap::new() }
        };
        (0..).zip(inboxes).map(end).collect()
    }

    fn say(&self, to: u32, about: About, values: Tensor) -> Result<(), EngineError> {
        let sent = self.to[to as usize].send((about, values));
        sent.map_err(|_| EngineError::Interrupted(format!("rank {to} has ended")))
    }

    fn hear(&mut self, about: About) -> Result<Tensor, EngineError> {
        loop {
            if let Some(values) = self.early.get_mut(&about).and_then(VecDeque::pop_front) {
                return Ok(values);
            }
            let (of, values) =
                self.inbox.recv().map_err(|_| EngineError::Interrupted("all others have ended".into()))?;
            self.early.entry(of).or_default().push_back(values);
        }
    }
}

impl Pipe for Channels {
    fn begin(&mut self) {}

    fn send(&mut self, task: Task, values: &Tensor) -> Result<(), EngineError> {
        let to = self.pipeline.receiver_of(RankTask { rank: self.rank, task }).unwrap();
        self.say(to, About::Task(task), values.copy())
    }

    fn receive(&mut self, task: Task, shape: &[i64]) -> Result<Tensor, EngineError> {
        let from = self.pipeline.input_of(RankTask { rank: self.rank, task }).unwrap();
        let values = self.hear(About::Task(from.task))?;
        assert_eq!(values.size(), shape);
        Ok(values)
    }

    fn total(&mut self, own: f64) -> Result<f64, EngineError> {
        for to in 0..self.pipeline.ranks {
            self.say(to, About::Number(self.rank), Tensor::from_slice(&[own]))?;
        }
        let numbers =
            (0..self.pipeline.ranks).map(|from| Ok(self.hear(About::Number(from))?.double_value(&[0])));
        numbers.sum()
    }

    fn announce(&mut self, from: u32, own: f64) -> Result<f64, EngineError> {
        if self.rank != from {
            return Ok(self.hear(About::Announced)?.double_value(&[0]));
        }
        for to in (0..self.pipeline.ranks).filter(|&to| to != from) {
            self.say(to, About::Announced, Tensor::from_slice(&[own]))?;
        }
        Ok(own)
    }

    fn give(&mut self, to: u32, _: Gift, values: &Tensor) -> Result<(), EngineError> {
        self.say(to, About::Carried(self.rank), values.copy())
    }

    fn take(&mut self, from: u32, _: Gift, _: &[i64]) -> Result<Tensor, EngineError> {
        self.hear(About::Carried(from))
    }
}

/// A training's losses, the loss of an evaluation, and the parameters by name.
pub type Trained = (Vec<f32>, f32, HashMap<String, Vec<f32>>);

const STEPS: u64 = 20;

/// Four sequences a step in micro-batches of two.
#[must_use]
pub fn train_config(gradient_clip: f64) -> TrainConfig {
    TrainConfig {
        micro_batch: 2,
        learning_rate: 1e-2,
        gradient_clip,
        warmup_steps: 5,
        ..TrainConfig::default()
    }
}

/// Seven or eight other sequences each step: the last micro-batch of some is smaller.
#[must_use]
pub fn batch(step: u64) -> Batch {
    let mut batch = HostBatch::new(16);
    let sequences = 8 - step as u32 % 2;
    for start in 0..sequences {
        batch.push((0..=16).map(|i| (start * 11 + step as u32 * 5 + i * (1 + start % 3)) % 64));
    }
    batch.seeded((0..sequences).map(|at| step * 8 + u64::from(at)).collect()).into()
}

/// Trains 20 steps, and evaluates.
#[must_use]
pub fn trained(mut engine: Engine) -> Trained {
    let losses = (0..STEPS).map(|step| engine.train_step(step, &batch(step)).unwrap().loss).collect();
    // Forty micro-batches: ranks wait for each other now and then.
    let evaluated = engine.evaluate((100..110).map(batch)).unwrap().unwrap().loss;
    let mut flat = Vec::new();
    engine.parameters_to_host(&mut flat).unwrap();
    let mut rest = flat.as_slice();
    let mut cut = |count: u64| {
        let (part, after) = rest.split_at(count as usize);
        rest = after;
        part.to_vec()
    };
    let named =
        engine.spec().parameters().into_iter().map(|tensor| (tensor.name.clone(), cut(tensor.count())));
    (losses, evaluated, named.collect())
}

/// Creates an engine with the whole model.
#[must_use]
pub fn whole(spec: &ModelSpec, gradient_clip: f64) -> Engine {
    engine(spec, &train_config(gradient_clip))
}

/// Creates an engine with the present part; frozen tensors are drawn as well.
#[must_use]
pub fn engine(spec: &ModelSpec, train: &TrainConfig) -> Engine {
    let whole = spec.untuned().whole();
    let mut frozen = FrozenWeights::of(spec, test_device());
    let (drawn, kept, mut start) = (draw_parameters(&whole, 1), spec.frozen(), 0);
    for tensor in whole.parameters() {
        let end = start + tensor.count() as usize;
        if kept.iter().any(|kept| kept.name == tensor.name) {
            frozen.add(&tensor, &drawn[start..end]).unwrap();
        }
        start = end;
    }
    let threads = NonZeroU32::new(1);
    Engine::with_parameters(spec, train, 100, &draw_parameters(spec, 1), frozen, threads).unwrap()
}

/// Returns equal shares of the blocks, stage by stage.
#[must_use]
pub fn stages(spec: &ModelSpec, stages: u32) -> Vec<Range<u32>> {
    let blocks = spec.head() + 1;
    (0..stages).map(|stage| stage * blocks / stages..(stage + 1) * blocks / stages).collect()
}

/// Returns the pipes of all ranks within one process.
#[must_use]
pub fn channels(pipeline: &Pipeline) -> Vec<Box<dyn Pipe>> {
    Channels::between(pipeline).into_iter().map(|end| Box::new(end) as Box<dyn Pipe>).collect()
}

/// Returns a rank's part of the model.
#[must_use]
pub fn part(spec: &ModelSpec, pipeline: &Pipeline, rank: u32) -> ModelSpec {
    let stages = stages(spec, pipeline.stages());
    let chunks = (0..pipeline.chunks).map(|chunk| stages[pipeline.stage(rank, chunk) as usize].clone());
    spec.part(chunks.collect())
}

/// Trains the ranks of a pipeline, on threads, over these pipes.
#[must_use]
pub fn trained_through(
    pipes: Vec<Box<dyn Pipe>>,
    spec: &ModelSpec,
    train: &TrainConfig,
    pipeline: &Pipeline,
) -> Trained {
    let ranks: Vec<_> = (0..)
        .zip(pipes)
        .map(|(rank, pipe)| {
            let mut engine = engine(&part(spec, pipeline, rank), train);
            engine.join(PipelineRank::new(pipeline.clone(), rank, pipe)).unwrap();
            std::thread::spawn(move || trained(engine))
        })
        .collect();
    let mut all: Vec<Trained> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!(all.iter().all(|(losses, evaluated, _)| (losses, evaluated) == (&all[0].0, &all[0].1)));
    let parameters = all.iter_mut().flat_map(|(.., parameters)| parameters.drain()).collect();
    let (losses, evaluated, _) = all.pop().unwrap();
    (losses, evaluated, parameters)
}

/// Of four micro-batches.
#[must_use]
pub fn pipeline(schedule: PipelineSchedule, ranks: u32, chunks: u32) -> Pipeline {
    Pipeline { schedule, ranks, chunks, micro_batches: 4, in_flight: Vec::new() }
}

/// Record of a worker of a replica about steps on selected samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selected {
    /// Agreed weights, by step and sample.
    pub weights: Vec<f32>,
    /// Losses of training.
    pub losses: Vec<f32>,
    /// Losses of selected samples, from training; empty on other ranks.
    pub of_samples: Vec<f32>,
}

/// Trains on the samples with losses above the mean, and on none in one of the steps. Workers without losses propose nonsense.
#[must_use]
pub fn train_selected(mut engine: Engine) -> Selected {
    let mut seen = Selected::default();
    for step in 0..6 {
        let all = batch(step);
        let losses = engine.sample_losses(&all).unwrap();
        let mean = losses.iter().sum::<f32>() / losses.len() as f32;
        let weight = |loss: &f32| if step != 3 && *loss > mean { 1.5 } else { 0.0 };
        let mut weights: Vec<f32> = match losses.len() {
            0 => vec![9.0; all.sequences()],
            _ => losses.iter().map(weight).collect(),
        };
        engine.agree(&mut weights).unwrap();
        let outcome = engine.train_step(step, &all.selected(&weights)).unwrap();
        seen.weights.extend(weights);
        seen.losses.push(outcome.loss);
        seen.of_samples.extend(outcome.losses);
    }
    seen
}
