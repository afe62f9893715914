//! The run that chaos happens to.

use std::path::Path;

/// Samples of a step for each worker.
pub const BATCH: usize = 4;

/// A small model, so that a round takes a tenth of a second, and more steps than there is time for.
#[must_use]
pub fn run_toml(workers: usize) -> String {
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
opening_share = 0.0
every = 4
overlap = 1
keep = 256
fragment_values = 16384

[checkpoint]
every_rounds = 25

[faults]
silent_after_ms = 3000
reconnect_grace_ms = 8000
"#,
        batch = BATCH * workers,
    )
}
