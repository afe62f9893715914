//! Time and memory of a round's stages on the host: two members in one process, without a link and without devices.
//!
//! `docs/benchmarks/round.md` defines all figures.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::config::RunConfig;
use longhaul_member::message::{ParameterChange, RoundUpdate};
use longhaul_member::sparse_ranges::SparseRanges;
use longhaul_member::testing::{Rig, Worker};
use longhaul_run_toml::{Gpt2, RunToml};

use crate::kit::args::{Only, Quick};
use crate::kit::memory;
use crate::kit::recorder::Recorder;

/// Time and memory of a round's stages on the host
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    #[command(flatten)]
    only: Only,
    /// Parameters of the model. Default: 67,108,864; with `--quick` 4,194,304
    #[arg(long)]
    values: Option<usize>,
}

/// Keys of `[sync]` for every case: rounds follow each other, as nothing is computed between them.
const EVERY: &str = "overlap = 0\nadapt = false";
/// Name, and keys of `[sync]`.
const CASES: [(&str, &str); 5] = [
    ("auto, 64 of 4096", "preset = \"auto\"\nwarmup_share = 0.0\nwarmup_rounds = 1"),
    ("muloco, two bits", "preset = \"muloco\"\nwarmup_share = 0.0"),
    ("sparse-local", "preset = \"sparse-local\"\nwarmup_share = 0.0"),
    ("streaming-diloco", "preset = \"streaming-diloco\"\nwarmup_share = 0.0"),
    ("dense", "preset = \"dense\"\nwarmup_share = 0.0"),
];
/// Rounds before the clock starts: every fragment has been exchanged, and all buffers are there.
const WARM_UP: u64 = 12;
const ROUNDS: u64 = 12;
const MEMBERS: usize = 2;
/// The parameters of a device, which the bench keeps for each member.
const DEVICE_BYTES: f64 = 4.0;

/// Measures every case.
pub fn run(args: &Args) -> Result<()> {
    let values = args.values.unwrap_or(args.quick.choose(1 << 22, 1 << 26));
    let recorder = Recorder::new("round").rounded_to(3);
    for (name, sync) in CASES.into_iter().filter(|(name, _)| args.only.wants(name)) {
        let before = memory::bytes("self", "RssAnon")?;
        let mut rig = start(sync, values)?;
        rounds(&mut rig, 0..WARM_UP);
        rig.spent();
        rig.workers.iter_mut().for_each(|worker| worker.busy = Duration::ZERO);
        let exchanged = rounds(&mut rig, WARM_UP..WARM_UP + ROUNDS);
        let bytes = (memory::bytes("self", "RssAnon")? - before) / (MEMBERS * values) as f64 - DEVICE_BYTES;
        let busy = rig.workers.iter().map(|worker| worker.busy).sum();
        for (stage, seconds) in stages(busy, rig.spent()) {
            let per_gb = seconds.as_secs_f64() / (exchanged * 4) as f64 * 1e9;
            recorder.print(name, stage, per_gb, "s/GB");
        }
        recorder.print(name, "bytes_per_parameter", bytes, "bytes");
    }
    Ok(())
}

/// Returns the stages' times, all, and the rest.
fn stages(busy: Duration, spent: BTreeMap<&'static str, Duration>) -> BTreeMap<&'static str, Duration> {
    let known = spent.values().sum();
    let mut stages = spent;
    stages.insert("contribute and release", busy.saturating_sub(known));
    stages.insert("all", busy);
    stages
}

fn start(sync: &str, values: usize) -> Result<Rig> {
    let run = RunToml::new("round")
        .workers(MEMBERS)
        .steps(100_000)
        .gpt2(Gpt2 { layers: 1, width: 16, heads: 2, context: 16 })
        .batch(8)
        .set("checkpoint.every_rounds", 0)
        .lines("sync", sync)
        .lines("sync", EVERY);
    let config = RunConfig::parse(&run.to_string()).context("the configuration of the bench")?;
    let mut rig = Rig::without_devices([1, 2], [0, 1], &config);
    for worker in &mut rig.workers {
        worker.build((0..values).map(|at| jitter(at, 0)).collect());
    }
    Ok(rig.training())
}

/// Makes these rounds; returns the exchanged values of all members.
fn rounds(rig: &mut Rig, rounds: std::ops::Range<u64>) -> usize {
    let mut exchanged = 0;
    for round in rounds {
        for worker in &mut rig.workers {
            let values = update_of(worker, round);
            exchanged += values.iter().map(|(range, _)| range.len()).sum::<usize>();
            worker.send_stretches(round, values, Vec::new(), 4);
        }
        for at in 0..MEMBERS {
            let update = rig.update(at, round);
            let worker = &mut rig.workers[at];
            let parameters = apply(worker, update);
            worker.applied(round, parameters);
        }
        for worker in &mut rig.workers {
            worker.begin(round + 1);
        }
    }
    exchanged
}

/// Plays a device: what a round contributes, after some training.
fn update_of(worker: &mut Worker, round: u64) -> SparseRanges {
    let (layout, schedule) = worker.layout_and_schedule();
    let seed = worker.member.worker.0 as usize * 7 + round as usize;
    if worker.sends_gradients(round) {
        return SparseRanges::whole((0..worker.local.len()).map(|at| jitter(at, seed)).collect());
    }
    let due = schedule.due_stretches(&layout, longhaul_common::id::Round(round));
    let mut values = SparseRanges::reusing(Vec::new(), due);
    for (range, values) in values.iter_mut() {
        for (at, (value, local)) in range.clone().zip(values.iter_mut().zip(&mut worker.local[range])) {
            *local += jitter(at, seed);
            *value = *local;
        }
    }
    values
}

/// Plays a device: applies an update; returns its parameters if they are common.
fn apply(worker: &mut Worker, update: RoundUpdate) -> Option<Vec<f32>> {
    match update {
        RoundUpdate::Parameters(ParameterChange { kept, values }) => {
            for (range, values) in values.iter() {
                let local = worker.local[range].iter_mut().zip(values);
                local.for_each(|(local, value)| *local = kept * *local + value);
            }
            None
        }
        RoundUpdate::Mean(mean) => {
            worker.local.iter_mut().zip(mean).for_each(|(local, mean)| *local -= 0.01 * mean);
            Some(worker.local.clone())
        }
    }
}

/// Returns a small number that differs by place and seed, a few of them ten times as large as most.
fn jitter(at: usize, seed: usize) -> f32 {
    let mixed = (at.wrapping_mul(0x9E37_79B9) ^ seed.wrapping_mul(0x85EB_CA6B)).wrapping_mul(0xC2B2_AE35);
    let uniform = (mixed >> 8 & 0xFFFF) as f32 / 65_536.0 - 0.5;
    1e-2 * uniform * uniform * uniform
}
