//! `coordinator checkpoint`

use std::collections::BTreeSet;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};

use super::stop::wait_to_look_again;
use super::{CheckpointArgs, CliError, Client, print};
use longhaul_run::{CheckpointStatus, Phase, Status};

pub(super) const HELP: &str = "\
Make all workers write a checkpoint after the next round and continue training.

It is in addition to those of `checkpoint.every_rounds`: before an upgrade or a risky change, or to
inspect the current model. --wait waits for all workers and prints the paths; it fails if one cannot
write.

    coordinator checkpoint --wait";

const WHAT: &str = "request a checkpoint";

pub(super) fn run(args: &CheckpointArgs) -> Result<(), CliError> {
    let client = Client::find(&args.at).context(WHAT)?;
    let status = || client.get::<Status>("/api/v1/status").map(Seen::from).context(WHAT);
    let before = status()?;
    let _: Value = client.post("/api/v1/checkpoint", &json!({})).context(WHAT)?;
    if !args.wait {
        print(
            "all workers write a checkpoint after the next round and continue training; `coordinator status --json` lists checkpoints",
        );
        return Ok(());
    }
    loop {
        if let Some(written) = written_by_all(&before, &status()?)? {
            written
                .iter()
                .for_each(|checkpoint| print(&format!("{} {}", checkpoint.worker, checkpoint.path)));
            return Ok(());
        }
        wait_to_look_again();
    }
}

/// What matters of a status.
struct Seen {
    phase: Phase,
    /// Who trains.
    training: BTreeSet<String>,
    checkpoints: Vec<CheckpointStatus>,
}

impl From<Status> for Seen {
    fn from(status: Status) -> Self {
        let members = status.cluster.members.into_iter().filter(|member| member.work.state == "training");
        let training = members.map(|member| member.place.id).collect();
        Self { phase: status.run.phase, training, checkpoints: status.checkpoints }
    }
}

/// Those of all who trained before and still do, if each has written one since, in the order of their names. An error: somebody could not, or nobody trains any more.
fn written_by_all(before: &Seen, now: &Seen) -> Result<Option<Vec<CheckpointStatus>>, CliError> {
    if now.phase != Phase::Training {
        return Err(anyhow!("training has stopped").context(WHAT).into());
    }
    let new: Vec<&CheckpointStatus> =
        now.checkpoints.iter().filter(|checkpoint| !before.checkpoints.contains(checkpoint)).collect();
    let mut written = Vec::new();
    for worker in before.training.intersection(&now.training) {
        let Some(checkpoint) = new.iter().find(|checkpoint| checkpoint.worker == *worker) else {
            return Ok(None);
        };
        if let Some(error) = &checkpoint.error {
            let text = format!("{worker} could not write {}: {error}", checkpoint.path);
            return Err(anyhow!(text).context(WHAT).into());
        }
        written.push((*checkpoint).clone());
    }
    // While all begin anew, nobody trains for a moment.
    Ok(if written.is_empty() { None } else { Some(written) })
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn checkpoint(worker: &str, next_round: u64, error: Option<&str>) -> CheckpointStatus {
        CheckpointStatus {
            worker: worker.to_owned(),
            next_round,
            path: format!("{worker}/{next_round}"),
            state_hash: None,
            error: error.map(str::to_owned),
        }
    }

    fn status(training: &[&str], checkpoints: Vec<CheckpointStatus>) -> Seen {
        let training = training.iter().map(|id| (*id).to_owned()).collect();
        Seen { phase: Phase::Training, training, checkpoints }
    }

    #[test]
    fn each_who_trained_and_still_does_has_a_new_one_whatever_its_round() {
        let old = vec![checkpoint("w0", 60, None), checkpoint("w1", 60, None)];
        let before = status(&["w0", "w1"], old.clone());
        let with = |new: &[CheckpointStatus]| [new, &old].concat();
        let written = |now: &Seen| written_by_all(&before, now).unwrap().map(|all| all.len());
        assert_eq!(written(&before), None);
        // The run has gone back since the newest was written.
        let first = checkpoint("w1", 41, None);
        assert_eq!(written(&status(&["w0", "w1"], with(from_ref(&first)))), None);
        let both = with(&[first.clone(), checkpoint("w0", 42, None)]);
        assert_eq!(written(&status(&["w0", "w1"], both.clone())), Some(2));
        assert_eq!(written(&status(&["w0", "w1", "w2"], both)), Some(2), "who came later need not");
        assert_eq!(written(&status(&["w1"], with(from_ref(&first)))), Some(1), "who has left cannot");
        assert_eq!(written(&status(&[], with(from_ref(&first)))), None);
        let failed = status(&["w0", "w1"], with(&[first, checkpoint("w0", 42, Some("no space left"))]));
        assert!(written_by_all(&before, &failed).unwrap_err().to_string().contains("no space left"));
        let over = Seen { phase: Phase::Finished, ..status(&["w0"], old.clone()) };
        assert!(written_by_all(&before, &over).is_err());
    }
}
