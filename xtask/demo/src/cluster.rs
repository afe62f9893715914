//! The processes of two sites and the emulated links between them.
//!
//! Each worker advertises a port of the emulator to the other site. The coordinator is in site a: the workers
//! of site b reach it through the emulator too, so that all traffic between sites shares the link.
//!
//! Killed processes are restarted: a run survives that, and the demo invites users to try it.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::emulator::{EMULATOR, Emulator, LinkCounters};
use crate::folder::Folder;
use crate::group::{Ended, Group};
use crate::interrupts::Interrupts;
use crate::programs::Programs;
use crate::status::{self, Status};
use crate::{Options, Plan};

/// Sites of a demo: two, `a` and `b`.
pub const SITES: u32 = 2;

/// Name of the coordinator's process.
const COORDINATOR: &str = "coordinator";

/// Prefix of workers' process names.
const WORKER_PREFIX: &str = "worker-";

/// Maximum restarts of one process: more than manual kills, while crash loops must fail.
const RESTARTS_MAX: u32 = 5;

/// A running demo.
pub struct Cluster {
    group: Group,
    emulator: Emulator,
    http: SocketAddr,
    programs: Vec<Program>,
}

/// A restartable process.
struct Program {
    name: String,
    command: Command,
    restarts: u32,
}

/// A worker to start.
struct Worker {
    site: &'static str,
    name: String,
    listen: SocketAddr,
}

impl Cluster {
    /// Starts the emulator, the coordinator and, once that responds, the workers.
    pub fn start(
        programs: &Programs,
        folder: &Folder,
        options: &Options,
        interrupts: &Interrupts,
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
        let (emulator, relayed) = Emulator::start(&mut group, programs, options, &relays)?;
        let mut cluster = Self { group, emulator, http, programs: Vec::new() };
        cluster.launch(COORDINATOR, coordinator_command(programs, folder, coordinator, http))?;
        while cluster.status()?.is_none() {
            cluster.tend(None)?;
            interrupts.pause()?;
        }
        let token = read_token(folder)?;
        let (relayed_coordinator, relayed_workers) =
            relayed.split_first().context("the emulator opened no relays")?;
        for (worker, advertise) in workers.iter().zip(relayed_workers) {
            let join = if worker.site == "a" { &coordinator } else { relayed_coordinator };
            let mut command = worker_command(programs, folder, worker, &token, *join, *advertise)?;
            command.arg("--checkpoint-dir").arg(match options.plan {
                Plan::Data => folder.create_worker_dir(&worker.name)?.join("checkpoints"),
                // Sampling needs all parts of a model in one place.
                Plan::Hybrid => folder.shared_checkpoints(),
            });
            cluster.launch(&format!("{WORKER_PREFIX}{}", worker.name), command)?;
        }
        Ok(cluster)
    }

    fn launch(&mut self, name: &str, mut command: Command) -> Result<()> {
        self.group.spawn(name, &mut command)?;
        self.programs.push(Program { name: name.to_owned(), command, restarts: 0 });
        Ok(())
    }

    /// Checks all processes and restarts killed ones, unless the last known status reports the run as
    /// finished. Returns a sentence per event.
    ///
    /// # Errors
    /// A process failed by itself, or was killed too often; the error shows the end of its log.
    pub fn tend(&mut self, last: Option<&Status>) -> Result<Vec<String>> {
        let finished = last.is_some_and(Status::is_finished);
        let mut happened = Vec::new();
        for ended in self.group.take_ended()? {
            if finished && ended.name != EMULATOR {
                continue;
            }
            match self.programs.iter_mut().find(|program| program.name == ended.name) {
                Some(program) => happened.extend(program.resume(&ended, &mut self.group)?),
                None => bail!("{}", ended.describe()),
            }
        }
        Ok(happened)
    }

    /// Whether a worker was running at the last check.
    pub fn has_workers(&self) -> bool {
        self.group.running().any(|name| name.starts_with(WORKER_PREFIX))
    }

    /// Returns the status of the run; `None` while the coordinator does not respond.
    ///
    /// # Errors
    /// The response is invalid.
    pub fn status(&self) -> Result<Option<Status>> {
        status::ask(self.http).context("ask the coordinator how it goes")
    }

    /// Returns the traffic over the links so far.
    pub fn link_counters(&mut self) -> Result<LinkCounters> {
        self.emulator.counters()
    }
}

impl Program {
    /// Restarts the program if it was killed, and reports it. The normal end of a worker is not reported.
    fn resume(&mut self, ended: &Ended, group: &mut Group) -> Result<Option<String>> {
        // A worker that leaves in order has done its part, or was asked to go: it stays away. The coordinator
        // serves requests after the run is finished, so it was asked to go.
        if ended.status.success() && self.name.starts_with(WORKER_PREFIX) {
            return Ok(None);
        }
        let killed = ended.status.signal().is_some() || ended.status.success();
        if !killed || self.restarts == RESTARTS_MAX {
            bail!("{}", ended.describe());
        }
        self.restarts += 1;
        group.spawn(&self.name, &mut self.command)?;
        Ok(Some(format!("{} ended ({}) and was started again", self.name, ended.status)))
    }
}

fn coordinator_command(
    programs: &Programs,
    folder: &Folder,
    listen: SocketAddr,
    http: SocketAddr,
) -> Command {
    let mut command = programs.command("coordinator");
    command.current_dir(folder.root()).arg("up");
    command.arg("--config").arg(folder.run_toml());
    command.arg("--state-dir").arg(folder.state());
    command.arg("--token-file").arg(folder.join_file());
    command.args(["--listen", &listen.to_string(), "--http", &http.to_string()]);
    // It is asked for the last figures when the run is finished.
    command.arg("--stay");
    command
}

fn worker_command(
    programs: &Programs,
    folder: &Folder,
    worker: &Worker,
    token: &str,
    coordinator: SocketAddr,
    advertise: SocketAddr,
) -> Result<Command> {
    let dir = folder.create_worker_dir(&worker.name)?;
    let mut command = programs.command("worker");
    command
        .current_dir(&dir)
        .args(["join", &coordinator.to_string(), "--token", token, "--site", worker.site])
        .args(["--device", "cpu", "--threads", "1", "--listen", &worker.listen.to_string()])
        .args(["--advertise", &advertise.to_string(), "--cache-dir"])
        .arg(folder.cache(&worker.name));
    Ok(command)
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

fn read_token(folder: &Folder) -> Result<String> {
    let path = folder.join_file();
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    token_in(&text).map(str::to_owned).with_context(|| format!("{} holds no join token", path.display()))
}

/// Returns a bare token, or the one after `--token` in a whole `worker join` line.
fn token_in(text: &str) -> Option<&str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [token] => Some(token),
        line => line.iter().skip_while(|word| **word != "--token").nth(1).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_may_hold_the_token_or_the_whole_line() {
        assert_eq!(token_in("lh1abc\n"), Some("lh1abc"));
        assert_eq!(token_in("worker join 10.0.0.1:4800 --token lh1abc --site a\n"), Some("lh1abc"));
        assert_eq!(token_in("worker join 10.0.0.1:4800\n"), None);
        assert_eq!(token_in(""), None);
    }

    fn end(group: &mut Group, program: &mut Program) -> Ended {
        group.spawn(&program.name, &mut program.command).unwrap();
        group.wait_for_last().unwrap().unwrap()
    }

    fn program(name: &str, script: &str) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program { name: name.to_owned(), command, restarts: 0 }
    }

    #[test]
    fn what_is_killed_is_started_again_but_not_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Group::new(dir.path()).unwrap();
        let mut worker = program("worker-a-0", "kill -KILL $$");
        let mut ended = end(&mut group, &mut worker);
        for _ in 0..RESTARTS_MAX {
            let said = worker.resume(&ended, &mut group).unwrap().unwrap();
            assert!(said.contains("worker-a-0") && said.contains("SIGKILL"), "{said}");
            ended = group.wait_for_last().unwrap().unwrap();
        }
        assert!(worker.resume(&ended, &mut group).is_err());
    }

    #[test]
    fn what_gives_up_by_itself_is_not_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut group = Group::new(dir.path()).unwrap();
        let mut worker = program("worker-a-0", "exit 1");
        let ended = end(&mut group, &mut worker);
        assert!(worker.resume(&ended, &mut group).is_err());
        let mut done = program("worker-a-1", "exit 0");
        let ended = end(&mut group, &mut done);
        assert_eq!(done.resume(&ended, &mut group).unwrap(), None);
        assert_eq!(group.running().count(), 0);
    }
}
