//! `coordinator completions` and `coordinator man`: what clap knows of the command line, for shells and for `man`.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, CliError, print};

pub(super) fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "coordinator", &mut script);
    print(String::from_utf8_lossy(&script).trim_end());
}

pub(super) fn man(folder: &Path) -> Result<(), CliError> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("make the folder {shown}"))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("write the manual into {shown}"))?;
    Ok(())
}
