//! Machines that are switched off: the book's page, and its script for Slurm with a stand-in for `srun`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use longhaul_tests::cluster::{Process, binary, free_address};

use crate::turns::take_turn;
use crate::tutorials::{Reader, root};

const PAGE: &str = "docs/book/src/switching-off.md";
const LIMIT: Duration = Duration::from_secs(120);
/// Starts a command as two tasks, and ends with them.
const SRUN: &str = "#!/bin/bash\nfor SLURM_PROCID in 0 1; do export SLURM_PROCID; \"$@\" & done\nwait\n";

#[test]
fn a_run_is_stopped_for_the_night_as_the_book_says() {
    Reader::new().does(PAGE);
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the page's script, with this test's own address, and one thread per worker.
fn job(page: &str) -> String {
    let (_, rest) = page.split_once("```bash\n").unwrap();
    let (script, _) = rest.split_once("```").unwrap();
    let (run, http) = (free_address().unwrap(), free_address().unwrap());
    let changed = script
        .replace("0.0.0.0:4800", &run.to_string())
        .replace(":4800", &format!(":{}", run.port()))
        .replace("coordinator up", &format!("coordinator up --http {http}"))
        .replace("--site here", "--site here --threads 1");
    assert_eq!(changed.matches(&run.port().to_string()).count(), 3, "{changed}");
    changed
}

#[test]
fn a_batch_job_that_comes_to_its_time_limit_goes_on_in_the_next_one() {
    let _turn = take_turn();
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("examples"), folder.path().join("examples")).unwrap();
    let (_, config) = page.split_once("```toml\n").unwrap();
    fs::write(folder.path().join("run.toml"), config.split_once("```").unwrap().0).unwrap();
    let script = folder.path().join("job.sh");
    write_program(&script, &job(&page));
    write_program(&folder.path().join("srun"), SRUN);
    write_program(&folder.path().join("hostname"), "#!/bin/bash\necho 127.0.0.1\n");
    let programs = binary("worker").unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", folder.path().display(), programs.parent().unwrap().display());

    // The first job ends before the first checkpoint (every 20 rounds) of its run.
    for (name, begins) in
        [("first", "w1 joined from site"), ("second", "goes on from the checkpoint before r")]
    {
        let start = |command: &mut std::process::Command| {
            command.env("PATH", &path).env("HOME", folder.path()).env_remove("XDG_CACHE_HOME");
        };
        let mut job = Process::start_program(&script, name, folder.path(), start).unwrap();
        job.wait_for_words(begins, LIMIT).unwrap();
        job.wait_for_words("the first reduction with the members of this site is done", LIMIT).unwrap();
        job.signal("TERM").unwrap();
        let ended = job.wait(LIMIT).unwrap();
        assert!(ended.success(), "{}", job.log_tail());
        let log = job.log();
        assert!(log.contains("run nights stops for now"), "{}", job.log_tail());
        assert!(!log.contains("beginning"), "{}", job.log_tail());
    }
}
