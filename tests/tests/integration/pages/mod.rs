//! Pages for people, held against what they speak of.

mod book;
mod promises;

use std::path::Path;

/// The checkout.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
