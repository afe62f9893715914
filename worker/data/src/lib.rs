//! From sources of text or images to batches of samples: see `docs/data.md`.
#![deny(unsafe_code)]

mod bad_budget;
mod batch;
mod bounds;
mod brackets;
mod built;
mod cache;
pub mod counted;
mod dataset;
mod decoders;
mod detokenizer;
mod empty_classes;
mod error;
mod files;
mod filling;
mod folder;
#[cfg(any(test, fuzzing, feature = "fuzz"))]
pub mod fuzz;
mod image;
mod lease;
mod leftover;
mod lent;
mod looked;
mod names;
mod origin;
mod own;
mod owned;
mod partial;
mod passed;
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
mod searched;
mod sets;
mod shard;
mod side_by_side;
mod source;
mod source_size;
mod stamp;
mod table_logs;
#[cfg(test)]
mod tests;
mod text_counts;
mod tokenizer;
#[cfg(any(feature = "images", feature = "parquet", feature = "tokenizers"))]
mod unwound;
mod work;

pub use batch::{CLASS_BYTES, HostBatch, HostMicroBatch, Values};
pub use dataset::{Dataset, SourceSummary, Visit};
pub use detokenizer::Detokenizer;
pub use empty_classes::EmptyClasses;
pub use error::DataError;
pub use filling::Coming;
pub use folder::class_names;
pub use image::{augment, image_sample};
pub use lent::{BlockName, Catalogue, Lending, LentBlock, NotTheBlock, Stock, Supply};
pub use looked::{Defects, Looked, SourceFile};
pub use owned::abandon;
pub use passed::{PassedOver, Reason};
pub use prune::{Pruned, prune};
pub use read_ahead::{ReadAhead, STEPS_AHEAD, Wanted};
use recipe::Recipe;
pub use remote::RemoteError;
pub use sample::{Content, Sample};
pub use source_size::SourceSize;
pub use text_counts::{ByteOrderMarks, UnknownTokens};
pub use tokenizer::Tokenizer;
pub use work::{Work, WorkDone};
