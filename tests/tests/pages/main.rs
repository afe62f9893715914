//! Pages for people, held against what they speak of.

#![allow(clippy::unwrap_used, reason = "a file that cannot be read is a failed test")]

mod book;
mod promises;

use std::path::Path;

/// The checkout.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
