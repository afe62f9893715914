//! From a text file to batches of tokens.

mod batch;
mod dataset;
mod detokenizer;
mod error;
mod shard;
mod text;
mod tokenizer;

pub use batch::Batch;
pub(crate) use batch::MicroBatch;
pub use dataset::Dataset;
pub use detokenizer::Detokenizer;
pub use error::DataError;
pub use tokenizer::Tokenizer;
