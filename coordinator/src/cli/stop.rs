//! `coordinator stop`

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};

use super::{CliError, Client, ClientError, Stop, print, say};
use longhaul_run::{Phase, Status, Suspended};

pub(super) const HELP: &str = "\
End the run, or stop it for now.

Open rounds finish, all workers write a checkpoint, and their processes end. Then the coordinator
ends. The run is then finished; `coordinator up --extend` trains it further. Stopping it once more is
no error.

With --resumable the run stops for now: run the same commands again to continue. Use it for machines
that are switched off at night and for time limits of a batch system; no training is lost. A supervisor
that restarts processes, such as Kubernetes or systemd, restarts the run too, and a standby coordinator
takes it over: end those first.

    coordinator stop --wait
    coordinator stop --resumable --wait";

/// How often `--wait` looks.
const POLL: Duration = Duration::from_millis(300);
/// What `stop --wait` says in the end.
const FINISHED: &str = "the run is finished";
const STOPPED: &str = "the run has stopped for now; to continue, run the same commands again";
const SHORT: &str = "the run stops for now, but not all of its state could be written: it goes on from an older checkpoint. The coordinator's log names the workers";
/// How a run ends whose coordinator is not there.
const REMEDY: &str =
    "to end it, start its coordinator with the same `coordinator up` line, then stop the run";

const RESUME: &str = "to continue, start its coordinator with the same `coordinator up` line";

pub(super) fn run(args: &Stop) -> Result<(), CliError> {
    let (what, path) = match args.resumable {
        true => ("stop the run for now", "/api/v1/suspend"),
        false => ("stop the run", "/api/v1/stop"),
    };
    let asked = Client::find(&args.at).and_then(|client| {
        let _: Value = client.post(path, &json!({}))?;
        Ok(client)
    });
    let client = match asked {
        Ok(client) => client,
        Err(error) => {
            print(&stopped_before(args, error).context(what)?);
            return Ok(());
        }
    };
    match (args.wait, args.resumable) {
        (false, false) => print("the run drains; `coordinator status` shows its progress"),
        (false, true) => print(
            "all workers write a checkpoint and leave, then the coordinator ends; --wait waits for that",
        ),
        (true, _) => say(&wait_for_the_end(args, &client)?),
    }
    Ok(())
}

/// Between two looks at another process, for a person who waits.
#[allow(clippy::disallowed_methods, reason = "such a command only polls another process")]
pub(super) fn wait_to_look_again() {
    std::thread::sleep(POLL);
}

/// A coordinator ends when its run does, unless it is to stay, and tells how before.
fn wait_for_the_end(args: &Stop, client: &Client) -> anyhow::Result<String> {
    let mut end = None;
    loop {
        match (client.get::<Status>("/api/v1/status"), end) {
            (Ok(status), _) if status.run.phase == Phase::Finished && status.stays => {
                return Ok(FINISHED.to_owned());
            }
            (Ok(status), _) if status.run.phase == Phase::Finished => end = Some(FINISHED),
            (Ok(status), _) => match status.suspended {
                Some(Suspended::Short) => return Err(anyhow!(SHORT)),
                Some(Suspended::Whole) => end = Some(STOPPED),
                None => {}
            },
            (Err(ClientError::Over(_)), _) => return Ok(FINISHED.to_owned()),
            (Err(ClientError::Unreachable { .. }), Some(end)) => return Ok(end.to_owned()),
            (Err(error), _) => return stopped_before(args, error).context("wait for the end"),
        }
        wait_to_look_again();
    }
}

/// No coordinator answers: the run may have come to where it is wanted all the same, which its state directory says.
fn stopped_before(args: &Stop, error: ClientError) -> anyhow::Result<String> {
    let Some(run) = error.recorded().filter(|run| run.is_known_here()) else { return Err(error.into()) };
    if run.is_over() {
        return Ok(run.end());
    }
    match (run.status.suspended, args.resumable) {
        (Some(Suspended::Whole), true) => Ok(STOPPED.to_owned()),
        (Some(Suspended::Short), true) => Err(anyhow!(SHORT)),
        (Some(_), false) => Err(anyhow!(
            "the run is not over: it has stopped for now, at {}. To continue, run the same commands again; {REMEDY}",
            run.reached()
        )),
        (None, _) => {
            let silence = match &error {
                ClientError::Unreachable { address, reason, .. } => {
                    format!("no coordinator answers at {address} ({reason})")
                }
                _ => "no coordinator answers".to_owned(),
            };
            let remedy = if args.resumable { RESUME } else { REMEDY };
            Err(anyhow!(
                "the run is not over, and {silence}: {}. Remaining workers wait for the coordinator; {remedy}",
                run.standing()
            ))
        }
    }
}
