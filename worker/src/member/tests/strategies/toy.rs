//! The run trained for real and computed by the reference: a model of 55,232 parameters on a text of sums.

use std::num::NonZeroU32;
use std::path::Path;

use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_common::sampler::shares;
use longhaul_data::{Dataset, Tokenizer, Work};
use longhaul_engine::Engine;
use longhaul_engine::testing::test_device;
use longhaul_run_toml::{Gpt2, RunToml};

/// The toy text's vocabulary, which includes all of its characters.
const VOCABULARY: u32 = 64;

/// The parts of a configuration that differ between cases.
#[derive(Clone, Copy)]
pub struct Toy {
    pub members: usize,
    pub steps: u64,
    /// Lines of `[train]` and `[sync]`; if empty, the toy's own learning rate and fragments.
    pub train: &'static str,
    pub sync: &'static str,
    /// Whether the reference adopts the real parameters after each step that is identical on all members. Otherwise, updates from the sign of values that
    /// are zero except for rounding would diverge.
    pub guided: bool,
}

impl Toy {
    /// ε is as large as the gradients. With a smaller one, gradients that are zero except for rounding, such as those of key biases, would move as far as the
    /// others, and all first updates would be equally long, so that rounding decides which are sent. Eight samples are not divisible by three, so members
    /// have unequal weights: the third one has joined a run of two.
    pub fn config(&self) -> RunConfig {
        let train = if self.train.is_empty() { "learning_rate = 3e-3\nwarmup_steps = 2" } else { self.train };
        let run = RunToml::new("toy")
            .workers(2)
            .steps(self.steps)
            .gpt2(Gpt2 { layers: 1, width: 64, heads: 2, context: 16 })
            .set("data.path", "text.txt")
            .batch(8)
            .lines(
                "train",
                "gradient_clip = 0.5\nfinal_learning_rate_share = 0.5\nweight_decay = 0.1\nepsilon = 1e-3",
            )
            .lines("train", train)
            .set("checkpoint.every_rounds", 0)
            .lines("sync", "deadline_floor_ms = 60000\ndeadline_ceiling_ms = 60000\nfragment_values = 16384")
            .lines("sync", self.sync);
        let mut config = RunConfig::parse(&run.to_string()).unwrap();
        config.run.workers = self.members as u32;
        config
    }
}

pub fn spec(config: &RunConfig) -> ModelSpec {
    ModelSpec::resolve(&config.model, VOCABULARY).unwrap()
}

/// Writes the toy's text to `folder`.
pub fn dataset(config: &RunConfig, folder: &Path) -> Dataset {
    let path = folder.join("text.txt");
    let line = |n: u32| format!("{}+{}={}\n", n * 7 % 83, n % 19, n * 7 % 83 + n % 19);
    std::fs::write(&path, (0..600).map(line).collect::<String>()).unwrap();
    let data = config.data.found_at(&path);
    Dataset::open(&data, &Tokenizer::Bytes, &folder.join("cache"), &Work::default()).unwrap()
}

pub fn engine(config: &RunConfig) -> Engine {
    let (run, one) = (&config.run, NonZeroU32::new(1));
    Engine::new(&spec(config), &config.train, run.steps, run.seed, test_device(), one).unwrap()
}

/// The assignment of samples and their gradients, which the reference takes from the code under test. `tests/integration/pytorch.rs` compares gradients
/// with PyTorch's.
pub struct Oracle {
    engine: Engine,
    data: Dataset,
    seed: u64,
    batch: u64,
    members: usize,
}

impl Oracle {
    pub fn new(config: &RunConfig, folder: &Path) -> Self {
        let (engine, data) = (engine(config), dataset(config, folder));
        let (batch, members) = (u64::from(config.train.batch), config.run.workers as usize);
        Self { engine, data, seed: config.run.seed, batch, members }
    }

    /// The parameters drawn from the seed.
    pub fn start(&self) -> Vec<f64> {
        let mut parameters = Vec::new();
        self.engine.parameters_to_host(&mut parameters).unwrap();
        parameters.into_iter().map(f64::from).collect()
    }

    /// Each member's share of the batch in a step.
    pub fn weights(&self) -> Vec<f64> {
        let samples = shares(self.batch, self.members).into_iter().map(|share| share.end - share.start);
        samples.map(|samples| samples as f64 / self.batch as f64).collect()
    }

    /// The gradient of a member's part of a step.
    pub fn gradient(&mut self, parameters: &[f64], step: u64, member: usize) -> Vec<f64> {
        let parameters: Vec<f32> = parameters.iter().map(|value| *value as f32).collect();
        self.engine.load_parameters(&parameters).unwrap();
        let share = &shares(self.batch, self.members)[member];
        let positions = (step * self.batch + share.start)..(step * self.batch + share.end);
        let mut gradient = Vec::new();
        let batch = self.data.batch(positions, self.seed).unwrap();
        self.engine.gradient(&batch.into(), &mut gradient).unwrap();
        gradient.into_iter().map(f64::from).collect()
    }
}
