//! Two minutes of all kinds of faults in sequence.

use std::time::Duration;

use longhaul_tests::chaos::{BATCH, Kind, Pace, Soak, SoakConfig, run_toml};
use longhaul_tests::cluster::ClusterConfig;

use crate::scenario::SLOW_LINK;
use crate::turns::take_turns_of_many;

/// On a shared machine.
const PROGRESS_MAX: Duration = Duration::from_secs(60);

#[test]
fn every_promise_is_kept_while_all_kinds_of_faults_happen() {
    let _turn = take_turns_of_many();
    let folder = tempfile::tempdir().unwrap();
    let cluster = ClusterConfig {
        run_toml: run_toml(4, Pace::default()).to_string(),
        sites: vec![2, 2],
        link: SLOW_LINK.parse().unwrap(),
        seed: 1,
        folder: folder.path().to_owned(),
        threads: 1,
        own_checkpoints: true,
        worker_arguments: Vec::new(),
        own_calendars: true,
    };
    let config = SoakConfig {
        cluster,
        batch: 4 * BATCH as u64,
        seed: 1,
        kinds: Kind::ALL.to_vec(),
        calm: Duration::from_secs(5),
        break_after: None,
        duration: Duration::from_secs(115),
        gap: Duration::from_millis(5000),
        progress_max: PROGRESS_MAX,
    };
    let report = Soak::start(config).unwrap().run(|what| println!("{what}")).unwrap();
    // Some wait until all train, or for each other: on a slow machine not all occur.
    assert!(report.faults() * 4 >= Kind::ALL.len() as u32 * 3, "only {} faults", report.faults());
}
