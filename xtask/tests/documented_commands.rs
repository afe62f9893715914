//! Every Longhaul command line in the pages below and in the book uses existing sub-commands and flags: the
//! built binaries are run with it and `--help` appended, and reject unknown arguments before they print the
//! help.
#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGES: [&str; 4] = ["README.md", "CONTRIBUTING.md", "deploy/README.md", "deploy/dist/README.md"];
const BOOK: &str = "docs/book/src";

/// Names of programs on the pages, with their files.
const PROGRAMS: [(&str, &str); 3] =
    [("cargo xtask ", "xtask"), ("coordinator ", "coordinator"), ("worker ", "worker")];

#[test]
fn every_command_line_in_the_pages_is_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // The same line stands on several pages, and a worker takes half a second to load.
    let mut understood = BTreeSet::new();
    let book = std::fs::read_dir(root.join(BOOK)).unwrap().map(|entry| entry.unwrap().path());
    let pages = PAGES.into_iter().map(|page| root.join(page)).chain(book);
    for page in pages.filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for (program, arguments) in commands(&text) {
            if understood.contains(&(program, arguments.clone())) {
                continue;
            }
            if let Err(error) = understand(program, &arguments) {
                panic!("{}: {program} {arguments:?}\n{error}", page.display());
            }
            understood.insert((program, arguments));
        }
    }
    for (_, program) in PROGRAMS {
        assert!(understood.iter().any(|(seen, _)| *seen == program), "no page says how to call {program}");
    }
}

#[test]
fn a_flag_or_sub_command_that_does_not_exist_is_caught() {
    for line in
        ["$ worker join HOST:1 --tokn T", "$ coordinator rise", "$ cargo xtask demo # --fast if you can"]
    {
        let [(program, arguments)] = commands(line).try_into().unwrap();
        assert!(understand(program, &arguments).is_err(), "{line}");
    }
}

/// Returns the program and the arguments of every command in prompts and code spans. A flag in a prompt's
/// comment belongs to its command.
fn commands(page: &str) -> Vec<(&'static str, Vec<String>)> {
    let prompts = page.lines().filter_map(typed);
    let prose = page.split("```").step_by(2);
    let spans = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    prompts.chain(spans).filter_map(command).collect()
}

/// Returns the text after a prompt, which may start with the name of a machine: `head$ `.
fn typed(line: &str) -> Option<&str> {
    let (machine, typed) = line.split_once("$ ")?;
    machine.chars().all(|c| c.is_ascii_lowercase() || c == '-').then_some(typed)
}

fn command(line: &str) -> Option<(&'static str, Vec<String>)> {
    PROGRAMS.iter().find_map(|(typed, program)| {
        let (arguments, comment) = match line.strip_prefix(typed)? {
            rest if rest.contains('#') => rest.split_once('#')?,
            rest => (rest, ""),
        };
        let arguments = arguments.split(" > ").next()?;
        let mentioned = comment.split_whitespace().filter(|word| word.starts_with("--"));
        Some((*program, words(arguments).into_iter().chain(mentioned).map(str::to_owned).collect()))
    })
}

/// Splits into words; quoted text is one word.
fn words(arguments: &str) -> Vec<&str> {
    let parts = arguments.split('"').enumerate();
    let words =
        parts.map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
    words.collect::<Vec<_>>().concat()
}

fn understand(program: &str, arguments: &[String]) -> Result<(), String> {
    let output = Command::new(built(program)).args(arguments).arg("--help").output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn built(program: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name(program);
    assert!(path.is_file(), "{} is not there: cargo build --workspace --bins makes it", path.display());
    path
}
