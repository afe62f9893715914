//! Encoding of fragments into frames.

use std::borrow::Cow;

use multiversion::multiversion;

use super::code_stream::CodeEncoder;
use super::columns::ColumnEncoder;
use super::feedback::Sent;
use super::formats::{self, Codes};
use super::header::{Coding, Header};
use super::positions::PositionEncoder;
use super::random::Noise;
use super::selections::Memory;
use super::stages::{Effect, LeadingStage, Seen, Stage};
use super::value_blocks::ValueBlocks;
use super::{CodecSpec, ColumnUpdate, EncodeError, FRAGMENT_VALUES_MAX, Rounding, Selection, SpecError};

/// Values tested together for being finite.
const FINITE_TEST_VALUES: usize = 1024;

/// Compresses fragments. One encoder serves any number of fragments in turn and allocates only for a fragment
/// longer than all before.
#[derive(Debug)]
pub struct Encoder {
    spec: CodecSpec,
    blocks: ValueBlocks,
    seen: Seen,
    memory: Memory,
    position_encoder: PositionEncoder,
    code_encoder: CodeEncoder,
    /// Positions kept of the selection's input, and their values.
    positions: Vec<u32>,
    kept: Vec<f32>,
    /// Kept values as packed blocks, and the same entropy-coded.
    section: Vec<u8>,
    coded: Vec<u8>,
    /// Values as the decoder will reconstruct them: a block, or a transformed fragment.
    reconstructed: Vec<f32>,
    columns: ColumnEncoder,
}

impl Encoder {
    /// # Errors
    /// As [`CodecSpec::validate`].
    pub fn new(spec: CodecSpec) -> Result<Self, SpecError> {
        spec.validate()?;
        Ok(Self {
            spec,
            blocks: ValueBlocks::new(spec.selection, spec.values),
            seen: Seen::default(),
            memory: Memory::default(),
            position_encoder: PositionEncoder::new(),
            code_encoder: CodeEncoder::default(),
            positions: Vec::new(),
            kept: Vec::new(),
            section: Vec::new(),
            coded: Vec::new(),
            reconstructed: Vec::new(),
            columns: ColumnEncoder::new(),
        })
    }

    /// Returns the specification.
    pub fn spec(&self) -> &CodecSpec {
        &self.spec
    }

    /// Changes the specification from the next fragment on (another density, or another number of tiles);
    /// keeps the memory.
    ///
    /// # Errors
    /// As [`CodecSpec::validate`]; the specification is then unchanged.
    pub fn set_spec(&mut self, spec: CodecSpec) -> Result<(), SpecError> {
        spec.validate()?;
        self.blocks = ValueBlocks::new(spec.selection, spec.values);
        self.spec = spec;
        Ok(())
    }

    /// Appends the frame of C(`input`) to `out`; discards the error.
    ///
    /// `seed` determines random masks and stochastic rounding. With a random mask, all members must use the
    /// same seed for a fragment and round, and another seed for any other. Chains without randomness ignore
    /// it.
    ///
    /// # Errors
    /// [`EncodeError`] if the length is not permitted or a value is not finite; `out` is then unchanged.
    pub fn encode(&mut self, seed: u64, input: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.check_length(input.len())?;
        check_magnitudes(input, self.magnitude_end())?;
        self.write_frame(seed, input, out);
        Ok(())
    }

    /// Appends the frame of C(p) to `out`, where p = `residual`·`decay` + `delta`, and leaves p − decode(C(p)) in
    /// `residual` (error feedback: Seide et al. 2014; Karimireddy et al., arXiv 1901.09847). `seed` is as in
    /// [`Encoder::encode`].
    ///
    /// With `decay` 1 the sum of all frames and the residual equals the sum of all deltas, up to rounding.
    ///
    /// # Errors
    /// [`EncodeError`] if the lengths differ, the length is not permitted, or a value of p is not finite;
    /// `residual` and `out` are then unchanged.
    pub fn encode_with_feedback(
        &mut self,
        seed: u64,
        delta: &[f32],
        residual: &mut [f32],
        decay: f32,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        self.check_length(delta.len())?;
        if residual.len() != delta.len() {
            return Err(EncodeError::ResidualLength { delta: delta.len(), residual: residual.len() });
        }
        check_sums(residual, decay, delta, self.magnitude_end())?;
        add_to_scaled(residual, decay, delta);
        self.send_of(seed, residual, out);
        Ok(())
    }

    /// The same, of memory that stays as it is: p = `before`·`decay` + `delta`, and p − decode(C(p)) replaces `residual`.
    ///
    /// # Errors
    /// As [`Encoder::encode_with_feedback`], but `residual` is then arbitrary.
    pub fn encode_with_feedback_from(
        &mut self,
        seed: u64,
        delta: &[f32],
        before: &[f32],
        decay: f32,
        residual: &mut [f32],
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        self.check_length(delta.len())?;
        if let Some(other) = [before.len(), residual.len()].into_iter().find(|len| *len != delta.len()) {
            return Err(EncodeError::ResidualLength { delta: delta.len(), residual: other });
        }
        let end = self.magnitude_end();
        for start in (0..delta.len()).step_by(FINITE_TEST_VALUES) {
            let group = start..delta.len().min(start + FINITE_TEST_VALUES);
            let sums = &mut residual[group.clone()];
            if !set_sums_below(sums, &before[group.clone()], decay, &delta[group], end)
                && let Some(at) = sums.iter().position(|sum| !is_below(*sum, end))
            {
                return Err(EncodeError::NonFinite { index: start + at });
            }
        }
        self.send_of(seed, residual, out);
        Ok(())
    }

    /// Appends the frame of C(`chosen`) to `out`, and adds `chosen` − decode(C(`chosen`)) to `waiting`. `seed` is as in
    /// [`Encoder::encode`].
    ///
    /// # Errors
    /// [`EncodeError`] if the lengths differ, the length is not permitted, or a value of `chosen` is not finite;
    /// `waiting` and `out` are then unchanged.
    pub fn encode_chosen(
        &mut self,
        seed: u64,
        chosen: &[f32],
        waiting: &mut [f32],
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        self.check_length(chosen.len())?;
        if waiting.len() != chosen.len() {
            return Err(EncodeError::ResidualLength { delta: chosen.len(), residual: waiting.len() });
        }
        check_magnitudes(chosen, self.magnitude_end())?;
        let values_start = self.write_frame(seed, chosen, out);
        add_to_scaled(waiting, 1.0, chosen);
        self.subtract_sent(&out[values_start..], waiting);
        Ok(())
    }

    /// Appends the frame of C(p) to `out`, where p = `residual`·`decay` + `update`, and returns p −
    /// decode(C(p)), in the encoder's number format. The result keeps as many columns of each matrix as
    /// `update` has: those with the largest sums of magnitudes. Selection and leading stage do not apply: the
    /// columns were selected when the gradient was computed.
    ///
    /// With `decay` 1 the sum of all frames and the residual equals the sum of all updates, up to rounding,
    /// per column. `None`: no residual.
    ///
    /// # Errors
    /// [`EncodeError`] if the matrices differ or a value of p is not finite; `out` is then unchanged.
    pub fn encode_columns(
        &mut self,
        seed: u64,
        update: &ColumnUpdate,
        residual: Option<&ColumnUpdate>,
        decay: f32,
        out: &mut Vec<u8>,
    ) -> Result<Option<ColumnUpdate>, EncodeError> {
        let (sum, back) = match residual {
            None => (Cow::Borrowed(update), None),
            Some(residual) => {
                let sum = residual.plus(decay, update).ok_or(EncodeError::Columns)?;
                let (sum, back) = sum.split(&update.column_counts());
                (Cow::Owned(sum), Some(back))
            }
        };
        let sent = self.columns.encode(&self.spec, seed, &sum, out)?;
        let left = sum.map_values(|at, value| value - sent[at]).compact();
        let left = match back {
            Some(back) => left.plus(1.0, &back).ok_or(EncodeError::Columns)?,
            None => left,
        };
        Ok(left.values().iter().any(|value| *value != 0.0).then_some(left))
    }

    /// Returns the positions of the values in the last frame, ascending. `None`: the receiver changes all
    /// values, because all are selected or they were transformed. Call it before [`Encoder::set_spec`].
    pub fn sent_positions(&self) -> Option<&[u32]> {
        match (self.effect(), self.spec.selection) {
            (Some(Effect::Transforms), _) | (None, Selection::All) => None,
            (Some(Effect::Chooses), Selection::All) => Some(&self.seen.mask),
            (Some(Effect::Chooses) | None, _) => Some(&self.positions),
        }
    }

    fn stage(&self) -> Option<&dyn LeadingStage> {
        self.spec.stage.as_ref().map(Stage::as_leading)
    }

    fn effect(&self) -> Option<Effect> {
        self.stage().map(LeadingStage::effect)
    }

    /// Returns the codes to entropy-code, if any.
    fn coded(&self) -> Option<Codes> {
        formats::of(self.spec.values).shape().codes.filter(|_| self.spec.entropy)
    }

    fn check_length(&self, len: usize) -> Result<(), EncodeError> {
        if len > FRAGMENT_VALUES_MAX {
            return Err(EncodeError::TooLong { len });
        }
        match self.stage() {
            Some(stage) if stage.seen_len(len).is_none() => Err(EncodeError::Stage { len }),
            _ => Ok(()),
        }
    }

    /// Magnitudes must stay below it.
    fn magnitude_end(&self) -> f32 {
        self.stage().map_or(f32::INFINITY, LeadingStage::magnitude_end)
    }

    /// Appends the frame of a checked fragment and returns the start of its value section.
    fn write_frame(&mut self, seed: u64, input: &[f32], out: &mut Vec<u8>) -> usize {
        let codes = self.coded();
        let Self { spec, blocks, .. } = self;
        let seen = self.seen.through(spec.stage, seed, input);
        let rule = spec.selection.as_rule();
        self.positions.clear();
        let kept = match spec.selection {
            Selection::All => seen,
            _ => {
                rule.select(seen, &mut self.memory, &mut self.positions);
                gather(seen, &self.positions, &mut self.kept)
            }
        };
        let layout = rule.layout(seen.len(), kept.len()).expect("a selection keeps to its own layout");
        let noise = (spec.rounding == Rounding::Stochastic).then(|| Noise::new(seed));
        let mut coding = Coding::Packed;
        if let Some(codes) = codes {
            self.section.clear();
            self.section.reserve(blocks.bytes(layout.kept_most()));
            blocks.quantise(kept, noise, &mut self.section);
            coding = self.code_encoder.encode(codes, *blocks, layout, &self.section, &mut self.coded);
        }
        let header = Header {
            stage: spec.stage,
            selection: spec.selection,
            values: spec.values,
            coding,
            len: input.len() as u32,
            seed,
            count: kept.len() as u32,
        };
        header.write(out);
        self.position_encoder.encode(layout, &self.positions, out);
        let values_start = out.len();
        match coding {
            Coding::Entropy { .. } => out.extend_from_slice(&self.coded),
            Coding::Packed if codes.is_some() => out.extend_from_slice(&self.section),
            Coding::Packed => blocks.quantise(kept, noise, out),
        }
        if self.effect() == Some(Effect::Chooses) {
            self.seen.map_to_fragment(&mut self.positions);
        }
        values_start
    }

    /// Appends the frame of checked values to `out`, and leaves the unsent remainder in them.
    fn send_of(&mut self, seed: u64, values: &mut [f32], out: &mut Vec<u8>) {
        let values_start = self.write_frame(seed, values, out);
        self.subtract_sent(&out[values_start..], values);
    }

    /// Subtracts the values that the decoder will reconstruct from `residual`. `section` is the end of the
    /// frame.
    fn subtract_sent(&mut self, section: &[u8], residual: &mut [f32]) {
        // An entropy-coded section is still packed here.
        let section = if self.coded().is_some() { &self.section } else { section };
        let sent = |positions| Sent { blocks: self.blocks, section, positions };
        let memory = &mut self.reconstructed;
        let is_selected = self.spec.selection != Selection::All;
        match self.spec.stage.as_ref().map(Stage::as_leading) {
            Some(stage) if stage.effect() == Effect::Transforms => {
                let coefficients = is_selected.then_some(self.positions.as_slice());
                sent(coefficients).subtract_inverse_from(stage, residual, memory);
            }
            Some(_) if !is_selected => sent(Some(&self.seen.mask)).subtract_from(residual, memory),
            _ => sent(is_selected.then_some(self.positions.as_slice())).subtract_from(residual, memory),
        }
    }
}

/// Rejects the first value that is not finite or not below `end`.
fn check_magnitudes(values: &[f32], end: f32) -> Result<(), EncodeError> {
    for (group, start) in values.chunks(FINITE_TEST_VALUES).zip((0..).step_by(FINITE_TEST_VALUES)) {
        if !are_below(group, end)
            && let Some(at) = group.iter().position(|value| !is_below(*value, end))
        {
            return Err(EncodeError::NonFinite { index: start + at });
        }
    }
    Ok(())
}

/// The same of `residual`·`decay` + `delta`.
fn check_sums(residual: &[f32], decay: f32, delta: &[f32], end: f32) -> Result<(), EncodeError> {
    let groups = residual.chunks(FINITE_TEST_VALUES).zip(delta.chunks(FINITE_TEST_VALUES));
    for ((residual, delta), start) in groups.zip((0..).step_by(FINITE_TEST_VALUES)) {
        let mut sums = residual.iter().zip(delta).map(|(residual, delta)| residual * decay + delta);
        if !are_sums_below(residual, decay, delta, end)
            && let Some(at) = sums.position(|sum| !is_below(sum, end))
        {
            return Err(EncodeError::NonFinite { index: start + at });
        }
    }
    Ok(())
}

fn is_below(value: f32, end: f32) -> bool {
    value.abs() < end
}

/// Branch-free, as the next two.
#[multiversion(targets = "simd")]
fn are_below(values: &[f32], end: f32) -> bool {
    let mut all = true;
    for value in values {
        all &= value.abs() < end;
    }
    all
}

#[multiversion(targets = "simd")]
fn are_sums_below(residual: &[f32], decay: f32, delta: &[f32], end: f32) -> bool {
    let mut all = true;
    for (residual, delta) in residual.iter().zip(delta) {
        all &= (residual * decay + delta).abs() < end;
    }
    all
}

/// `sums = before·decay + delta`; whether all are below `end`.
#[multiversion(targets = "simd")]
fn set_sums_below(sums: &mut [f32], before: &[f32], decay: f32, delta: &[f32], end: f32) -> bool {
    let mut all = true;
    for (sum, (before, delta)) in sums.iter_mut().zip(before.iter().zip(delta)) {
        *sum = before * decay + delta;
        all &= sum.abs() < end;
    }
    all
}

/// `sum = sum·decay + values`.
#[multiversion(targets = "simd")]
fn add_to_scaled(sum: &mut [f32], decay: f32, values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = *sum * decay + value);
}

/// Gathers the values at these positions into `memory`, which gets the capacity of `positions`.
fn gather<'a>(values: &[f32], positions: &Vec<u32>, memory: &'a mut Vec<f32>) -> &'a [f32] {
    memory.clear();
    memory.reserve(positions.capacity());
    memory.extend(positions.iter().map(|&position| values[position as usize]));
    memory
}
