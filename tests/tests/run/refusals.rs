//! What bad input gets: an error that names the thing and the remedy, and a failure as exit status.

use longhaul_tests::cluster::Process;

use crate::scenario::{RUN_MAX, Scenario, Setup};

fn refusal(scenario: &Scenario, name: &str, token: &str, more: &[&str]) -> String {
    let mut worker = Process::start_as("worker", name, scenario.cluster.folder(), |command| {
        command.args(["join", &scenario.cluster.listen().to_string(), "--token", token, "--cache-dir", name]);
        command.args(["--listen", "127.0.0.1:0"]).args(more);
    })
    .unwrap();
    let status = worker.wait(RUN_MAX).unwrap();
    assert!(!status.success(), "{}", worker.log_tail());
    worker.log()
}

fn assert_says(log: &str, words: &[&str]) {
    for word in words {
        assert!(log.contains(word), "{word:?} is not in:\n{log}");
    }
}

#[test]
fn wrong_tokens_and_devices_are_refused_with_what_to_do() {
    let scenario = Setup::default().start_coordinator();
    let token = scenario.cluster.token().unwrap();

    let cut = &token[..token.len() - 9];
    assert_says(&refusal(&scenario, "truncated", cut, &[]), &["token"]);

    let device = refusal(&scenario, "no-gpu", &token, &["--device", "cuda:7"]);
    assert_says(&device, &["cuda:7"]);

    let text = refusal(&scenario, "no-text", &token, &["--data", "nowhere.txt"]);
    assert_says(&text, &["nowhere.txt"]);
}

#[test]
fn a_token_of_another_run_is_refused() {
    let mine = Setup::default().start_coordinator();
    let other = {
        let folder = tempfile::tempdir().unwrap();
        let run = std::fs::read(mine.cluster.folder().join("run.toml")).unwrap();
        std::fs::write(folder.path().join("run.toml"), run).unwrap();
        let mut coordinator = Process::start("coordinator", folder.path(), |command| {
            command.args(["up", "--config", "run.toml", "--state-dir", "state", "--token-file", "join.txt"]);
            command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        })
        .unwrap();
        let token = folder.path().join("join.txt");
        while !token.exists() {
            assert!(coordinator.ended().is_none(), "{}", coordinator.log_tail());
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
        let line = std::fs::read_to_string(token).unwrap();
        line.split_whitespace().find(|word| word.starts_with("lh1.")).unwrap().to_owned()
    };
    assert_says(&refusal(&mine, "stranger", &other, &[]), &["is not the one that made the token"]);
}
