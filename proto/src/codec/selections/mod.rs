//! Selections: the values of a fragment to send, of those that the leading stage passes.
//!
//! A selection is a file with a type of parameters that implements [`Rule`], a line in the registry below,
//! and a line in the list of [`SelectionRule`], which names it in configurations.

mod all;
mod magnitudes;
mod threshold;
mod top_k;

use longhaul_common::config::{SelectionRule, SyncConfig};
use serde::{Deserialize, Serialize};

use self::all::All;
use self::magnitudes::Keys;
pub use self::threshold::Threshold;
pub use self::top_k::TopK;
use super::layout::Layout;
use super::{DecodeError, SpecError};

/// Default values in a chunk, as in SparseLoCo (arXiv 2508.15706): 64 × 64.
pub const CHUNK_VALUES_DEFAULT: u32 = 4096;

const fn chunk_values_default() -> u32 {
    CHUNK_VALUES_DEFAULT
}

/// One selection, with its parameters. The result is a function of the parameters and the values, equal on
/// every platform.
pub(super) trait Rule {
    /// Checks the ranges of the parameters.
    fn validate(&self) -> Result<(), SpecError>;

    /// Returns the two numbers that encode the parameters in a frame's header.
    fn shape(&self) -> Shape;

    /// Decodes the header's two numbers; `None`: no such parameters.
    fn read(shape: Shape) -> Option<Self>
    where
        Self: Sized;

    /// Whether the number of kept values depends on the values and is therefore in the frame.
    fn is_counted(&self) -> bool {
        false
    }

    /// Returns the places of the kept values among `len`; `count` is their number, if it depends on the
    /// values. `None`: the count is not possible.
    fn layout(&self, len: usize, count: usize) -> Option<Layout>;

    /// Values that share scales, in a format whose scales are means of a group.
    fn group_values(&self) -> usize;

    /// Appends the kept positions, ascending, with the number and places of [`Rule::layout`]. `values` are
    /// finite.
    fn select(&self, values: &[f32], memory: &mut Memory, positions: &mut Vec<u32>);

    /// Returns the share of values kept.
    fn kept_share(&self) -> f64;

    /// Returns the bits per value, kept or not, that encode the positions: the entropy of the choice.
    fn position_bits(&self) -> f64 {
        let term = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
        term(self.kept_share()) + term(1.0 - self.kept_share())
    }

    /// Returns the selection that `[sync]` configures by this rule.
    fn configured(config: &SyncConfig) -> Selection
    where
        Self: Sized;
}

/// Parameters of a selection in a frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Binary logarithm of a chunk's length.
    pub chunk_log2: u8,
    /// Values kept of a chunk.
    pub keep: u32,
}

impl Shape {
    /// Creates the shape of chunks of `chunk` values, a power of two.
    fn of(chunk: u32, keep: u32) -> Self {
        Self { chunk_log2: chunk.trailing_zeros() as u8, keep }
    }

    /// Returns the values in a chunk; `None`: not possible.
    fn chunk(self) -> Option<u32> {
        1_u32.checked_shl(self.chunk_log2.into())
    }
}

/// Scratch memory of all selections, reused from fragment to fragment.
#[derive(Debug, Default)]
pub(super) struct Memory {
    candidates: Vec<u32>,
    keys: Keys,
    maxima: Vec<f32>,
}

/// Declares the selections: the tag in a frame, the variant with its parameters, and the implementation of
/// [`Rule`].
macro_rules! registry {
    ($($(#[$doc:meta])* $tag:literal => $rule:ident $(($parameters:ident: $type:ty))? = $value:expr,)*) => {
        /// The values of a fragment to send, of those that the leading stage passes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Selection {
            $($(#[$doc])* $rule $(($type))?,)*
        }

        impl Selection {
            /// Returns the selection that `[sync]` configures after the warm-up.
            #[must_use]
            pub fn configured(config: &SyncConfig) -> Self {
                match config.selection {
                    $(SelectionRule::$rule => $rule::configured(config),)*
                    // Values outside these columns are all sent.
                    SelectionRule::Columns => Self::All,
                    // Invisible values are zeros.
                    SelectionRule::Visible => Threshold::all_but_zeros(config.chunk),
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

            /// Decodes the parameters of the selection with this tag.
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
    /// All values; no positions are sent.
    0 => All = &All,
    /// The largest of each chunk.
    1 => TopK(rule: TopK) = rule,
    /// The largest of the whole fragment.
    2 => Threshold(rule: Threshold) = rule,
}
