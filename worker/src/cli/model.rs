//! The model of `worker sample` and `worker evaluate`, and its device.

use std::path::PathBuf;

use clap::Args;

/// A checkpoint to use.
#[derive(Clone, Debug, Args)]
pub struct CheckpointArgs {
    /// A checkpoint (`round-000120`), or a folder of checkpoints or of runs, such as a run's `checkpoint.dir`, of which the newest is used; or a folder
    /// of `save_pretrained`.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Use the moving average of the weights, which a run with `train.ema_decay` keeps.
    #[arg(long)]
    pub ema: bool,
    /// Folder of the pretrained model, for a checkpoint of adapters. Default: the one they were trained from.
    #[arg(long, value_name = "FOLDER")]
    pub base: Option<PathBuf>,
}

/// The device to compute on.
#[derive(Clone, Debug, Args)]
pub struct ComputeArgs {
    /// `auto`, `cpu`, or `cuda:N`.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// CPU threads for the device; 1 is the fastest for a small model or on a busy machine. Default: one per core.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}
