//! Seconds until another coordinator leads, and until its workers are back, after the leader is killed; with
//! a real etcd.

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

/// Kills the leader of two coordinators with `kill -9` while two workers train. Returns the time to the other
/// one's first reply as leader, the time until both workers are connected to it, the rounds applied
/// meanwhile, and the rounds lost.
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
