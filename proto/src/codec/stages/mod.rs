//! Leading stages, which process a fragment before its values are selected.
//!
//! A stage is a file with a type of parameters that implements [`LeadingStage`], and a line in the registry
//! below.

mod dct;
mod random_k;

use serde::{Deserialize, Serialize};

pub use self::dct::{Dct, TILE_VALUES};
pub use self::random_k::RandomK;
use super::SpecError;
use super::reader::Reader;

/// Effect of a leading stage on values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Chooses positions. Later stages see only their values, and only they change at the receiver.
    Chooses,
    /// Replaces the values by as many others, each of which depends on many.
    Transforms,
}

/// One leading stage, with its parameters. It is a function of the parameters, the seed and the values, with
/// the same bits on every platform.
pub(super) trait LeadingStage {
    /// Checks the ranges of the parameters.
    fn validate(&self) -> Result<(), SpecError>;

    /// Returns the number of values passed to the selection for a fragment of `len`; `None`: the fragment
    /// does not fit the stage.
    fn seen_len(&self, len: usize) -> Option<usize>;

    /// Returns the share of values passed to the selection, up to rounding to whole chunks.
    fn seen_share(&self) -> f64 {
        1.0
    }

    /// Returns its effect.
    fn effect(&self) -> Effect;

    /// Whether the seed matters and is therefore in the frame.
    fn is_seeded(&self) -> bool {
        false
    }

    /// Exclusive upper bound of the magnitude of input values.
    fn magnitude_end(&self) -> f32 {
        f32::INFINITY
    }

    /// Appends the positions chosen for a fragment of `len` values, ascending.
    fn choose(&self, _seed: u64, _len: usize, _positions: &mut Vec<u32>) {}

    /// Transforms the values of a fragment.
    fn forward(&self, _values: &mut [f32]) {}

    /// Inverts [`LeadingStage::forward`].
    fn inverse(&self, _values: &mut [f32]) {}

    /// Appends the parameters to a frame's header.
    fn write(&self, header: &mut Vec<u8>);

    /// Decodes the output of [`LeadingStage::write`]; `None`: no such parameters.
    fn read(header: &mut Reader<'_>) -> Option<Self>
    where
        Self: Sized;
}

/// Declares the stages: the tag in a frame, and the type.
macro_rules! registry {
    ($($(#[$doc:meta])* $tag:literal => $stage:ident,)*) => {
        /// Processing of a fragment before its values are selected.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Stage {
            $($(#[$doc])* $stage($stage),)*
        }

        impl Stage {
            pub(super) fn as_leading(&self) -> &dyn LeadingStage {
                match self {
                    $(Self::$stage(stage) => stage,)*
                }
            }

            pub(super) fn wire_tag(self) -> u8 {
                match self {
                    $(Self::$stage(_) => $tag,)*
                }
            }

            /// Decodes the parameters of the stage with this tag; `None`: unknown stage.
            pub(super) fn read(tag: u8, header: &mut Reader<'_>) -> Option<Self> {
                match tag {
                    $($tag => $stage::read(header).map(Self::$stage),)*
                    _ => None,
                }
            }
        }
    };
}

registry! {
    /// A random mask, equal on all members.
    1 => RandomK,
    /// A discrete cosine transform of tiles.
    2 => Dct,
}

/// The values passed to the selection, and their positions. Its memory is reused from fragment to fragment.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Positions in the fragment that a choosing stage passes.
    pub mask: Vec<u32>,
    values: Vec<f32>,
}

impl Seen {
    /// Applies the stage, which must fit the fragment.
    pub fn through<'a>(&'a mut self, stage: Option<Stage>, seed: u64, input: &'a [f32]) -> &'a [f32] {
        let Some(stage) = stage else { return input };
        let stage = stage.as_leading();
        self.values.clear();
        match stage.effect() {
            Effect::Chooses => {
                self.mask.clear();
                stage.choose(seed, input.len(), &mut self.mask);
                self.values.extend(self.mask.iter().map(|&position| input[position as usize]));
            }
            Effect::Transforms => {
                self.values.extend_from_slice(input);
                stage.forward(&mut self.values);
            }
        }
        &self.values
    }

    /// Converts positions among the passed values into positions of the fragment.
    pub fn map_to_fragment(&self, positions: &mut [u32]) {
        positions.iter_mut().for_each(|position| *position = self.mask[*position as usize]);
    }
}
