//! A worker on a user's terminal.

use std::process::Command;

use longhaul_tests::cluster::binary;
use longhaul_tests::terminal::{Screen, Terminal};
use serde_json::Value;

use crate::scenario::{RUN_MAX, Setup};

#[test]
fn a_worker_on_a_terminal_shows_how_far_it_is_and_ctrl_c_has_it_leave_in_order() {
    let steps = 100_000;
    let mut scenario = Setup { steps, workers: Some(1), ..Setup::reproducible() }.start_coordinator();
    scenario.cluster.start_worker(0).unwrap();
    let training = |status: &Value| status["round"].as_u64() >= Some(1);
    scenario.cluster.wait_for("the first worker", RUN_MAX, training).unwrap();
    let mut join = Command::new(binary("worker").unwrap());
    join.args(["join", &scenario.cluster.listen().to_string(), "--token-file", "join.txt"]);
    join.args(["--site", "site-0", "--device", "cpu", "--threads", "1", "--cache-dir", "cache-terminal"]);
    join.current_dir(scenario.cluster.folder());
    let Some(mut terminal) = Terminal::start(&join) else { return };
    let mut said = terminal.until(&format!(" of {steps}, loss "));
    said += &terminal.until(" tokens/s");
    let lines = Screen::after(&said).lines();
    let (foot, log) = lines.split_last().unwrap();
    assert!(foot.starts_with("w1 [--------------------] step "), "{lines:#?}");
    assert!(log.iter().any(|line| line.contains("this machine is part of the run")), "{lines:#?}");
    terminal.press("\x03");
    let (code, rest) = terminal.end();
    said += &rest;
    assert_eq!(code, Some(0), "{said}");
    let screen = Screen::after(&said);
    let lines = screen.lines();
    assert!(!lines.iter().any(|line| line.contains("[----") || line.contains("^C")), "{lines:#?}");
    assert_eq!(screen.cursor(), (lines.len(), 0), "the prompt has a line of its own: {lines:#?}");
    // The worker has ended before the coordinator's next status.
    let left = |status: &Value| {
        let gone = &status["gone"][0];
        (&gone["id"], &gone["left"]) == (&"w1".into(), &true.into())
    };
    scenario.cluster.wait_for("the second worker to have left", RUN_MAX, left).unwrap();
}

#[test]
fn a_preparation_on_a_terminal_shows_how_far_it_is_and_leaves_its_result_alone() {
    let folder = tempfile::tempdir().unwrap();
    Setup::reproducible().run_toml().write(folder.path().join("run.toml")).unwrap();
    let mut prepare = Command::new(binary("worker").unwrap());
    prepare.args(["data", "prepare", "--config", "run.toml", "--cache-dir", "cache"]);
    prepare.current_dir(folder.path());
    let Some(mut terminal) = Terminal::start(&prepare) else { return };
    let mut said = terminal.until(" % of ");
    let lines = Screen::after(&said).lines();
    assert!(lines.last().unwrap().starts_with("preparing data ["), "{lines:#?}");
    let (code, rest) = terminal.end();
    said += &rest;
    assert_eq!(code, Some(0), "{said}");
    let screen = Screen::after(&said).lines();
    assert!(screen.iter().any(|line| line.contains(" made, ")), "{screen:#?}");
    assert!(!screen.iter().any(|line| line.contains("preparing data [")), "{screen:#?}");
}
