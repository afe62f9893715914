//! `docs/promises.md` names existing tests, and the book's page lists the same promises.

use std::fs;
use std::path::Path;

use super::root;

/// Parts of the checkout with tests that pages and other tests name.
const PARTS: [&str; 5] = ["common", "proto", "coordinator", "worker", "tests"];

/// Start of the ignore reason of a nightly test, and of one with substitutes.
const NIGHTLY: &str = "#[ignore = \"nightly: ";
const COVERED: &str = "#[ignore = \"nightly: covered by ";

/// Schedule of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    EachTime,
    AtNight,
}

#[test]
fn every_test_that_the_promises_page_names_exists() {
    let page = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let sources = sources();
    let names: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let found =
            if name.ends_with(".rs") { root().join(name).is_file() } else { runs(&sources, name).is_some() };
        assert!(found, "docs/promises.md names `{name}`, which is no test, or one that is ignored");
    }
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(2) {
        for kind in ["simulated", "real processes"] {
            assert!(row.contains(kind), "no tests are said to be of this kind ({kind}): {row}");
        }
    }
}

#[test]
fn every_test_of_the_night_names_tests_of_each_time_that_cover_it() {
    let sources = sources();
    let mut count = 0;
    for line in sources.lines().filter_map(|line| line.trim().strip_prefix(COVERED)) {
        let names = line.strip_suffix("\"]").unwrap();
        for name in names.split(", ") {
            let when = runs(&sources, name);
            assert_eq!(when, Some(When::EachTime), "a test of the night is said to be covered by `{name}`");
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
}

/// Returns the schedule of a function of this name; `None`: not run, or not a test.
fn runs(sources: &str, name: &str) -> Option<When> {
    let (before, _) = sources.split_once(&format!("fn {name}("))?;
    // Attributes of the function: the lines back to the end of the preceding item.
    let own = before.lines().rev().take_while(|line| !line.is_empty() && !line.ends_with('}'));
    let attributes: Vec<&str> = own.map(str::trim).filter(|line| line.starts_with("#[")).collect();
    let ignored = attributes.iter().find(|line| line.contains("ignore"));
    match ignored {
        _ if !attributes.iter().any(|line| line.contains("test")) => None,
        None => Some(When::EachTime),
        Some(line) => line.starts_with(NIGHTLY).then_some(When::AtNight),
    }
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

/// Returns the first cells of a page's only table.
fn first_cells(page: &str) -> Vec<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).skip(2);
    rows.map(|(cell, _)| cell.to_owned()).collect()
}

fn sources() -> String {
    let mut sources = String::new();
    PARTS.iter().for_each(|part| read_sources(&root().join(part), &mut sources));
    sources
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
