//! The configuration of a test's workers.

use longhaul_common::config::RunConfig;
use longhaul_run_toml::{Gpt2, RunToml};

const EXACT: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0\nvalues = \"f32\"\nresult = \"bundle\"";
/// All unsent values wait.
const SPARSE: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0\nvalues = \"f32\"\nresult = \"bundle\"\nkeep = 2\nerror_decay = 1.0";

/// Returns a configuration with these lines in `[sync]`.
pub(super) fn config(sync: &str) -> RunConfig {
    let strategy = match (sync.contains("preset"), sync.contains("selection")) {
        (true, _) => "",
        (false, true) => EXACT,
        (false, false) => SPARSE,
    };
    let run = RunToml::new("rig")
        .workers(2)
        .steps(1000)
        .gpt2(Gpt2 { layers: 1, width: 16, heads: 2, context: 16 })
        .batch(8)
        .set("checkpoint.every_rounds", 0)
        .lines("sync", strategy)
        .lines("sync", "chunk = 16\ndeadline_floor_ms = 1\ndeadline_ceiling_ms = 200")
        .lines("sync", sync);
    RunConfig::parse(&run.to_string()).unwrap()
}
