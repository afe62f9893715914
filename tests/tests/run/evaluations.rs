//! The held-out loss of a run decides which checkpoint stays, and when it ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use longhaul_tests::cluster::binary;
use serde_json::Value;

use crate::scenario::{QUICK_LINK, RUN_MAX, Scenario, Setup};

/// Runs `coordinator checkpoints` on the cluster's state directory, which need not have a coordinator.
fn checkpoints(scenario: &Scenario, arguments: &[&str]) -> String {
    let mut command = Command::new(binary("coordinator").unwrap());
    command.arg("checkpoints").args(arguments).current_dir(scenario.cluster.folder());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// No decrease is large enough for `min_delta`, so the run ends after the third evaluation.
#[test]
fn a_run_without_improvement_ends_early_and_its_best_checkpoint_is_exported() {
    let setup = Setup {
        steps: 4000,
        sites: vec![1, 1],
        link: QUICK_LINK,
        checkpoint: "every_rounds = 1\nkeep = 1",
        ..Setup::default()
    };
    let run_toml = setup
        .run_toml()
        .set("train.evaluate_every_rounds", 4)
        .lines("evaluate", "keep_best = true\npatience = 2\nmin_delta = 100.0");
    let run_toml = run_toml.lines(
        "evaluate.tasks",
        "arc = [\"arc.jsonl\"]\nexact_match = [\"arithmetic.jsonl\"]\nanswer_tokens = 4",
    );
    let folder = tempfile::tempdir().unwrap();
    write_questions(folder.path());
    let mut scenario = Scenario::start_in(folder, run_toml.to_string());
    let status = scenario.cluster.wait_until_finished(RUN_MAX).unwrap();
    let reason = status["ended_early"].as_str().unwrap();
    assert!(reason.contains("has not improved by 100 in 2 evaluations since step 16"), "{reason}");
    assert!(status["round"].as_u64().unwrap() >= 12 && status["step"].as_u64() < Some(4000), "{status:#}");

    let best = &status["best_checkpoint"];
    let next_round = best["next_round"].as_u64().unwrap();
    assert!(best["loss"].as_f64() > Some(0.0) && best == &status["best"], "{best}");
    let listed: Vec<Value> =
        serde_json::from_str(&checkpoints(&scenario, &["list", "--json", "--dir", "checkpoints"])).unwrap();
    assert!(listed.len() <= 4, "the newest, the best, and those without a verdict: {listed:?}");
    let told =
        checkpoints(&scenario, &["export", "out", "--best", "--dir", "checkpoints", "--state-dir", "state"]);
    assert!(told.contains(&format!("round-{next_round:06}")), "{told}");
    the_scores_are_those_of_the_last_checkpoint(&scenario, &status["scores"], &listed);
}

/// Seven questions and three, which two workers share.
fn write_questions(folder: &Path) {
    let arc = (0..7).map(|at| {
        format!("{{\"question\": \"Which {at}?\", \"choices\": {{\"text\": [\"the {at}\", \"a\", \"other things\"], \"label\": [\"A\", \"B\", \"C\"]}}, \"answerKey\": \"{}\"}}\n", ["A", "B", "C"][at % 3])
    });
    fs::write(folder.join("arc.jsonl"), arc.collect::<String>()).unwrap();
    let arithmetic =
        (1..4).map(|at| format!("{{\"prompt\": \"1 + {at} =\", \"completion\": \" {}\"}}\n", at + 1));
    fs::write(folder.join("arithmetic.jsonl"), arithmetic.collect::<String>()).unwrap();
}

/// `worker evaluate` scores that checkpoint alike.
fn the_scores_are_those_of_the_last_checkpoint(scenario: &Scenario, scores: &Value, listed: &[Value]) {
    let newest = listed.iter().filter_map(|one| one["path"].as_str()).max().unwrap();
    let mut command = Command::new(binary("worker").unwrap());
    command.args(["evaluate", "--json", "--tokens", "4", "--checkpoint", newest]);
    command.args(["--task", "arc=arc.jsonl", "exact-match=arithmetic.jsonl"]);
    let output = command.current_dir(scenario.cluster.folder()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let alone: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text = |score: &Value, key: &str| score[key].as_str().unwrap().to_owned();
    let named =
        scores.as_array().unwrap().iter().map(|score| text(score, "task") + " " + &text(score, "measure"));
    let named: Vec<String> = named.collect();
    assert_eq!(named, ["arc acc", "arc acc_norm", "exact-match exact_match"]);
    for score in scores.as_array().unwrap() {
        let same = alone.iter().find(|line| line["task"] == score["task"]).unwrap();
        assert_eq!(score["questions"], same["questions"], "{score}, {same}");
        assert_eq!(score["value"], same[score["measure"].as_str().unwrap()], "{score}, {same}");
    }
}
