//! A frozen tensor whose values come in pieces, which go straight into its format.

use longhaul_common::config::FrozenFormat;
use longhaul_common::model::ParameterSpec;
use longhaul_proto::codec::nf4_code;
use longhaul_proto::stored_values::StoredValues;
use tch::{Device, Kind, TchError};

use super::{Coded, Frozen};
use crate::host_tensor::HostBuffer;

/// Values of NF4 that share a scale.
const BLOCK: usize = 64;
/// Values converted at a time: they stay in the processor's cache.
const STRETCH: usize = 1 << 14;

/// A tensor in host memory with some of its values.
#[derive(Debug)]
pub(super) struct Filling {
    name: String,
    shape: Vec<i64>,
    count: usize,
    come: usize,
    form: Form,
}

#[derive(Debug)]
enum Form {
    F32(HostBuffer),
    Bf16(HostBuffer),
    Coded(Coder),
}

impl Filling {
    /// Prepares a tensor for its values; `multiplies`: it is the matrix of a product, and nothing else.
    ///
    /// # Errors
    /// libtorch has no memory.
    pub fn new(of: &ParameterSpec, format: FrozenFormat, multiplies: bool) -> Result<Self, TchError> {
        let count = of.count() as usize;
        let form = match format {
            _ if !of.is_matrix() => Form::F32(HostBuffer::new(count, Kind::Float)?),
            FrozenFormat::F32 => Form::F32(HostBuffer::new(count, Kind::Float)?),
            FrozenFormat::Int8 if multiplies => Form::Coded(Coder::int8(of)?),
            FrozenFormat::Nf4 if multiplies => Form::Coded(Coder::nf4(of)?),
            FrozenFormat::Bf16 | FrozenFormat::Int8 | FrozenFormat::Nf4 => {
                Form::Bf16(HostBuffer::new(count, Kind::BFloat16)?)
            }
        };
        let shape = of.shape.iter().map(|&size| size as i64).collect();
        Ok(Self { name: of.name.clone(), shape, count, come: 0, form })
    }

    /// Writes values from the place `first` on.
    ///
    /// # Errors
    /// One is infinite or no number; they are more than the tensor has, or those of a coded matrix come out of order.
    pub fn write(&mut self, first: usize, values: StoredValues<'_>) -> Result<(), TchError> {
        if !values.are_finite() {
            return Err(TchError::Shape(format!(
                "{} has values that are no numbers, or infinite",
                self.name
            )));
        }
        if first + values.len() > self.count || self.come + values.len() > self.count {
            return Err(TchError::Shape(format!("{} has more than {} values", self.name, self.count)));
        }
        match &mut self.form {
            Form::F32(buffer) => {
                let mut room = [0.0; STRETCH];
                for (start, part) in stretches(values) {
                    let room = &mut room[..part.len()];
                    part.write_f32(room);
                    buffer.write_f32(first + start, room)?;
                }
            }
            Form::Bf16(buffer) => {
                let mut room = Vec::new();
                for (start, part) in stretches(values) {
                    buffer.write(size_of::<u16>() * (first + start), part.bf16_bytes(&mut room))?;
                }
            }
            Form::Coded(_) if first != self.come => {
                return Err(TchError::Shape(format!("the values of {} come out of order", self.name)));
            }
            Form::Coded(coder) => coder.write(values)?,
        }
        self.come += values.len();
        Ok(())
    }

    /// Whether all values have come.
    pub fn is_full(&self) -> bool {
        self.come == self.count
    }

    /// Moves a full tensor to the device.
    ///
    /// # Errors
    /// libtorch has no memory.
    pub fn finish(self, device: Device) -> Result<Frozen, TchError> {
        match self.form {
            Form::F32(buffer) | Form::Bf16(buffer) => {
                let tensor = buffer.into_tensor().f_view(self.shape.as_slice())?;
                Ok(Frozen::Plain(tensor.f_to_device(device)?))
            }
            Form::Coded(coder) => coder.finish(&self.shape, device).map(Frozen::Coded),
        }
    }
}

/// Cuts values into pieces that fit a cache, each with the place of its first.
fn stretches(values: StoredValues<'_>) -> impl Iterator<Item = (usize, StoredValues<'_>)> {
    let starts = (0..values.len()).step_by(STRETCH);
    starts.map(move |start| (start, values.part(start..values.len().min(start + STRETCH))))
}

/// Values of a matrix on their way to codes, each block of which has a scale.
#[derive(Debug)]
struct Coder {
    format: Codes,
    /// Values of a block.
    block: usize,
    /// Values of a block that has not all of them.
    pending: Vec<f32>,
    count: usize,
    coded: usize,
    codes: HostBuffer,
    scales: HostBuffer,
}

#[derive(Clone, Copy, Debug)]
enum Codes {
    /// A row's largest value is 127.
    Int8,
    /// Pairs, the first in the high bits; a block's largest value is its scale.
    Nf4,
}

impl Coder {
    fn int8(of: &ParameterSpec) -> Result<Self, TchError> {
        let columns = of.shape.last().map_or(1, |&columns| columns.max(1) as usize);
        let count = of.count() as usize;
        Self::new(Codes::Int8, columns, count, HostBuffer::new(count, Kind::Int8)?)
    }

    fn nf4(of: &ParameterSpec) -> Result<Self, TchError> {
        let count = of.count() as usize;
        Self::new(Codes::Nf4, BLOCK, count, HostBuffer::new(count.div_ceil(2), Kind::Uint8)?)
    }

    fn new(format: Codes, block: usize, count: usize, codes: HostBuffer) -> Result<Self, TchError> {
        let scales = HostBuffer::new(count.div_ceil(block), Kind::Float)?;
        Ok(Self { format, block, pending: Vec::with_capacity(block), count, coded: 0, codes, scales })
    }

    fn write(&mut self, values: StoredValues<'_>) -> Result<(), TchError> {
        let (mut start, mut codes) = (0, Vec::with_capacity(self.block));
        while start < values.len() {
            let had = self.pending.len();
            let end = values.len().min(start + self.block - had);
            self.pending.resize(had + end - start, 0.0);
            values.part(start..end).write_f32(&mut self.pending[had..]);
            start = end;
            if self.pending.len() == self.block.min(self.count - self.coded) {
                self.encode(&mut codes)?;
            }
        }
        Ok(())
    }

    /// Encodes the pending block.
    fn encode(&mut self, codes: &mut Vec<u8>) -> Result<(), TchError> {
        let largest = largest(&self.pending);
        codes.clear();
        let (scale, place) = match self.format {
            Codes::Int8 => {
                let scale = largest / 127.0;
                let code = |value: &f32| if scale > 0.0 { (value / scale).round() as i8 } else { 0 };
                codes.extend(self.pending.iter().map(|value| code(value).cast_unsigned()));
                (scale, self.coded)
            }
            Codes::Nf4 => {
                let code = |value: &f32| nf4_code(if largest > 0.0 { value / largest } else { 0.0 });
                let pair = |pair: &[f32]| code(&pair[0]) << 4 | pair.get(1).map_or(0, code);
                codes.extend(self.pending.chunks(2).map(pair));
                (largest, self.coded / 2)
            }
        };
        self.codes.write(place, codes)?;
        self.scales.write_f32(self.coded / self.block, &[scale])?;
        self.coded += self.pending.len();
        self.pending.clear();
        Ok(())
    }

    fn finish(self, shape: &[i64], device: Device) -> Result<Coded, TchError> {
        let &[rows, columns] = shape else {
            return Err(TchError::Shape(format!("a product's matrix has two dimensions, not {shape:?}")));
        };
        let codes = self.codes.into_tensor();
        let codes = match self.format {
            Codes::Int8 => codes.f_view([rows, columns])?,
            Codes::Nf4 => codes,
        };
        let scales = self.scales.into_tensor().f_to_device(device)?;
        Ok(Coded { codes: codes.f_to_device(device)?, scales, rows, columns })
    }
}

pub(super) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most: f32, value| most.max(value.abs()))
}
