//! Tokens and devices.

use longhaul_proto::identity::Token;
use longhaul_tests::cluster::Process;

use super::{assert_says, join_scenario, refusal};
use crate::scenario::{RUN_MAX, Scenario, Setup};

/// Maximum checks of a token with a lifetime of a second, at most ten times a second.
const LOOKS_MAX: usize = 300;
const NEW_TOKEN: &str = "`coordinator token create`";

fn new_token(scenario: &Scenario, more: &[&str]) -> Token {
    let line = scenario.told(&[&["token", "create"], more].concat());
    line.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// Returns the row of a token in `coordinator token list`.
fn listed(scenario: &Scenario, token: &Token) -> String {
    let list = scenario.told(&["token", "list"]);
    list.lines().find(|row| row.starts_with(&token.id.to_string())).unwrap_or_default().to_owned()
}

#[test]
fn a_useless_token_is_refused_with_the_reason_and_with_what_makes_another() {
    let mut scenario = Setup::default().gather();
    let good = scenario.cluster.token().unwrap();
    let revoked = new_token(&scenario, &[]);
    scenario.told(&["token", "revoke", &revoked.id.to_string()]);
    let single = new_token(&scenario, &["--uses", "1"]);
    let _first = join_scenario(&scenario, "first", &single.to_string(), &[]);
    scenario.cluster.wait_for("the first worker", RUN_MAX, |status| members(status) == 1).unwrap();
    assert!(listed(&scenario, &single).ends_with("used up"));
    let brief = new_token(&scenario, &["--life", "1s"]);
    let is_over = (0..LOOKS_MAX).any(|_| {
        // Only the coordinator's clock ends a token's life, without an event.
        listed(&scenario, &brief).ends_with("expired") || {
            std::thread::park_timeout(std::time::Duration::from_millis(100));
            false
        }
    });
    assert!(is_over, "{}", listed(&scenario, &brief));
    let mut forged: Token = good.parse().unwrap();
    forged.authority.0[0] ^= 1;

    let cases: [(&str, String, &[&str]); 5] = [
        ("revoked", revoked.to_string(), &["the token was revoked", NEW_TOKEN]),
        ("used-up", single.to_string(), &["used as often as it allows", NEW_TOKEN]),
        ("expired", brief.to_string(), &["the token has expired", NEW_TOKEN]),
        ("forged", forged.to_string(), &["is not the one that made the token", NEW_TOKEN]),
        ("cut", good[..good.len() - 9].to_owned(), &["the join token is cut off", "copy the whole line"]),
    ];
    let started = cases.map(|(name, token, words)| (join_scenario(&scenario, name, &token, &[]), words));
    for (process, words) in started {
        assert_says(&refusal(process), words);
    }

    // Creating a token removes expired ones.
    new_token(&scenario, &[]);
    let forgotten = refusal(join_scenario(&scenario, "forgotten", &brief.to_string(), &[]));
    assert_says(&forgotten, &["does not know this token", "expired ones are forgotten", NEW_TOKEN]);
    assert_eq!(members(&scenario.cluster.status()), 1, "{:#}", scenario.cluster.status());
}

#[test]
fn a_device_that_is_not_there_is_refused_with_what_is_and_costs_no_use_of_the_token() {
    let scenario = Setup::default().gather();
    let single = new_token(&scenario, &["--uses", "1"]);
    let cases = [("cuda:99", "`cpu`"), ("abacus", "devices are written `auto`, `cpu` or `cuda:0`")];
    let started = cases.map(|(device, remedy)| {
        (join_scenario(&scenario, device, &single.to_string(), &["--device", device]), device, remedy)
    });
    for (process, device, remedy) in started {
        assert_says(&refusal(process), &[device, remedy]);
    }
    assert!(listed(&scenario, &single).ends_with("valid"));
}

#[test]
fn a_token_of_another_run_is_refused() {
    let mine = Setup::default().gather();
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
    let stranger = refusal(join_scenario(&mine, "stranger", &other, &[]));
    assert_says(&stranger, &["is not the one that made the token"]);
}

fn members(status: &serde_json::Value) -> usize {
    status["members"].as_array().map_or(0, Vec::len)
}
