//! Specification of an encoder.

use serde::{Deserialize, Serialize};

use super::value_blocks::ValueBlocks;
use super::{Rounding, Selection, SpecError, Stage, ValueFormat};

/// Compression of updates: a chain of a leading stage, a selection and a representation of values.
///
/// At most one leading stage is possible. A random mask before a transform would break its tiles apart; one
/// after it would drop most of the few coefficients into which the transform gathers a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecSpec {
    /// Stage before the selection.
    #[serde(default)]
    pub stage: Option<Stage>,
    /// Values to send.
    pub selection: Selection,
    /// Representation of values.
    pub values: ValueFormat,
    /// Rounding of a value to a level of its format.
    #[serde(default)]
    pub rounding: Rounding,
    /// Whether codes of 4 and 8 bits are entropy-coded where that shortens a frame. Without it encoding and
    /// decoding take less time.
    #[serde(default = "entropy_default")]
    pub entropy: bool,
}

const fn entropy_default() -> bool {
    true
}

impl CodecSpec {
    /// Creates a specification with no leading stage, rounding to nearest, and entropy coding.
    #[must_use]
    pub const fn new(selection: Selection, values: ValueFormat) -> Self {
        Self { stage: None, selection, values, rounding: Rounding::Nearest, entropy: true }
    }

    /// Checks each part of the chain, and their combination.
    ///
    /// # Errors
    /// [`SpecError`] names the parameter out of range or the invalid combination.
    pub fn validate(&self) -> Result<(), SpecError> {
        if let Some(stage) = &self.stage {
            stage.as_leading().validate()?;
        }
        self.selection.as_rule().validate()?;
        if self.rounding == Rounding::Stochastic && !self.values.rounds_at_random() {
            return Err(SpecError::Rounding { values: self.values });
        }
        Ok(())
    }

    /// Returns the bits of a frame per value of its fragment: kept values with their scales, and positions.
    /// Excludes the header and the gain of entropy coding of values.
    ///
    /// The parts must be in their ranges, as [`CodecSpec::validate`] checks.
    #[must_use]
    pub fn bits_per_value(&self) -> f64 {
        let seen = self.seen_share();
        let rule = self.selection.as_rule();
        seen * (rule.kept_share() * self.bits_per_kept_value() + rule.position_bits())
    }

    /// Returns the share of values sent.
    #[must_use]
    pub fn density(&self) -> f64 {
        self.seen_share() * self.selection.as_rule().kept_share()
    }

    /// Returns the share of values that the leading stage passes to the selection.
    fn seen_share(&self) -> f64 {
        self.stage.as_ref().map_or(1.0, |stage| stage.as_leading().seen_share())
    }

    /// Returns the bits of a kept value with its share of scales, before entropy coding.
    #[must_use]
    pub fn bits_per_kept_value(&self) -> f64 {
        ValueBlocks::new(self.selection, self.values).bits_per_value()
    }

    /// Whether decoding restores the input bit for bit.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.selection == Selection::All && self.values.is_exact() && self.stage.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dct, RandomK, Threshold, TopK};
    use super::*;

    fn validate(selection: Selection) -> Result<(), SpecError> {
        CodecSpec::new(selection, ValueFormat::F32).validate()
    }

    #[test]
    fn a_chunk_is_a_power_of_two_and_keeps_between_one_value_and_all() {
        let top_k = |chunk, keep| validate(Selection::TopK(TopK { chunk, keep }));
        let threshold = |chunk, keep| validate(Selection::Threshold(Threshold { chunk, keep }));
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
            let is_unbiased = ["int8", "int4", "e3m0", "nf4"].contains(&values.name());
            let expected = if is_unbiased { Ok(()) } else { Err(SpecError::Rounding { values }) };
            assert_eq!(spec.validate(), expected);
        }
    }
}
