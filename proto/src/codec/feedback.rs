//! The residual of error feedback.

use multiversion::multiversion;

use super::stages::LeadingStage;
use super::value_blocks::ValueBlocks;

/// The receiver's reconstruction of a frame, by the decoder's arithmetic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<'a> {
    pub blocks: ValueBlocks,
    /// Values, packed.
    pub section: &'a [u8],
    /// Their positions; `None`: all.
    pub positions: Option<&'a [u32]>,
}

impl Sent<'_> {
    /// Subtracts the reconstruction. `memory` is scratch memory.
    pub fn subtract_from(self, residual: &mut [f32], memory: &mut Vec<f32>) {
        memory.resize(self.blocks.block_values, 0.0);
        match self.positions {
            None => {
                let residuals = residual.chunks_mut(self.blocks.block_values);
                for (block, residual) in self.blocks.split(self.section).zip(residuals) {
                    let sent = &mut memory[..residual.len()];
                    self.blocks.reconstruct_block(block, sent);
                    subtract(sent, residual);
                }
            }
            Some(positions) => self.for_each_position(positions, memory, |position, sent| {
                residual[position] -= sent;
            }),
        }
    }

    /// Subtracts the inverse transform of the reconstruction. `memory` is scratch memory.
    pub fn subtract_inverse_from(
        self,
        transform: &dyn LeadingStage,
        residual: &mut [f32],
        memory: &mut Vec<f32>,
    ) {
        memory.clear();
        memory.resize(residual.len() + self.blocks.block_values, 0.0);
        let (dense, block) = memory.split_at_mut(residual.len());
        match self.positions {
            None => self.blocks.reconstruct(self.section, dense),
            Some(positions) => {
                self.for_each_position(positions, block, |position, sent| dense[position] = sent)
            }
        }
        transform.inverse(dense);
        subtract(dense, residual);
    }

    /// Calls `each` with every position and its value. `memory` has room for a block.
    fn for_each_position(self, positions: &[u32], memory: &mut [f32], mut each: impl FnMut(usize, f32)) {
        for (block, positions) in
            self.blocks.split(self.section).zip(positions.chunks(self.blocks.block_values))
        {
            let sent = &mut memory[..positions.len()];
            self.blocks.reconstruct_block(block, sent);
            positions.iter().zip(sent).for_each(|(&position, sent)| each(position as usize, *sent));
        }
    }
}

#[multiversion(targets = "simd")]
fn subtract(sent: &[f32], residual: &mut [f32]) {
    residual.iter_mut().zip(sent).for_each(|(residual, sent)| *residual -= *sent);
}
