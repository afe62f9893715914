//! How the run goes, at the foot of the terminal on which its coordinator runs.

use std::convert::Infallible;
use std::sync::Arc;

use longhaul_common::terminal::{foot, gauge};
use tokio::sync::watch;

use super::show::{duration, phase};
use longhaul_run::{ProgressStatus, Status};

/// Shows it there until this is dropped.
pub(super) async fn follow(mut status: watch::Receiver<Arc<Status>>) -> Infallible {
    let _shown = Shown;
    loop {
        let now = status.borrow_and_update().clone();
        foot().show(&line_of(&now));
        if status.changed().await.is_err() {
            break;
        }
    }
    std::future::pending().await
}

/// The line is taken away with this.
struct Shown;

impl Drop for Shown {
    fn drop(&mut self) {
        foot().show("");
    }
}

fn line_of(status: &Status) -> String {
    let ProgressStatus { step, steps, .. } = status.progress;
    let training = status.cluster.members.iter().filter(|member| member.work.state == "training").count();
    let unit = if status.training.images { "images" } else { "tokens" };
    let known = [
        Some(format!("{} {} step {step} of {steps}", phase(status), gauge(step, steps))),
        status.training.loss.map(|loss| format!("loss {loss:.4}")),
        Some(format!("{training} of {} workers train", status.cluster.members.len())),
        status.throughput.tokens_per_s.map(|speed| format!("{speed:.0} {unit}/s")),
        status.eta_s.map(|eta_s| format!("{} left", duration(eta_s))),
    ];
    known.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
