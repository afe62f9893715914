//! Tests of the command with stand-ins for `worker-torch`.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A program open for writing cannot be started, and a process forked meanwhile keeps it open. So tests run one at a time.
static ONE: Mutex<()> = Mutex::new(());

/// Creates a folder with the command; serialises tests.
fn folder() -> (MutexGuard<'static, ()>, tempfile::TempDir) {
    let turn = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    fs::copy(env!("CARGO_BIN_EXE_worker"), folder.path().join("worker")).unwrap();
    (turn, folder)
}

/// The same with a program whose library has been removed.
fn with_program() -> (MutexGuard<'static, ()>, tempfile::TempDir) {
    let (turn, folder) = folder();
    let built = with_torch(folder.path(), "built");
    let lib = format!("-L{}", built.display());
    compile(&[&lib, "-ltorch_cpu"], &folder.path().join("worker-torch"), PROGRAM);
    fs::remove_dir_all(built).unwrap();
    (turn, folder)
}

fn run(folder: &Path, envs: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(folder.join("worker"));
    command.args(["join", "a b"]).env_remove("LIBTORCH").env_remove("LD_LIBRARY_PATH");
    command.env("HOME", folder).env_remove("XDG_CACHE_HOME");
    command.envs(envs.iter().copied()).output().unwrap()
}

/// Prints its arguments and library path.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int in_torch(void);
int main(int count, char **words) {
    const char *path = getenv("LD_LIBRARY_PATH");
    printf("%d|%s|%s|%s|%d\n", (int)getpid(), path ? path : "", words[1], words[2], count - 1);
    return in_torch();
}
"#;

fn compile(arguments: &[&str], output: &Path, source: &str) {
    let text = output.with_extension("c");
    fs::write(&text, source).unwrap();
    let status = Command::new("cc").args(["-o"]).arg(output).arg(&text).args(arguments).status().unwrap();
    assert!(status.success());
}

/// Creates a library with libtorch's name in a folder.
fn with_torch(folder: &Path, place: &str) -> PathBuf {
    let lib = folder.join(place);
    fs::create_dir_all(&lib).unwrap();
    compile(&["-shared", "-fPIC"], &lib.join("libtorch_cpu.so"), "int in_torch(void) { return 7; }\n");
    lib
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the output after the process id.
fn printed(output: &Output) -> String {
    text(&output.stdout).split_once('|').map_or_else(String::new, |(_, rest)| rest.to_owned())
}

#[test]
fn it_becomes_the_program_with_all_words_and_its_exit_code() {
    let (_turn, folder) = with_program();
    let lib = with_torch(folder.path(), "lib");
    let child = Command::new(folder.path().join("worker"))
        .args(["join", "a b"])
        .env("LD_LIBRARY_PATH", &lib)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    let expected = format!("{id}|{}|join|a b|2\n", lib.display());
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(7), expected));
}

#[test]
fn another_libtorch_of_the_version_is_taken_where_its_own_is_gone() {
    let (_turn, folder) = with_program();
    with_torch(folder.path(), ".cache/longhaul/libtorch-2.10.0-cpu/torch/lib");
    let output = run(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(127), "another version is none: {}", text(&output.stdout));

    let cached = with_torch(folder.path(), ".cache/longhaul/libtorch-2.11.0-cpu/torch/lib");
    let expected = |lib: &Path| format!("{}|join|a b|2\n", lib.display());
    let output = run(folder.path(), &[]);
    assert_eq!((output.status.code(), printed(&output)), (Some(7), expected(&cached)));

    let own = with_torch(folder.path(), "own/lib");
    let output = run(folder.path(), &[("LIBTORCH", own.parent().unwrap())]);
    assert_eq!(printed(&output), expected(&own));

    fs::write(folder.path().join("own/version.py"), "__version__ = '2.10.0+cpu'\n").unwrap();
    let output = run(folder.path(), &[("LIBTORCH", own.parent().unwrap())]);
    assert_eq!(printed(&output), expected(&cached), "one of another version is none");
    fs::write(folder.path().join("own/version.py"), "__version__ = '2.11.0+cpu'\n").unwrap();

    let others = Path::new("/some/where");
    let output = run(folder.path(), &[("LIBTORCH", own.parent().unwrap()), ("LD_LIBRARY_PATH", others)]);
    assert_eq!(printed(&output), format!("{}:/some/where|join|a b|2\n", own.display()));
}

#[test]
fn where_there_is_none_it_says_what_helps() {
    let (_turn, folder) = with_program();
    let empty = folder.path().join("empty");
    let output = run(folder.path(), &[("LIBTORCH", &empty)]);
    let said = text(&output.stderr);
    for words in ["worker: libtorch_cpu.so cannot be loaded", "empty/lib", "cargo xtask setup", "LIBTORCH="] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(127), String::new()));
}

#[test]
fn a_command_without_its_program_says_so() {
    let (_turn, folder) = folder();
    let output = run(folder.path(), &[]);
    let said = text(&output.stderr);
    assert!(said.contains("worker-torch is not beside") && output.status.code() == Some(127), "{said}");
}
