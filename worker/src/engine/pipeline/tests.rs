//! Ranks on threads against one engine that has the whole model.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

use longhaul_common::config::{SparseBackwardConfig, SparseMode, TrainConfig};
use longhaul_common::pipeline::{PipelineSchedule, Place};

use super::*;
use crate::engine::test_device;
use crate::models::tests::{tiny_gpt2, tiny_llama};

/// What a message is about.
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
        sent.map_err(|_| EngineError::Interrupted(format!("rank {to} is gone")))
    }

    fn hear(&mut self, about: About) -> Result<Tensor, EngineError> {
        loop {
            if let Some(values) = self.early.get_mut(&about).and_then(VecDeque::pop_front) {
                return Ok(values);
            }
            let (of, values) =
                self.inbox.recv().map_err(|_| EngineError::Interrupted("all others are gone".into()))?;
            self.early.entry(of).or_default().push_back(values);
        }
    }
}

impl Pipe for Channels {
    fn begin(&mut self) {}

    fn send(&mut self, task: Task, values: &Tensor) -> Result<(), EngineError> {
        let to = self.pipeline.receiver_of(Place { rank: self.rank, task }).unwrap();
        self.say(to, About::Task(task), values.copy())
    }

    fn receive(&mut self, task: Task, shape: &[i64]) -> Result<Tensor, EngineError> {
        let from = self.pipeline.input_of(Place { rank: self.rank, task }).unwrap();
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

/// One step after the other on an engine, to its losses, the loss of an evaluation, and its parameters by name.
pub type Trained = (Vec<f32>, f32, HashMap<String, Vec<f32>>);

const STEPS: u64 = 50;

pub fn train_config(gradient_clip: f64) -> TrainConfig {
    TrainConfig {
        micro_batch: 2,
        learning_rate: 1e-2,
        gradient_clip,
        warmup_steps: 5,
        ..TrainConfig::default()
    }
}

/// Of another seven or eight sequences each step: the last micro-batch of some is smaller.
fn batch(step: u64) -> Batch {
    let mut batch = Batch::new(16);
    for start in 0..8 - step as u32 % 2 {
        batch.push((0..=16).map(|i| (start * 11 + step as u32 * 5 + i * (1 + start % 3)) % 64));
    }
    batch
}

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

/// An engine with all of it.
pub fn whole(spec: &ModelSpec, gradient_clip: f64) -> Engine {
    engine(spec, &train_config(gradient_clip))
}

fn engine(spec: &ModelSpec, train: &TrainConfig) -> Engine {
    Engine::new(spec, train, 100, 1, test_device(), NonZeroU32::new(1)).unwrap()
}

/// Equal shares of the blocks, stage by stage.
fn stages(spec: &ModelSpec, stages: u32) -> Vec<Range<u32>> {
    let blocks = spec.head() + 1;
    (0..stages).map(|stage| stage * blocks / stages..(stage + 1) * blocks / stages).collect()
}

/// By rank, ways to talk to each other within one process.
pub fn channels(pipeline: &Pipeline) -> Vec<Box<dyn Pipe>> {
    Channels::between(pipeline).into_iter().map(|end| Box::new(end) as Box<dyn Pipe>).collect()
}

fn trained_in_pipeline(spec: &ModelSpec, train: &TrainConfig, pipeline: &Pipeline) -> Trained {
    trained_through(channels(pipeline), spec, train, pipeline)
}

/// What a rank has of the model.
pub fn part(spec: &ModelSpec, pipeline: &Pipeline, rank: u32) -> ModelSpec {
    let stages = stages(spec, pipeline.stages());
    let chunks = (0..pipeline.chunks).map(|chunk| stages[pipeline.stage(rank, chunk) as usize].clone());
    spec.part(chunks.collect())
}

/// The ranks of a pipeline, on threads, which talk to each other in these ways.
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

pub fn pipeline(schedule: PipelineSchedule, ranks: u32, chunks: u32) -> Pipeline {
    Pipeline { schedule, ranks, chunks, micro_batches: 4, in_flight: Vec::new() }
}

fn pipelines() -> [Pipeline; 4] {
    use PipelineSchedule::{Gpipe, Interleaved, OneForwardOneBackward, ZeroBubble};
    [(OneForwardOneBackward, 2, 1), (Gpipe, 3, 1), (Interleaved, 2, 2), (ZeroBubble, 4, 1)]
        .map(|(schedule, ranks, chunks)| pipeline(schedule, ranks, chunks))
}

/// Where nothing is summed in another order, whether ranks compute activations again or not.
#[test]
fn a_pipeline_makes_the_same_bits_as_the_whole_model() {
    let spec = tiny_llama();
    let (losses, evaluated, parameters) = trained(whole(&spec, 0.0));
    for (pipeline, recompute) in pipelines().iter().flat_map(|pipeline| [(pipeline, true), (pipeline, false)])
    {
        let train = TrainConfig { recompute, ..train_config(0.0) };
        let (own_losses, own_evaluated, own) = trained_in_pipeline(&spec, &train, pipeline);
        assert_eq!((own_losses, own_evaluated), (losses.clone(), evaluated), "{pipeline:?}, {recompute}");
        assert!(own == parameters, "{pipeline:?}, {recompute}");
    }
}

/// Whether the gradients of weights wait or not, each micro-batch chooses the same columns.
#[test]
fn a_pipeline_with_sparse_backward_passes_makes_the_same_bits_as_the_whole_model() {
    let spec = tiny_llama();
    let layers = vec!["*".to_owned(), spec.output_projection().to_owned()];
    let sparse_backward = Some(SparseBackwardConfig { keep: 0.2, mode: SparseMode::Columns, layers });
    let train = TrainConfig { sparse_backward, ..train_config(0.0) };
    let expected = trained(engine(&spec, &train));
    for pipeline in pipelines() {
        assert!(trained_in_pipeline(&spec, &train, &pipeline) == expected, "{pipeline:?}");
    }
}

/// The norm of the gradient, by which it is clipped, is summed stage by stage, and that of a tied embedding over all micro-batches for each of its two places: last bits
/// differ, and 50 steps of AdamW make 1e-4 of that.
#[test]
fn a_pipeline_with_clipping_and_a_tied_embedding_trains_as_the_whole_model_does() {
    let spec = tiny_gpt2();
    let (losses, evaluated, parameters) = trained(whole(&spec, 0.5));
    for pipeline in pipelines() {
        let train = TrainConfig { recompute: true, ..train_config(0.5) };
        let (own_losses, own_evaluated, own) = trained_in_pipeline(&spec, &train, &pipeline);
        let close = |a: f32, b: f32| (a - b).abs() <= 1e-4 * b.abs().max(1e-2);
        assert!(losses.iter().zip(&own_losses).all(|(a, b)| close(*a, *b)), "{pipeline:?}: {own_losses:?}");
        assert!(close(evaluated, own_evaluated), "{pipeline:?}: {own_evaluated} for {evaluated}");
        assert_eq!(own.len(), parameters.len());
        for (name, values) in &parameters {
            // The same for all keys, it moves no softmax: its gradient is rounding, which AdamW makes as long as any other.
            let keys = if name.ends_with("c_attn.bias") { 32..64 } else { 0..0 };
            let apart = values.iter().zip(&own[name]).enumerate().filter(|(at, _)| !keys.contains(at));
            let apart = apart.map(|(_, (a, b))| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-4, "{pipeline:?}: {name} is {apart} apart");
        }
    }
}

#[test]
fn a_part_that_is_not_that_of_its_place_is_refused() {
    let spec = tiny_gpt2();
    let pipeline = pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let both = stages(&spec, 2);
    let one = |stage: usize| vec![both[stage].clone()];
    // Too many chunks; the first part at the last place; the last one at the first.
    for (chunks, rank) in [(both.clone(), 1), (one(0), 1), (one(1), 0)] {
        let mut engine = engine(&spec.part(chunks.clone()), &train_config(0.0));
        let channels = Channels::between(&pipeline).pop().unwrap();
        let joined = engine.join(PipelineRank::new(pipeline.clone(), rank, Box::new(channels)));
        assert!(matches!(joined, Err(EngineError::Place { .. })), "{chunks:?} at {rank}");
        assert!(matches!(engine.train_step(0, &batch(0)), Err(EngineError::Part)));
    }
}

/// What a worker of a copy of the model has seen of steps on samples that are selected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selected {
    /// By step and sample, what all have agreed on.
    pub weights: Vec<f32>,
    /// Of training.
    pub losses: Vec<f32>,
    /// Of the samples that were selected, as training has told them; none where it tells others.
    pub of_samples: Vec<f32>,
}

/// Trains on the samples whose losses are above the mean, and on none in one of the steps. Who does not know losses proposes nonsense.
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

#[test]
fn ranks_of_a_pipeline_train_on_what_the_last_one_selects_also_where_that_is_nothing() {
    let spec = tiny_llama();
    for pipeline in pipelines() {
        let train = train_config(0.0);
        let expected = train_selected(engine(&spec, &train));
        assert!(expected.weights.contains(&0.0) && expected.weights.contains(&1.5));
        let ranks: Vec<_> = (0..)
            .zip(channels(&pipeline))
            .map(|(rank, pipe)| {
                let mut engine = engine(&part(&spec, &pipeline, rank), &train);
                engine.join(PipelineRank::new(pipeline.clone(), rank, pipe)).unwrap();
                std::thread::spawn(move || train_selected(engine))
            })
            .collect();
        for (rank, found) in ranks.into_iter().enumerate() {
            let found = found.join().unwrap();
            let is_last = rank as u32 + 1 == pipeline.ranks;
            let of_samples = if is_last { expected.of_samples.clone() } else { Vec::new() };
            assert_eq!(found, Selected { of_samples, ..expected.clone() }, "{pipeline:?}, rank {rank}");
        }
    }
}
