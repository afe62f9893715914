//! The progress lines of the demo.

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::said;
use crate::status::{Event, Severity, Status};

/// Number of lines printed over the whole run without a terminal.
const PLAIN_LINES: u64 = 20;

/// The bar, with two lines of figures below it. All fit into 80 columns.
const TEMPLATE: &str = "{elapsed_precise} {bar:36.cyan/blue} step {pos}/{len}{prefix}\n  {msg}";

/// Line break between the figures on a terminal.
const LINE_BREAK: &str = "\n  ";

/// A bar on a terminal, occasional lines elsewhere.
pub struct Progress {
    bar: ProgressBar,
    phase: String,
    plain_lines_printed: u64,
    events_shown_to_unix_ms: u64,
}

impl Progress {
    /// Creates an empty display.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Self { bar, phase: String::new(), plain_lines_printed: 0, events_shown_to_unix_ms: 0 }
    }

    /// Prints a permanent line: above the bar, or among the other lines.
    pub fn say(&self, line: &str) {
        if self.bar.is_hidden() {
            said::tell(line);
        } else {
            self.bar.println(line);
        }
    }

    /// Shows a status.
    pub fn show(&mut self, status: &Status) {
        for line in self.news(&status.events) {
            self.say(&line);
        }
        let (speed, traffic) = describe(status);
        if self.bar.is_hidden() {
            let done = status.step * PLAIN_LINES / status.steps.max(1);
            if done > self.plain_lines_printed || self.phase != status.phase {
                let pace = join([speed.as_str(), &traffic], " · ");
                said::tell(format_args!("step {}/{} {pace}", status.step, status.steps));
                self.plain_lines_printed = done;
            }
        }
        self.phase.clone_from(&status.phase);
        self.bar.set_length(status.steps);
        self.bar.set_position(status.step);
        self.bar.set_prefix(time_left(status));
        self.bar.set_message(join([speed.as_str(), &traffic], LINE_BREAK));
    }

    /// Draws the last status, which may have followed the previous one too soon to be drawn.
    pub fn finish(self) {
        self.bar.abandon();
    }

    /// Returns the problems since the last call, oldest first. The rest is in the coordinator's log.
    fn news(&mut self, events: &[Event]) -> Vec<String> {
        let mut news: Vec<&Event> =
            events.iter().filter(|event| event.at_unix_ms > self.events_shown_to_unix_ms).collect();
        news.sort_by_key(|event| event.at_unix_ms);
        self.events_shown_to_unix_ms =
            news.last().map_or(self.events_shown_to_unix_ms, |newest| newest.at_unix_ms);
        let wrong = news.into_iter().filter(|event| event.severity != Severity::Info);
        wrong
            .map(|event| match &event.worker {
                Some(worker) => format!("coordinator: {worker} {}", event.text),
                None => format!("coordinator: {}", event.text),
            })
            .collect()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.bar.is_hidden() {
            // Not drawn again: the terminal's echo of a Ctrl-C has moved the cursor, so the bar would appear
            // twice.
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
            said::tell("");
        }
    }
}

fn time_left(status: &Status) -> String {
    match status.eta_s {
        Some(eta_s) if eta_s >= 0.5 => {
            let left_s = eta_s.round() as u64;
            format!(" · {}:{:02} left", left_s / 60, left_s % 60)
        }
        _ => String::new(),
    }
}

/// Returns the speed and the traffic as text.
fn describe(status: &Status) -> (String, String) {
    let mut speed = vec![status.phase.clone()];
    speed.extend(status.loss.map(|loss| format!("loss {loss:.3}")));
    speed.extend(status.throughput.tokens_per_s.map(|speed| format!("{speed:.0} tokens/s")));
    speed.extend(
        status.throughput.share_of_local_speed.map(|share| format!("{:.0} % of local speed", share * 100.0)),
    );
    let traffic = status.traffic.bytes_ratio.map(|ratio| {
        let (sent, dense) = (HumanBytes(status.traffic.wan_bytes), HumanBytes(status.traffic.dense_bytes));
        format!("{sent} sent across sites; dense f32 would be {dense} ({ratio:.0}×)")
    });
    (speed.join(" · "), traffic.unwrap_or_default())
}

fn join(lines: [&str; 2], separator: &str) -> String {
    let [first, second] = lines;
    if second.is_empty() { first.to_owned() } else { format!("{first}{separator}{second}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Traffic;

    fn status() -> Status {
        serde_json::from_str(
            r#"{"phase":"training","step":3,"steps":10,"loss":null,"validation_loss":null,"tokens":0,
                "tokens_per_s":null,"share_of_local_speed":null,"wan_bytes":0,"dense_bytes":0,"bytes_ratio":null,
                "eta_s":null,"parity":null,"checkpoints":[],"events":[]}"#,
        )
        .unwrap()
    }

    #[test]
    fn what_is_not_known_yet_is_left_out() {
        let mut status = status();
        assert_eq!(describe(&status), ("training".to_owned(), String::new()));
        assert_eq!(join(["training", ""], LINE_BREAK), "training");
        assert_eq!(time_left(&status), "");
        status.loss = Some(2.5);
        status.throughput.share_of_local_speed = Some(0.9);
        status.eta_s = Some(90.0);
        status.traffic = Traffic { wan_bytes: 1 << 20, dense_bytes: 50 << 20, bytes_ratio: Some(50.0) };
        let (speed, traffic) = describe(&status);
        assert_eq!(speed, "training · loss 2.500 · 90 % of local speed");
        assert_eq!(traffic, "1.00 MiB sent across sites; dense f32 would be 50.00 MiB (50×)");
        assert_eq!(time_left(&status), " · 1:30 left");
    }

    #[test]
    fn what_went_wrong_is_told_once_and_in_order() {
        let event = |at_unix_ms, severity, worker: Option<&str>, text: &str| Event {
            at_unix_ms,
            severity,
            worker: worker.map(str::to_owned),
            text: text.to_owned(),
        };
        let mut events = vec![
            event(3, Severity::Error, None, "worse"),
            event(2, Severity::Warning, Some("w1"), "is gone"),
            event(1, Severity::Info, Some("w1"), "has joined"),
        ];
        let mut progress = Progress::new();
        assert_eq!(progress.news(&events), ["coordinator: w1 is gone", "coordinator: worse"]);
        assert!(progress.news(&events).is_empty());
        events.insert(0, event(4, Severity::Warning, None, "again"));
        assert_eq!(progress.news(&events), ["coordinator: again"]);
    }
}
