//! Selections: which values of a fragment are sent, of those that the leading stage lets through.
//!
//! A selection is a file with a type of its parameters that implements [`Rule`], a line in the registry below, and a line in the
//! list of [`SelectionRule`], which gives it its name in configurations.

mod all;
mod magnitudes;
mod threshold;
mod top_k;

use longhaul_common::config::{SelectionRule, SyncConfig};
use serde::{Deserialize, Serialize};

use self::all::All;
pub use self::threshold::Threshold;
pub use self::top_k::TopK;
use super::layout::Layout;
use super::{DecodeError, SpecError};

/// Values in a chunk unless told otherwise, as in SparseLoCo (arXiv 2508.15706): 64 × 64.
pub const CHUNK_VALUES_DEFAULT: u32 = 4096;

const fn chunk_values_default() -> u32 {
    CHUNK_VALUES_DEFAULT
}

/// One selection, with its parameters. What it selects is a function of the parameters and the values, with the same
/// outcome on every platform.
pub(super) trait Rule {
    /// Whether the parameters are in their ranges.
    fn validate(&self) -> Result<(), SpecError>;

    /// The two numbers by which a frame's header tells the parameters.
    fn shape(&self) -> Shape;

    /// Reads the header's two numbers; none if there are no such parameters.
    fn read(shape: Shape) -> Option<Self>
    where
        Self: Sized;

    /// Whether the number that it keeps depends on the values, and so has to be in the frame.
    fn is_counted(&self) -> bool {
        false
    }

    /// Where the values lie that it keeps of `len`; `count` is how many it has found, if that depends on the values. None if
    /// it cannot have found so many.
    fn layout(&self, len: usize, count: usize) -> Option<Layout>;

    /// Values that share scales in a format whose scales are means of those that belong together.
    fn group_values(&self) -> usize;

    /// Appends the positions of what is kept, ascending, as many and where [`Rule::layout`] has them. `values` are finite.
    fn select(&self, values: &[f32], memory: &mut Memory, positions: &mut Vec<u32>);

    /// The share of the values that is kept.
    fn kept_share(&self) -> f64;

    /// Bits of each value, kept or not, that tell which are kept: the entropy of such a choice.
    fn position_bits(&self) -> f64 {
        let term = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
        term(self.kept_share()) + term(1.0 - self.kept_share())
    }

    /// What `[sync]` asks for where it names this rule.
    fn configured(config: &SyncConfig) -> Selection
    where
        Self: Sized;
}

/// The numbers in a frame's header that are a selection's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Binary logarithm of a chunk's length.
    pub chunk_log2: u8,
    /// Values kept of a chunk.
    pub keep: u32,
}

impl Shape {
    /// Of chunks of `chunk` values, a power of two.
    fn of(chunk: u32, keep: u32) -> Self {
        Self { chunk_log2: chunk.trailing_zeros() as u8, keep }
    }

    /// Values in a chunk; none if there are no such chunks.
    fn chunk(self) -> Option<u32> {
        1_u32.checked_shl(self.chunk_log2.into())
    }
}

/// Scratch memory of all selections, which is reused from fragment to fragment.
#[derive(Debug, Default)]
pub(super) struct Memory {
    candidates: Vec<u32>,
    /// Magnitudes as integers, which order as the floats do; partitioned in place.
    keys: Vec<u32>,
    maxima: Vec<f32>,
}

/// Declares the selections: the byte that stands for each in a frame, its variant with the type of its parameters, and what
/// implements [`Rule`].
macro_rules! registry {
    ($($(#[$doc:meta])* $tag:literal => $rule:ident $(($parameters:ident: $type:ty))? = $value:expr,)*) => {
        /// Which values of a fragment are sent, of those that the leading stage lets through.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Selection {
            $($(#[$doc])* $rule $(($type))?,)*
        }

        impl Selection {
            /// What `[sync]` asks for after the warm-up.
            #[must_use]
            pub fn configured(config: &SyncConfig) -> Self {
                match config.selection {
                    $(SelectionRule::$rule => $rule::configured(config),)*
                    // What is not of these columns is sent whole.
                    SelectionRule::Columns => Self::All,
                }
            }

            pub(super) fn as_rule(&self) -> &dyn Rule {
                match self {
                    $(Self::$rule $(($parameters))? => $value,)*
                }
            }

            pub(super) fn wire_tag(self) -> u8 {
                match self {
                    $(Self::$rule { .. } => $tag,)*
                }
            }

            /// Reads the parameters of the selection that `tag` stands for.
            pub(super) fn read(tag: u8, shape: Shape) -> Result<Self, DecodeError> {
                let Shape { chunk_log2, keep } = shape;
                let rule = match tag {
                    $($tag => $rule::read(shape).map(Self::from),)*
                    unknown => return Err(DecodeError::Selection(unknown)),
                };
                rule.ok_or(DecodeError::Chunk { chunk_log2, keep })
            }
        }
    };
}

registry! {
    /// All of them; no positions are sent.
    0 => All = &All,
    /// Of each chunk the largest.
    1 => TopK(rule: TopK) = rule,
    /// The largest of the whole fragment.
    2 => Threshold(rule: Threshold) = rule,
}
