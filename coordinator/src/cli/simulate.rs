//! `coordinator simulate`.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::plan::{read_topology, spec_of};
use super::up::read_config;
use super::{CliError, SimulateArgs, print, say};
use crate::plan::Topology;
use crate::simulate::{Faults, Report, Setup, SimulateError, simulate};

pub(super) fn run(args: &SimulateArgs) -> Result<(), CliError> {
    let config = read_config(&args.config)?;
    let topology = read_topology(&args.topology)?;
    let faults = args.faults.as_deref().map(|path| read_faults(path, &topology)).transpose()?;
    if config.parallel.tensor > 1 {
        let reason = "the simulator knows no tensor groups: leave parallel.tensor out, and count each group as one worker in the topology";
        return Err(CliError::Misuse(reason.to_owned()));
    }
    let spec = spec_of(&config)?;
    let until = Duration::from_secs_f64(args.hours * 3600.0);
    let setup = Setup { config, spec, topology, faults: faults.unwrap_or_default(), seed: args.seed, until };
    if !args.json {
        say("simulating; this takes a second for some million messages");
    }
    let report = match simulate(setup) {
        Err(error @ SimulateError::Workers { .. }) => return Err(CliError::Misuse(error.to_string())),
        report => report.context("simulate the run")?,
    };
    match args.json {
        true => print(&format!("{:#}", json!(report))),
        false => describe(&report).iter().for_each(|line| print(line)),
    }
    Ok(())
}

/// Hours of virtual time.
pub(super) fn parse_hours(text: &str) -> Result<f64, String> {
    /// A year.
    const MOST: f64 = 366.0 * 24.0;
    let hours = text.parse().map_err(|_| "a number is wanted".to_owned())?;
    if hours > 0.0 && hours <= MOST { Ok(hours) } else { Err(format!("must be above 0, and at most {MOST}")) }
}

fn read_faults(path: &std::path::Path, topology: &Topology) -> Result<Faults, CliError> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::Misuse(format!("read the faults {shown}: {error}")))?;
    Faults::parse(&text, topology).map_err(|error| CliError::Misuse(format!("{shown}: {error}")))
}

fn describe(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = |name: &str, value: String| lines.push(format!("{name:<34}{value}"));
    let end = if report.finished { "finished" } else { "not finished" };
    line("the run", format!("{end} after {}, {} steps", time(report.virtual_s), report.steps));
    if let Some(plan) = &report.plan {
        line("the coordinator", plan.clone());
    }
    line("training began after", report.first_generation_s.map_or("never".to_owned(), time));
    line("a step took", report.step_s.map_or("nobody knows".to_owned(), time));
    line("tokens a second", format!("{:.0}", report.tokens_per_s));
    line("of the machines' time, computing", percent(report.utilisation));
    line("of computing and waiting, waiting", percent(report.stalled));
    line("generations", report.generations.to_string());
    if report.killed > 0 {
        line("workers killed", report.killed.to_string());
        let both = |[mean, most]: [f64; 2]| format!("{} on average, {} at most", time(mean), time(most));
        line("to go on without one", report.settled_s.map_or("never".to_owned(), both));
        line("from its start to taking part", report.back_s.map_or("never".to_owned(), both));
    }
    let [heard, told] = report.messages;
    line("messages to and from coordinator", format!("{heard} and {told}"));
    line("of a core, the coordinator took", percent(report.coordinator_share));
    line("simulated in", time(report.wall_s));
    if !report.warnings.is_empty() {
        lines.push("the last warnings:".to_owned());
        lines.extend(report.warnings.iter().map(|warning| format!("  {warning}")));
    }
    lines
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.1} ms", 1e3 * s),
        s if s < 120.0 => format!("{s:.2} s"),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
