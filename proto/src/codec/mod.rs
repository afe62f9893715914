//! Compression of model updates for the WAN: leading stages, selection, error feedback, quantisation, entropy coding.
//!
//! An [`Encoder`] turns a fragment (a slice of f32) into one self-describing frame. A [`Decoder`] turns the
//! frame back into an [`Update`] or adds it to an accumulator. Both are pure and single-threaded: callers run
//! one per thread. All replicas decode the same bytes to the same bits, on any platform.
//!
//! The design is in `proto/docs/codec.md`.

mod bitmaps;
pub mod chain;
mod chunks;
mod code_stream;
mod column_gradient;
mod columns;
mod decoder;
mod encoder;
mod error;
mod feedback;
mod formats;
mod gap_model;
mod header;
mod layout;
mod order;
mod positions;
mod random;
mod rans;
mod reader;
mod selections;
mod spec;
mod stages;
mod update;
mod value_blocks;

pub use chunks::CHUNK_VALUES_MAX;
pub use column_gradient::{ColumnGradient, WeightColumns};
pub use columns::{ColumnPart, ColumnUpdate, MatrixStretch};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use error::{DecodeError, EncodeError, SpecError};
pub use formats::nf4_code;
pub use longhaul_common::config::{Rounding, ValueFormat};
pub use selections::{CHUNK_VALUES_DEFAULT, Selection, Threshold, TopK};
pub use spec::CodecSpec;
pub use stages::{Dct, RandomK, Stage, TILE_VALUES};
pub use update::Update;

/// Maximum values in a fragment: 256 MiB of f32. A fragment is the unit of hashing and retransmission; one
/// this large already takes minutes on the target links.
pub const FRAGMENT_VALUES_MAX: usize = 1 << 26;
