//! `coordinator checkpoints`, with no coordinator that runs.

use std::path::Path;
use std::process::{Command, Output};

use longhaul_common::config::ArchiveLocation;
use longhaul_common::id::{Generation, Round, RunId};
use longhaul_proto::checkpoint::archive::{self, Archive, ModelPart};
use longhaul_proto::checkpoint::folder::{self, FileRecord};
use longhaul_proto::checkpoint::{folder_name, sealed};
use serde_json::Value;

const RUN: RunId = RunId([9; 16]);

fn coordinator(arguments: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coordinator"));
    command.arg("checkpoints").args(arguments).arg("--dir").arg(dir).output().unwrap()
}

fn listed(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// As the workers of two parts put it there.
#[tokio::main(flavor = "current_thread")]
async fn put_into_archive(dir: &Path, round: u64) {
    let archive = Archive::create(&ArchiveLocation::Folder(dir.to_owned()), None).unwrap();
    for rank in 0..2 {
        let values: Vec<f32> = (0..1000).map(|index| (round * 10_000 + index) as f32).collect();
        let mut upload = archive.upload(ModelPart { run: RUN, parts: 2, rank }, 300);
        let parameters = upload.values(&values).await.unwrap();
        let manifest = archive::Manifest {
            run: RUN.to_string(),
            next_round: Round(round),
            next_step: 5 * round,
            generation: Generation(1),
            state_hash: "ab".repeat(32),
            software: "0".to_owned(),
            rank,
            parts: 2,
            chunks: Some(vec![(rank, rank + 1)]),
            share: None,
            model: "{}".to_owned(),
            tokenizer: None,
            companions: Default::default(),
            parameters,
            shared: Default::default(),
            private: None,
        };
        upload.finish(&manifest).await.unwrap();
    }
}

/// As a worker has it on its disk.
fn put_into_folder(dir: &Path, round: u64) {
    let path = dir.join(RUN.to_string()).join(folder_name(Round(round)));
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join(folder::MODEL), "weights").unwrap();
    let record = FileRecord::of(&path.join(folder::MODEL)).unwrap();
    let manifest = folder::Manifest {
        run: RUN.to_string(),
        next_round: Round(round),
        next_step: 5 * round,
        generation: Generation(1),
        state_hash: "cd".repeat(32),
        software: "0".to_owned(),
        chunks: None,
        share: None,
        files: [(folder::MODEL.to_owned(), record)].into(),
    };
    std::fs::write(path.join(folder::MANIFEST), sealed::to_text(&manifest).unwrap()).unwrap();
}

#[test]
fn an_archive_and_a_workers_folder_are_listed_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    for round in [20, 40] {
        put_into_archive(dir.path(), round);
    }
    put_into_folder(dir.path(), 60);
    let output = coordinator(&["list", "--json"], dir.path());
    assert!(output.status.success());
    let found: Vec<(u64, u64, u64)> = listed(&output)
        .iter()
        .map(|of| {
            (of["next_round"].as_u64().unwrap(), of["part"].as_u64().unwrap(), of["bytes"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, [(60, 1, 7), (40, 1, 4000), (40, 2, 4000), (20, 1, 4000), (20, 2, 4000)]);
    let text = String::from_utf8(coordinator(&["list"], dir.path()).stdout).unwrap();
    assert!(text.contains("2/2") && text.contains("round-000040.json"), "{text}");

    let output = coordinator(&["verify", "--json"], dir.path());
    assert!(output.status.success() && listed(&output).iter().all(|of| of["whole"] == true));
}

#[test]
fn what_is_damaged_is_named_and_the_exit_code_says_so() {
    let dir = tempfile::tempdir().unwrap();
    for round in [20, 40] {
        put_into_archive(dir.path(), round);
        put_into_folder(dir.path(), round);
    }
    let run = dir.path().join(RUN.to_string());
    let pieces = run.join("part-2-of-2/pieces");
    let names: Vec<_> = std::fs::read_dir(&pieces).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let name = names[0].to_str().unwrap();
    std::fs::write(pieces.join(name), "other").unwrap();
    std::fs::write(run.join("round-000040").join(folder::MODEL), "weightS").unwrap();

    let output = coordinator(&["verify", "--json"], dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("2 of 6 are damaged"));
    let listed = listed(&output);
    let damaged: Vec<&Value> = listed.iter().filter(|of| of["whole"] == false).collect();
    let words: Vec<&str> = damaged.iter().map(|of| of["damaged"][0].as_str().unwrap()).collect();
    assert!(words[0].contains("model.safetensors: its hash is not the recorded one"), "{words:?}");
    assert!(words[1].contains(name), "{words:?}");

    // Of what is left out, nothing is said.
    let whole = if damaged[1]["next_round"] == 20 { "40" } else { "20" };
    let output = coordinator(&["verify", "--round", whole, "--run", &RunId([8; 16]).to_string()], dir.path());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has no such checkpoint"));
}

#[test]
fn a_place_that_is_none_is_refused_with_what_would_be_one() {
    let output = coordinator(&["list"], Path::new("ftp://host"));
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("s3://BUCKET/PREFIX"), "{text}");
    let output = coordinator(&["list"], Path::new("/nowhere/at/all"));
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("/nowhere/at/all"), "{text}");
    let output =
        Command::new(env!("CARGO_BIN_EXE_coordinator")).args(["checkpoints", "verify"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
