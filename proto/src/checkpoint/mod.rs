//! Checkpoints in folders and in object storage: their documents, and the archive that all workers of a run
//! share.

pub mod archive;
pub mod folder;
mod names;
pub mod sealed;

pub use names::{folder_name, parse_folder_name, parse_part_name, part_name};

use longhaul_common::model::ModelSpec;

/// Returns the part of the model with these blocks and this share; `None`: no possible part.
fn part_of(model: &ModelSpec, chunks: Option<&[(u32, u32)]>, share: Option<(u32, u32)>) -> Option<ModelSpec> {
    let whole = model.whole();
    let part = match chunks {
        Some(chunks) => whole.part(chunks.iter().map(|&(start, end)| start..end).collect()),
        None => whole,
    };
    match share {
        Some((ways, index)) => part.shard_of(ways, index),
        None => Some(part),
    }
}
