//! Documentation compared with its subject.

mod book;
mod promises;

use std::path::Path;

/// Returns the checkout's root.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
