//! `cargo xtask demo`: two sites on this machine with a slow link between them train one model.
//!
//! The processes are those of a real run, with the WAN emulator where the provider would be. However the demo
//! ends, none of them outlives it: see [`group`].

mod binaries;
mod cluster;
mod emulator;
mod folder;
mod group;
mod paragraph;
mod progress;
mod run_toml;
mod status;
mod summary;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::checkout::Checkout;
use crate::clock;
use crate::demo::binaries::Binaries;
use crate::demo::cluster::Cluster;
use crate::demo::folder::Folder;
use crate::demo::progress::Progress;
use crate::demo::status::Status;
use crate::demo::summary::Summary;
use crate::setup;

/// What `cargo xtask demo` accepts.
#[derive(Args)]
pub struct Options {
    /// Workers in each of the two sites.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers_per_site: u32,
    /// What each worker has of the model.
    #[arg(long, value_enum, default_value_t = Plan::Data)]
    plan: Plan,
    /// Rate of the link between the sites, each way, in Mbit/s.
    #[arg(long, default_value_t = 50.0)]
    rate_mbit: f64,
    /// Round-trip time of the link, in milliseconds.
    #[arg(long, default_value_t = 40.0)]
    rtt_ms: f64,
    /// Packets that the link loses, in percent.
    #[arg(long, default_value_t = 0.1)]
    loss: f64,
    /// Steps to train [default: those of examples/demo.toml].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Keep state, caches and logs at the end, beside the checkpoints.
    #[arg(long)]
    keep: bool,
    /// How to build the binaries.
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
    /// Where everything goes [default: longhaul-demo in the checkout].
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// How the workers share the work.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Plan {
    /// Each has the whole model, and samples of its own.
    Data,
    /// Two have a copy of the model together, half of it each, and compute as a pipeline.
    Hybrid,
}

/// A profile of cargo.
#[derive(Clone, Copy, ValueEnum)]
enum Profile {
    Release,
    Dev,
}

/// How often the coordinator is asked how it goes: often enough for a bar to look alive.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// What the trained model is asked to continue: the beginning of the training text's first verse.
const PROMPT: &str = "In the beginning";

/// Runs the demo from set-up to summary.
///
/// # Errors
/// What could not be built or started, or the process that failed, with the end of its log.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    setup::ensure(checkout)?;
    let binaries = Binaries::build(checkout, options.profile)?;
    let folder = Folder::create(checkout, options.dir.as_deref())?;
    run_toml::write(checkout, options, &folder)?;
    let summary = train(&binaries, &folder, options)
        .map_err(|error| anyhow!("{error:#}\nthe log of every process is in {}", folder.logs().display()))?;
    println!("\n{summary}\nWhat the model writes after \"{PROMPT}\":\n");
    let sample = binaries.sample(summary.checkpoint(), PROMPT)?;
    println!("{}", paragraph::set(&sample, "  "));
    if !options.keep {
        folder.keep_checkpoints_only()?;
    }
    Ok(())
}

/// Runs the processes until the run is finished, and ends them.
fn train(binaries: &Binaries, folder: &Folder, options: &Options) -> Result<Summary> {
    let interrupts = watch_signals()?;
    let started = clock::now();
    let mut cluster = Cluster::start(binaries, folder, options, &interrupts)?;
    let status = watch(&mut cluster, &interrupts)?;
    Summary::new(&status, clock::now() - started, cluster.link_counters()?)
}

/// From here on a signal is an event, so that the processes are ended in an orderly way.
fn watch_signals() -> Result<Receiver<()>> {
    let (sender, receiver) = sync_channel(1);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("watch for signals")?;
    thread::spawn(move || {
        for _ in &mut signals {
            // A full channel holds an interrupt that was not looked at yet; one is enough.
            let _ = sender.try_send(());
        }
    });
    Ok(receiver)
}

/// Waits for the next moment to look, or for the user's wish to stop.
fn pause(interrupts: &Receiver<()>) -> Result<()> {
    match interrupts.recv_timeout(POLL_INTERVAL) {
        Err(RecvTimeoutError::Timeout) => Ok(()),
        Ok(()) | Err(RecvTimeoutError::Disconnected) => bail!("interrupted; all processes were ended"),
    }
}

/// Shows how the run goes, and keeps it going, until it is finished or nobody is left; returns the last status.
fn watch(cluster: &mut Cluster, interrupts: &Receiver<()>) -> Result<Status> {
    let mut progress = Progress::new();
    let mut last: Option<Status> = None;
    loop {
        if let Some(status) = cluster.status()? {
            progress.show(&status);
            last = Some(status);
        }
        for line in cluster.tend(last.as_ref())? {
            progress.say(&line);
        }
        // Asked once more, as the workers may have finished after the last answer.
        if !cluster.has_workers()
            && let Some(status) = cluster.status()?
        {
            progress.show(&status);
            progress.finish();
            return Ok(status);
        }
        pause(interrupts)?;
    }
}
