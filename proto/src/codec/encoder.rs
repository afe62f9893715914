//! From a fragment to a frame.

use super::header::Header;
use super::positions::PositionEncoder;
use super::top_k::TopK;
use super::value_blocks::ValueBlocks;
use super::{CodecSpec, EncodeError, FRAGMENT_VALUES_MAX, Selection, SpecError};

/// Values that are tested together for being finite.
const FINITE_TEST_VALUES: usize = 1024;

/// Compresses fragments. One encoder serves any number of fragments, one after the other, and allocates only when one
/// is longer than all before.
#[derive(Debug)]
pub struct Encoder {
    spec: CodecSpec,
    blocks: ValueBlocks,
    top_k: TopK,
    position_encoder: PositionEncoder,
    /// Positions and values kept of the present fragment.
    positions: Vec<u32>,
    kept: Vec<f32>,
    /// One block of values as the decoder will reconstruct it.
    reconstructed: Vec<f32>,
    magnitudes: Vec<u32>,
}

impl Encoder {
    /// # Errors
    /// As [`CodecSpec::validate`].
    pub fn new(spec: CodecSpec) -> Result<Self, SpecError> {
        spec.validate()?;
        let blocks = ValueBlocks::new(&spec);
        Ok(Self {
            spec,
            blocks,
            top_k: TopK::default(),
            position_encoder: PositionEncoder::new(),
            positions: Vec::new(),
            kept: Vec::new(),
            reconstructed: Vec::new(),
            magnitudes: Vec::new(),
        })
    }

    /// What this encoder does.
    pub fn spec(&self) -> &CodecSpec {
        &self.spec
    }

    /// Appends the frame of C(`input`) to `out`; what is not sent is lost.
    ///
    /// # Errors
    /// [`EncodeError`] if the fragment is too long or has a value that is not finite; `out` is then as before.
    pub fn encode(&mut self, input: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        check_length(input.len())?;
        check_finite(input.len(), |index| input[index])?;
        self.write_frame(input, out);
        Ok(())
    }

    /// Appends the frame of C(p) to `out`, where p = `residual`·`decay` + `delta`, and leaves p − decode(C(p)) in
    /// `residual` (error feedback: Seide et al. 2014; Karimireddy et al., arXiv 1901.09847).
    ///
    /// With `decay` 1 the sum of all that was sent and the residual is the sum of all deltas, to rounding.
    ///
    /// # Errors
    /// [`EncodeError`] if the lengths differ, the fragment is too long, or a value of p is not finite; `residual` and
    /// `out` are then as before.
    pub fn encode_with_feedback(
        &mut self,
        delta: &[f32],
        residual: &mut [f32],
        decay: f32,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        check_length(delta.len())?;
        if residual.len() != delta.len() {
            return Err(EncodeError::ResidualLength { delta: delta.len(), residual: residual.len() });
        }
        check_finite(delta.len(), |index| residual[index] * decay + delta[index])?;
        for (residual, delta) in residual.iter_mut().zip(delta) {
            *residual = *residual * decay + delta;
        }
        let values_start = self.write_frame(residual, out);
        self.subtract_sent(&out[values_start..], residual);
        Ok(())
    }

    /// Appends the frame of a fragment that has been checked, and returns where its value section starts.
    fn write_frame(&mut self, input: &[f32], out: &mut Vec<u8>) -> usize {
        let header = Header { spec: self.spec, len: input.len() as u32 };
        out.extend_from_slice(&header.to_bytes());
        let Some(chunks) = header.chunks() else {
            let values_start = out.len();
            self.blocks.quantise(input, &mut self.magnitudes, out);
            return values_start;
        };
        self.top_k.select(chunks, input, &mut self.positions);
        self.position_encoder.encode(chunks, &self.positions, out);
        self.kept.clear();
        self.kept.extend(self.positions.iter().map(|&position| input[position as usize]));
        let values_start = out.len();
        self.blocks.quantise(&self.kept, &mut self.magnitudes, out);
        values_start
    }

    /// Subtracts from `residual` what the decoder will reconstruct from `section`.
    fn subtract_sent(&mut self, section: &[u8], residual: &mut [f32]) {
        let (blocks, block_values) = (self.blocks, self.blocks.block_values);
        self.reconstructed.resize(block_values, 0.0);
        match self.spec.selection {
            Selection::All => {
                for (block, residual) in blocks.split(section).zip(residual.chunks_mut(block_values)) {
                    let sent = &mut self.reconstructed[..residual.len()];
                    blocks.reconstruct_block(block, sent);
                    residual.iter_mut().zip(sent).for_each(|(residual, sent)| *residual -= *sent);
                }
            }
            Selection::TopK { .. } => {
                for (block, positions) in blocks.split(section).zip(self.positions.chunks(block_values)) {
                    let sent = &mut self.reconstructed[..positions.len()];
                    blocks.reconstruct_block(block, sent);
                    for (&position, sent) in positions.iter().zip(sent) {
                        residual[position as usize] -= *sent;
                    }
                }
            }
        }
    }
}

fn check_length(len: usize) -> Result<(), EncodeError> {
    if len > FRAGMENT_VALUES_MAX { Err(EncodeError::TooLong { len }) } else { Ok(()) }
}

/// Finds the first of `len` values that is not finite. Groups of values are tested without branches.
fn check_finite(len: usize, value: impl Fn(usize) -> f32) -> Result<(), EncodeError> {
    for start in (0..len).step_by(FINITE_TEST_VALUES) {
        let mut group = start..len.min(start + FINITE_TEST_VALUES);
        if !group.clone().fold(true, |all, index| all & value(index).is_finite()) {
            let first = group.find(|&index| !value(index).is_finite());
            return first.map_or(Ok(()), |index| Err(EncodeError::NonFinite { index }));
        }
    }
    Ok(())
}
