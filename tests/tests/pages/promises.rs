//! `docs/promises.md` names tests that exist, and the book's page tells of the same promises.

use std::fs;
use std::path::Path;

use crate::root;

#[test]
fn every_test_that_the_promises_page_names_exists() {
    let page = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let mut sources = String::new();
    for part in ["common", "proto", "coordinator", "worker", "tests"] {
        read_sources(&root().join(part), &mut sources);
    }
    let names: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let found = if name.ends_with(".rs") { root().join(name).is_file() } else { is_run(&sources, name) };
        assert!(found, "docs/promises.md names `{name}`, which is no test, or one that is ignored");
    }
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(2) {
        for kind in ["simulated", "real processes"] {
            assert!(row.contains(kind), "no tests are said to be of this kind ({kind}): {row}");
        }
    }
}

/// Whether a function of this name is a test that runs by itself.
fn is_run(sources: &str, name: &str) -> bool {
    let Some((before, _)) = sources.split_once(&format!("fn {name}(")) else { return false };
    // What stands before a function in its own lines, back to the end of what comes before it.
    let mut own = before.lines().rev().take_while(|line| !line.is_empty() && !line.ends_with('}'));
    let attributes: Vec<&str> = own.by_ref().filter(|line| line.trim().starts_with("#[")).collect();
    attributes.iter().any(|line| line.contains("test"))
        && !attributes.iter().any(|line| line.contains("ignore"))
}

#[test]
fn the_books_page_says_of_every_promise_what_it_is_worth_and_how_it_is_tested() {
    let read = |page| fs::read_to_string(root().join(page)).unwrap();
    let promises = first_cells(&read("docs/promises.md"));
    assert!(promises.len() > 5, "{promises:?}");
    let book = read("docs/book/src/promises.md");
    assert_eq!(first_cells(&book), promises);
    let items = book.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**: "));
    assert_eq!(items.map(|(name, _)| name).collect::<Vec<_>>(), promises);
}

/// Of the rows of a page's only table.
fn first_cells(page: &str) -> Vec<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).skip(2);
    rows.map(|(cell, _)| cell.to_owned()).collect()
}

fn read_sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}
