//! `coordinator view`

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::up::interrupted;
use super::{CliError, STATE_DIR, print, say};
use crate::history::{FOLDER, Folder, History, Last, Meta, Rest};
use crate::http::{ALL_TIMES, Curves, EARLIER_MAX, Record, exported, listen, recorded};
use crate::mlflow;
use longhaul_run::Phase;

pub(super) const HELP: &str = "\
Show the dashboard of a run from its state directory, without a coordinator.

A coordinator records the history of its run in `history/` of its state directory. This command serves
the page of a running coordinator from it, or writes a self-contained HTML file. Curves can be compared
with those of earlier runs there and in other state directories.

    coordinator view longhaul-state --compare ../last-week/longhaul-state
    coordinator view longhaul-state --export run.html";

/// `coordinator view`
#[derive(Clone, Debug, Args)]
pub struct ViewArgs {
    /// The state directory of the run's coordinator.
    #[arg(value_name = "DIR", default_value = STATE_DIR, env = "LONGHAUL_STATE_DIR")]
    state_dir: PathBuf,
    /// The same, in the form of other commands.
    #[arg(long = "state-dir", value_name = "DIR", conflicts_with = "state_dir")]
    named_state_dir: Option<PathBuf>,
    /// The run, by the beginning of its id. Default: the newest.
    #[arg(long, value_name = "ID")]
    pub run: Option<String>,
    /// Another state directory with runs to compare; repeatable.
    #[arg(long, value_name = "DIR")]
    pub compare: Vec<PathBuf>,
    /// Write the page with all its data to this file, and exit.
    #[arg(long, value_name = "FILE.html")]
    pub export: Option<PathBuf>,
    /// Write the run's curves into MLflow's file store in this folder, in place of an earlier export, and exit.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["export", "compare"])]
    pub mlflow: Option<PathBuf>,
    /// Loopback address of the page. Port 0 takes any free port.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4881")]
    pub http: SocketAddr,
}

impl ViewArgs {
    /// The state directory, however it was named.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        self.named_state_dir.as_ref().unwrap_or(&self.state_dir)
    }
}

pub(super) fn run(args: &ViewArgs) -> Result<(), CliError> {
    if let Some(dir) = &args.mlflow {
        return export_mlflow(args, dir);
    }
    let record = read(args)?;
    match &args.export {
        Some(file) => export(&record, file),
        None => serve(args.http, record),
    }
}

/// The run that is asked for, and those to compare it with.
fn read(args: &ViewArgs) -> Result<Record, CliError> {
    let runs = Folder::runs(args.state_dir()).map_err(anyhow::Error::new)?;
    let run = wanted(args, &runs)?;
    let history = read_one(args.state_dir(), run)?;
    // The curves are there without it.
    let last = Folder::read_last(args.state_dir(), &run.run).unwrap_or_else(|error| {
        say(&format!("{error}; the curves are shown without the last status and events"));
        None
    });
    let mut compared = Vec::new();
    for folder in std::iter::once(args.state_dir()).chain(args.compare.iter().map(PathBuf::as_path)) {
        let others = Folder::runs(folder).map_err(anyhow::Error::new)?;
        if others.is_empty() {
            return Err(CliError::Misuse(format!(
                "--compare {}: no run has left a history there",
                folder.display()
            )));
        }
        for meta in others.iter().filter(|meta| meta.run != run.run) {
            if compared.len() < EARLIER_MAX {
                compared.push(Curves::of(&read_one(folder, meta)?));
            }
        }
    }
    let newest_ms = history.samples().newest().map(|sample| sample.at_ms);
    let (at_ms, status, rest) = match last {
        Some(Last { at_ms, status, rest }) => (Some(at_ms).max(newest_ms), Some(status), rest),
        None => (newest_ms, None, Rest::default()),
    };
    Ok(Record {
        live: false,
        at_ms,
        next: String::new(),
        curves: Curves::of(&history),
        activity: history.activity().intervals().iter().cloned().collect(),
        events: rest.events,
        status: status.map(Arc::unwrap_or_clone),
        earlier: compared.iter().map(|curves| curves.meta.clone()).collect(),
        compared,
    })
}

/// The run that is asked for.
fn wanted<'a>(args: &ViewArgs, runs: &'a [Meta]) -> Result<&'a Meta, CliError> {
    let newest = runs.first().ok_or_else(|| {
        CliError::Misuse(format!(
            "no run has left a history in {}: give the --state-dir of its coordinator",
            args.state_dir().join(FOLDER).display()
        ))
    })?;
    match &args.run {
        None => Ok(newest),
        Some(wanted) => chosen(runs, wanted, args.state_dir()),
    }
}

fn export_mlflow(args: &ViewArgs, dir: &Path) -> Result<(), CliError> {
    let runs = Folder::runs(args.state_dir()).map_err(anyhow::Error::new)?;
    let run = wanted(args, &runs)?;
    let history = read_one(args.state_dir(), run)?;
    let last = Folder::read_last(args.state_dir(), &run.run).map_err(anyhow::Error::new)?;
    let is_over = |last: &Last| last.status.run.phase == Phase::Finished;
    let ended_ms = last.filter(is_over).map(|last| last.at_ms);
    let folder = mlflow::export(dir, &history, ended_ms)
        .with_context(|| format!("write into {} (--mlflow)", dir.display()))?;
    print(&format!(
        "run {} is in {}: mlflow ui --backend-store-uri {}",
        run.name,
        folder.display(),
        dir.display()
    ));
    Ok(())
}

/// The run whose id begins so.
fn chosen<'a>(runs: &'a [Meta], wanted: &str, state_dir: &Path) -> Result<&'a Meta, CliError> {
    let fit: Vec<&Meta> = runs.iter().filter(|meta| meta.run.starts_with(wanted)).collect();
    let ids = |runs: &[&Meta]| runs.iter().map(|meta| meta.run.as_str()).collect::<Vec<_>>().join(", ");
    match fit[..] {
        [one] => Ok(one),
        [] => Err(CliError::Misuse(format!(
            "{} has no history of run {wanted}; it has {}",
            state_dir.display(),
            ids(&runs.iter().collect::<Vec<_>>())
        ))),
        _ => Err(CliError::Misuse(format!("{wanted} matches {}: give more of its id", ids(&fit)))),
    }
}

fn read_one(state_dir: &Path, meta: &Meta) -> Result<History, CliError> {
    let found = Folder::read(state_dir, &meta.run, ALL_TIMES).map_err(anyhow::Error::new)?;
    let gone = || {
        anyhow::anyhow!("the history of run {} has just been removed from {}", meta.run, state_dir.display())
    };
    Ok(found.ok_or_else(gone)?.history)
}

fn export(record: &Record, file: &PathBuf) -> Result<(), CliError> {
    let json = serde_json::to_string(record).context("write the record as JSON")?;
    std::fs::write(file, exported(&json)).with_context(|| format!("write {}", file.display()))?;
    print(&format!("{} shows run {} in any browser", file.display(), record.curves.meta.name));
    Ok(())
}

fn serve(address: SocketAddr, record: Record) -> Result<(), CliError> {
    if !address.ip().is_loopback() {
        return Err(CliError::Misuse(format!(
            "--http {address}: a history is served only on loopback, because no token protects it; --export FILE.html writes a file to share"
        )));
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        let interrupted = interrupted().context("listen for signals")?;
        let bound = TcpListener::bind(address).await;
        let listener = bound.with_context(|| {
            format!("listen on {address}: choose another with --http, or stop the program that uses it")
        })?;
        let address = listener.local_addr().context("find the address")?;
        say(&format!("run {}, without a coordinator; Ctrl-C ends this", record.curves.meta.name));
        print(&format!("http://{address}/"));
        let (stop, stopped) = watch::channel(false);
        let routes = recorded::router(&record).context("write the record as JSON")?;
        let serving = tokio::spawn(listen::serve(listener, routes, stopped));
        interrupted.await;
        stop.send_replace(true);
        serving.await.context("end the connections")?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::cli::{Cli, Command};

    /// The demo and messages name it as other commands take it.
    #[test]
    fn a_state_directory_is_named_by_its_place_or_by_its_option_and_once() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        for words in ["coordinator view runs/a", "coordinator view --state-dir runs/a"] {
            let Command::View(args) = parse(words).unwrap().command else { panic!("{words}") };
            assert_eq!(args.state_dir().to_str(), Some("runs/a"), "{words}");
        }
        assert!(parse("coordinator view runs/a --state-dir runs/b").is_err());
    }
}
