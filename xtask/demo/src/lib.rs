//! Two sites on this machine with a slow link between them train one model.
//!
//! The processes are those of a real run, with the WAN emulator in the place of the provider's network. All
//! of them end with the demo, however it ends: see `group.rs`. The demo needs the programs and the folder
//! `examples`, but no checkout and no compiler, so the tarball and the Python package contain it
//! (`longhaul-demo`). `cargo xtask demo` builds the programs first.

#![forbid(unsafe_code)]

mod clock;
mod cluster;
mod emulator;
mod folder;
mod group;
mod http;
mod interrupts;
mod paragraph;
mod parts;
mod programs;
mod progress;
mod run_toml;
mod said;
mod status;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};

use crate::cluster::Cluster;
use crate::folder::Folder;
use crate::interrupts::Interrupts;
use crate::progress::Progress;
use crate::status::Status;
use crate::summary::Summary;

pub use crate::parts::Parts;
pub use crate::programs::Programs;

/// Options of the training.
#[derive(Args)]
// An option group of xtask, flattened beside this one, has the default name.
#[group(id = "demo")]
pub struct Options {
    /// Workers in each of the two sites.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers_per_site: u32,
    /// Each worker's part of the model.
    #[arg(long, value_enum, default_value_t = Plan::Data)]
    pub plan: Plan,
    /// Rate of the link between the sites, each way, in Mbit/s.
    #[arg(long, default_value_t = 50.0)]
    pub rate_mbit: f64,
    /// Round-trip time of the link, in milliseconds.
    #[arg(long, default_value_t = 40.0)]
    pub rtt_ms: f64,
    /// Packets lost on the link, in percent.
    #[arg(long, default_value_t = 0.1)]
    pub loss: f64,
    /// Training steps [default: those of examples/demo.toml].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: Option<u32>,
    /// Folder of state, checkpoints and logs; emptied if an earlier demo used it [default: longhaul-demo].
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Distribution of the work among the workers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Plan {
    /// Each has the whole model and its own samples.
    Data,
    /// Two share a copy of the model, half each, as a pipeline.
    Hybrid,
}

/// The prompt for the trained model: the start of the training text's first verse.
const PROMPT: &str = "In the beginning";

/// Trains and prints a summary. `default_dir` applies if the user names no folder; `examples` holds the run
/// and its text.
///
/// # Errors
/// Returns an error if a process cannot start or fails, with the end of its log, or if the run ends in
/// another state than it should.
pub fn run(
    programs: &Programs,
    examples: &Path,
    default_dir: &Path,
    options: &Options,
    mut parts: Parts,
) -> Result<()> {
    let folder = Folder::create(options.dir.as_deref().unwrap_or(default_dir))?;
    run_toml::write(examples, options, &folder)?;
    let summary = train(programs, &folder, options, &mut parts)
        .map_err(|error| anyhow!("{error:#}\nthe log of every process is in {}", folder.logs().display()))?;
    let started = clock::now();
    let sample = programs.sample(summary.checkpoint(), PROMPT)?;
    parts.add("a sample", clock::now() - started);
    said::print(format_args!("\n{summary}\nThe model continues \"{PROMPT}\":\n"));
    said::print(paragraph::set(&sample, "  "));
    folder.remove_caches()?;
    let view = programs.view_line(&folder.state());
    said::print(format_args!("Time: {parts}\n\nOpen its dashboard:\n  {view}"));
    Ok(())
}

/// Runs the processes until the run is finished, and ends them.
fn train(programs: &Programs, folder: &Folder, options: &Options, parts: &mut Parts) -> Result<Summary> {
    let interrupts = Interrupts::watch()?;
    let started = clock::now();
    let mut cluster = Cluster::start(programs, folder, options, &interrupts)?;
    let (status, first_loss) = watch(&mut cluster, &interrupts)?;
    let ended = clock::now();
    let first_loss = first_loss.unwrap_or(ended);
    parts.add("to a first loss", first_loss - started);
    parts.add("the rest of training", ended - first_loss);
    Summary::new(&status, ended - started, cluster.link_counters()?)
}

/// Shows the progress and restarts processes until the run is finished or no worker is left. Returns the last
/// status and the time of the first loss.
fn watch(cluster: &mut Cluster, interrupts: &Interrupts) -> Result<(Status, Option<Instant>)> {
    let mut progress = Progress::new();
    let mut last: Option<Status> = None;
    let mut first_loss = None;
    loop {
        if let Some(status) = cluster.status()? {
            if status.loss.is_some() && first_loss.is_none() {
                first_loss = Some(clock::now());
            }
            progress.show(&status);
            last = Some(status);
        }
        for line in cluster.tend(last.as_ref())? {
            progress.say(&line);
        }
        // One more request: the workers may have finished after the last answer.
        if !cluster.has_workers()
            && let Some(status) = cluster.status()?
        {
            progress.show(&status);
            progress.finish();
            return Ok((status, first_loss));
        }
        interrupts.pause()?;
    }
}
