//! `worker doctor`: obstacles to this machine's participation. Design: `docs/doctor.md`.

mod findings;
mod knock;
mod machine;
mod path;
mod report;

use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use longhaul_common::terminal::takes_colours;

use crate::cli::DoctorArgs;
use report::Report;

/// Examines this machine and its path to the coordinator, and reports to standard output.
///
/// # Errors
/// A check failed, or the report cannot be printed.
pub async fn doctor(args: DoctorArgs) -> Result<()> {
    let mut report = Report::new(io::stdout(), takes_colours(&io::stdout()));
    examine(&args, &mut report).await.context("print the report")?;
    if report.conclude().context("print the report")? {
        Ok(())
    } else {
        bail!("this machine cannot take part")
    }
}

async fn examine(args: &DoctorArgs, report: &mut Report<impl Write>) -> io::Result<()> {
    report.tell(machine::libtorch())?;
    report.tell(machine::device(&args.device))?;
    report.tell(machine::threads(&args.device))?;
    report.tell(machine::cache(args.cache_dir.clone()))?;
    path::examine(args, report).await
}
