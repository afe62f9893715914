//! The source of the join token if several are given.

use std::path::Path;
use std::process::{Command, Stdio};

/// Damaged, and so refused before the program dials.
const TEXT: &str = "lh1.from-text";

/// Returns the program's output about a token with these variables and options.
fn said(variables: &[(&str, &str)], options: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_worker-torch"));
    command.args(["join", "127.0.0.1:9"]).args(options).stdin(Stdio::null());
    command.env_remove("LONGHAUL_TOKEN").env_remove("LONGHAUL_TOKEN_FILE").env_remove("LONGHAUL_LOG");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_command_line_counts_before_the_environment_and_neither_is_in_the_others_way() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("missing");
    let file = file.to_str().unwrap();
    let (text_set, file_set) = (("LONGHAUL_TOKEN", TEXT), ("LONGHAUL_TOKEN_FILE", file));
    let of_text = "read the join token:";
    let of_file = format!("read the join token from {file}");
    let of_file = of_file.as_str();
    for (variables, options, expected) in [
        (&[text_set][..], &[][..], of_text),
        (&[file_set], &[], of_file),
        (&[text_set], &["--token-file", file], of_file),
        (&[file_set], &["--token", TEXT], of_text),
        (&[text_set, file_set], &[], of_text),
        (&[text_set, file_set], &["--token-file", file], of_file),
    ] {
        let said = said(variables, options);
        assert!(said.contains(expected), "{variables:?} {options:?}: {said}");
    }
    assert!(!Path::new(file).exists());
    let both = said(&[], &["--token", TEXT, "--token-file", file]);
    assert!(both.contains("cannot be used with"), "{both}");
    let none = said(&[], &[]);
    assert!(none.contains("--token <TOKEN>") && none.contains("--token-file <FILE>"), "{none}");
}
