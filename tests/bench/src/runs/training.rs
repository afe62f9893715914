//! Runs of a byte-level GPT on the example's text, by the real binaries.

use std::path::Path;

use anyhow::Result;
use longhaul_emulator::LinkConfig;
use longhaul_run_toml::{Gpt2, RunToml};
use longhaul_tests::cluster::{Cluster, ClusterConfig};
use tempfile::TempDir;

use crate::kit::checkout;

/// Keys of `[train]` where only speed counts; without gradient clipping, like the PyTorch script.
pub const SPEED: &str = "gradient_clip = 0.0\nevaluate_batches = 1";

/// Default sequences per worker and step.
const BATCH: usize = 8;

/// A shape of GPT-2 over bytes.
#[derive(Clone, Copy)]
pub struct Shape {
    pub layers: u64,
    pub width: u64,
    pub heads: u64,
    pub context: u64,
    pub tied_embeddings: bool,
}

/// A run with one thread per worker.
pub struct Training<'a> {
    pub shape: Shape,
    /// Further keys of `[model]`.
    pub model: &'a str,
    /// Workers per site.
    pub sites: &'a [usize],
    /// Keys of `[sync]`.
    pub sync: &'a str,
    /// Further keys of `[train]`.
    pub train: &'a str,
    pub copies: Copies<'a>,
    pub steps: u64,
    pub link: &'a LinkConfig,
    pub seed: u64,
    /// `None`: the demo's.
    pub text: Option<&'a Path>,
}

/// Division of replicas among workers.
#[derive(Clone, Copy)]
pub struct Copies<'a> {
    /// Keys of `[parallel]`.
    pub parallel: &'a str,
    /// Sequences per step for each worker.
    pub batch: usize,
    /// Sequences per micro-batch.
    pub micro_batch: usize,
}

impl Copies<'_> {
    /// One replica per worker.
    pub const WHOLE: Self = Self { parallel: "plan = \"fixed\"", batch: BATCH, micro_batch: BATCH };
}

/// The shape of `examples/demo.toml`.
pub const DEMO: Shape = Shape { layers: 4, width: 128, heads: 4, context: 128, tied_embeddings: true };

/// Returns the configuration of a run in a folder, with one thread per worker.
pub fn cluster_config(
    run_toml: RunToml,
    sites: &[usize],
    link: &LinkConfig,
    folder: &TempDir,
) -> ClusterConfig {
    ClusterConfig {
        run_toml: run_toml.to_string(),
        sites: sites.to_vec(),
        link: link.clone(),
        seed: 1,
        folder: folder.path().to_owned(),
        threads: 1,
        own_checkpoints: true,
        worker_arguments: Vec::new(),
        own_calendars: false,
    }
}

impl<'a> Training<'a> {
    /// Creates a run in which only speed counts, with one replica per worker.
    pub fn new(shape: Shape, sites: &'a [usize], sync: &'a str, steps: u64, link: &'a LinkConfig) -> Self {
        Self {
            shape,
            model: "",
            sites,
            sync,
            train: SPEED,
            copies: Copies::WHOLE,
            steps,
            link,
            seed: 1,
            text: None,
        }
    }

    /// Starts the run, in a folder removed with it.
    pub fn start(&self) -> Result<Cluster> {
        let folder = tempfile::tempdir()?;
        let config = cluster_config(self.run_toml(), self.sites, self.link, &folder);
        let config = ClusterConfig { seed: self.seed, own_checkpoints: false, ..config };
        Ok(Cluster::start(config)?.with_folder(folder))
    }

    /// With `auto` and one replica per worker, the plan decides on the warm-up alone: each worker has room for the whole model.
    fn parallel(&self) -> &'a str {
        let is_auto = self.sync.contains("preset = \"auto\"");
        let is_whole = self.copies.parallel == Copies::WHOLE.parallel;
        if is_auto && is_whole { "plan = \"auto\"" } else { self.copies.parallel }
    }

    /// What its coordinator is given.
    pub fn run_toml(&self) -> RunToml {
        let Shape { layers, width, heads, context, tied_embeddings } = self.shape;
        let Copies { batch, micro_batch, .. } = self.copies;
        let parallel = self.parallel();
        let workers: usize = self.sites.iter().sum();
        RunToml::new("bench")
            .workers(workers)
            .steps(self.steps)
            .set("run.seed", self.seed)
            .gpt2(Gpt2 { layers, width, heads, context })
            .set("model.tied_embeddings", tied_embeddings)
            .lines("model", self.model)
            .set("data.path", self.text.map_or_else(checkout::text, Path::to_owned))
            .batch(batch * workers)
            .set("train.micro_batch", micro_batch)
            .lines("train", self.train)
            .lines("parallel", parallel)
            .lines("sync", self.sync)
            .set("checkpoint.every_rounds", 0)
    }
}
