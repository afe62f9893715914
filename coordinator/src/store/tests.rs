use longhaul_common::config::RunConfig;
use longhaul_common::id::Round;

use super::*;

fn founding() -> (Founding, State) {
    let config = include_str!("../../../examples/demo.toml").to_owned();
    let run = RunId([5; 16]);
    let state = State::new(run, &RunConfig::parse(&config).unwrap());
    (Founding { run, config, authority: "pem".to_owned() }, state)
}

#[test]
fn what_was_written_is_read_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let (founding, mut state) = founding();
    {
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.founding().unwrap(), None);
        store.found(&founding, &state, &EnrolState::default()).unwrap();
        state.sites.push("north".to_owned());
        store.push_round(&RoundSummary { round: Round(3), ..Default::default() }).unwrap();
        store.put_state(&state).unwrap();
    }
    let store = Store::open(folder.path()).unwrap();
    assert_eq!(store.founding().unwrap(), Some(founding));
    assert_eq!(store.load().unwrap().map(|(state, _)| state), Some(state));
    assert_eq!(store.rounds().unwrap().len(), 1);
}

#[test]
fn only_the_newest_rounds_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    for round in 0..ROUNDS_KEPT + 10 {
        store.push_round(&RoundSummary { round: Round(round), ..Default::default() }).unwrap();
    }
    let rounds = store.rounds().unwrap();
    assert_eq!((rounds.len() as u64, rounds[0].round), (ROUNDS_KEPT, Round(10)));
}

#[test]
fn a_second_coordinator_is_kept_out() {
    let folder = tempfile::tempdir().unwrap();
    let _first = Store::open(folder.path()).unwrap();
    assert!(matches!(Store::open(folder.path()), Err(StoreError::Locked { .. })));
}

#[test]
fn a_damaged_file_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), vec![0x5a; 8192]).unwrap();
    let error = Store::open(folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[test]
fn another_layout_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().unwrap();
    {
        let store = Store::open(folder.path()).unwrap();
        let newer = |transaction: &redb::WriteTransaction| {
            transaction.open_table(SCHEMA)?.insert((), SCHEMA_VERSION + 1)?;
            Ok(())
        };
        store.write(Durability::Immediate, newer).unwrap();
    }
    let message = Store::open(folder.path()).unwrap_err().to_string();
    let both = format!("has layout {}, this release knows {SCHEMA_VERSION}", SCHEMA_VERSION + 1);
    assert!(message.contains(&both), "{message}");
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Store::open(&file.join("inside")).unwrap_err();
    assert!(matches!(error, StoreError::Unwritable { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn secrets_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let _store = Store::open(folder.path()).unwrap();
    let token = folder.path().join(API_TOKEN_FILE);
    write_private(&token, "secret").unwrap();
    write_private(&token, "other").unwrap();
    assert_eq!(read_small(&token).unwrap().as_deref(), Some("other"));
    for file in [token, folder.path().join(FILE)] {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
