//! `coordinator checkpoints export`: a checkpoint as a folder for other programs.

use std::io::IsTerminal as _;
use std::path::Path;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use longhaul_checkpoint::{
    ExportType, Exported, WantedCheckpoint, Weights, WholeModel, export, open_whole, partial_of,
};
use longhaul_common::config::ArchiveLocation;
use longhaul_common::id::{Round, RunId};
use longhaul_common::terminal::{foot, gauge};
use longhaul_common::units::Bytes;
use serde_json::json;
use tokio::task::spawn_blocking;

use super::{CliError, print};

/// Bytes in a GiB.
const GIB: f64 = (1_u64 << 30) as f64;

/// How a checkpoint is exported.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// The folder to write. It must not exist, or be empty.
    pub out: std::path::PathBuf,
    /// The checkpoint before this round. Default: the newest.
    #[arg(long)]
    pub round: Option<u64>,
    /// Export the moving average of the weights, which a run with `train.ema_decay` keeps.
    #[arg(long)]
    pub ema: bool,
    /// Write the whole model: adapters are added to the pretrained weights. Without this, adapters are written as PEFT writes them.
    #[arg(long)]
    pub merge: bool,
    /// Folder of the pretrained model, for adapters. Default: the one they were trained from.
    #[arg(long, value_name = "FOLDER")]
    pub base: Option<std::path::PathBuf>,
    /// Type of the values.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: Dtype,
    /// Largest file of weights, in GiB; more files and an index are written beyond it.
    #[arg(long, value_name = "GIB", default_value_t = 5.0)]
    pub max_shard_gib: f64,
}

/// Type of the values.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Dtype {
    F32,
    Bf16,
    F16,
}

pub(super) async fn run(
    args: ExportArgs,
    (location, endpoint): (ArchiveLocation, Option<String>),
    run: Option<RunId>,
    as_json: bool,
) -> Result<(), CliError> {
    if args.max_shard_gib.is_nan() || args.max_shard_gib <= 0.0 {
        return Err(CliError::Misuse("--max-shard-gib must be above zero".to_owned()));
    }
    let weights = Weights::averaged_if(args.ema);
    let wanted = WantedCheckpoint { run, round: args.round.map(Round), weights };
    let model = open_whole(&location, endpoint.as_deref(), wanted, args.base.as_deref()).await;
    let model = model.with_context(|| format!("open a checkpoint in {location}"))?;
    // Trained weights that are no adapters have no format of their own elsewhere.
    let merges = args.merge || model.spec.tuning.is_some() && !model.is_adapters();
    let base = args.base.clone();
    let model = if merges || base.is_some() && model.spec.tuning.is_none() {
        spawn_blocking(move || model.merged(base.as_deref())).await.context("merge the model")??
    } else {
        model
    };
    let (from, parameters) = (model.path.clone(), model.parameters.len());
    let (out, partial) = (args.out.clone(), partial_of(&args.out));
    let written = tokio::select! {
        written = spawn_blocking(move || write(&model, &args)) => written.context("write the folder")??,
        _ = tokio::signal::ctrl_c() => {
            // The process ends with the writing thread.
            let _ = std::fs::remove_dir_all(partial);
            return Err(anyhow::anyhow!("interrupted; nothing was written").into());
        }
    };
    if as_json {
        let line = json!({
            "from": from, "out": out, "parameters": parameters, "files": written.shards, "bytes": written.bytes,
        });
        print(&line.to_string());
    } else {
        let files =
            if written.shards == 1 { "1 file".to_owned() } else { format!("{} files", written.shards) };
        print(&format!(
            "{from} is exported to {}: {parameters} parameters, {} in {files} of weights",
            out.display(),
            Bytes(written.bytes)
        ));
    }
    Ok(())
}

fn write(model: &WholeModel, args: &ExportArgs) -> anyhow::Result<Exported> {
    let dtype = match args.dtype {
        Dtype::F32 => ExportType::F32,
        Dtype::Bf16 => ExportType::Bf16,
        Dtype::F16 => ExportType::F16,
    };
    let told = |done: u64, all: u64| {
        if std::io::stderr().is_terminal() {
            foot().show(&format!("writing the weights {}", gauge(done, all)));
        }
    };
    let out: &Path = &args.out;
    let written = export(model, out, dtype, (args.max_shard_gib * GIB) as u64, told);
    foot().show("");
    written
}
