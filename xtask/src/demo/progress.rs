//! The line that shows how the demo goes.

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::demo::status::Status;

/// Without a terminal, a line is printed each time so much of the run is done.
const PLAIN_LINES: u64 = 20;

/// A bar on a terminal, a line now and then elsewhere.
pub struct Progress {
    bar: ProgressBar,
    phase: String,
    plain_lines_printed: u64,
    shares: Mean,
}

/// A running mean.
#[derive(Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Progress {
    /// Shows nothing yet.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {bar:24} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Self { bar, phase: String::new(), plain_lines_printed: 0, shares: Mean::default() }
    }

    /// Shows a status.
    pub fn show(&mut self, status: &Status) {
        let line = describe(status);
        if self.bar.is_hidden() {
            let done = status.step * PLAIN_LINES / status.steps.max(1);
            if done > self.plain_lines_printed || self.phase != status.phase {
                eprintln!("step {}/{} {line}", status.step, status.steps);
                self.plain_lines_printed = done;
            }
        }
        if let Some(share) = status.share_of_local_speed {
            self.shares.sum += share;
            self.shares.count += 1;
        }
        self.phase.clone_from(&status.phase);
        self.bar.set_length(status.steps);
        self.bar.set_position(status.step);
        self.bar.set_message(line);
    }

    /// The mean of all shares of local speed that were shown: the coordinator itself only says the newest.
    pub fn mean_share_of_local_speed(&self) -> Option<f64> {
        (self.shares.count > 0).then(|| self.shares.sum / f64::from(self.shares.count))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.abandon();
    }
}

fn describe(status: &Status) -> String {
    let mut parts = vec![status.phase.clone()];
    parts.extend(status.loss.map(|loss| format!("loss {loss:.3}")));
    parts.extend(status.tokens_per_s.map(|speed| format!("{speed:.0} tokens/s")));
    parts.extend(status.share_of_local_speed.map(|share| format!("{:.0} % of local speed", share * 100.0)));
    parts.extend(status.bytes_ratio.map(|ratio| {
        format!(
            "WAN {} of {} dense ({ratio:.0}×)",
            HumanBytes(status.wan_bytes),
            HumanBytes(status.dense_bytes)
        )
    }));
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_yet_is_left_out() {
        let mut status: Status = serde_json::from_str(
            r#"{"phase":"training","step":3,"steps":10,"loss":null,"validation_loss":null,"tokens":0,
                "tokens_per_s":null,"share_of_local_speed":null,"wan_bytes":0,"dense_bytes":0,"bytes_ratio":null,
                "parity":null,"checkpoints":[]}"#,
        )
        .unwrap();
        assert_eq!(describe(&status), "training");
        status.loss = Some(2.5);
        status.share_of_local_speed = Some(0.9);
        (status.wan_bytes, status.dense_bytes, status.bytes_ratio) = (1 << 20, 50 << 20, Some(50.0));
        assert_eq!(
            describe(&status),
            "training · loss 2.500 · 90 % of local speed · WAN 1.00 MiB of 50.00 MiB dense (50×)"
        );
    }
}
