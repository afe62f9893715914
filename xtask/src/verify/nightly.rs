//! Tests of several hours, to run once for a change to the protocol: `cargo xtask test --nightly`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::checkout::Checkout;
use crate::verify::step::{Report, Step};
use crate::verify::tests::{self, Which};

/// Half an hour of faults in real processes, seeds of simulated runs, and known bugs.
const CHAOS: [(&str, &[&str]); 3] = [
    ("chaos: 100,000 simulated seeds", &["chaos", "--simulated"]),
    ("chaos: half an hour of faults", &["chaos", "--minutes", "30", "--seed", "7"]),
    ("chaos: known bugs", &["chaos", "--known-bugs"]),
];

/// Targets of `cargo fuzz`, by the folder of their workspace.
const FUZZED: [(&str, &[&str]); 2] = [
    (".", &["codec", "control", "frame", "manifest", "masked", "result", "run_toml", "token", "topology"]),
    ("worker", &["idx", "image", "lines", "peer", "webdataset"]),
];

/// Fuzzing time of each target.
const FUZZ: &str = "-max_total_time=120";

/// Runs the steps one after the other.
pub fn steps(checkout: &Checkout, notices: &Path) -> Vec<Report> {
    let mut reports = vec![Step::new("whole runs of the night").checked(|| {
        let timed = tests::run(checkout, Which::Night, notices)?;
        println!("\n{}", timed.tables());
        Ok(())
    })];
    for (name, arguments) in CHAOS {
        let program = std::env::current_exe().unwrap_or_else(|_| "xtask".into());
        let mut command = Command::new(program);
        reports.push(Step::new(name).streamed(command.current_dir(checkout.root()).args(arguments)));
    }
    let fuzz = Step::new("fuzzing");
    reports.push(match has_fuzz(checkout) {
        true => fuzz.checked(|| run_fuzz(checkout)),
        false => {
            fuzz.skipped("there is no nightly compiler with cargo-fuzz; CONTRIBUTING.md says what it takes")
        }
    });
    reports
}

fn has_fuzz(checkout: &Checkout) -> bool {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", "--version"]).current_dir(checkout.root());
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn run_fuzz(checkout: &Checkout) -> Result<()> {
    let libraries = checkout.libtorch_link().join("lib");
    for (folder, targets) in FUZZED {
        for target in targets {
            let mut command = Command::new("cargo");
            command.current_dir(checkout.root().join(folder)).env("LD_LIBRARY_PATH", &libraries);
            // Cargo saves interesting inputs in the folder of the corpus, which git ignores.
            command.args(["+nightly", "fuzz", "run", target, "--", FUZZ, "-malloc_limit_mb=64"]);
            let status = command.stdin(Stdio::null()).status().context("start cargo fuzz")?;
            ensure!(status.success(), "fuzzing {target}: {status}");
        }
    }
    Ok(())
}
