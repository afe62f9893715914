//! Invalid values in a `run.toml` and in a topology.

use std::path::Path;

use longhaul_run_toml::RunToml;
use longhaul_tests::cluster::Process;

use super::{assert_says, refusal};
use crate::scenario::Setup;

/// Three sites of two workers, which tensor groups and stages go with; each table can be added to.
fn run_toml(table: &str, lines: &str) -> RunToml {
    let run = Setup { sites: vec![2, 2, 2], batch: 12, parallel: "", ..Setup::default() }.run_toml();
    run.without("train.shares").without("faults").lines(table, lines)
}

/// Starts a command of the coordinator that reads these files; `name` is that of its log.
fn start(folder: &Path, name: &str, arguments: &[&str]) -> Process {
    Process::start_as("coordinator", name, folder, |command| {
        command.args(arguments);
    })
    .unwrap()
}

#[test]
fn a_value_that_cannot_be_is_refused_by_its_key_with_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let cases: [(&str, &str, &[&str]); 26] = [
        ("train", "shares = 3", &["`shares = 3`", "a name in quotes is wanted: `by_speed` or `even`"]),
        ("train", "shares = \"fast\"", &["`shares = \"fast\"`", "expected `by_speed` or `even`"]),
        ("train", "share = \"even\"", &["`share`, did you mean `shares`?"]),
        ("faults", "suspect_after_ms = \"2s\"", &["`suspect_after_ms = \"2s\"`", "a whole number from 0 on"]),
        ("faults", "suspect_after_ms = 2.5", &["`suspect_after_ms = 2.5`", "a whole number from 0 on"]),
        ("faults", "suspect_after_ms = -5", &["`suspect_after_ms = -5`", "a whole number from 0 on"]),
        ("faults", "suspect_after_ms = 0", &["faults.suspect_after_ms = 0: must be at least 1"]),
        (
            "faults",
            "suspect_after_ms = 9000",
            &["faults.suspect_after_ms = 9000", "lower this one, or raise"],
        ),
        ("parallel", "tensor = \"2\"", &["`tensor = \"2\"`", "a whole number from 0 to 4294967295"]),
        ("parallel", "tensor = 5000000000", &["`tensor = 5000000000`", "from 0 to 4294967295"]),
        ("parallel", "tensor = 4", &["parallel.tensor = 4", "must divide run.workers = 6"]),
        ("parallel", "tensor = 2\nstages = 2", &["parallel.stages = 2", "= 4 workers", "run.workers = 6"]),
        (
            "parallel",
            "tensor = 2\nstages = 3",
            &["parallel.stages = 3", "model.layers is 2: take fewer stages"],
        ),
        ("parallel", "tensor = 3", &["parallel.tensor = 3", "must divide"]),
        ("checkpoint", "to = 3", &["`to = 3`", "text in quotes is wanted"]),
        (
            "checkpoint",
            "to = \"http://host/b\"",
            &["http://host/b is not a valid place for checkpoints", "s3://BUCKET"],
        ),
        ("checkpoint", "to = \"s3://\"", &["s3:// is not a valid place for checkpoints", "s3://BUCKET"]),
        ("checkpoint", "to = \"checkpoints\"", &["checkpoint.to = checkpoints", "a folder of its own"]),
        ("checkpoint", "to = \"~/runs\"", &["checkpoint.to = ~/runs", "write the whole path"]),
        ("checkpoint", "dir = \"\"", &["checkpoint.dir = : must name a folder"]),
        ("checkpoint", "endpoint = \"http://h:1\"", &["checkpoint.endpoint = http://h:1", "to = \"s3://"]),
        (
            "checkpoint",
            "to = \"s3://b\"\nendpoint = \"h:1\"",
            &["checkpoint.endpoint = h:1: must begin with"],
        ),
        (
            "checkpoint",
            "to = \"s3://b\"\nendpoint = \"http://h h\"",
            &["= http://h h: must begin with http://"],
        ),
        ("checkpoint", "keep_every = \"all\"", &["`keep_every = \"all\"`", "a whole number from 0 on"]),
        ("checkpoint", "copies = \"yes\"", &["`copies = \"yes\"`", "true or false is wanted"]),
        ("checkpoint", "archive = \"s3://b\"", &["unknown key `archive`", "keep_every, to, endpoint"]),
    ];
    let started: Vec<_> = (0..)
        .zip(cases)
        .map(|(number, (table, lines, words))| {
            let file = format!("run-{number}.toml");
            run_toml(table, lines).write(folder.join(&file)).unwrap();
            let state = format!("state-{number}");
            let arguments = ["up", "--config", &file, "--state-dir", &state, "--listen", "127.0.0.1:0"];
            (start(folder, &file, &arguments), words)
        })
        .collect();
    for (process, words) in started {
        assert_says(&refusal(process), words);
    }
}

#[test]
fn a_machine_that_cannot_be_is_refused_by_its_key_with_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    Setup::default().run_toml().write(folder.join("run.toml")).unwrap();
    let cases: [(&str, &[&str]); 8] = [
        ("gpu = \"yes\"", &["gpu = \"yes\"", "true or false is wanted"]),
        ("gpus = true", &["unknown key `gpus`, did you mean `gpu`?"]),
        ("host_memory_gib = 32", &["host_memory_gib", "write gpu = true, or leave it out"]),
        ("gpu = false\nhost_memory_gib = 32", &["host_memory_gib", "write gpu = true, or leave it out"]),
        ("gpu = true\nhost_memory_gib = 0", &["site.host_memory_gib = 0: must be a number above zero"]),
        ("gpu = true\nhost_memory_gib = nan", &["site.host_memory_gib = NaN: must be a number above zero"]),
        ("gpu = true\nhost_memory_gib = \"32\"", &["`host_memory_gib = \"32\"`", "a number is wanted"]),
        ("lan_mbit = -1", &["site.lan_mbit = -1: must be a number above zero"]),
    ];
    let started: Vec<_> = (0..)
        .zip(cases)
        .map(|(number, (lines, words))| {
            let file = format!("machines-{number}.toml");
            let site =
                format!("[[site]]\nname = \"a\"\nworkers = 4\ntflops = 0.1\nmemory_gib = 8\n{lines}\n");
            std::fs::write(folder.join(&file), site).unwrap();
            (start(folder, &file, &["plan", "--config", "run.toml", "--topology", &file]), words)
        })
        .collect();
    for (process, words) in started {
        assert_says(&refusal(process), words);
    }
}
