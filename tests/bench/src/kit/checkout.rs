//! Files of the checkout.

use std::path::{Path, PathBuf};

/// From this crate to the checkout's root.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns a file by its path from the root. A binary built elsewhere searches the working directory.
pub fn file(path: &str) -> PathBuf {
    let found = Path::new(ROOT).join(path);
    if found.exists() { found } else { path.into() }
}

/// Returns the compressed text of the examples.
pub fn text() -> PathBuf {
    file("examples/data/bible.en.txt.zst")
}
