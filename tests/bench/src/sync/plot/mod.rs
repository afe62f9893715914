//! Plots and tables of the figures, for the documentation.

mod frontier;
mod labels;
mod palette;
mod speed;
mod tables;
mod whole;

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::book::Book;
use crate::kit::progress;

/// Writes all plots and tables with figures in the file to the folder: `sync-frontier.svg`, `sync-speed.svg`,
/// and a table per part.
pub fn draw(results: &Path, folder: &Path) -> Result<()> {
    let book = Book::read(results)?;
    let files = [
        ("sync-frontier.svg", frontier::picture(&book)?),
        ("sync-speed.svg", speed::picture(&book)?),
        ("sync-whole.md", whole::whole(&book)),
        ("sync-quality.md", tables::quality(&book)),
        ("sync-speed.md", tables::speed(&book)),
        ("sync-traffic.md", tables::traffic(&book)),
        ("sync-reach.md", tables::reach(&book)),
    ];
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut drawn = false;
    for (name, content) in files {
        let Some(content) = content else {
            progress(format!("{name} is left as it is: there are no figures for it"));
            continue;
        };
        let path = folder.join(name);
        std::fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
        drawn = true;
    }
    if !drawn {
        bail!("{} has no figures that can be drawn", results.display());
    }
    Ok(())
}
