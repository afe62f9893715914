//! From sources of text to batches of tokens: see `docs/data.md`.

mod bad_budget;
mod batch;
mod cache;
mod dataset;
mod detokenizer;
mod error;
mod lease;
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
mod shard;
mod side_by_side;
mod source;
mod stamp;
#[cfg(test)]
mod tests;
mod tokenizer;
mod work;

pub use batch::Batch;
pub(crate) use batch::MicroBatch;
pub use dataset::{Dataset, Sample, SourceFile, SourceSummary, Visit};
pub use detokenizer::Detokenizer;
pub use error::DataError;
pub use owned::abandon;
use piece::Piece;
pub use prune::{Pruned, prune};
pub use read_ahead::{ReadAhead, STEPS_AHEAD, Wanted};
use recipe::Recipe;
pub use remote::RemoteError;
pub use source::SourceSize;
pub use tokenizer::Tokenizer;
pub use work::{Work, WorkDone};
