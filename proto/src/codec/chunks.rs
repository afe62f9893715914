//! Division of a fragment into chunks.

use super::SpecError;

/// Maximum values of a chunk: a gap then fits 16 bits.
pub const CHUNK_VALUES_MAX: u32 = 1 << 16;

/// Checks the length of a chunk and the number of values kept.
pub(super) fn validate(chunk: u32, keep: u32) -> Result<(), SpecError> {
    if !chunk.is_power_of_two() || chunk > CHUNK_VALUES_MAX {
        return Err(SpecError::Chunk { chunk });
    }
    if keep == 0 || keep > chunk {
        return Err(SpecError::Keep { keep, chunk });
    }
    Ok(())
}

/// The chunks of a fragment, with the number of values kept of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Values in the fragment.
    pub len: usize,
    /// Values in a chunk; the last may be shorter.
    pub chunk: usize,
    /// Values kept of a chunk, or all of a shorter one.
    pub keep: usize,
}

/// One chunk of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Position of its first value in the fragment.
    pub start: usize,
    /// Values.
    pub len: usize,
    /// Values kept.
    pub kept: usize,
}

impl Chunks {
    pub fn iter(self) -> impl Iterator<Item = Chunk> {
        (0..self.len).step_by(self.chunk).map(move |start| {
            let len = self.chunk.min(self.len - start);
            Chunk { start, len, kept: self.keep.min(len) }
        })
    }

    /// Returns the number of chunks.
    pub fn count(self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// Returns the values kept of the whole fragment, at most its length.
    pub fn kept_total(self) -> usize {
        self.len / self.chunk * self.keep + self.keep.min(self.len % self.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_kept_is_the_sum_over_the_chunks() {
        for len in [0, 1, 7, 8, 9, 16, 23] {
            let chunks = Chunks { len, chunk: 8, keep: 3 };
            assert_eq!(chunks.iter().map(|chunk| chunk.kept).sum::<usize>(), chunks.kept_total());
            assert_eq!(chunks.iter().map(|chunk| chunk.len).sum::<usize>(), len);
            assert_eq!(chunks.iter().count(), chunks.count());
        }
    }
}
