//! What an encoder is asked to do.

use serde::{Deserialize, Serialize};

use super::{SpecError, ValueFormat};

/// Values in a chunk, at most: a gap then fits 16 bits.
pub const CHUNK_VALUES_MAX: u32 = 1 << 16;

/// Values in a chunk unless told otherwise, as in SparseLoCo (arXiv 2508.15706): 64 × 64.
pub const CHUNK_VALUES_DEFAULT: u32 = 4096;

/// Which values of a fragment are sent.
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
}

const fn chunk_values_default() -> u32 {
    CHUNK_VALUES_DEFAULT
}

/// How updates are compressed: what is selected and how its values are represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecSpec {
    /// Which values are sent.
    pub selection: Selection,
    /// How they are represented.
    pub values: ValueFormat,
}

impl CodecSpec {
    /// Checks the chunk's length and the number kept of it.
    ///
    /// # Errors
    /// [`SpecError`] names the parameter that is out of its range.
    pub fn validate(&self) -> Result<(), SpecError> {
        let Selection::TopK { chunk, keep } = self.selection else { return Ok(()) };
        if !chunk.is_power_of_two() || chunk > CHUNK_VALUES_MAX {
            return Err(SpecError::Chunk { chunk });
        }
        if keep == 0 || keep > chunk {
            return Err(SpecError::Keep { keep, chunk });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top_k(chunk: u32, keep: u32) -> Result<(), SpecError> {
        CodecSpec { selection: Selection::TopK { chunk, keep }, values: ValueFormat::F32 }.validate()
    }

    #[test]
    fn a_chunk_is_a_power_of_two_and_keeps_between_one_value_and_all() {
        assert_eq!(top_k(1, 1), Ok(()));
        assert_eq!(top_k(65536, 65536), Ok(()));
        for chunk in [0, 3, 4095, 131_072] {
            assert_eq!(top_k(chunk, 1), Err(SpecError::Chunk { chunk }));
        }
        assert_eq!(top_k(64, 0), Err(SpecError::Keep { keep: 0, chunk: 64 }));
        assert_eq!(top_k(64, 65), Err(SpecError::Keep { keep: 65, chunk: 64 }));
    }
}
