//! `worker completions` and `worker man`: what clap knows of the command line, for shells and for `man`.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;

/// Prints what makes a shell complete this command.
pub fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "worker", &mut script);
    // A reader that has gone away (`| head`) is no reason to complain.
    let _ = std::io::stdout().write_all(&script);
}

/// Writes a page for each subcommand into a folder.
///
/// # Errors
/// The folder cannot be made, or written to.
pub fn man(folder: &Path) -> Result<()> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("make the folder {shown}"))?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(|| format!("write the manual into {shown}"))
}
