//! Prints the book's page of all keys of a `run.toml`.
//!
//! `cargo run -p longhaul-common --example config_reference > docs/book/src/configuration.md` regenerates the
//! page; `common/tests/config_reference.rs` fails if it is outdated.
#![allow(clippy::print_stdout, reason = "it prints a page")]

mod page;
mod parser;
mod source;

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", page::page()?);
    Ok(())
}
