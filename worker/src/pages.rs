//! `worker completions` and `worker man`: the command line for shells and for `man`.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;

/// Prints the completion script of a shell.
pub fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "worker", &mut script);
    // A closed reader (`| head`) is no error.
    let _ = std::io::stdout().write_all(&script);
}

/// Writes a manual page for each subcommand into a folder.
///
/// # Errors
/// The folder cannot be created or written.
pub fn man(folder: &Path) -> Result<()> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("make the folder {shown}"))?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(|| format!("write the manual into {shown}"))
}
