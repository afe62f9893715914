//! Ten thousand attacks at every door of a run: what they cost those who train, and what the processes hold.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longhaul_bench::figures::print;
use longhaul_tests::cluster::{Cluster, training};
use longhaul_tests::hostile::{Attackers, Target, memory_of};
use serde_json::Value;
use tokio::runtime::Builder;

use super::{Session, WAIT_MAX, cluster, now};

const ATTACKS: u64 = 10_000;
/// Without attacks and with them, in turns.
const TURNS: u64 = 4;
const TURN: Duration = Duration::from_secs(60);

/// One run, in which calm and attacks take turns.
pub fn measure(session: &Session) -> Result<()> {
    let (turns, turn) = if session.quick { (1, Duration::from_secs(15)) } else { (TURNS, TURN) };
    let attacks = if session.quick { 400 } else { ATTACKS / TURNS };
    let mut cluster = cluster(vec![1, 1])?;
    cluster.wait_for("both to train", WAIT_MAX, |status| training(status) == 2)?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let target = Target::of(&cluster, 2)?;
    let attackers = runtime.block_on(Attackers::enlist(target))?;
    let before = resident(&mut cluster)?;
    let (mut kept, mut own_cpu, mut made) = (Vec::new(), Vec::new(), 0);
    for seed in 0..turns {
        eprintln!("elastic/hostile: {} of {turns}", seed + 1);
        let calm = {
            let (first, began) = (step(&cluster.status()), now());
            std::thread::park_timeout(turn);
            (step(&cluster.status()) - first) / began.elapsed().as_secs_f64()
        };
        let (first, began, cpu) = (step(&cluster.status()), now(), cpu_s());
        let outcome = runtime.block_on(attackers.attack(attacks, turn, seed))?;
        let took = began.elapsed().as_secs_f64();
        let attacked = (step(&cluster.status()) - first) / took;
        own_cpu.push((cpu_s() - cpu) / took);
        ensure!(outcome.breaches.is_empty(), "a door stayed open: {}", outcome.breaches.join("; "));
        made += outcome.made.values().sum::<u64>();
        kept.push(attacked / calm);
    }
    let status = cluster.status();
    ensure!(training(&status) == 2, "not all train any more: {status:#}");
    let after = resident(&mut cluster)?;
    session.print("hostile", "throughput_kept", "ratio", kept);
    session.print("hostile", "attackers_cpu", "cores", own_cpu);
    for ((who, before), (_, after)) in before.iter().zip(&after) {
        let case = format!("hostile, {who}");
        for (metric, bytes) in [("resident_before", *before), ("resident_after", *after)] {
            print("elastic", &case, metric, bytes as f64 / 1e6, "MB");
        }
    }
    print("elastic", "hostile", "attacks", made, "");
    Ok(())
}

fn step(status: &Value) -> f64 {
    status["step"].as_f64().unwrap_or(0.0)
}

/// Bytes that each process holds.
fn resident(cluster: &mut Cluster) -> Result<Vec<(String, u64)>> {
    let coordinator = cluster.coordinator().context("there is no coordinator")?.id();
    let mut ids = vec![("coordinator".to_owned(), coordinator)];
    for index in 0..2 {
        let worker = cluster.worker(index).context("there is no such worker")?;
        ids.push((format!("worker {index}"), worker.id()));
    }
    ids.into_iter().map(|(who, id)| Ok((who, memory_of(id)?.resident))).collect()
}

/// Of this process, which is the attackers.
fn cpu_s() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}
