//! The run under fault injection.

use longhaul_run_toml::RunToml;

use crate::small_run::small_run;

/// Samples per step for each worker.
pub const BATCH: usize = 4;

/// Pace of exchanges.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Steps from one exchange to the next.
    pub every: u64,
    /// Steps until a result is awaited.
    pub overlap: u64,
}

impl Default for Pace {
    /// A round takes a tenth of a second.
    fn default() -> Self {
        Self { every: 4, overlap: 1 }
    }
}

/// Approximate steps between checkpoints.
const CHECKPOINT_STEPS: u64 = 100;

/// A small model, and more steps than there is time for.
pub fn run_toml(workers: usize, Pace { every, overlap }: Pace) -> RunToml {
    small_run("chaos", workers, BATCH, every)
        .steps(10_000_000)
        .lines("train", "micro_batch = 4\nlearning_rate = 3e-3\nwarmup_steps = 5\nevaluate_batches = 1")
        .lines("sync", "keep = 256\nfragment_values = 16384")
        .set("sync.overlap", overlap)
        .set("checkpoint.every_rounds", CHECKPOINT_STEPS.div_ceil(every))
        .lines("faults", "silent_after_ms = 3000\nreconnect_grace_ms = 8000")
}
