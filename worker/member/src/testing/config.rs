//! The configuration of a test's workers.

use longhaul_common::config::RunConfig;

const EXACT: &str = "preset = \"sparse-local\"\nwarmup_share = 0.0\nvalues = \"f32\"";
/// All unsent values wait.
const SPARSE: &str =
    "preset = \"sparse-local\"\nwarmup_share = 0.0\nvalues = \"f32\"\nkeep = 2\nerror_decay = 1.0";

/// Returns a configuration with these lines in `[sync]`.
pub(super) fn config(sync: &str) -> RunConfig {
    let deadlines = match sync.contains("deadline_") {
        true => "",
        false => "deadline_floor_ms = 1\ndeadline_ceiling_ms = 200",
    };
    let strategy = match (sync.contains("preset"), sync.contains("selection")) {
        (true, _) => "",
        (false, true) => EXACT,
        (false, false) => SPARSE,
    };
    RunConfig::parse(&format!(
        r#"
        [run]
        name = "rig"
        workers = 2
        steps = 1000
        [model]
        kind = "gpt2"
        layers = 1
        width = 16
        heads = 2
        context = 16
        [data]
        path = "none.txt"
        sequence_length = 16
        [train]
        batch = 8
        [checkpoint]
        every_rounds = 0
        [sync]
        {strategy}
        chunk = 16
        {deadlines}
        {sync}
        "#
    ))
    .unwrap()
}
