//! `coordinator checkpoint`

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};

use super::{CheckpointArgs, CliError, Client, print};
use crate::run::{CheckpointStatus, Phase, Status};

const WHAT: &str = "have a checkpoint written";
/// How often `--wait` looks.
const POLL: Duration = Duration::from_millis(300);

pub(super) fn run(args: &CheckpointArgs) -> Result<(), CliError> {
    let client = Client::find(&args.at).context(WHAT)?;
    let status = || client.get::<Status>("/api/v1/status").context(WHAT);
    let newest = newest(&status()?.checkpoints);
    let _: Value = client.post("/api/v1/checkpoint", &json!({})).context(WHAT)?;
    if !args.wait {
        print(
            "all workers write a checkpoint after the next round, and train on; `coordinator events` tells when it is written",
        );
        return Ok(());
    }
    loop {
        let status = status()?;
        if let Some(written) = written_by_all(&status, newest)? {
            written
                .iter()
                .for_each(|checkpoint| print(&format!("{} {}", checkpoint.worker, checkpoint.path)));
            return Ok(());
        }
        // A person waits here, and nothing else runs in this process.
        #[allow(
            clippy::disallowed_methods,
            reason = "polling another process is all that this command does"
        )]
        std::thread::sleep(POLL);
    }
}

/// The round that follows the newest checkpoint.
fn newest(checkpoints: &[CheckpointStatus]) -> Option<u64> {
    checkpoints.iter().map(|checkpoint| checkpoint.next_round).max()
}

/// Those of all who train, if all have written one that is newer. An error: somebody could not, or nobody trains any more.
fn written_by_all(
    status: &Status,
    newest_before: Option<u64>,
) -> Result<Option<Vec<CheckpointStatus>>, CliError> {
    let newer = |checkpoint: &&CheckpointStatus| Some(checkpoint.next_round) > newest_before;
    let new: Vec<&CheckpointStatus> = status.checkpoints.iter().filter(newer).collect();
    if let Some((checkpoint, error)) = new.iter().find_map(|of| Some((of, of.error.as_ref()?))) {
        return Err(anyhow!("{} could not write it at {}: {error}", checkpoint.worker, checkpoint.path)
            .context(WHAT)
            .into());
    }
    let Some(first) = new.iter().map(|checkpoint| checkpoint.next_round).min() else {
        return match status.phase {
            Phase::Training => Ok(None),
            _ => Err(anyhow!("nobody trains any more").context(WHAT).into()),
        };
    };
    let mut written: Vec<CheckpointStatus> =
        new.into_iter().filter(|checkpoint| checkpoint.next_round == first).cloned().collect();
    written.sort_by(|one, other| one.worker.cmp(&other.worker));
    let members = status.members.iter().filter(|member| member.state == "training");
    let is_all = members.clone().all(|member| written.iter().any(|of| of.worker == member.id));
    Ok(is_all.then_some(written))
}
