//! From sources of text or images to batches of samples: see `docs/data.md`.

mod bad_budget;
mod batch;
mod built;
mod cache;
mod dataset;
mod decoders;
mod detokenizer;
mod error;
mod files;
mod filling;
mod folder;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod image;
mod lease;
mod lent;
mod names;
mod origin;
mod owned;
mod partial;
mod piece;
mod pipeline;
mod prepared;
mod prune;
mod read_ahead;
mod recipe;
mod records;
mod remote;
mod room;
mod sample;
mod shard;
mod side_by_side;
mod source;
mod stamp;
#[cfg(test)]
mod tests;
mod tokenizer;
mod work;

pub use batch::Batch;
pub(crate) use batch::{CLASS_BYTES, MicroBatch};
pub use dataset::{Dataset, SourceFile, SourceSummary, Visit};
pub use detokenizer::Detokenizer;
pub use error::DataError;
pub use filling::Coming;
pub use folder::class_names;
pub use image::{augment, image_sample};
pub use lent::{BlockName, Catalogue, Lending, LentBlock, NotTheBlock, Stock, Supply};
pub use owned::abandon;
pub use prune::{Pruned, prune};
pub use read_ahead::{ReadAhead, STEPS_AHEAD, Wanted};
use recipe::Recipe;
pub use remote::RemoteError;
pub use sample::{Content, Sample};
pub use source::SourceSize;
pub use tokenizer::Tokenizer;
pub use work::{Work, WorkDone};
