//! Ten thousand attacks on every port of a run: their cost for training, and the memory of the processes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longhaul_tests::cluster::{Cluster, training};
use longhaul_tests::hostile::{Attackers, Target, memory_of};
use serde_json::Value;
use tokio::runtime::Builder;

use super::{Session, WAIT_MAX, cluster};
use crate::kit::clock::{now, process_s};
use crate::kit::progress;

const ATTACKS: u64 = 10_000;
/// Alternating turns without and with attacks.
const TURNS: u64 = 4;
const TURN: Duration = Duration::from_secs(60);

/// One run with alternating turns.
pub fn measure(session: &Session) -> Result<()> {
    let (turns, turn) = session.quick.choose((1, Duration::from_secs(15)), (TURNS, TURN));
    let attacks = session.quick.choose(400, ATTACKS / TURNS);
    let mut cluster = cluster(vec![1, 1])?;
    cluster.wait_for("both to train", WAIT_MAX, |status| training(status) == 2)?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let target = Target::of(&cluster, 2)?;
    let attackers = runtime.block_on(Attackers::enlist(target))?;
    let before = resident(&mut cluster)?;
    let (mut kept, mut own_cpu, mut made) = (Vec::new(), Vec::new(), 0);
    for seed in 0..turns {
        progress(format!("elastic/hostile: {} of {turns}", seed + 1));
        let calm = {
            let (first, began) = (step(&cluster.status()), now());
            std::thread::park_timeout(turn);
            (step(&cluster.status()) - first) / began.elapsed().as_secs_f64()
        };
        let (first, began, cpu) = (step(&cluster.status()), now(), process_s());
        let outcome = runtime.block_on(attackers.attack(attacks, turn, seed))?;
        let took = began.elapsed().as_secs_f64();
        let attacked = (step(&cluster.status()) - first) / took;
        // CPU of this process, the attacker.
        own_cpu.push((process_s() - cpu) / took);
        ensure!(outcome.breaches.is_empty(), "a door stayed open: {}", outcome.breaches.join("; "));
        made += outcome.made.values().sum::<u64>();
        kept.push(attacked / calm);
    }
    let status = cluster.status();
    ensure!(training(&status) == 2, "not all train any more: {status:#}");
    let after = resident(&mut cluster)?;
    session.print("hostile", "throughput_kept", "ratio", &kept);
    session.print("hostile", "attackers_cpu", "cores", &own_cpu);
    for ((who, before), (_, after)) in before.iter().zip(&after) {
        let case = format!("hostile, {who}");
        session.recorder.print(&case, "resident_before", *before as f64 / 1e6, "MB");
        session.recorder.print(&case, "resident_after", *after as f64 / 1e6, "MB");
    }
    session.recorder.print("hostile", "attacks", made, "");
    Ok(())
}

fn step(status: &Value) -> f64 {
    status["step"].as_f64().unwrap_or(0.0)
}

/// Returns the resident bytes of each process.
fn resident(cluster: &mut Cluster) -> Result<Vec<(String, u64)>> {
    let coordinator = cluster.coordinator().context("there is no coordinator")?.id();
    let mut ids = vec![("coordinator".to_owned(), coordinator)];
    for index in 0..2 {
        let worker = cluster.worker(index).context("there is no such worker")?;
        ids.push((format!("worker {index}"), worker.id()));
    }
    ids.into_iter().map(|(who, id)| Ok((who, memory_of(id)?.resident))).collect()
}
