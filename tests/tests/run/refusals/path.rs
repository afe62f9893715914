//! No path to the coordinator.

use std::net::UdpSocket;

use longhaul_tests::cluster::Process;

use super::{assert_says, refusal};
use crate::scenario::{RUN_MAX, Setup};

#[test]
fn a_worker_that_finds_no_way_says_what_to_look_at_and_joins_once_there_is_one() {
    let mut scenario = Setup { sites: vec![1, 1], ..Setup::default() }.gather();
    scenario.cluster.wan().into_site(0).partition();
    scenario.cluster.start_worker(1).unwrap();
    // A peer that never responds.
    let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap();
    let folder = scenario.cluster.folder().to_owned();
    let doctor = Process::start_as("worker", "doctor", &folder, |command| {
        command.args(["doctor", &address.to_string(), "--device", "cpu", "--cache-dir", "doctor"]);
    })
    .unwrap();

    let worker = scenario.cluster.worker(1).unwrap();
    worker.wait_for_words("waiting for the coordinator", RUN_MAX).unwrap();
    let words = ["looking for the coordinator", "no answer over UDP", "is the address right", "a firewall"];
    assert_says(&worker.log(), &words);
    assert_says(&worker.log(), &["`worker doctor 127.0.0.1:"]);
    let port = format!("let UDP port {} through the firewalls", address.port());
    assert_says(&refusal(doctor), &["no answer over UDP from", "is `coordinator up` running there?", &port]);

    scenario.cluster.wan().into_site(0).heal();
    let joined =
        |status: &serde_json::Value| status["members"].as_array().is_some_and(|members| members.len() == 1);
    scenario.cluster.wait_for("the worker to join", RUN_MAX, joined).unwrap();
}

#[test]
fn an_address_without_a_port_is_refused_and_not_waited_for() {
    let scenario = Setup::default().gather();
    let token = scenario.cluster.token().unwrap();
    let worker = Process::start_as("worker", "no-port", scenario.cluster.folder(), |command| {
        command.args(["join", "127.0.0.1", "--token", &token, "--cache-dir", "no-port"]);
    })
    .unwrap();
    assert_says(&refusal(worker), &["\"127.0.0.1\" is not HOST:PORT", "`coordinator up` prints it"]);
}
