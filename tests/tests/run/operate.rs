//! Operator commands on a running run.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use longhaul_common::id::WorkerId;
use longhaul_proto::control::CloseCode;
use longhaul_proto::identity::{Identity, PeerName, data_client};
use longhaul_proto::transport;
use longhaul_tests::cluster::{Process, binary};
use quinn::{Connection, ConnectionError, Endpoint};
use serde_json::Value;

use crate::faults::assert_exactly_once;
use crate::scenario::{RUN_MAX, Scenario, Setup};

/// Timeout for a peer to close a connection.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);

/// A run that does not finish by chance, and in which no worker counts as lost: workers leave only on
/// commands.
fn long() -> Setup<'static> {
    Setup { steps: 100_000, sites: vec![2, 2], checkpoint: "every_rounds = 1000", ..Setup::reproducible() }
}

/// Returns a worker's identity from its cache folder.
pub fn identity_of(scenario: &Scenario, index: usize) -> Identity {
    let workers = scenario.cluster.folder().join(format!("cache-{index}/workers"));
    let run = fs::read_dir(workers).unwrap().next().unwrap().unwrap().path();
    Identity::load(&run.join("0")).unwrap().unwrap()
}

/// Connects to a worker's data port.
async fn dial(endpoint: &Endpoint, as_whom: &Identity, to: WorkerId, at: SocketAddr) -> Connection {
    let client = transport::client_config(data_client(as_whom).unwrap());
    let name = PeerName::Worker(to).in_run(as_whom.run());
    endpoint.connect_with(client, at, &name).unwrap().await.unwrap()
}

/// Whether a peer has closed the connection as that of a stranger.
async fn is_put_out(connection: &Connection) -> bool {
    let closed = tokio::time::timeout(CLOSED_WITHIN, connection.closed()).await;
    let stranger = CloseCode::Stranger.into();
    matches!(closed, Ok(ConnectionError::ApplicationClosed(close)) if close.error_code == stranger)
}

/// Replays every file of the record of decisions.
pub fn replay_all(scenario: &Scenario) {
    let folder = scenario.cluster.folder().join("state/decisions");
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let output = Command::new(binary("coordinator").unwrap()).arg("replay").arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let failed = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains("all decisions match the record"),
            "{failed}\n{said}"
        );
    }
}

fn members(status: &Value, state: &str) -> usize {
    let members = status["members"].as_array();
    members.map_or(0, |members| members.iter().filter(|member| member["state"] == state).count())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: covered by a_kicked_worker_is_connected_with_nobody_a_second_later, a_kicked_worker_is_told_why_cut_off_and_certified_no_more"]
async fn a_kicked_worker_is_cut_off_by_the_coordinator_and_by_every_peer() {
    let mut scenario = long().start();
    scenario.wait_for_round(2);
    let identities: Vec<Identity> = (0..4).map(|index| identity_of(&scenario, index)).collect();
    let kicked = &identities[1];
    let endpoint = transport::endpoint(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), None).unwrap();
    let mut connections = Vec::new();
    for peer in [0, 2, 3] {
        let at = scenario.cluster.worker_address(peer);
        connections.push(dial(&endpoint, kicked, identities[peer].worker(), at).await);
    }
    assert!(connections.iter().all(|connection| connection.close_reason().is_none()));
    let name = kicked.worker().to_string();
    let said = scenario.told(&["kick", &name]);
    assert!(said.contains("out of the run for good") && said.contains("token revoke"), "{said}");
    // Its peers close its connections, and refuse new ones.
    for connection in &connections {
        assert!(is_put_out(connection).await, "{}", scenario.cluster.logs());
    }
    for peer in [0, 2, 3] {
        let at = scenario.cluster.worker_address(peer);
        let again = dial(&endpoint, kicked, identities[peer].worker(), at).await;
        assert!(is_put_out(&again).await);
    }
    let process = scenario.cluster.worker(1).unwrap();
    assert!(!process.wait(RUN_MAX).unwrap().success());
    assert!(process.log().contains("its certificate is revoked"), "{}", process.log());
    // It is also refused as the former worker after a restart.
    scenario.cluster.start_worker(1).unwrap();
    let process = scenario.cluster.worker(1).unwrap();
    assert!(!process.wait(RUN_MAX).unwrap().success());
    assert!(process.log().contains("does not take this worker any more"), "{}", process.log());
    scenario.cluster.kill_worker(1);

    let page = scenario.told(&["members"]);
    assert!(page.lines().any(|line| line.starts_with(&name) && line.contains("kicked")), "{page}");
    let round = scenario.cluster.status()["round"].as_u64().unwrap();
    scenario.wait_for_round(round + 2);
    scenario.told(&["stop", "--wait"]);
    let events = scenario.told(&["events"]);
    assert!(events.contains("taken out of the run by the operator"), "{events}");
    replay_all(&scenario);
}

/// Returns the time of a log line since midnight; `None`: no line has all of these words. Of several, the
/// last.
fn written(log: &str, words: &[&str]) -> Option<Duration> {
    let line = log.lines().rfind(|line| words.iter().all(|word| line.contains(word)))?;
    // 2026-03-01T12:00:00.250000Z
    let time = line.split_whitespace().next()?.split_once('T')?.1.strip_suffix('Z')?;
    let parts: Vec<f64> = time.split(':').map(|part| part.parse().unwrap()).collect();
    let [hours, minutes, seconds] = parts[..] else { return None };
    Some(Duration::from_secs_f64(60.0 * (60.0 * hours + minutes) + seconds))
}

/// Returns how long a kicked worker was still connected to any peer, by all logs, which share a clock.
fn cut_off_after(scenario: &mut Scenario, kicked: usize, peers: &[usize], name: &str) -> Duration {
    const DAY: Duration = Duration::from_secs(86_400);
    let peer = format!("peer={name}");
    let cut = ["a worker was taken out of the run: its connection is closed", &peer];
    let mut ends = Vec::new();
    for &index in peers {
        let process = scenario.cluster.worker(index).unwrap();
        process.wait_for_words(cut[0], CLOSED_WITHIN).unwrap();
        ends.push(written(&process.log(), &cut).unwrap());
    }
    let process = scenario.cluster.worker(kicked).unwrap();
    assert!(!process.wait(RUN_MAX).unwrap().success());
    assert!(process.log().contains("its certificate is revoked"), "{}", process.log());
    ends.push(written(&process.log(), &["closing all connections"]).unwrap());
    let log = scenario.cluster.coordinator().unwrap().log();
    let began = written(&log, &[name, "was taken out of the run by the operator"]).unwrap();
    let took = |end: Duration| match end.checked_sub(began) {
        Some(took) => took,
        // After midnight; or a peer has logged before the coordinator.
        None if began - end > DAY / 2 => end + DAY - began,
        None => Duration::ZERO,
    };
    ends.into_iter().map(took).max().unwrap()
}

/// Closing all connections of a kicked worker within a second is a promise. On a shared machine a process may
/// be delayed: one of three kicks must keep it.
#[tokio::test(flavor = "multi_thread")]
async fn a_kicked_worker_is_connected_with_nobody_a_second_later() {
    const CUT_OFF_MAX: Duration = Duration::from_secs(1);
    let mut scenario = Setup { alone: true, ..long() }.start();
    scenario.wait_for_round(2);
    let identities: Vec<Identity> = (0..4).map(|index| identity_of(&scenario, index)).collect();
    let endpoint = transport::endpoint(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), None).unwrap();
    let mut took = Vec::new();
    for kicked in [1, 3, 2] {
        let peers: Vec<usize> = [0, 2, 3]
            .into_iter()
            .filter(|&peer| peer != kicked && scenario.cluster.worker(peer).is_some())
            .collect();
        let mut connections = Vec::new();
        for &peer in &peers {
            let at = scenario.cluster.worker_address(peer);
            connections.push(dial(&endpoint, &identities[kicked], identities[peer].worker(), at).await);
        }
        let name = identities[kicked].worker().to_string();
        scenario.told(&["kick", &name]);
        for connection in &connections {
            assert!(is_put_out(connection).await, "{}", scenario.cluster.logs());
        }
        took.push(cut_off_after(&mut scenario, kicked, &peers, &name));
        if took.last().is_some_and(|took| *took <= CUT_OFF_MAX) {
            return;
        }
        scenario.cluster.kill_worker(kicked);
        let goes_on = |status: &Value| members(status, "training") == peers.len();
        scenario.cluster.wait_for("the others to go on", RUN_MAX, goes_on).unwrap();
    }
    panic!("after {took:?} each\n{}", scenario.cluster.logs());
}

#[test]
fn what_happens_appears_to_who_follows_the_events_until_interrupted() {
    let mut scenario = Setup::default().gather();
    let folder = scenario.cluster.folder().to_owned();
    let mut follower = Process::start_as("coordinator", "follower", &folder, |command| {
        command.args(["events", "--follow", "--state-dir", "state"]);
    })
    .unwrap();
    scenario.cluster.start_worker(0).unwrap();
    follower.wait_for_words("joined from site site-0", RUN_MAX).unwrap();
    assert!(!follower.log().contains("was taken out of the run"), "{}", follower.log());
    // Later events reach the running follower.
    scenario.told(&["kick", &identity_of(&scenario, 0).worker().to_string()]);
    follower.wait_for_words("was taken out of the run by the operator", RUN_MAX).unwrap();
    scenario.cluster.kill_worker(0);
    scenario.cluster.start_worker(1).unwrap();
    let is_here = |status: &Value| status["members"].as_array().is_some_and(|members| members.len() == 1);
    scenario.cluster.wait_for("the second worker", RUN_MAX, is_here).unwrap();
    let second = identity_of(&scenario, 1).worker();
    follower.wait_for_words(&format!("{second} joined from site site-0"), RUN_MAX).unwrap();
    assert!(follower.ended().is_none(), "{}", follower.log());
    // Not SIGINT, which a shell's background processes ignore.
    follower.signal("TERM").unwrap();
    follower.wait(CLOSED_WITHIN).unwrap();
    let joined = follower.log().lines().filter(|line| line.contains("joined from site")).count();
    assert_eq!(joined, 2, "each is told once: {}", follower.log());
}

#[test]
#[ignore = "nightly: covered by a_pause_outlives_the_coordinator_and_a_member, a_pause_is_durable_and_what_is_asked_is_among_the_events, a_worker_that_is_asked_to_leave_is_dismissed_and_the_others_settle_without_it"]
fn a_worker_drains_and_a_pause_outlives_the_coordinator() {
    let mut scenario = long().start();
    scenario.wait_for_round(2);
    let name = identity_of(&scenario, 3).worker().to_string();
    scenario.told(&["drain", &name]);
    let process = scenario.cluster.worker(3).unwrap();
    assert!(process.wait(RUN_MAX).unwrap().success(), "{}", process.log());
    assert!(process.log().contains("the operator asks this worker to leave"), "{}", process.log());
    let three = |status: &Value| members(status, "training") == 3 && members(status, "awaited") == 0;
    scenario.cluster.wait_for("the others to go on", RUN_MAX, three).unwrap();

    scenario.told(&["pause"]);
    let (tokens, round) = stand_still(&mut scenario);
    assert!(scenario.told(&["status"]).contains("paused"));
    scenario.cluster.kill_coordinator();
    scenario.cluster.start_coordinator().unwrap();
    // A worker that missed the restart for too long returns as a new one, and takes part when the run
    // continues.
    let here = |status: &Value| members(status, "training") + members(status, "ready") == 3;
    scenario.cluster.wait_for("all to come back", RUN_MAX, here).unwrap();
    // Device counters since the last stored state are lost; no worker does more, and no round is lost or
    // added.
    let (tokens_after, round_after) = stand_still(&mut scenario);
    assert!(
        tokens_after <= tokens && round_after == round,
        "{tokens_after} and {round_after}, not {tokens} and {round}"
    );

    scenario.told(&["resume"]);
    scenario.wait_for_round(round + 3);
    scenario.told(&["stop", "--wait"]);
    let status = scenario.cluster.wait_until_finished(RUN_MAX).unwrap();
    assert_eq!(status["parity"]["equal"], true, "{status:#}");
    assert_exactly_once(&status);
    replay_all(&scenario);
}

/// Waits until a paused run's workers report equal counters over many polls, while heartbeats arrive; returns
/// the counters and the newest round. Training workers would report more between two polls.
fn stand_still(scenario: &mut Scenario) -> (u64, u64) {
    let (mut before, mut same) = (u64::MAX, 0);
    let still = |status: &Value| {
        let tokens = status["tokens"].as_u64().unwrap_or(u64::MAX);
        same = if tokens == before && tokens > 0 { same + 1 } else { 0 };
        before = tokens;
        status["paused"] == true && same >= 15
    };
    let status = scenario
        .cluster
        .look_every(Duration::from_millis(200), "all to stand still", RUN_MAX, still)
        .unwrap();
    (status["tokens"].as_u64().unwrap(), status["round"].as_u64().unwrap())
}
