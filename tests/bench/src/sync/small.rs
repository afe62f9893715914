//! Small models, trained from the first to the last step.

use std::time::Duration;

use anyhow::Result;
use longhaul_tests::cluster::Wan;

use super::watch;
use crate::kit::clock::now;
use crate::runs::training::{Shape, Training};

/// A model with negligible training time.
pub const TINY: Shape = Shape { layers: 2, width: 64, heads: 2, context: 32, tied_embeddings: true };

/// Token and position embeddings; in each block two norms, and 12·d² weights with 9·d biases; a last norm.
pub fn parameters(shape: Shape) -> u64 {
    let Shape { layers, width, context, tied_embeddings, .. } = shape;
    let tokens = if tied_embeddings { 256 } else { 2 * 256 };
    (tokens + context) * width + layers * (12 * width * width + 13 * width) + 2 * width
}

/// Keys of `[train]`; the final loss covers all held-out text.
pub fn train(learning_rate: f64) -> String {
    format!("learning_rate = {learning_rate}\nwarmup_steps = 40\nevaluate_batches = 1000000")
}

/// Result of a run.
pub struct Ended {
    /// Nats per token over all held-out text; `None` if not a number.
    pub loss: Option<f64>,
    /// Bytes sent by workers to other sites, without headers, by their own count.
    pub sent_bytes: f64,
    /// Bytes received by all sites: including headers, acknowledgements, control, and retransmissions.
    pub wire_bytes: f64,
    pub seconds: f64,
}

/// Trains to the end; `None`: not reached within `limit`.
pub fn run(training: &Training<'_>, limit: Duration) -> Result<Option<Ended>> {
    let began = now();
    let mut cluster = training.start()?;
    let finished = watch::until(&mut cluster, limit, |status| status["phase"] == "finished")?;
    Ok(finished.map(|status| Ended {
        loss: status["validation_loss"].as_f64(),
        sent_bytes: status["wan_bytes"].as_f64().unwrap_or(0.0),
        wire_bytes: wire_bytes(cluster.wan(), training.sites.len()),
        seconds: began.elapsed().as_secs_f64(),
    }))
}

/// Each packet enters one site.
fn wire_bytes(wan: &Wan, sites: usize) -> f64 {
    (0..sites).map(|site| wan.into_site(site).stats().delivered.bytes as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::training::DEMO;

    #[test]
    fn models_have_as_many_parameters_as_the_record_says() {
        assert_eq!(parameters(DEMO), 842_496);
        assert_eq!(parameters(TINY), 118_528);
        assert_eq!(parameters(crate::runs::gpt::GPT), 10_893_312);
    }
}
