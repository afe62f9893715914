//! Leading stages: what happens to a fragment before its values are selected.
//!
//! A stage is a file with a type of its parameters that implements [`LeadingStage`], and a line in the registry below.

mod dct;
mod random_k;

use serde::{Deserialize, Serialize};

pub use self::dct::{Dct, TILE_VALUES};
pub use self::random_k::RandomK;
use super::SpecError;
use super::reader::Reader;

/// What a leading stage does to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It chooses positions; only their values are seen by what follows, and only they change at the receiver.
    Chooses,
    /// It replaces the values by as many others, of which each depends on many.
    Transforms,
}

/// One leading stage, with its parameters. All of it is a function of the parameters, the seed and the values, with the
/// same bits on every platform.
pub(super) trait LeadingStage {
    /// Whether the parameters are in their ranges.
    fn validate(&self) -> Result<(), SpecError>;

    /// Values that selection sees of a fragment of `len`; none if the stage cannot have such a fragment.
    fn seen_len(&self, len: usize) -> Option<usize>;

    /// The share of a fragment's values that selection sees, but for what rounding to whole chunks makes of it.
    fn seen_share(&self) -> f64 {
        1.0
    }

    /// What it does to values.
    fn effect(&self) -> Effect;

    /// Whether the seed matters, and so has to be in the frame.
    fn is_seeded(&self) -> bool {
        false
    }

    /// Input values must be of a smaller magnitude than this.
    fn magnitude_end(&self) -> f32 {
        f32::INFINITY
    }

    /// Appends the positions that it chooses of a fragment of `len` values, ascending.
    fn choose(&self, _seed: u64, _len: usize, _positions: &mut Vec<u32>) {}

    /// Transforms the values of a fragment.
    fn forward(&self, _values: &mut [f32]) {}

    /// Undoes [`LeadingStage::forward`].
    fn inverse(&self, _values: &mut [f32]) {}

    /// Appends the parameters to a frame's header.
    fn write(&self, header: &mut Vec<u8>);

    /// Reads what [`LeadingStage::write`] wrote; none if there are no such parameters.
    fn read(header: &mut Reader<'_>) -> Option<Self>
    where
        Self: Sized;
}

/// Declares the stages: the byte that stands for each in a frame, and its type.
macro_rules! registry {
    ($($(#[$doc:meta])* $tag:literal => $stage:ident,)*) => {
        /// What happens to a fragment before its values are selected.
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

            /// Reads the parameters of the stage that `tag` stands for; none if there is no such stage.
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
    /// A random mask that all members draw alike.
    1 => RandomK,
    /// A discrete cosine transform of tiles.
    2 => Dct,
}

/// The values that selection sees, and where they come from. Its memory is reused from fragment to fragment.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Positions in the fragment of what a choosing stage left.
    pub mask: Vec<u32>,
    values: Vec<f32>,
}

impl Seen {
    /// Carries out the stage, which must have the fragment.
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

    /// Turns positions among the values that were seen into positions of the fragment.
    pub fn map_to_fragment(&self, positions: &mut [u32]) {
        positions.iter_mut().for_each(|position| *position = self.mask[*position as usize]);
    }
}
