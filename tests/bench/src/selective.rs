//! CPU seconds until a small byte-level model reaches a given loss, with selected samples and with all; and
//! bytes of gradients in columns.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::{
    DataConfig, ModelConfig, ModelKind, SelectionMode, SelectiveBackwardConfig, SparseBackwardConfig,
    SparseMode, TrainConfig, ValueFormat,
};
use longhaul_common::model::ModelSpec;
use longhaul_data::{Dataset, Tokenizer, Work};
use longhaul_engine::{Batch, Engine, keep_freed_memory};
use longhaul_proto::codec::{CodecSpec, Encoder, Selection};
use longhaul_worker::train::selection::{Candidate, Selector};
use serde_json::json;
use tempfile::TempDir;

use crate::kit::args::Quick;
use crate::kit::checkout;
use crate::kit::clock::thread_time;
use crate::kit::figures::figure;
use crate::kit::recorder::Recorder;
use crate::kit::selected_step::step_on_selected;

/// Samples that a step trains on, approximately.
const TRAINED: f64 = 32.0;
const SEQUENCE: u32 = 64;
const SEED: u64 = 7;
/// Held-out share of the text, so that the rest takes several epochs.
const HELD_OUT: f64 = 0.9;

/// Training on selected samples, and gradients in columns
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Measures bytes of columns, then time to a loss.
pub fn run(args: &Args) -> Result<()> {
    keep_freed_memory();
    let (steps, evaluate_every) = args.quick.choose((20, 10), (1500, 50));
    let bench = Bench::new(steps, evaluate_every)?;
    bench.columns()?;
    bench.samples()
}

struct Bench {
    /// The prepared text, which is read during training.
    _cache: TempDir,
    data: Dataset,
    validation: Vec<Batch>,
    spec: ModelSpec,
    /// Steps of the training with all samples.
    steps: u64,
    evaluate_every: u64,
}

/// Result of a training.
struct Trained {
    /// By evaluation: seconds of training before it, and the loss.
    losses: Vec<(Duration, f32)>,
    /// Share of the examined samples.
    share: f64,
}

impl Bench {
    fn new(steps: u64, evaluate_every: u64) -> Result<Self> {
        let config =
            json!({ "path": checkout::text(), "sequence_length": SEQUENCE, "validation_share": HELD_OUT });
        let config: DataConfig = serde_json::from_value(config)?;
        let cache = tempfile::tempdir()?;
        let data =
            Dataset::open(&config, &Tokenizer::load(&config.tokenizer)?, cache.path(), &Work::default())?;
        let validation =
            data.validation(16, 16).map(|batch| batch.map(Batch::from)).collect::<Result<_, _>>()?;
        let model = ModelConfig {
            layers: 4,
            width: 128,
            heads: 4,
            context: SEQUENCE,
            vocabulary: Some(256),
            ..ModelConfig::of(ModelKind::Gpt2)
        };
        Ok(Self {
            _cache: cache,
            data,
            validation,
            spec: ModelSpec::resolve(&model, 256)?,
            steps,
            evaluate_every,
        })
    }

    fn engine(&self, train: &TrainConfig) -> Result<Engine> {
        Ok(Engine::new(&self.spec, train, self.steps, SEED, tch::Device::Cpu, NonZeroU32::new(1))?)
    }

    /// Measures the time to the final loss of training with all samples.
    fn samples(&self) -> Result<()> {
        let all = self.train(None)?;
        let target = all.losses.last().context("an evaluation")?.1;
        self.print("all", &all, target, &all);
        for mode in [SelectionMode::Fresh, SelectionMode::Stale] {
            for beta in [0.5, 1.0, 2.0, 3.0] {
                let config = SelectiveBackwardConfig {
                    beta,
                    history: 1024,
                    mode,
                    stale_epochs: None,
                    importance: false,
                    full_epochs: 1,
                };
                let name = format!("beta {beta} {mode:?}").to_lowercase();
                self.print(&name, &self.train(Some(&config))?, target, &all);
            }
        }
        Ok(())
    }

    /// Trains the same number of steps and samples from the same parameters. Evaluations are not timed.
    fn train(&self, selective: Option<&SelectiveBackwardConfig>) -> Result<Trained> {
        let train = TrainConfig { learning_rate: 3e-3, micro_batch: 32, ..TrainConfig::default() };
        let mut engine = self.engine(&train)?;
        let mut selector = selective.map(|config| Selector::new(config, SEED, self.data.samples()));
        let looked_at = (TRAINED * selective.map_or(1.0, |config| config.beta + 1.0)).round() as u64;
        let (mut took, mut losses, mut position) = (Duration::ZERO, Vec::new(), 0);
        let (mut given, mut selected) = (0, 0);
        for step in 0..self.steps {
            let began = thread_time();
            let is_first_epoch = position < self.data.samples();
            let count = if is_first_epoch { TRAINED as u64 } else { looked_at };
            let candidates: Vec<Candidate> = (position..position + count)
                .map(|position| Candidate { position, visit: self.data.visit(position, SEED) })
                .collect();
            let all = self.data.batch(position..position + count, SEED)?.into();
            position += count;
            let trained = match &mut selector {
                None => u64::from(engine.train_step(step, &all)?.tokens > 0) * count,
                Some(selector) => step_on_selected(&mut engine, selector, step, &all, &candidates)?,
            };
            if !is_first_epoch {
                (given, selected) = (given + count, selected + trained);
            }
            took += thread_time().saturating_sub(began);
            if (step + 1) % self.evaluate_every == 0 {
                losses.push((took, engine.evaluate(&self.validation)?.context("held-out text")?.loss));
            }
        }
        Ok(Trained { losses, share: selected as f64 / f64::max(given as f64, 1.0) })
    }

    fn print(&self, case: &str, trained: &Trained, target: f32, all: &Trained) {
        let reached = |trained: &Trained| {
            trained.losses.iter().find(|(_, loss)| *loss <= target).map(|(took, _)| took.as_secs_f64())
        };
        let (own, others) = (reached(trained), reached(all));
        let last = trained.losses.last().copied().unwrap_or_default();
        // The target may not have been reached.
        let figures = [
            ("seconds_to_target", own, "s"),
            ("speedup_to_target", others.zip(own).map(|(all, own)| all / own), "ratio"),
            ("seconds", Some(last.0.as_secs_f64()), "s"),
            ("validation_loss", Some(f64::from(last.1)), "nats/token"),
            ("selected_share", Some(trained.share), "ratio"),
        ];
        let recorder = Recorder::new("selection/samples").with("steps", self.steps).with("target", target);
        recorder.print_known(case, &figures);
    }

    /// Measures the bytes of a gradient's frames in f32, where products use these shares of their columns.
    fn columns(&self) -> Result<()> {
        for keep in [0.04, 0.06, 0.1, 0.16] {
            let sparse =
                SparseBackwardConfig { keep, mode: SparseMode::Columns, layers: vec!["*".to_owned()] };
            let sent_of_weights: u64 = self
                .spec
                .sparse_products(&sparse)
                .iter()
                .map(|(product, kept)| product.inputs * u64::from(kept.get()))
                .sum();
            let weights: u64 = self
                .spec
                .sparse_products(&sparse)
                .iter()
                .map(|(product, _)| product.inputs * product.outputs)
                .sum();
            let train =
                TrainConfig { sparse_backward: Some(sparse), micro_batch: 32, ..TrainConfig::default() };
            let mut engine = self.engine(&train)?;
            engine.collect_columns()?;
            let (_, gradient) = engine.column_gradient(&self.data.batch(0..TRAINED as u64, SEED)?.into())?;
            let update = gradient.cut(0..gradient.len).context("a gradient of this model")?;
            let mut frame = Vec::new();
            Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32))?
                .encode_columns(0, &update, None, 1.0, &mut frame)?;
            let outside = 4 * (gradient.len as u64 - weights);
            let of_weights = frame.len() as f64 - outside as f64;
            let figures = [
                figure("bytes_ratio", frame.len() as f64 / (4 * gradient.len) as f64, "ratio"),
                figure("bytes_ratio_of_weights", of_weights / (4 * weights) as f64, "ratio"),
                figure("kept_of_weights", sent_of_weights as f64 / weights as f64, "ratio"),
            ];
            Recorder::new("selection/columns").print_all(&format!("keep {keep}"), figures);
        }
        Ok(())
    }
}
