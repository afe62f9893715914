//! Pictures of the figures, for the documentation.

mod frontier;
mod labels;
mod palette;
mod speed;

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::book::Book;
use super::session::progress;

/// Draws all that the file has figures for into the folder: `sync-frontier.svg` and `sync-speed.svg`.
pub fn draw(results: &Path, folder: &Path) -> Result<()> {
    let book = Book::read(results)?;
    let pictures =
        [("sync-frontier.svg", frontier::picture(&book)?), ("sync-speed.svg", speed::picture(&book)?)];
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut drawn = false;
    for (name, picture) in pictures {
        let Some(picture) = picture else {
            progress(&format!("{name} is not drawn: there are no figures for it"));
            continue;
        };
        let path = folder.join(name);
        std::fs::write(&path, picture).with_context(|| format!("write {}", path.display()))?;
        drawn = true;
    }
    if !drawn {
        bail!("{} has no figures that can be drawn", results.display());
    }
    Ok(())
}
