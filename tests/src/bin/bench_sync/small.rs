//! Small models, trained from the first to the last step.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use longhaul_tests::cluster::{Cluster, ClusterConfig, Wan};
use longhaul_tests::wan::LinkConfig;

use super::{session, watch};

/// A shape of GPT-2 over bytes, with tied embeddings.
#[derive(Clone, Copy)]
pub struct Shape {
    layers: u64,
    width: u64,
    heads: u64,
    context: u64,
}

/// That of `examples/demo.toml`.
pub const DEMO: Shape = Shape { layers: 4, width: 128, heads: 4, context: 128 };
/// One that is no work to train.
pub const TINY: Shape = Shape { layers: 2, width: 64, heads: 2, context: 32 };

impl Shape {
    /// Token and position embeddings; in each block two norms, and 12·d² weights with 9·d biases; a last norm.
    pub fn parameters(self) -> u64 {
        let Self { layers, width, context, .. } = self;
        (256 + context) * width + layers * (12 * width * width + 13 * width) + 2 * width
    }
}

/// A run of a small model with one worker in each site.
pub struct Small<'a> {
    pub shape: Shape,
    /// Workers in each site.
    pub sites: &'a [usize],
    pub sync: &'a str,
    pub learning_rate: f64,
    pub steps: u64,
    pub link: &'a LinkConfig,
    pub seed: u64,
}

/// How a run ended.
pub struct Ended {
    /// Nats a token over all held-out text; none when it is not a number.
    pub loss: Option<f64>,
    /// What workers sent to other sites, without headers, as they count it.
    pub sent_bytes: f64,
    /// What arrived over all links: headers, acknowledgements, control, and what was sent again.
    pub wire_bytes: f64,
    pub seconds: f64,
}

impl Small<'_> {
    /// Trains to the end. None: it is not reached within `limit`.
    pub fn run(&self, limit: Duration) -> Result<Option<Ended>> {
        let began = session::now();
        let (mut cluster, _folder) = self.start()?;
        let finished = watch::until(&mut cluster, limit, |status| status["phase"] == "finished")?;
        Ok(finished.map(|status| {
            let wire_bytes = wire_bytes(cluster.wan(), self.sites.len());
            Ended {
                loss: status["validation_loss"].as_f64(),
                sent_bytes: status["wan_bytes"].as_f64().unwrap_or(0.0),
                wire_bytes,
                seconds: began.elapsed().as_secs_f64(),
            }
        }))
    }

    /// Starts the run, in a folder that goes with it.
    pub fn start(&self) -> Result<(Cluster, tempfile::TempDir)> {
        let folder = tempfile::tempdir()?;
        let config = ClusterConfig {
            run_toml: self.run_toml(),
            sites: self.sites.to_vec(),
            link: self.link.clone(),
            seed: self.seed,
            folder: folder.path().to_owned(),
            threads: 1,
        };
        Ok((Cluster::start(config)?, folder))
    }

    fn run_toml(&self) -> String {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/bible.en.txt.zst");
        let Self { sync, learning_rate, steps, seed, .. } = self;
        let Shape { layers, width, heads, context } = self.shape;
        let workers: usize = self.sites.iter().sum();
        let batch = 8 * workers;
        format!(
            r#"
[run]
name = "bench"
workers = {workers}
steps = {steps}
seed = {seed}

[model]
kind = "gpt2"
layers = {layers}
width = {width}
heads = {heads}
context = {context}

[data]
path = {text:?}
sequence_length = {context}

[train]
batch = {batch}
micro_batch = 8
learning_rate = {learning_rate}
warmup_steps = 40
# All that is held out.
evaluate_batches = 1000000

[sync]
{sync}

[checkpoint]
every_rounds = 0
"#
        )
    }
}

/// A packet goes over one link. Two sites have one each way, which is the way out of one and into the other.
fn wire_bytes(wan: &Wan, sites: usize) -> f64 {
    let into = (0..sites).map(|site| wan.into_site(site));
    let out_of = (0..sites).filter(|_| sites > 2).map(|site| wan.out_of_site(site));
    into.chain(out_of).map(|link| link.stats().delivered.bytes as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_model_has_as_many_parameters_as_the_demo_says() {
        assert_eq!(DEMO.parameters(), 842_496);
    }
}
