//! The WAN emulator, which replies with one line of JSON to each line.

use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::Options;
use crate::group::Group;
use crate::programs::Programs;

/// Name of its process.
pub const EMULATOR: &str = "wan-emulator";

/// A running emulator with one link in each direction between two sites.
pub struct Emulator {
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Bytes in both directions, with UDP and IP headers.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkCounters {
    /// Bytes that arrived.
    pub delivered_bytes: u64,
    /// Bytes lost on the wire or dropped before it.
    pub lost_bytes: u64,
}

/// First line of the emulator.
#[derive(Deserialize)]
struct Ready {
    relays: Vec<Relay>,
}

#[derive(Deserialize)]
struct Relay {
    listen: SocketAddr,
}

impl Emulator {
    /// Starts a relay for each target, over the link pair named with it; returns the relays' listening
    /// addresses.
    pub fn start(
        group: &mut Group,
        programs: &Programs,
        options: &Options,
        targets: &[(SocketAddr, &str)],
    ) -> Result<(Self, Vec<SocketAddr>)> {
        let mut command = programs.command(EMULATOR);
        for link in ["a-b", "b-a"] {
            let (rate, delay, loss) = (options.rate_mbit, options.rtt_ms / 2.0, options.loss);
            command
                .args(["--link", &format!("{link}:rate_mbit={rate},delay_ms={delay},loss_percent={loss}")]);
        }
        for (target, links) in targets {
            command.args(["--relay", &format!("127.0.0.1:0={target}@{links}")]);
        }
        let child = group.spawn_piped(EMULATOR, &mut command)?;
        let commands = child.stdin.take().context("open the emulator's input")?;
        let answers = BufReader::new(child.stdout.take().context("open the emulator's output")?);
        let mut emulator = Self { commands, answers };
        let ready = match emulator.read_line() {
            Ok(line) => line,
            // It ended silently: its log contains the reason.
            Err(error) => bail!("{}", group.wait_for_last()?.map_or(error.to_string(), |it| it.describe())),
        };
        let ready: Ready = serde_json::from_str(&ready).with_context(|| format!("read {ready:?}"))?;
        Ok((emulator, ready.relays.iter().map(|relay| relay.listen).collect()))
    }

    /// Returns the traffic over the links so far.
    pub fn counters(&mut self) -> Result<LinkCounters> {
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
        ensure!(length > 0, "the emulator ended");
        Ok(line)
    }
}
