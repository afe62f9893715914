//! `cargo xtask test`: everything that CI requires, in one command that never writes to the tree.
//!
//! All steps use the dev profile and one set of features ([`tests::FEATURES`]), so each step reuses the
//! output of the previous ones. Every step runs, even after a failure. CONTRIBUTING.md gives the time limit.

mod circles;
mod deny;
mod dependency_rules;
mod nightly;
mod notices;
mod step;
mod tests;
mod timed;

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;

use crate::checkout::Checkout;
use crate::clock;
use crate::demo;
use crate::setup;
use crate::table;
use crate::verify::notices::Notices;
use crate::verify::step::{Outcome, Report, Step};
use crate::verify::tests::{FEATURES, Which};

/// Maximum duration of `.ci/run` on a clean clone and two cores. A test that adds a minute replaces one.
const BUDGET: Duration = Duration::from_secs(25 * 60);

/// Options of `cargo xtask test`.
#[derive(Args)]
pub struct Options {
    /// Only formatting, lints, dependency rules and unit tests.
    #[arg(long, conflicts_with = "nightly")]
    quick: bool,
    /// Fail when a tool is not installed, instead of skipping the step with a notice.
    #[arg(long)]
    ci: bool,
    /// Also run, for hours: the full matrix of whole runs, 100,000 simulated seeds, half an hour of faults,
    /// known bugs, fuzzing.
    #[arg(long)]
    nightly: bool,
}

/// Runs all steps and prints a table of them.
///
/// # Errors
/// Returns an error if any step failed.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    let started = clock::now();
    setup::ensure(checkout)?;
    let notices = Notices::begin()?;
    let which = match options {
        Options { quick: true, .. } => Which::Units,
        _ => Which::All,
    };
    let mut reports = lints(checkout);
    if !options.quick {
        reports.extend(deny::steps(checkout, options.ci));
        reports.extend(pages_and_features(checkout));
    }
    reports.push(Step::new("build of the tests").captured(&mut tests::build(checkout, which)));
    let mut tables = String::new();
    reports.push(Step::new("tests").checked(|| {
        tables = tests::run(checkout, which, notices.path())?.tables();
        Ok(())
    }));
    if options.nightly {
        reports.extend(nightly::steps(checkout, notices.path()));
    }
    println!("\n{tables}");
    let summary = summarise(&reports);
    notices.show()?;
    let took = clock::now() - started;
    println!("all steps: {:.0} s; the budget of CI is {} s", took.as_secs_f64(), BUDGET.as_secs());
    summary
}

fn lints(checkout: &Checkout) -> Vec<Report> {
    vec![
        Step::new("format").captured(checkout.cargo().args(["fmt", "--all", "--check"])),
        Step::new("dependency rules").checked(|| dependency_rules::check(checkout)),
        Step::new("circles of modules").checked(|| circles::check(checkout)),
        Step::new("clippy").captured(checkout.cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--features",
            FEATURES,
            "--",
            "-D",
            "warnings",
        ])),
    ]
}

fn pages_and_features(checkout: &Checkout) -> Vec<Report> {
    let mut rustdoc = checkout.cargo();
    // With an example: cargo then selects the same features of dependencies as for tests, already checked by
    // clippy.
    rustdoc.args(["doc", "--workspace", "--lib", "--bins", "--example", "config_reference"]);
    rustdoc.args(["--no-deps", "--locked", "--features", FEATURES]);
    let mut least = checkout.cargo();
    least.args(["clippy", "--locked", "--no-default-features"]);
    least
        .args(demo::PACKAGES.iter().flat_map(|package| ["--package", package]))
        .args(["--", "-D", "warnings"]);
    vec![
        Step::new("rustdoc").captured(rustdoc.env("RUSTDOCFLAGS", "-D warnings")),
        // As for the demo. Without features there is no `otel` either.
        Step::new("without features").captured(&mut least),
    ]
}

fn summarise(reports: &[Report]) -> Result<()> {
    let mut rows = vec![["step", "result", "time"].map(String::from).to_vec()];
    rows.extend(reports.iter().map(|report| {
        vec![
            report.name.to_owned(),
            report.outcome.to_string(),
            format!("{:.1} s", report.duration.as_secs_f64()),
        ]
    }));
    println!("\n{}", table::render(&rows));
    let failed: Vec<&str> =
        reports.iter().filter(|report| report.outcome == Outcome::Failed).map(|report| report.name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
