//! The summary at the end of a demo.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{HumanBytes, HumanCount};

use crate::emulator::LinkCounters;
use crate::programs::from_here;
use crate::status::{Checkpoint, Parity, Status};

/// The figures of a finished run.
pub struct Summary {
    status: Status,
    duration: Duration,
    link: LinkCounters,
    parity: Parity,
    checkpoint: Checkpoint,
}

impl Summary {
    /// Checks that the run ended correctly.
    ///
    /// # Errors
    /// Returns an error if it is not finished, replicas differ, or there is no checkpoint.
    pub fn new(status: &Status, duration: Duration, link: LinkCounters) -> Result<Self> {
        ensure!(status.is_finished(), "the workers ended while the run was {}; see their logs", status.phase);
        let parity = status.parity.clone().context("no round was compared between the replicas")?;
        ensure!(
            parity.equal,
            "the replicas differ after round {}; the coordinator's log names them",
            parity.round
        );
        let mut written = status.checkpoints.iter().filter(|checkpoint| checkpoint.error.is_none());
        let checkpoint = written.next().cloned().context("the run left no checkpoint")?;
        Ok(Self { status: status.clone(), duration, link, parity, checkpoint })
    }

    /// The newest checkpoint's folder.
    pub fn checkpoint(&self) -> &Path {
        Path::new(&self.checkpoint.path)
    }

    fn rows(&self) -> [(&'static str, String); 7] {
        let status = &self.status;
        let number = |value: Option<f64>, show: &dyn Fn(f64) -> String| value.map_or("-".to_owned(), show);
        let loss = |value| number(value, &|loss| format!("{loss:.3} nats/token"));
        let bytes = |bytes| HumanBytes(bytes).to_string();
        let speed = number(status.throughput.tokens_per_s_mean, &|speed| format!("{speed:.0}/s"));
        let ratio = number(status.traffic.bytes_ratio, &|ratio| format!("{ratio:.0}×"));
        [
            ("trained", format!("{} steps in {:.0} s", status.step, self.duration.as_secs_f64())),
            ("tokens", format!("{}, {speed}", HumanCount(status.throughput.tokens))),
            ("loss", format!("{}; on held-out text {}", loss(status.loss), loss(status.validation_loss))),
            (
                "share of local speed",
                number(status.throughput.share_of_local_speed_mean, &|share| {
                    format!("{:.1} %", share * 100.0)
                }),
            ),
            ("sent across sites", bytes(status.traffic.wan_bytes)),
            ("as dense f32", format!("{} ({ratio})", bytes(status.traffic.dense_bytes))),
            (
                "on the link",
                format!(
                    "{} with all headers; {} lost",
                    bytes(self.link.delivered_bytes),
                    bytes(self.link.lost_bytes)
                ),
            ),
        ]
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.rows() {
            writeln!(formatter, "  {name:<22}{value}")?;
        }
        let (round, hash) = (self.parity.round, &self.parity.hash);
        writeln!(formatter, "\nAll replicas hold the same bits after round {round}:\n  {hash}")?;
        writeln!(formatter, "\nCheckpoint:\n  {}", from_here(self.checkpoint()).display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(phase: &str, equal: bool) -> Status {
        serde_json::from_str(&format!(
            r#"{{"phase":"{phase}","step":10,"steps":10,"loss":2.5,"validation_loss":2.75,"tokens":1000,
                "tokens_per_s":null,"tokens_per_s_mean":100,"share_of_local_speed":null,"share_of_local_speed_mean":0.9,
                "wan_bytes":1024,"dense_bytes":51200,"bytes_ratio":50,"eta_s":null,"events":[],
                "parity":{{"round":4,"hash":"abcd","equal":{equal}}},
                "checkpoints":[{{"path":"/demo/d","error":"full"}},{{"path":"/demo/c","error":null}}]}}"#
        ))
        .unwrap()
    }

    fn summary(status: &Status) -> Result<Summary> {
        Summary::new(status, Duration::from_secs(10), LinkCounters::default())
    }

    #[test]
    fn a_finished_run_is_summed_up() {
        let text = summary(&status("finished", true)).unwrap().to_string();
        for figure in [
            "10 steps in 10 s",
            "1,000, 100/s",
            "2.750",
            "90.0 %",
            "1.00 KiB",
            "(50×)",
            "4:\n  abcd",
            "/demo/c",
        ] {
            assert!(text.contains(figure), "{figure} is missing in\n{text}");
        }
    }

    #[test]
    fn an_unfinished_run_or_unequal_replicas_are_no_success() {
        assert!(summary(&status("training", true)).is_err());
        assert!(summary(&status("finished", false)).is_err());
    }
}
