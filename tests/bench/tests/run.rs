//! An interrupted benchmark. Part of the whole runs, as it starts one.
#![allow(clippy::unwrap_used, reason = "a test's own helpers fail the test")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_tests::cluster::Process;

const LIMIT: Duration = Duration::from_secs(60);
/// A coordinator and four workers.
const PROCESSES: usize = 5;

#[test]
#[ignore = "nightly: of a benchmark, which no run needs"]
fn a_benchmark_that_is_asked_to_end_leaves_no_process_behind() {
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_longhaul-bench"));
    let mut bench = Process::start_program(program, "bench", folder.path(), |command| {
        command
            .args(["sync", "--quick", "--part", "quality", "--only", "dense"])
            .env("TMPDIR", folder.path());
    })
    .unwrap();
    bench.wait_for_words("sync/quality: dense", LIMIT).unwrap();
    let mut children = Vec::new();
    for _ in 0..LIMIT.as_millis() / 50 {
        children = children_of(bench.id());
        if children.len() == PROCESSES {
            break;
        }
        // Polls, as another process's children do not wake this one.
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert_eq!(children.len(), PROCESSES, "{}", bench.log_tail());
    bench.signal("TERM").unwrap();
    assert!(!bench.wait(LIMIT).unwrap().success());
    assert!(bench.log().contains("Error: interrupted"), "{}", bench.log_tail());
    let alive: Vec<_> = children.into_iter().filter(|child| child.exists()).collect();
    assert!(alive.is_empty(), "{alive:?}");
    let left: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["bench.log"], "runs have folders of their own, which go as well");
}

/// Returns the /proc folders of a process's children.
fn children_of(process: u32) -> Vec<PathBuf> {
    let parent = format!("PPid:\t{process}\n");
    let is_child = |path: &PathBuf| {
        // Others may end meanwhile.
        std::fs::read_to_string(path.join("status")).is_ok_and(|status| status.contains(&parent))
    };
    std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).filter(is_child).collect()
}
