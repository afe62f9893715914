//! Seconds from the start of a worker's process, in its own site, to the first round with its contribution.

use anyhow::Result;
use longhaul_tests::cluster::{Cluster, training};
use serde_json::Value;

use super::{Session, WAIT_MAX, round};
use crate::kit::clock::now;
use crate::runs::gpt::GPT;
use crate::runs::training::{Copies, Training, cluster_config};

/// The model of 10.9 million parameters, with rounds of a step: the length of a round is irrelevant here. Its
/// warm-up is over.
const SYNC: &str = "preset = \"dgc\"\nwarmup_share = 0.0";
/// The same in its warm-up, in which a lone worker makes results of all values faster than this link carries
/// them.
const WARMUP: &str = "preset = \"dgc\"";
/// Four sequences per step, for both together: a step is short relative to the three seconds that joining may
/// take besides the transfer.
const COPIES: Copies<'static> = Copies { batch: 4, micro_batch: 4, ..Copies::WHOLE };
const LINK: &str = "rate_mbit=100,delay_ms=25,loss_percent=0.1";

/// Five joins, each to its own run that a worker of another site has begun, and three to one in its warm-up.
pub fn measure(session: &Session) -> Result<()> {
    measure_joins(session, "join", SYNC, 5)?;
    measure_joins(session, "join_warmup", WARMUP, 3)
}

fn measure_joins(session: &Session, case: &str, sync: &str, times: u32) -> Result<()> {
    let (mut trains, mut contributed) = (Vec::new(), Vec::new());
    for _ in session.repeats(case, times) {
        let folder = tempfile::tempdir()?;
        let link = LINK.parse()?;
        let run = Training { copies: COPIES, ..Training::new(GPT, &[1], sync, 100_000, &link) };
        let config = cluster_config(run.run_toml(), &[1, 1], &link, &folder);
        let mut cluster = Cluster::start_coordinator_only(config)?;
        cluster.start_worker(0)?;
        cluster
            .wait_for("the run to begin", WAIT_MAX, |status| training(status) == 1 && round(status) >= 2)?;
        let started = now();
        cluster.start_worker(1)?;
        cluster.wait_for("it to train", WAIT_MAX, |status| training(status) == 2)?;
        trains.push(started.elapsed().as_secs_f64());
        cluster.wait_for("its first contribution", WAIT_MAX, has_contributed)?;
        contributed.push(started.elapsed().as_secs_f64());
    }
    session.print(case, "trains_s", "s", &trains);
    session.print(case, "join_s", "s", &contributed);
    Ok(())
}

/// Whether a round that both have applied contains both contributions.
fn has_contributed(status: &Value) -> bool {
    let members = status["members"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    members.len() == 2 && members.iter().all(|member| !member["contributed"].is_null())
}
