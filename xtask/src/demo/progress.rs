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
}

impl Progress {
    /// Shows nothing yet.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {bar:24} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Self { bar, phase: String::new(), plain_lines_printed: 0 }
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
        self.phase.clone_from(&status.phase);
        self.bar.set_length(status.steps);
        self.bar.set_position(status.step);
        self.bar.set_message(line);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.abandon();
    }
}

fn describe(status: &Status) -> String {
    let totals = &status.totals;
    let mut parts = vec![status.phase.clone()];
    parts.extend(status.loss.map(|loss| format!("loss {loss:.3}")));
    parts.extend(status.tokens_per_s.map(|speed| format!("{speed:.0} tokens/s")));
    parts.extend(totals.share_of_local_speed().map(|share| format!("{:.0} % of local speed", share * 100.0)));
    parts.extend(totals.reduction().map(|reduction| {
        format!(
            "WAN {} of {} dense ({reduction:.0}×)",
            HumanBytes(totals.wan_bytes),
            HumanBytes(totals.dense_bytes)
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
            r#"{"phase":"training","step":3,"steps":10,"loss":null,"validation_loss":null,"tokens_per_s":null,
                "totals":{"tokens":0,"wan_bytes":0,"dense_bytes":0,"compute_s":0,"wait_s":0},"parity":null}"#,
        )
        .unwrap();
        assert_eq!(describe(&status), "training");
        status.loss = Some(2.5);
        status.totals.compute_s = 9.0;
        status.totals.wait_s = 1.0;
        status.totals.wan_bytes = 1 << 20;
        status.totals.dense_bytes = 50 << 20;
        assert_eq!(
            describe(&status),
            "training · loss 2.500 · 90 % of local speed · WAN 1.00 MiB of 50.00 MiB dense (50×)"
        );
    }
}
