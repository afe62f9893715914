//! The `wan-emulator` binary as used by scripts.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A running emulator, its commands and its replies.
struct Emulator {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Emulator {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wan-emulator"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, commands, answers }
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, command: &str) -> Value {
        writeln!(self.commands, "{command}").unwrap();
        self.answer()
    }
}

#[test]
fn it_says_where_it_listens_obeys_its_input_and_ends_with_it() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let relay = format!("0={}@a-b/b-a", server.local_addr().unwrap());
    let mut emulator = Emulator::start(&[
        "--link",
        "a-b:rate_mbit=50",
        "--link",
        "b-a",
        "--relay",
        &relay,
        "--exit-with-stdin",
    ]);
    let ready = emulator.answer();
    assert_eq!(ready["ready"], true);
    let address = ready["relays"][0]["listen"].as_str().unwrap();

    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    client.send_to(b"over the link", address).unwrap();
    let mut buffer = [0; 100];
    let len = server.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"over the link");

    assert_eq!(emulator.ask("partition a-b"), json!({ "ok": true }));
    assert_eq!(emulator.ask("partition a-c")["error"], "nothing was changed: there is no link called `a-c`");
    let stats = emulator.ask("stats");
    assert_eq!(stats["links"]["a-b"]["delivered"], json!({ "packets": 1, "bytes": 13 + 28 }));
    assert_eq!(stats["links"]["a-b"]["partitioned"], true);

    let Emulator { mut child, commands, mut answers } = emulator;
    drop(commands);
    let mut last = String::new();
    answers.read_line(&mut last).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&last).unwrap(), stats);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_relay_over_a_link_that_is_not_there_is_refused() {
    let emulator = Command::new(env!("CARGO_BIN_EXE_wan-emulator"))
        .args(["--link", "a-b", "--relay", "0=127.0.0.1:1@a-b/b-a"])
        .output()
        .unwrap();
    assert!(!emulator.status.success());
    let message = String::from_utf8(emulator.stderr).unwrap();
    assert_eq!(message, "wan-emulator: there is no link called `b-a`\n");
}
