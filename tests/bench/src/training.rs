//! Runs of a byte-level GPT on the example's text, by the real binaries.

use std::path::Path;

use anyhow::Result;
use longhaul_emulator::LinkConfig;
use longhaul_tests::cluster::{Cluster, ClusterConfig};

/// Sequences of a worker in each step, unless told otherwise.
const BATCH: usize = 8;

/// A shape of GPT-2 over bytes.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub layers: u64,
    /// Of the residual stream.
    pub width: u64,
    /// Of each block.
    pub heads: u64,
    /// Bytes of a sequence.
    pub context: u64,
    /// Whether the output projection is the embedding.
    pub tied_embeddings: bool,
}

/// A run with one thread for each worker.
pub struct Training<'a> {
    /// The model.
    pub shape: Shape,
    /// Workers in each site.
    pub sites: &'a [usize],
    /// Keys of `[sync]`.
    pub sync: &'a str,
    /// More keys of `[train]`.
    pub train: &'a str,
    /// How workers share copies of the model.
    pub copies: Copies<'a>,
    /// Of the run.
    pub steps: u64,
    /// Between the sites.
    pub link: &'a LinkConfig,
    /// Of the run and of the link.
    pub seed: u64,
}

/// How workers share copies of the model.
#[derive(Clone, Copy)]
pub struct Copies<'a> {
    /// Keys of `[parallel]`.
    pub parallel: &'a str,
    /// Sequences of a step, for each worker.
    pub batch: usize,
    /// Sequences that go through the model at once.
    pub micro_batch: usize,
}

impl Copies<'_> {
    /// Each worker has one.
    pub const WHOLE: Self = Self { parallel: "plan = \"fixed\"", batch: BATCH, micro_batch: BATCH };
}

impl Training<'_> {
    /// Starts the run, in a folder that goes with it.
    pub fn start(&self) -> Result<Cluster> {
        let folder = tempfile::tempdir()?;
        let config = ClusterConfig {
            run_toml: self.run_toml(),
            sites: self.sites.to_vec(),
            link: self.link.clone(),
            seed: self.seed,
            folder: folder.path().to_owned(),
            threads: 1,
            own_checkpoints: false,
            worker_arguments: Vec::new(),
            own_calendars: false,
        };
        Ok(Cluster::start(config)?.with_folder(folder))
    }

    /// What its coordinator is given.
    pub fn run_toml(&self) -> String {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/bible.en.txt.zst");
        let Self { sync, train, steps, seed, .. } = self;
        let Shape { layers, width, heads, context, tied_embeddings } = self.shape;
        let Copies { parallel, batch, micro_batch } = self.copies;
        let workers: usize = self.sites.iter().sum();
        let batch = batch * workers;
        format!(
            r#"
[run]
name = "bench"
workers = {workers}
steps = {steps}
seed = {seed}

[model]
kind = "gpt2"
layers = {layers}
width = {width}
heads = {heads}
context = {context}
tied_embeddings = {tied_embeddings}

[data]
path = {text:?}
sequence_length = {context}

[train]
batch = {batch}
micro_batch = {micro_batch}
{train}

[parallel]
{parallel}

[sync]
{sync}

[checkpoint]
every_rounds = 0
"#
        )
    }
}
