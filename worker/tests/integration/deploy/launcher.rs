//! `deploy/join.sh` with running workers, and an ssh that stays on this machine.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const TOKEN: &str =
    "lh1.041061050r3ggwv9f1t6asbe41h7jx35ecgj28d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mpjtb9d5mnr91zgp";
/// Like ssh: the arguments after the host are one text for a shell. Each machine has its own home, and some are unreachable.
const SSH: &str = r#"#!/bin/sh
host=$1; shift
case $host in gone-*) exit 255 ;; esac
export HOME="$FOLDER/$host"; mkdir -p "$HOME"
printf '%s\n' "$*" > "$FOLDER/$host.command"
exec sh -c "$*"
"#;

/// A launcher for two machines, in its own folder.
fn launch(folder: &Path, more: &[&str]) -> Command {
    let ssh = folder.join("ssh");
    fs::write(&ssh, SSH).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join("token"), format!("worker join head:4800 --token {TOKEN} --site SITE\n")).unwrap();
    let mut command = Command::new("bash");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/join.sh"));
    command
        .env("FOLDER", folder)
        .env_remove("LONGHAUL_TOKEN")
        .env_remove("LONGHAUL_LOG")
        .env_remove("XDG_CACHE_HOME");
    command.arg("--token-file").arg(folder.join("token")).arg("--ssh").arg(&ssh);
    command.args(["--worker", env!("CARGO_BIN_EXE_worker-torch")]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn terminate(child: &Child) {
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
}

#[test]
fn workers_start_on_every_machine_and_leave_when_the_launcher_is_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    // No coordinator listens there: a worker retries until it is asked to leave.
    let mut child = launch(
        folder.path(),
        &[
            "--coordinator",
            "127.0.0.1:9",
            "--site",
            "a site",
            "one",
            "two",
            "--",
            "--device",
            "cpu",
            "--log-format=text",
        ],
    )
    .spawn()
    .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut waiting = vec!["one: ", "two: "];
    while !waiting.is_empty() {
        let line = lines.next().expect("both say that they look for the coordinator").unwrap();
        if line.contains("looking for the coordinator") {
            waiting.retain(|host| !line.starts_with(host));
        }
    }
    terminate(&child);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "{rest:?}");
    for host in ["one", "two"] {
        let command = fs::read_to_string(folder.path().join(format!("{host}.command"))).unwrap();
        assert!(!command.contains(TOKEN), "a command line is seen by others: {command}");
        assert!(folder.path().join(host).join(".cache/longhaul").is_dir(), "{host} did not run");
    }
}

#[test]
fn a_machine_that_is_not_reached_is_named_and_takes_no_other_along() {
    let folder = tempfile::tempdir().unwrap();
    // Several, as immediate detection is a matter of chance.
    let gone: Vec<String> = (0..8).map(|number| format!("gone-{number}")).collect();
    let mut arguments = vec!["--coordinator", "127.0.0.1:9", "--site", "a"];
    arguments.extend(gone.iter().map(String::as_str));
    arguments.extend(["ssh://me@two:22", "--", "--device", "cpu"]);
    let mut child = launch(folder.path(), &arguments).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let there =
        |line: &String| line.starts_with("ssh://me@two:22: ") && line.contains("looking for the coordinator");
    assert!(lines.any(|line| there(&line)), "{:?}", child.wait_with_output());
    terminate(&child);
    let rest: Vec<String> = lines.collect();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{rest:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    for host in gone {
        assert!(said.contains(&format!("{host} ended with 255")), "{said}");
    }
    assert!(!said.contains("two:22 ended"), "{said}");
}

#[test]
fn a_worker_that_fails_is_named_and_so_is_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--coordinator", "127.0.0.1:9", "--site", "a", "one", "--", "--device", "abacus"];
    let output = launch(folder.path(), &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("one ended with 1"), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("abacus"), "{output:?}");
    let output = launch(folder.path(), &["--coordinator", "127.0.0.1:9", "one"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--site"), "{output:?}");
}
