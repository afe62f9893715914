//! `coordinator simulate`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::plan::{read_topology, spec_of};
use super::up::{interrupted, read_config};
use super::whole_run::time;
use super::{CliError, LogFormat, SimulateArgs, print, say};
use longhaul_plan::Topology;
use longhaul_sim::simulate::{Control, Faults, Report, Setup, SimulateError, simulate_under};

/// Between two lines about progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// A step of a worker takes some microseconds to simulate, with its share of the messages (`docs/benchmarks/plan.md`).
const WORKER_STEP_S: f64 = 20e-6;
/// A simulation that may take longer than this is announced, in seconds.
const LONG_S: f64 = 30.0;

pub(super) const HELP: &str = "\
Simulate a whole run in virtual time: the real coordinator, and workers as fast as the planner predicts.

Reports the shares of machine time for computing and for waiting, the times to continue without a lost
worker and to readmit it, and the load of the coordinator. The same seed gives the same numbers.
Machines and links are as for `coordinator plan`. A file describes the faults:

    [churn]               # of each worker by itself; both are means of exponential distributions
    life_s = 3600
    absence_s = 60
    [[outage]]            # of all workers of a site
    site = \"home\"
    at_s = 600
    for_s = 120";

pub(super) fn run(args: &SimulateArgs) -> Result<(), CliError> {
    let config = read_config(&args.config, LogFormat::Text)?;
    let topology = read_topology(&args.topology)?;
    let faults = args.faults.as_deref().map(|path| read_faults(path, &topology)).transpose()?;
    let spec = spec_of(&config)?;
    let until = Duration::from_secs_f64(args.hours * 3600.0);
    let setup = Setup { config, spec, topology, faults: faults.unwrap_or_default(), seed: args.seed, until };
    let (steps, control) = (setup.config.run.steps, Arc::new(Control::default()));
    if let Some(warning) = long(setup.topology.devices().count(), steps).filter(|_| !args.json) {
        say(&warning);
    }
    watch(&control, steps, !args.json)?;
    let report = match simulate_under(setup, &control) {
        Err(error @ (SimulateError::Workers { .. } | SimulateError::Groups { .. })) => {
            return Err(CliError::Misuse(error.to_string()));
        }
        report => report.context("simulate the run")?,
    };
    match args.json {
        true => print(&format!("{:#}", json!(report))),
        false => describe(&report).iter().for_each(|line| print(line)),
    }
    Ok(())
}

/// Stops the simulation at an interrupt, and tells its progress now and then.
fn watch(control: &Arc<Control>, steps: u64, tells: bool) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (runtime, control) = (runtime.context("start a thread for signals")?, Arc::clone(control));
    std::thread::spawn(move || {
        runtime.block_on(async {
            let Ok(stopped) = interrupted() else { return };
            tokio::pin!(stopped);
            loop {
                tokio::select! {
                    () = &mut stopped => return control.stop.store(true, Ordering::Relaxed),
                    () = tokio::time::sleep(PROGRESS_EVERY) => {}
                }
                if tells {
                    let (done, ms) = (&control.steps, control.virtual_ms.load(Ordering::Relaxed));
                    let (done, so_far) = (done.load(Ordering::Relaxed), time(ms as f64 / 1e3));
                    say(&format!("simulated {so_far}, {done} of {steps} steps"));
                }
            }
        });
    });
    Ok(())
}

/// What to tell before a long simulation.
fn long(workers: usize, steps: u64) -> Option<String> {
    let takes_s = workers as f64 * steps as f64 * WORKER_STEP_S;
    (takes_s > LONG_S).then(|| {
        format!(
            "{workers} workers, {steps} steps: to simulate all may take {}, more where many workers come and go, and memory for each worker",
            time(takes_s)
        )
    })
}

/// Hours of virtual time.
pub(super) fn parse_hours(text: &str) -> Result<f64, String> {
    /// A year.
    const MOST: f64 = 366.0 * 24.0;
    let hours = text.parse().map_err(|_| "give a number".to_owned())?;
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
    line("the run", format!("{end} after {}, {} steps", time(report.virtual_s), report.training.steps));
    if let Some(plan) = &report.plan {
        line("the coordinator", plan.clone());
    }
    line("training began after", report.first_generation_s.map_or("never".to_owned(), time));
    if let Some((steps, took)) = report.training.warmup {
        line("the warm-up took", format!("{}, {steps} steps", time(took)));
    }
    line(
        "share of local speed, whole run",
        report.training.share_of_local_speed.map_or("unknown".to_owned(), percent),
    );
    line("time per step, last nine tenths", report.training.step_s.map_or("unknown".to_owned(), time));
    line("tokens per second", format!("{:.0}", report.training.tokens_per_s));
    line("machine time spent computing", percent(report.training.utilisation));
    line("waiting, of computing and waiting", percent(report.training.stalled));
    line("generations", report.churn.generations.to_string());
    if report.churn.killed > 0 {
        line("workers killed", report.churn.killed.to_string());
        let both = |[mean, most]: [f64; 2]| format!("{} on average, {} at most", time(mean), time(most));
        line("time to continue without one", report.churn.settled_s.map_or("never".to_owned(), both));
        line("time from its restart to training", report.churn.back_s.map_or("never".to_owned(), both));
    }
    let [heard, told] = report.messages;
    line("messages to and from coordinator", format!("{heard} and {told}"));
    line("coordinator, share of a core", percent(report.cost.coordinator_share));
    line("simulated in", time(report.cost.wall_s));
    if !report.warnings.is_empty() {
        lines.push("the last warnings:".to_owned());
        lines.extend(report.warnings.iter().map(|warning| format!("  {warning}")));
    }
    lines
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use longhaul_run_toml::{Gpt2, RunToml};

    use super::super::file_in_help;
    use super::*;

    const MACHINES: &str = "[[site]]\nname = \"a\"\nworkers = 4\ntflops = 1\nmemory_gib = 4\n";

    fn simulated(machines: &str) -> Result<(), CliError> {
        let folder = tempfile::tempdir().unwrap();
        let (config, topology) = (folder.path().join("run.toml"), folder.path().join("machines.toml"));
        let small =
            RunToml::new("small").workers(4).steps(20).batch(16).gpt2(Gpt2 { heads: 4, ..Gpt2::SMALL });
        small.set("parallel.tensor", 2).write(&config).unwrap();
        std::fs::write(&topology, machines).unwrap();
        run(&SimulateArgs { config, topology, faults: None, seed: 1, hours: 1.0, json: true })
    }

    #[test]
    fn the_file_that_the_help_shows_is_one_of_faults() {
        let topology = Topology::parse(&MACHINES.replace("\"a\"", "\"home\"")).unwrap();
        let faults = Faults::parse(&file_in_help(HELP), &topology).unwrap();
        assert!(faults.churn.is_some() && faults.outage.len() == 1, "{faults:?}");
    }

    #[test]
    fn a_long_simulation_is_announced_before_it_begins() {
        assert_eq!(long(100, 1500), None);
        let warning = long(10_000, 1500).unwrap();
        assert!(
            warning.starts_with("10000 workers, 1500 steps: ") && warning.contains("5.0 min"),
            "{warning}"
        );
    }

    #[test]
    fn a_run_whose_layers_are_shared_is_simulated_where_a_site_has_a_group() {
        simulated(MACHINES).unwrap();
        let names = ["a", "b", "c", "d"];
        let alone = names.map(|name| MACHINES.replace("\"a\"", &format!("\"{name}\"")));
        let apart =
            format!("{}[wan]\nmbit = 10\nrtt_ms = 1\n", alone.concat().replace("workers = 4", "workers = 1"));
        let refused = simulated(&apart).unwrap_err();
        assert!(
            matches!(&refused, CliError::Misuse(reason) if reason.contains("parallel.tensor = 2")),
            "{refused}"
        );
    }
}
