//! What an encoder is asked to do.

use serde::{Deserialize, Serialize};

use super::{Rounding, SpecError, Stage, ValueFormat};

/// Values in a chunk, at most: a gap then fits 16 bits.
pub const CHUNK_VALUES_MAX: u32 = 1 << 16;

/// Values in a chunk unless told otherwise, as in SparseLoCo (arXiv 2508.15706): 64 × 64.
pub const CHUNK_VALUES_DEFAULT: u32 = 4096;

/// Which values of a fragment are sent, of those that the leading stage lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Selection {
    /// All of them; no positions are sent.
    All,
    /// Of each chunk the `keep` largest magnitudes, the lower position first among equals.
    TopK {
        /// Values in a chunk: a power of two, at most [`CHUNK_VALUES_MAX`]. The fragment's last chunk may be shorter.
        #[serde(default = "chunk_values_default")]
        chunk: u32,
        /// Values kept of each chunk, `1..=chunk`; a shorter chunk keeps at most what it has.
        keep: u32,
    },
    /// The largest magnitudes of the whole fragment, about `keep` for each `chunk` of its values: 0.8 to 1.3 times as
    /// many, or fewer if fewer are not zero (Lin et al., arXiv 1712.01887).
    Threshold {
        /// A power of two, at most [`CHUNK_VALUES_MAX`].
        #[serde(default = "chunk_values_default")]
        chunk: u32,
        /// Values kept for each `chunk` of values, `1..=chunk`.
        keep: u32,
    },
}

const fn chunk_values_default() -> u32 {
    CHUNK_VALUES_DEFAULT
}

/// How updates are compressed: a chain of a leading stage, a selection and a representation of values.
///
/// There is one leading stage at most. A random mask in front of a transform would tear its tiles apart, and one behind
/// it would throw away most of the few coefficients into which the transform gathers a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecSpec {
    /// What happens before values are selected.
    #[serde(default)]
    pub stage: Option<Stage>,
    /// Which values are sent.
    pub selection: Selection,
    /// How they are represented.
    pub values: ValueFormat,
    /// How a value becomes a level of its format.
    #[serde(default)]
    pub rounding: Rounding,
    /// Whether codes of 4 and 8 bits are entropy-coded where that makes a frame shorter. Without it encoding and
    /// decoding take less time.
    #[serde(default = "entropy_default")]
    pub entropy: bool,
}

const fn entropy_default() -> bool {
    true
}

impl CodecSpec {
    /// No leading stage, rounding to nearest, entropy coding.
    #[must_use]
    pub const fn new(selection: Selection, values: ValueFormat) -> Self {
        Self { stage: None, selection, values, rounding: Rounding::Nearest, entropy: true }
    }

    /// Checks each part of the chain, and whether they go together.
    ///
    /// # Errors
    /// [`SpecError`] names the parameter that is out of its range or what does not go together.
    pub fn validate(&self) -> Result<(), SpecError> {
        if let Some(stage) = &self.stage {
            stage.as_leading().validate()?;
        }
        if let Selection::TopK { chunk, keep } | Selection::Threshold { chunk, keep } = self.selection {
            validate_chunk(chunk, keep)?;
        }
        if self.rounding == Rounding::Stochastic && !has_levels_around_every_value(self.values) {
            return Err(SpecError::Rounding { values: self.values });
        }
        Ok(())
    }
}

/// Whether every value of a block lies between two levels, so that one of them can be chosen without bias. The levels
/// of the formats of one and two bits are means, beyond which there are values without a level above or below; the
/// formats of 16 and 32 bits are not offered, as their error is small to begin with.
const fn has_levels_around_every_value(values: ValueFormat) -> bool {
    matches!(values, ValueFormat::Int8 | ValueFormat::Int4 | ValueFormat::E3M0)
}

/// Checks a chunk's length and the number kept of it.
pub(super) fn validate_chunk(chunk: u32, keep: u32) -> Result<(), SpecError> {
    if !chunk.is_power_of_two() || chunk > CHUNK_VALUES_MAX {
        return Err(SpecError::Chunk { chunk });
    }
    if keep == 0 || keep > chunk {
        return Err(SpecError::Keep { keep, chunk });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Dct, RandomK};
    use super::*;

    fn validate(selection: Selection) -> Result<(), SpecError> {
        CodecSpec::new(selection, ValueFormat::F32).validate()
    }

    #[test]
    fn a_chunk_is_a_power_of_two_and_keeps_between_one_value_and_all() {
        let top_k = |chunk, keep| validate(Selection::TopK { chunk, keep });
        let threshold = |chunk, keep| validate(Selection::Threshold { chunk, keep });
        let random_k = |chunk, keep| {
            let stage = Some(Stage::RandomK(RandomK { chunk, keep }));
            CodecSpec { stage, ..CodecSpec::new(Selection::All, ValueFormat::F32) }.validate()
        };
        for validate in [&top_k as &dyn Fn(u32, u32) -> _, &threshold, &random_k] {
            assert_eq!(validate(1, 1), Ok(()));
            assert_eq!(validate(65536, 65536), Ok(()));
            for chunk in [0, 3, 4095, 131_072] {
                assert_eq!(validate(chunk, 1), Err(SpecError::Chunk { chunk }));
            }
            assert_eq!(validate(64, 0), Err(SpecError::Keep { keep: 0, chunk: 64 }));
            assert_eq!(validate(64, 65), Err(SpecError::Keep { keep: 65, chunk: 64 }));
        }
    }

    #[test]
    fn there_are_no_more_tiles_than_a_fragment_can_have() {
        let of_tiles = |tiles| {
            let stage = Some(Stage::Dct(Dct { tiles }));
            CodecSpec { stage, ..CodecSpec::new(Selection::All, ValueFormat::F32) }.validate()
        };
        assert_eq!(of_tiles(1 << 14), Ok(()));
        assert_eq!(of_tiles((1 << 14) + 1), Err(SpecError::Tiles { tiles: (1 << 14) + 1 }));
    }

    #[test]
    fn stochastic_rounding_is_refused_where_it_would_be_biased() {
        for values in ValueFormat::ALL {
            let spec = CodecSpec { rounding: Rounding::Stochastic, ..CodecSpec::new(Selection::All, values) };
            let is_unbiased = matches!(values, ValueFormat::Int8 | ValueFormat::Int4 | ValueFormat::E3M0);
            let expected = if is_unbiased { Ok(()) } else { Err(SpecError::Rounding { values }) };
            assert_eq!(spec.validate(), expected);
        }
    }
}
