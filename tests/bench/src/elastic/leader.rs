//! Seconds until another coordinator leads, and until its workers are back, when the one that led is killed; with a real etcd.

use anyhow::{Context, Result, ensure};
use longhaul_tests::cluster::{Pair, training};

use super::{Session, WAIT_MAX, round, rounds_lost, run_toml};
use crate::kit::clock::now;

/// Five deaths.
pub fn measure(session: &Session) -> Result<()> {
    let mut all = [const { Vec::new() }; 4];
    for _ in session.repeats("leader killed", 5) {
        let one = once()?;
        all.iter_mut().zip(one).for_each(|(values, value)| values.push(value));
    }
    let [failover, back, rounds, lost] = all;
    session.print("leader killed", "failover_s", "s", &failover);
    session.print("leader killed", "workers_back_s", "s", &back);
    session.print("leader killed", "rounds_meanwhile", "rounds", &rounds);
    session.print("leader killed", "rounds_lost", "rounds", &lost);
    Ok(())
}

/// Two coordinators, one of them killed as `kill -9` does while two workers train: until the first answer of the other one as the leader, until both workers are with it, and
/// the rounds that they had applied by then and not before the kill, and those that were lost.
fn once() -> Result<[f64; 4]> {
    let folder = tempfile::tempdir()?;
    let mut pair = Pair::start(folder.path(), &run_toml().to_string())?.context("this needs etcd in PATH")?;
    pair.start_worker()?;
    pair.start_worker()?;
    let before =
        pair.wait_for(0, "the run to begin", WAIT_MAX, |status| training(status) == 2 && round(status) >= 5)?;
    let killed = now();
    pair.kill_coordinator(0);
    pair.wait_for(1, "the other coordinator to lead", WAIT_MAX, |status| !status.is_null())?;
    let failover_s = killed.elapsed().as_secs_f64();
    let back = pair.wait_for(1, "the workers to be back", WAIT_MAX, |status| training(status) == 2)?;
    let workers_back_s = killed.elapsed().as_secs_f64();
    let caught_up = pair.wait_for(1, "their reports", WAIT_MAX, |status| round(status) > round(&back))?;
    ensure!(caught_up["generation"] == before["generation"], "a worker was given up: {caught_up:#}");
    let meanwhile = round(&caught_up).saturating_sub(round(&before)) as f64;
    Ok([failover_s, workers_back_s, meanwhile, rounds_lost(&caught_up, 2) - rounds_lost(&before, 2)])
}
