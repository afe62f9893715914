//! The book's page of all keys of a `run.toml` matches the sources and the parser.

#![allow(clippy::unwrap_used, reason = "an unreadable file is a failed test")]

#[path = "../examples/config_reference/page.rs"]
mod page;
#[path = "../examples/config_reference/parser.rs"]
mod parser;
#[path = "../examples/config_reference/source.rs"]
mod source;

use std::path::Path;

use longhaul_common::config::RunConfig;

const COMMAND: &str =
    "cargo run -p longhaul-common --example config_reference > docs/book/src/configuration.md";

fn checked_in() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src/configuration.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_page_of_all_keys_is_what_the_sources_say() {
    let (there, made) = (checked_in(), page::page().unwrap());
    let differs = there.lines().zip(made.lines()).find(|(there, made)| there != made);
    assert!(there == made, "the page is outdated; first difference:\n{differs:?}\nRegenerate it: {COMMAND}");
}

#[test]
fn the_page_has_every_key_that_the_parser_takes_and_no_other() {
    let page = checked_in();
    for table in [
        "run",
        "model",
        "model.decoder",
        "model.decoder.rope_scaling",
        "data",
        "data.image",
        "train",
        "train.muon",
        "train.sgd",
        "train.lion",
        "train.adafactor",
        "train.sparse_backward",
        "train.selective_backward",
    ]
    .into_iter()
    .chain([
        "parallel",
        "parallel.differences",
        "sync",
        "privacy",
        "secure_aggregation",
        "checkpoint",
        "faults",
    ]) {
        assert_eq!(listed(&page, &format!("## `[{table}]`")), taken(table), "{table}");
    }
    assert_eq!(listed(&page, "## `[[data.sources]]`"), taken("data.sources"));
    let root = parser::keys(&[]).unwrap();
    let headings: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("## `[")?.strip_suffix("]`")).collect();
    let missing: Vec<_> = root.iter().filter(|table| !headings.contains(&table.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Returns the keys that the parser accepts in a table.
fn taken(table: &str) -> Vec<String> {
    parser::keys(&table.split('.').collect::<Vec<_>>()).unwrap()
}

/// Returns the keys of the first table below a heading.
fn listed(page: &str, heading: &str) -> Vec<String> {
    let (_, below) = page.split_once(&format!("\n{heading}\n")).unwrap();
    let rows = below.lines().skip_while(|line| !line.starts_with("| key |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.split('`').nth(1)).map(str::to_owned).collect()
}

/// Each block of TOML with the needed tables. The others show parts, or have the rest from a pretrained model's folder.
#[test]
fn every_whole_run_toml_in_the_book_is_accepted() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/book/src");
    let mut runs = 0;
    for page in std::fs::read_dir(book).unwrap().map(|entry| entry.unwrap().path()) {
        if page.extension().is_none_or(|end| end != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```"));
        let tables = ["[run]", "[model]", "[data]"];
        let is_whole =
            |block: &str| tables.iter().all(|table| block.contains(table)) && !block.contains("\nfrom = ");
        for (block, _) in blocks.filter(|(block, _)| is_whole(block)) {
            RunConfig::parse(block).unwrap_or_else(|error| panic!("{}: {error}\n{block}", page.display()));
            runs += 1;
        }
    }
    assert!(runs >= 2, "{runs} run.toml in the book");
}
