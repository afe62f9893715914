//! Tensors of a safetensors file, as its header describes them.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::model::ParameterSpec;
use longhaul_proto::stored_values::ValueFormat;
use memmap2::Mmap;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};

use super::reading::Stretch;

/// A tensor in a file.
pub(super) struct Stored {
    /// The file, of several.
    pub file: usize,
    pub dtype: Dtype,
    shape: Vec<u64>,
    bytes: Range<u64>,
}

impl Stored {
    /// Returns the rows of a matrix.
    pub fn rows(&self) -> Option<u64> {
        self.shape.first().copied()
    }

    pub fn check_shape(&self, name: &str, parameter: &ParameterSpec) -> Result<()> {
        ensure!(
            self.shape == parameter.shape,
            "{name} has the shape {:?}, and its description means {:?}",
            self.shape,
            parameter.shape
        );
        Ok(())
    }

    /// Returns the format of its values.
    pub fn format(&self, name: &str) -> Result<ValueFormat> {
        match self.dtype {
            Dtype::F32 => Ok(ValueFormat::F32),
            Dtype::F16 => Ok(ValueFormat::F16),
            Dtype::BF16 => Ok(ValueFormat::Bf16),
            other => bail!(
                "{name} has values of {other:?}; f32, bf16 and f16 are read: convert the model (`model.to(torch.bfloat16).save_pretrained(OUT)`)"
            ),
        }
    }

    /// Returns some of its values, which are those of `parameter` from its value `first` on.
    pub fn stretch(
        &self,
        name: &str,
        values: Range<usize>,
        (parameter, first): (usize, usize),
    ) -> Result<Stretch> {
        let format = self.format(name)?;
        let at = |value: usize| self.bytes.start + (value * format.bytes()) as u64;
        let bytes = at(values.start)..at(values.end);
        ensure!(bytes.end <= self.bytes.end, "{name} has too few values");
        Ok(Stretch { file: self.file, bytes, format, parameter, first })
    }
}

/// The tensors of a file.
pub(super) struct StoredFile {
    pub tensors: BTreeMap<String, Stored>,
    /// Length.
    pub bytes: u64,
}

impl StoredFile {
    /// Reads the header of a file, and checks that the file has all that it names.
    pub fn open(path: &Path) -> Result<Self> {
        let map = map(path)?;
        let header = SafeTensors::read_metadata(&map);
        let (length, header) =
            header.with_context(|| format!("{} is damaged or cut off: fetch it again", path.display()))?;
        // The length of the header has eight bytes.
        let start = length as u64 + 8;
        let stored = |(name, info): (String, &TensorInfo)| {
            let (from, to) = info.data_offsets;
            let shape = info.shape.iter().map(|&size| size as u64).collect();
            let bytes = start + from as u64..start + to as u64;
            (name, Stored { file: 0, dtype: info.dtype, shape, bytes })
        };
        Ok(Self { tensors: header.tensors().into_iter().map(stored).collect(), bytes: map.len() as u64 })
    }
}

#[allow(unsafe_code, reason = "maps a file")]
fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    // SAFETY: as with all maps, a file that is cut while its header is read ends the process; it may be any bytes.
    unsafe { Mmap::map(&file) }.with_context(|| format!("map {}", path.display()))
}
