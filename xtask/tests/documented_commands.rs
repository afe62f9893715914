//! Every command line of ours in the pages below names sub-commands and flags that exist: the built
//! binaries are given it with `--help` at its end, and refuse what they do not know before they come to that.
#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

const PAGES: [&str; 5] = [
    "README.md",
    "CONTRIBUTING.md",
    "deploy/README.md",
    "deploy/dist/README.md",
    "docs/book/src/operating.md",
];

/// What a page calls a program, and the file that it is.
const PROGRAMS: [(&str, &str); 3] =
    [("cargo xtask ", "xtask"), ("coordinator ", "coordinator"), ("worker ", "worker")];

#[test]
fn every_command_line_in_the_pages_is_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut programs_seen = Vec::new();
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        for (program, arguments) in commands(&text) {
            if let Err(error) = understand(program, &arguments) {
                panic!("{page}: {program} {arguments:?}\n{error}");
            }
            programs_seen.push(program);
        }
    }
    for (_, program) in PROGRAMS {
        assert!(programs_seen.contains(&program), "no page says how to call {program}");
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

/// The program and the arguments of every command in prompts and code spans. A flag that a prompt's comment mentions
/// belongs to its command.
fn commands(page: &str) -> Vec<(&'static str, Vec<String>)> {
    let prompts = page.lines().filter_map(|line| line.strip_prefix("$ "));
    let prose = page.split("```").step_by(2);
    let spans = prose.flat_map(|text| text.split('`').skip(1).step_by(2));
    prompts.chain(spans).filter_map(command).collect()
}

fn command(line: &str) -> Option<(&'static str, Vec<String>)> {
    PROGRAMS.iter().find_map(|(typed, program)| {
        let (arguments, comment) = match line.strip_prefix(typed)? {
            rest if rest.contains('#') => rest.split_once('#')?,
            rest => (rest, ""),
        };
        let mentioned = comment.split_whitespace().filter(|word| word.starts_with("--"));
        Some((*program, arguments.split_whitespace().chain(mentioned).map(str::to_owned).collect()))
    })
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
