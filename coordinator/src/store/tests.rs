use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::Round;
use redb::Durability;

use super::disk::{FILE, NEW_FILE, SCHEMA};
use super::*;
use longhaul_run::Run;

pub(super) fn founding() -> (Founding, RunState) {
    let config = include_str!("../../../examples/demo.toml").to_owned();
    let run = RunId([5; 16]);
    let state = RunState::new(run, &RunConfig::parse(&config).unwrap());
    (Founding { run, config, authority: "pem".to_owned() }, state)
}

fn metrics(round: u64) -> RoundSummary {
    RoundSummary { round: Round(round), ..Default::default() }
}

/// Guarantees of every place. `open` opens the same place anew each time, like a restarted coordinator.
pub(super) fn keeps_its_promises(open: impl Fn() -> Store) {
    let (founding, mut state) = founding();
    {
        let store = open();
        assert_eq!(store.founding().unwrap(), None);
        assert!(store.load().unwrap().is_none());
        assert_eq!(store.api_token(Key::ApiToken).unwrap(), None);
        store.found(&founding, &state, &EnrolState::default()).unwrap();
        store.put_api_token(Key::ApiToken, "secret").unwrap();
        state.roster.sites.push("north".to_owned());
        store.push_round(&metrics(3)).unwrap();
        store.push_round(&metrics(3)).unwrap();
        store.put_state(&state).unwrap();
    }
    {
        let store = open();
        assert_eq!(store.founding().unwrap().as_ref(), Some(&founding));
        assert_eq!(store.load().unwrap().map(|(state, _)| state).as_ref(), Some(&state));
        assert_eq!(store.api_token(Key::ApiToken).unwrap().as_deref(), Some("secret"));
        assert_eq!(store.rounds().unwrap().len(), 1);
        // A record that has grown, and one that has shrunk again.
        for names in [200_000, 10] {
            state.roster.sites = (0..names).map(|name| format!("site {name}")).collect();
            store.put_state(&state).unwrap();
            assert_eq!(store.load().unwrap().map(|(state, _)| state).as_ref(), Some(&state));
        }
        store.put_enrolment(&EnrolState::default()).unwrap();
    }
    let store = open();
    let (kept, _) = store.load().unwrap().unwrap();
    assert_eq!(kept, state);
    let config = RunConfig::parse(&founding.config).unwrap();
    assert_eq!(Run::new(config, kept, Duration::ZERO).unwrap().state().roster.sites.len(), 10);

    for round in 0..ROUNDS_KEPT + 10 {
        store.push_round(&metrics(round)).unwrap();
    }
    store.put_api_token(Key::ApiToken, "other").unwrap();
    let rounds = store.rounds().unwrap();
    assert_eq!((rounds.len() as u64, rounds[0].round), (ROUNDS_KEPT, Round(10)));
}

#[test]
fn a_state_directory_keeps_its_promises() {
    let folder = tempfile::tempdir().unwrap();
    keeps_its_promises(|| Store::open(folder.path()).unwrap());
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
fn a_file_whose_making_was_cut_short_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(NEW_FILE), vec![0; 8192]).unwrap();
    Store::open(folder.path()).unwrap().put_api_token(Key::ApiToken, "secret").unwrap();
    assert_eq!(
        Store::open(folder.path()).unwrap().api_token(Key::ApiToken).unwrap().as_deref(),
        Some("secret")
    );
    assert!(!folder.path().join(NEW_FILE).exists());
}

#[test]
fn another_layout_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().unwrap();
    {
        let disk = Disk::open(folder.path()).unwrap();
        let newer = |transaction: &redb::WriteTransaction| {
            transaction.open_table(SCHEMA)?.insert((), SCHEMA_VERSION + 1)?;
            Ok(())
        };
        disk.write(Durability::Immediate, newer).unwrap();
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

#[test]
fn the_authoritys_key_is_not_in_a_log() {
    assert!(!format!("{:?}", founding().0).contains("pem"));
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
