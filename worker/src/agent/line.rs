//! The status line of this worker at the foot of its terminal.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::RunConfig;
use longhaul_common::id::WorkerId;
use longhaul_common::terminal::{foot, gauge};
use longhaul_proto::control::message::Heartbeat;
use tokio::time::Instant;

use super::session::ticks;
use longhaul_flight::Progress;

/// Refresh interval of the line.
const LOOK: Duration = Duration::from_millis(500);
/// Window of the speed in refreshes: ten seconds, as steps may take that long.
const LOOKS: usize = 20;

/// The status line of a session.
pub(super) struct Line {
    worker: WorkerId,
    steps: u64,
    unit: &'static str,
    progress: Arc<Progress>,
    /// Time and token count at recent refreshes.
    looks: VecDeque<(Instant, u64)>,
}

impl Line {
    pub fn new(worker: WorkerId, config: &RunConfig, progress: Arc<Progress>) -> Self {
        let unit = if config.data.image.is_some() { "images" } else { "tokens" };
        Self { worker, steps: config.run.steps, unit, progress, looks: VecDeque::new() }
    }

    /// Shows the line until dropped.
    pub async fn follow(mut self) -> Infallible {
        let mut looks = ticks(LOOK);
        loop {
            let now = looks.tick().await;
            let done = self.progress.heartbeat();
            // Before the first step, data preparation shows its own line.
            if done.tokens > 0 {
                foot().show(&self.text(now, &done));
            }
        }
    }

    fn text(&mut self, now: Instant, done: &Heartbeat) -> String {
        let speed = self.speed(now, done.tokens);
        let (worker, steps) = (self.worker, self.steps);
        let known = [
            Some(format!("{worker} {} step {} of {steps}", gauge(done.step, steps), done.step)),
            (!done.loss.is_nan()).then(|| format!("loss {:.4}", done.loss)),
            speed.map(|speed| format!("{speed:.0} {}/s", self.unit)),
        ];
        known.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Returns tokens per second over the window; `None` before the second refresh.
    fn speed(&mut self, now: Instant, tokens: u64) -> Option<f64> {
        self.looks.push_back((now, tokens));
        if self.looks.len() > LOOKS + 1 {
            self.looks.pop_front();
        }
        let &(since, before) = self.looks.front()?;
        let passed_s = (now - since).as_secs_f64();
        (passed_s > 0.0).then(|| tokens.saturating_sub(before) as f64 / passed_s)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        foot().show("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        let (worker, steps) = (WorkerId(3), 200);
        Line { worker, steps, unit: "tokens", progress: Arc::default(), looks: VecDeque::new() }
    }

    #[test]
    fn the_line_has_step_loss_and_the_speed_of_the_last_ten_seconds() {
        let (mut line, began) = (line(), Instant::now());
        let mut done = Heartbeat { loss: f32::NAN, ..Heartbeat::default() };
        let mut text = String::new();
        for look in 1..=40 {
            done.step = look;
            // Faster in the second half, whose ten seconds fill the window.
            done.tokens += if look <= 20 { 50 } else { 500 };
            text = line.text(began + LOOK * look as u32, &done);
        }
        assert_eq!(text, "w3 [####----------------] step 40 of 200, 1000 tokens/s");
        done.loss = 2.5;
        let text = line.text(began + LOOK * 41, &done);
        assert!(text.contains("step 40 of 200, loss 2.5000, "), "{text}");
    }
}
