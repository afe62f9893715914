//! The processes of two sites and what joins them.
//!
//! Each worker advertises to the other site a port of the emulator that leads to it. The coordinator stands in
//! site a: the workers of site b reach it through the emulator too, so that all that crosses sites shares the link.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::Receiver;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::demo::binaries::Binaries;
use crate::demo::folder::Folder;
use crate::demo::group::Group;
use crate::demo::status::{Status, StatusClient};
use crate::demo::{Options, pause};

/// Sites of a demo: two, `a` and `b`.
pub const SITES: u32 = 2;

/// The coordinator's log.
const COORDINATOR: &str = "coordinator";

/// What the log of every worker begins with.
const WORKER_PREFIX: &str = "worker-";

/// A running demo.
pub struct Cluster {
    group: Group,
    emulator: Emulator,
    client: StatusClient,
}

/// A worker to be started.
struct Worker {
    site: &'static str,
    name: String,
    listen: SocketAddr,
}

impl Cluster {
    /// Starts the emulator, the coordinator and, once that answers, the workers.
    pub fn start(
        binaries: &Binaries,
        folder: &Folder,
        options: &Options,
        interrupts: &Receiver<()>,
    ) -> Result<Self> {
        let coordinator = free_udp_address()?;
        let http = TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .context("find a free TCP port")?;
        let workers = plan_workers(options.workers_per_site)?;
        let mut group = Group::new(&folder.logs())?;
        // The coordinator's relay comes first, then the workers' in order.
        let mut relays = vec![(coordinator, "b-a/a-b")];
        relays.extend(
            workers
                .iter()
                .map(|worker| (worker.listen, if worker.site == "a" { "b-a/a-b" } else { "a-b/b-a" })),
        );
        let (emulator, relayed) = Emulator::start(&mut group, binaries, options, &relays)?;
        group.spawn(
            COORDINATOR,
            binaries
                .command("coordinator")
                .current_dir(folder.root())
                .arg("up")
                .arg("--config")
                .arg(folder.run_toml())
                .arg("--state-dir")
                .arg(folder.state())
                .arg("--token-file")
                .arg(folder.join_file())
                .args(["--listen", &coordinator.to_string(), "--http", &http.to_string()]),
        )?;
        let mut cluster = Self { group, emulator, client: StatusClient::new(http) };
        while cluster.status()?.is_none() {
            if cluster.group.check(COORDINATOR)? {
                bail!("the coordinator ended before it answered");
            }
            pause(interrupts)?;
        }
        let token = read_token(folder)?;
        let (relayed_coordinator, relayed_workers) =
            relayed.split_first().context("the emulator opened no relays")?;
        for (worker, advertise) in workers.iter().zip(relayed_workers) {
            let join = if worker.site == "a" { &coordinator } else { relayed_coordinator };
            cluster.start_worker(binaries, folder, worker, &token, *join, *advertise)?;
        }
        Ok(cluster)
    }

    fn start_worker(
        &mut self,
        binaries: &Binaries,
        folder: &Folder,
        worker: &Worker,
        token: &str,
        coordinator: SocketAddr,
        advertise: SocketAddr,
    ) -> Result<()> {
        let dir = folder.create_worker_dir(&worker.name)?;
        let mut command = binaries.command("worker");
        command
            .current_dir(&dir)
            .args(["join", &coordinator.to_string(), "--token", token, "--site", worker.site])
            .args(["--device", "cpu", "--threads", "1", "--listen", &worker.listen.to_string()])
            .args(["--advertise", &advertise.to_string(), "--cache-dir"])
            .arg(folder.cache(&worker.name))
            .arg("--checkpoint-dir")
            .arg(dir.join("checkpoints"));
        self.group.spawn(&format!("{WORKER_PREFIX}{}", worker.name), &mut command)
    }

    /// Looks at all processes; whether all workers have ended.
    ///
    /// # Errors
    /// A process has failed, or the coordinator ended first.
    pub fn check_processes(&mut self) -> Result<bool> {
        let workers_ended = self.group.check(WORKER_PREFIX)?;
        if !workers_ended && self.group.check(COORDINATOR)? {
            bail!("the coordinator ended before the workers did");
        }
        Ok(workers_ended)
    }

    /// How the run goes; none while the coordinator does not answer.
    ///
    /// # Errors
    /// It answers something else.
    pub fn status(&self) -> Result<Option<Status>> {
        self.client.status().context("ask the coordinator how it goes")
    }

    /// What crossed the links so far.
    pub fn link_counters(&mut self) -> Result<LinkCounters> {
        self.emulator.counters()
    }
}

fn plan_workers(per_site: u32) -> Result<Vec<Worker>> {
    let places = ["a", "b"].into_iter().flat_map(|site| (0..per_site).map(move |index| (site, index)));
    places
        .map(|(site, index)| {
            Ok(Worker { site, name: format!("{site}-{index}"), listen: free_udp_address()? })
        })
        .collect()
}

fn free_udp_address() -> Result<SocketAddr> {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).context("find a free UDP port")
}

/// The coordinator writes the whole command for people; its token is what follows `--token`.
fn read_token(folder: &Folder) -> Result<String> {
    let path = folder.join_file();
    let line = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let token = line.split_whitespace().skip_while(|word| *word != "--token").nth(1);
    token.map(str::to_owned).with_context(|| format!("{} holds no --token", path.display()))
}

/// The WAN emulator, which answers one line of JSON for each line it is sent.
struct Emulator {
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Bytes in both directions, with UDP and IP headers.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkCounters {
    /// What arrived at the other side.
    pub delivered_bytes: u64,
    /// What was lost on the wire or dropped before it.
    pub lost_bytes: u64,
}

/// The first line of the emulator.
#[derive(Deserialize)]
struct Ready {
    relays: Vec<Relay>,
}

#[derive(Deserialize)]
struct Relay {
    listen: SocketAddr,
}

impl Emulator {
    /// Starts a relay for each target, over the link pair named with it; returns where the relays listen.
    fn start(
        group: &mut Group,
        binaries: &Binaries,
        options: &Options,
        targets: &[(SocketAddr, &str)],
    ) -> Result<(Self, Vec<SocketAddr>)> {
        let mut command = binaries.command("wan-emulator");
        for link in ["a-b", "b-a"] {
            let (rate, delay, loss) = (options.rate_mbit, options.rtt_ms / 2.0, options.loss);
            command
                .args(["--link", &format!("{link}:rate_mbit={rate},delay_ms={delay},loss_percent={loss}")]);
        }
        for (target, links) in targets {
            command.args(["--relay", &format!("127.0.0.1:0={target}@{links}")]);
        }
        let child = group.spawn_piped("wan-emulator", &mut command)?;
        let commands = child.stdin.take().context("open the emulator's input")?;
        let answers = BufReader::new(child.stdout.take().context("open the emulator's output")?);
        let mut emulator = Self { commands, answers };
        let ready = match emulator.read_line() {
            Ok(line) => line,
            Err(error) => {
                // It ended without a word: its log says why.
                group.wait_for_last()?;
                return Err(error);
            }
        };
        let ready: Ready = serde_json::from_str(&ready).with_context(|| format!("read {ready:?}"))?;
        Ok((emulator, ready.relays.iter().map(|relay| relay.listen).collect()))
    }

    fn counters(&mut self) -> Result<LinkCounters> {
        writeln!(self.commands, "stats").context("ask the emulator for its counters")?;
        let line = self.read_line()?;
        let stats: Value = serde_json::from_str(&line).with_context(|| format!("read {line:?}"))?;
        let links = stats["links"].as_object().with_context(|| format!("find the links in {line:?}"))?;
        let mut sum = LinkCounters::default();
        for link in links.values() {
            let bytes = |counter: &str| link[counter]["bytes"].as_u64().unwrap_or(0);
            sum.delivered_bytes += bytes("delivered");
            sum.lost_bytes += bytes("offered").saturating_sub(bytes("delivered"));
        }
        Ok(sum)
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        let length = self.answers.read_line(&mut line).context("read from the emulator")?;
        anyhow::ensure!(length > 0, "the emulator ended");
        Ok(line)
    }
}
