//! `cargo xtask test`: everything that CI requires, in one command that never writes to the tree.
//!
//! All steps use the dev profile and the same flags for dependencies, so that what one step compiled serves the
//! next; torch-sys takes minutes and must be compiled once. Every step runs, whatever failed before it.

mod deny;
mod dependency_rules;
mod notices;
mod step;

use anyhow::{Result, bail};
use clap::Args;

use crate::checkout::Checkout;
use crate::setup;
use crate::table;
use crate::verify::notices::{NOTICES, Notices};
use crate::verify::step::{Outcome, Report, Step};

/// What the programs have for collectors of OpenTelemetry, off by default.
const OTEL: &str = "longhaul-coordinator/otel,longhaul-worker/otel";

/// What `cargo xtask test` accepts.
#[derive(Args)]
pub struct Options {
    /// Only formatting, lints, dependency rules and unit tests.
    #[arg(long)]
    quick: bool,
    /// Fail, instead of skipping a step with a notice, when a tool is not installed.
    #[arg(long)]
    ci: bool,
}

/// Runs all steps and prints a table of them.
///
/// # Errors
/// When any step failed.
pub fn run(checkout: &Checkout, options: &Options) -> Result<()> {
    setup::ensure(checkout)?;
    let notices = Notices::begin()?;
    let mut reports = vec![
        Step::new("format").captured(checkout.cargo().args(["fmt", "--all", "--check"])),
        Step::new("dependency rules").checked(|| dependency_rules::check(checkout)),
        Step::new("clippy").captured(checkout.cargo().args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ])),
    ];
    if options.quick {
        reports.push(Step::new("unit tests").streamed(checkout.cargo().args([
            "test",
            "--workspace",
            "--lib",
            "--bins",
            "--locked",
        ])));
    } else {
        reports.extend(deny::steps(checkout, options.ci));
        reports.push(
            Step::new("rustdoc").captured(
                checkout
                    .cargo()
                    .args(["doc", "--workspace", "--no-deps", "--locked"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
            ),
        );
        // `cargo test` builds a package's binaries for that package's own integration tests only; the end-to-end
        // tests start those of the others.
        reports.push(Step::new("binaries").captured(checkout.cargo().args([
            "build",
            "--workspace",
            "--bins",
            "--locked",
        ])));
        reports.push(
            Step::new("tests").streamed(
                checkout
                    .cargo()
                    .args(["test", "--workspace", "--locked", "--no-fail-fast"])
                    .env(NOTICES, notices.path()),
            ),
        );
        // Last, as it leaves programs with the feature where the others were. Nothing else is compiled anew for it than eight small packages, and those of ours that have the feature
        // or use one that has.
        reports.push(
            Step::new("tests of otel").streamed(
                checkout
                    .cargo()
                    .args([
                        "test",
                        "--workspace",
                        "--locked",
                        "--features",
                        OTEL,
                        "--test",
                        "integration",
                        "otel::",
                    ])
                    .env(NOTICES, notices.path()),
            ),
        );
    }
    let summary = summarise(&reports);
    notices.show()?;
    summary
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
