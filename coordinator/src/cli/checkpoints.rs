//! `coordinator checkpoints …`: what is kept where, and whether it is as it was written. Needs no running coordinator where a place is named.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use longhaul_checkpoint::read_run;
use longhaul_common::config::ArchiveLocation;
use longhaul_common::id::{Round, RunId};
use longhaul_common::units::Bytes;
use longhaul_proto::checkpoint::archive::{Archive, Archived};
use longhaul_proto::checkpoint::folder::{self, Found};
use serde::Serialize;

use super::export::{self, ExportArgs};
use super::{CliError, Client, Where, print};
use longhaul_run::{CheckpointStatus, Evaluated, Status};

/// `coordinator checkpoints`
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointsCommand {
    /// List checkpoints at a location, or by default the newest ones that the workers of a running run reported.
    List {
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        place: CheckpointLocation,
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        at: Where,
    },
    /// Compare every byte of checkpoints with the recorded hashes. Exits with 1 if anything is damaged or missing. Removes damaged pieces of an archive, so that the
    /// next checkpoint with the same values writes them again.
    Verify {
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        place: CheckpointLocation,
        /// Only checkpoints written before this round.
        #[arg(long)]
        round: Option<u64>,
    },
    /// Write a checkpoint as a folder that `AutoModelForCausalLM.from_pretrained` loads: weights of any type in files of bounded size, the original `config.json`,
    /// tokenizer, chat template and generation settings.
    Export {
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        place: CheckpointLocation,
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        export: ExportArgs,
        /// The checkpoint with the lowest held-out loss (`evaluate.keep_best`). Asks the coordinator, or reads its state directory.
        #[arg(long, conflicts_with_all = ["round", "run"])]
        best: bool,
        #[command(flatten)]
        #[allow(missing_docs, reason = "clap would show it as help")]
        at: Where,
    },
}

/// Which checkpoints.
#[derive(Clone, Debug, Args)]
pub struct CheckpointLocation {
    /// A folder of checkpoints (`checkpoint.dir` of a worker) or an archive (`checkpoint.to`): a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. Credentials come
    /// from the environment.
    #[arg(long, value_name = "DIR|URL", conflicts_with = "config")]
    pub dir: Option<ArchiveLocation>,
    /// Endpoint of s3://. Default: AWS.
    #[arg(long, value_name = "URL", requires = "dir")]
    pub endpoint: Option<String>,
    /// Take the location from a run's configuration: `checkpoint.to`, or else `checkpoint.dir`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only checkpoints of this run.
    #[arg(long)]
    pub run: Option<RunId>,
    /// Print all details as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A checkpoint of a part of the model, for people and programs.
#[derive(Debug, Serialize)]
struct Listed {
    run: String,
    /// The round that follows the ones it contains.
    next_round: u64,
    next_step: Option<u64>,
    /// From 1.
    part: u32,
    parts: u32,
    state_hash: Option<String>,
    /// Of all that it names.
    bytes: Option<u64>,
    path: String,
    /// Where it was read through: whether all of it is as it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<bool>,
    /// What is wrong.
    damaged: Vec<String>,
}

pub(super) fn run(command: CheckpointsCommand) -> Result<(), CliError> {
    match command {
        CheckpointsCommand::List { place, at } => match place.location()? {
            Some((location, endpoint)) => {
                let listed = in_runtime(collect(&place, &location, endpoint.as_deref(), |_| true, false))?;
                show(&listed, place.json);
                Ok(())
            }
            None => list_reported(&at, place.json),
        },
        CheckpointsCommand::Export { mut place, mut export, best, at } => {
            let location = place.named_location()?;
            if best {
                let (run, round) = best_of(&at)?;
                (place.run, export.round) = (Some(run), Some(round));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.context("start the runtime")?;
            let exported = runtime.block_on(export::run(export, location, place.run, place.json));
            // An interrupted export does not wait for its thread.
            runtime.shutdown_background();
            exported
        }
        CheckpointsCommand::Verify { place, round } => {
            let (location, endpoint) = place.named_location()?;
            let is_wanted = |next_round: Round| round.is_none_or(|round| round == next_round.0);
            let listed = in_runtime(collect(&place, &location, endpoint.as_deref(), is_wanted, true))?;
            show(&listed, place.json);
            let damaged = listed.iter().filter(|of| of.whole == Some(false)).count();
            match (listed.len(), damaged) {
                (0, _) => Err(anyhow!("{location} has no such checkpoint").into()),
                (_, 0) => Ok(()),
                (all, damaged) => Err(anyhow!(
                    "{damaged} of {all} are damaged; the run resumes from the newest undamaged one"
                )
                .into()),
            }
        }
    }
}

impl CheckpointLocation {
    /// The location, which must be named.
    fn named_location(&self) -> Result<(ArchiveLocation, Option<String>), CliError> {
        let reason = "name the checkpoints: --dir with a folder, s3:// or gs://, or --config with a run.toml";
        self.location()?.ok_or_else(|| CliError::Misuse(reason.to_owned()))
    }

    /// None: nothing was said of it.
    fn location(&self) -> Result<Option<(ArchiveLocation, Option<String>)>, CliError> {
        if let Some(dir) = &self.dir {
            return Ok(Some((dir.clone(), self.endpoint.clone())));
        }
        let Some(file) = &self.config else { return Ok(None) };
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let config =
            read_run(&text).map_err(|error| CliError::Misuse(format!("{}: {error}", file.display())))?;
        let checkpoint = config.checkpoint;
        let location = checkpoint.to.unwrap_or(ArchiveLocation::Folder(checkpoint.dir));
        Ok(Some((location, checkpoint.endpoint)))
    }
}

fn in_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("start the runtime")?.block_on(work)
}

/// Those in a place, by run, newest first. A folder may hold checkpoints of both kinds.
async fn collect(
    place: &CheckpointLocation,
    location: &ArchiveLocation,
    endpoint: Option<&str>,
    is_wanted: impl Fn(Round) -> bool,
    verify: bool,
) -> anyhow::Result<Vec<Listed>> {
    let mut listed = Vec::new();
    if let ArchiveLocation::Folder(dir) = location {
        let found = folder::find(dir).with_context(|| format!("look through {}", dir.display()))?;
        let of_run = |found: &Found| place.run.is_none_or(|run| run == found.run);
        let found = found.into_iter().filter(|found| of_run(found) && is_wanted(found.next_round));
        listed.extend(found.map(|found| in_folder(&found, verify)));
    }
    let archive = Archive::open(location, endpoint)?;
    let archived = archive.list(place.run).await?;
    for of in archived.into_iter().filter(|of| is_wanted(of.next_round)) {
        listed.push(in_archive(&archive, of, verify).await?);
    }
    Ok(listed)
}

fn in_folder(found: &Found, verify: bool) -> Listed {
    let manifest = found.manifest();
    let damaged = match (&manifest, verify) {
        (Err(reason), _) => vec![reason.clone()],
        (Ok(_), true) => found.damaged(),
        (Ok(_), false) => Vec::new(),
    };
    let manifest = manifest.ok();
    Listed {
        run: found.run.to_string(),
        next_round: found.next_round.0,
        next_step: manifest.as_ref().map(|of| of.next_step),
        part: found.rank + 1,
        parts: found.parts,
        state_hash: manifest.as_ref().map(|of| of.state_hash.clone()),
        bytes: manifest.as_ref().map(|of| of.files.values().map(|file| file.bytes).sum()),
        path: found.path.display().to_string(),
        whole: verify.then_some(damaged.is_empty()),
        damaged,
    }
}

async fn in_archive(archive: &Archive, of: Archived, verify: bool) -> anyhow::Result<Listed> {
    let (manifest, mut damaged) = match archive.manifest(of).await {
        Ok(manifest) => (Some(manifest), Vec::new()),
        Err(error) if error.is_damage() => (None, vec![error.to_string()]),
        Err(error) => return Err(error.into()),
    };
    if verify && manifest.is_some() {
        damaged = archive.verify(of).await?.damaged;
    }
    Ok(Listed {
        run: of.part.run.to_string(),
        next_round: of.next_round.0,
        next_step: manifest.as_ref().map(|of| of.next_step),
        part: of.part.rank + 1,
        parts: of.part.parts,
        state_hash: manifest.as_ref().map(|of| of.state_hash.clone()),
        bytes: manifest.as_ref().map(|of| of.pieces().into_iter().map(|piece| piece.bytes).sum()),
        path: archive.name_of(of),
        whole: verify.then_some(damaged.is_empty()),
        damaged,
    })
}

/// The run, and the round before which its best checkpoint is.
fn best_of(at: &Where) -> Result<(RunId, u64), CliError> {
    const WHAT: &str = "ask which checkpoint is the best";
    let status = match Client::find(at).and_then(|client| client.get::<Status>("/api/v1/status")) {
        Ok(status) => status,
        Err(error) => match error.recorded() {
            Some(recorded) => recorded.status.as_ref().clone(),
            None => return Err(anyhow::Error::new(error).context(WHAT).into()),
        },
    };
    let best = status.training.best_checkpoint.ok_or_else(|| {
        anyhow!(
            "run {} has no best checkpoint: it needs evaluate.keep_best = true and an evaluation with a written checkpoint; --round selects another",
            status.run.name
        )
    })?;
    Ok((status.run.id.parse().context(WHAT)?, best.next_round.0))
}

fn list_reported(at: &Where, json: bool) -> Result<(), CliError> {
    let client = Client::find(at).context("ask for the checkpoints")?;
    let status: Status = client.get("/api/v1/status").context("ask for the checkpoints")?;
    if json {
        let text = serde_json::to_string_pretty(&status.checkpoints).context("write the list")?;
        print(&text);
        return Ok(());
    }
    let best = status.training.best_checkpoint;
    if let Some(best) = &best {
        let Evaluated { next_round, step, loss } = best;
        print(&format!("best: before round {}, step {step}, held-out loss {loss:.4}", next_round.0));
    }
    print("ROUND    WORKER  STATE HASH    WHERE");
    for CheckpointStatus { worker, next_round, path, state_hash, error } in &status.checkpoints {
        let hash = state_hash.as_deref().map_or("–", prefix);
        let is_best = best.is_some_and(|best| best.next_round.0 == *next_round) && error.is_none();
        let note = match error {
            Some(error) => format!(": {error}"),
            None if is_best => " (best)".to_owned(),
            None => String::new(),
        };
        print(&format!("{next_round:<8} {worker:<7} {hash:<12}  {path}{note}"));
    }
    Ok(())
}

fn show(listed: &[Listed], json: bool) {
    if json {
        // What is a list of numbers and texts can be written.
        print(&serde_json::to_string_pretty(listed).unwrap_or_default());
        return;
    }
    print("RUN           ROUND    PART   STATE HASH    SIZE       WHOLE  WHERE");
    for of in listed {
        let hash = of.state_hash.as_deref().map_or("–", prefix);
        let size = of.bytes.map_or_else(|| "–".to_owned(), |bytes| Bytes(bytes).to_string());
        let whole = match (of.whole, of.damaged.is_empty()) {
            (_, false) => "no",
            (Some(true), _) => "yes",
            _ => "–",
        };
        let part = format!("{}/{}", of.part, of.parts);
        let (run, round, path) = (prefix(&of.run), of.next_round, &of.path);
        print(&format!("{run:<12}  {round:<8} {part:<6} {hash:<12}  {size:<10} {whole:<5}  {path}"));
        of.damaged.iter().for_each(|reason| print(&format!("              {reason}")));
    }
}

/// Enough of a hash to compare by eye.
fn prefix(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}
