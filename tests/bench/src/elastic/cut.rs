//! Seconds from a kick until every peer has closed its connections to the worker, and until its process has
//! ended.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use longhaul_proto::identity::{Identity, PeerName, data_client};
use longhaul_proto::transport;
use longhaul_tests::cluster::{Cluster, binary, training};
use quinn::{Connection, Endpoint};
use tokio::runtime::Runtime;

use super::{Session, WAIT_MAX, cluster};
use crate::kit::clock::now;

/// Five kicks, each of a run's last worker.
pub fn measure(session: &Session) -> Result<()> {
    let runtime = Runtime::new()?;
    let (mut peers, mut process) = (Vec::new(), Vec::new());
    for _ in session.repeats("kick", 5) {
        let mut cluster = cluster(vec![2, 2])?;
        cluster.wait_for("all to train", WAIT_MAX, |status| training(status) == 4)?;
        let kicked = identity(&cluster, 3)?;
        let endpoint = runtime.block_on(async { Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()) })?;
        let connections = (0..3)
            .map(|index| runtime.block_on(dial(&cluster, &endpoint, &kicked, index)))
            .collect::<Result<Vec<_>>>()?;
        let began = now();
        kick(&cluster, &kicked)?;
        for connection in &connections {
            runtime.block_on(async { tokio::time::timeout(WAIT_MAX, connection.closed()).await })?;
        }
        peers.push(began.elapsed().as_secs_f64());
        cluster.worker(3).context("there is no such worker")?.wait(WAIT_MAX)?;
        process.push(began.elapsed().as_secs_f64());
    }
    session.print("kick", "cut_s", "s", &peers);
    session.print("kick", "ended_s", "s", &process);
    Ok(())
}

/// Reads a worker's identity from its cache folder.
fn identity(cluster: &Cluster, index: usize) -> Result<Identity> {
    let workers = cluster.folder().join(format!("cache-{index}/workers"));
    let run = std::fs::read_dir(workers)?.next().context("it has not enrolled")??;
    Identity::load(&run.path().join("0"))?.context("it has no certificate")
}

/// Connects to a worker's data port as the worker to kick.
async fn dial(cluster: &Cluster, endpoint: &Endpoint, as_whom: &Identity, to: usize) -> Result<Connection> {
    let client = transport::client_config(data_client(as_whom)?);
    let name = PeerName::Worker(identity(cluster, to)?.worker()).in_run(as_whom.run());
    Ok(endpoint.connect_with(client, cluster.worker_address(to), &name)?.await?)
}

fn kick(cluster: &Cluster, whom: &Identity) -> Result<()> {
    let status = std::process::Command::new(binary("coordinator")?)
        .args(["kick", &whom.worker().to_string(), "--http"])
        .arg(cluster.http().to_string())
        .args(["--state-dir".as_ref(), cluster.folder().join("state").as_path() as &Path])
        .stdout(std::process::Stdio::null())
        .status()?;
    anyhow::ensure!(status.success(), "kick: {status}");
    Ok(())
}
