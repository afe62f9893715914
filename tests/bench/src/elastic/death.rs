//! Seconds from a worker's death to the first round that the others have applied without it.

use std::time::Duration;

use anyhow::Result;
use longhaul_tests::cluster::training;

use super::{Session, WAIT_MAX, cluster, round, rounds_lost};
use crate::kit::clock::now;

/// New workers get a longer timeout than those with regular heartbeats: waits before the first death, and
/// between two.
const SETTLED: Duration = Duration::from_secs(60);
const BETWEEN: Duration = Duration::from_secs(20);

/// Eight deaths in one run, of one worker after the other: each is back before the next.
pub fn measure(session: &Session) -> Result<()> {
    let mut cluster = cluster(vec![2, 2])?;
    let (mut next_round, mut back, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for repeat in session.repeats("worker killed", 8) {
        let victim = repeat as usize % 4;
        let before = cluster.wait_for("all to train", WAIT_MAX, |status| training(status) == 4)?;
        std::thread::park_timeout(if repeat == 0 { SETTLED } else { BETWEEN });
        let all = cluster
            .wait_for("a few rounds of all", WAIT_MAX, |status| round(status) >= round(&before) + 5)?;
        let generation = all["generation"].clone();
        let killed = now();
        cluster.kill_worker(victim);
        let begun = cluster
            .wait_for("a generation without it", WAIT_MAX, |status| status["generation"] != generation)?;
        cluster.wait_for("a round of it", WAIT_MAX, |status| round(status) > round(&begun))?;
        next_round.push(killed.elapsed().as_secs_f64());
        let started = now();
        cluster.start_worker(victim)?;
        let here = cluster.wait_for("it to be back", WAIT_MAX, |status| training(status) == 4)?;
        back.push(started.elapsed().as_secs_f64());
        lost.push(rounds_lost(&here, 4) - rounds_lost(&all, 4));
    }
    session.print("worker killed", "recovery_s", "s", &next_round);
    session.print("worker killed", "back_s", "s", &back);
    session.print("worker killed", "rounds_lost", "rounds", &lost);
    Ok(())
}
