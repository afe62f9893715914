//! Cost of membership changes and attacks for a run, with the real binaries. One JSON line per figure goes to
//! stdout, progress to stderr; `docs/benchmarks/elastic.md` explains them.

mod checkpoints;
mod cut;
mod death;
mod heartbeats;
mod hostile;
mod idle;
mod joining;
mod leader;
mod restart;

use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use longhaul_emulator::LinkConfig;
use longhaul_run_toml::RunToml;
use longhaul_tests::cluster::Cluster;
use longhaul_tests::interrupt;
use longhaul_tests::small_run::small_run;
use serde_json::Value;

use crate::kit::args::Quick;
use crate::kit::progress;
use crate::kit::recorder::Recorder;
use crate::kit::stats::Spread;
use crate::runs::training::cluster_config;

/// Maximum duration of any wait.
const WAIT_MAX: Duration = Duration::from_secs(180);
/// Samples per step for each worker of the small model, and steps per round.
const BATCH: usize = 8;
const STEPS: u64 = 4;
/// Default link of the emulator.
const LINK: &str = "rate_mbit=50,delay_ms=10,loss_percent=0.1";

/// Membership changes and attacks, with the real binaries
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_values = ["leader", "death", "join", "restart", "cut", "hostile", "heartbeats", "checkpoints", "idle"])]
    part: Vec<Section>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Section {
    /// The leader is killed and another coordinator takes over; needs `etcd` in PATH
    Leader,
    /// A worker is killed: time until the others have applied a round without it
    Death,
    /// A worker joins a running run: time until it contributes
    Join,
    /// The coordinator is killed and restarted
    Restart,
    /// A worker is kicked: time until all its connections are closed
    Cut,
    /// Ten thousand attacks on every port
    Hostile,
    /// Bandwidth of heartbeats
    Heartbeats,
    /// Training stalls at the default interval of checkpoints
    Checkpoints,
    /// Resources of a coordinator of sixteen workers
    Idle,
}

/// Common state of all parts.
struct Session {
    quick: Quick,
    recorder: Recorder,
}

/// Measures the requested parts; a quick run does each once, and shorter.
pub fn run(args: Args) -> Result<()> {
    interrupt::watch()?;
    let session = Session { quick: args.quick, recorder: Recorder::new("elastic") };
    for part in args.part {
        match part {
            Section::Leader => leader::measure(&session)?,
            Section::Death => death::measure(&session)?,
            Section::Join => joining::measure(&session)?,
            Section::Restart => restart::measure(&session)?,
            Section::Cut => cut::measure(&session)?,
            Section::Hostile => hostile::measure(&session)?,
            Section::Heartbeats => heartbeats::measure(&session)?,
            Section::Checkpoints => checkpoints::measure(&session)?,
            Section::Idle => idle::measure(&session)?,
        }
    }
    Ok(())
}

impl Session {
    /// Repeats this many times, or once in a quick run.
    fn repeats(&self, case: &str, times: u32) -> impl Iterator<Item = u32> {
        let (case, times) = (case.to_owned(), self.quick.choose(1, times));
        (0..times).inspect(move |repeat| progress(format!("elastic/{case}: {} of {times}", repeat + 1)))
    }

    /// Prints minimum, median and maximum.
    fn print(&self, case: &str, metric: &str, unit: &str, values: &[f64]) {
        let Some(Spread { least, median, most }) = Spread::of(values) else { return };
        for (which, value) in [("least", least), ("median", median), ("most", most)] {
            self.recorder.print(&format!("{case}, {which} of {}", values.len()), metric, value, unit);
        }
    }
}

/// Starts a run over emulated links, in a folder removed with it, with the common small model.
fn cluster(sites: Vec<usize>) -> Result<Cluster> {
    cluster_of(run_toml_for(sites.iter().sum()), &sites, &LINK.parse()?)
}

fn cluster_of(run_toml: RunToml, sites: &[usize], link: &LinkConfig) -> Result<Cluster> {
    let folder = tempfile::tempdir()?;
    Ok(Cluster::start(cluster_config(run_toml, sites, link, &folder))?.with_folder(folder))
}

fn run_toml() -> RunToml {
    run_toml_for(2)
}

fn run_toml_for(workers: usize) -> RunToml {
    small_run("elastic", workers, BATCH, STEPS)
        .steps(1_000_000)
        .set("checkpoint.every_rounds", 1000)
        .set("faults.reconnect_grace_ms", 60_000)
}

/// Returns the rounds of all workers that were assigned but are in no result. They are assigned again, so no
/// sample is lost, but the time is.
fn rounds_lost(status: &Value, workers: usize) -> f64 {
    let of = |key: &str| status[key].as_f64().unwrap_or(0.0);
    let batch = (BATCH * workers) as f64;
    (of("step") * batch - of("samples_counted") - of("samples_late")) / (batch * STEPS as f64)
}

fn round(status: &Value) -> u64 {
    status["round"].as_u64().unwrap_or(0)
}
