//! The run that chaos happens to.

use std::path::Path;

/// Samples of a step for each worker.
pub const BATCH: usize = 4;

/// How often a run exchanges what.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Steps from one exchange to the next.
    pub every: u64,
    /// Steps after which a result is waited for.
    pub overlap: u64,
}

impl Default for Pace {
    /// A round takes a tenth of a second.
    fn default() -> Self {
        Self { every: 4, overlap: 1 }
    }
}

/// Steps between checkpoints, about.
const CHECKPOINT_STEPS: u64 = 100;

/// A small model, and more steps than there is time for.
#[must_use]
pub fn run_toml(workers: usize, Pace { every, overlap }: Pace) -> String {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/bible.en.txt.zst");
    format!(
        r#"
[run]
name = "chaos"
workers = {workers}
steps = 10000000

[model]
kind = "gpt2"
layers = 2
width = 64
heads = 2
context = 64

[data]
path = {text:?}
sequence_length = 64

[train]
batch = {batch}
micro_batch = 4
learning_rate = 3e-3
warmup_steps = 5
evaluate_batches = 1

[parallel]
plan = "fixed"

[sync]
preset = "sparse-local"
warmup_share = 0.0
every = {every}
overlap = {overlap}
keep = 256
fragment_values = 16384

[checkpoint]
every_rounds = {checkpoint}

[faults]
silent_after_ms = 3000
reconnect_grace_ms = 8000
"#,
        batch = BATCH * workers,
        checkpoint = CHECKPOINT_STEPS.div_ceil(every),
    )
}
