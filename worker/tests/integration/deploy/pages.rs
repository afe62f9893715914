//! Completions and the manual.

use std::path::{Path, PathBuf};

use longhaul_tests::cluster::binary;
use longhaul_tests::pages::{checked_by_shells, completed_by_bash, manual};

/// The command as users call it.
fn program() -> PathBuf {
    binary("worker").unwrap()
}

#[test]
fn bash_completes_subcommands_and_options() {
    let offered = completed_by_bash(&program(), &["worker", "do"]).unwrap();
    assert_eq!(offered.into_iter().collect::<Vec<_>>(), ["doctor"]);
    let offered = completed_by_bash(&program(), &["worker", "join", "--adv"]).unwrap();
    assert_eq!(offered.into_iter().collect::<Vec<_>>(), ["--advertise"]);
}

#[test]
fn the_shells_that_are_here_read_their_completions() {
    assert!(checked_by_shells(&program()).unwrap().contains(&"bash"));
}

#[test]
fn the_manual_has_a_page_for_each_subcommand_and_none_for_what_is_hidden() {
    let folder = tempfile::tempdir().unwrap();
    let pages = manual(&program(), &folder.path().join("man1")).unwrap();
    for name in ["join", "doctor", "data-prepare"] {
        assert!(pages.contains(&format!("worker-{name}.1")), "{name} is not among {pages:?}");
    }
    assert!(pages.contains("worker.1"));
    assert!(!pages.contains("worker-man.1"), "{pages:?}");
    let nowhere = manual(&program(), Path::new("/proc/nowhere")).unwrap_err();
    assert!(nowhere.to_string().contains("/proc/nowhere"), "{nowhere}");
}
