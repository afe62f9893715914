//! Training stalls due to checkpoints at the default interval.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Session, cluster_of, round};
use crate::kit::figures::figure;
use crate::kit::progress;
use crate::runs::gpt::{GPT, RUN_MAX};
use crate::runs::training::Training;

/// The model of 10.9 million parameters, with the closest possible rounds (a step), and those of the default
/// strategy.
const CASES: [(&str, &str); 2] = [("dense", "preset = \"dense\""), ("auto", "preset = \"auto\"")];
/// Five checkpoints, as the default is one per twenty rounds.
const ROUNDS: u64 = 100;

/// Runs each once.
pub fn measure(session: &Session) -> Result<()> {
    for (case, sync) in CASES {
        progress(format!("elastic/checkpoints: {case}"));
        let link = longhaul_emulator::LinkConfig::default();
        let sites = &[2];
        let run_toml = Training::new(GPT, sites, sync, 100_000, &link).run_toml().without("checkpoint");
        let mut cluster = cluster_of(run_toml, sites, &link)?;
        let rounds = session.quick.choose(ROUNDS / 5, ROUNDS);
        let status = cluster.wait_for("checkpoints", RUN_MAX, |status| {
            newest(status) >= rounds && status["checkpoint_stall_share"].is_number()
        })?;
        let share = status["checkpoint_stall_share"].as_f64().context("no share")?;
        let figures = [
            figure("checkpoint_stall_share", share, "ratio"),
            figure("rounds", round(&status) as f64, "rounds"),
            figure("newest_checkpoint", newest(&status) as f64, "rounds"),
        ];
        session.recorder.print_all(&format!("checkpoints, {case}"), figures);
    }
    Ok(())
}

/// Returns the round of the newest complete checkpoint.
fn newest(status: &Value) -> u64 {
    let checkpoints = status["checkpoints"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    checkpoints
        .iter()
        .filter(|one| one["error"].is_null())
        .filter_map(|one| one["next_round"].as_u64())
        .max()
        .unwrap_or(0)
}
