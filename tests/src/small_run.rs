//! The run of chaos and of benchmarks in which training itself does not matter: a small model, on the text of the examples.

use std::path::{Path, PathBuf};

use longhaul_run_toml::{Gpt2, RunToml};

/// The text of the examples, packed.
#[must_use]
pub fn example_text() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/bible.en.txt.zst")
}

/// Every worker has the whole model. A round has `every` steps, and its result may be a step late.
pub fn small_run(name: &str, workers: usize, batch: usize, every: u64) -> RunToml {
    RunToml::new(name)
        .workers(workers)
        .batch(batch * workers)
        .gpt2(Gpt2::SMALL)
        .set("data.path", example_text())
        .set("parallel.plan", "fixed")
        .lines("sync", "preset = \"sparse-local\"\nwarmup_share = 0.0\noverlap = 1")
        .set("sync.every", every)
}
