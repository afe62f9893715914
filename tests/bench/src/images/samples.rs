//! Images in memory, from IDX files or made up.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use flate2::read::MultiGzDecoder;
use longhaul_common::config::ImageConfig;
use longhaul_common::sampler::sample_at;
use longhaul_data::Visit;
use longhaul_engine::Batch;

/// Images per evaluation batch.
const LOOKED_AT: usize = 500;
/// Bytes of a class after its pixels.
const CLASS_BYTES: usize = 2;

/// Images of one size, with classes.
pub struct Images {
    /// Their size, and the number of classes.
    pub shape: ImageConfig,
    /// `[N, C·H·W + 2]`
    samples: Vec<u8>,
}

impl Images {
    /// Reads `WHICH-images-idx3-ubyte` and `WHICH-labels-idx1-ubyte` from a folder, with or without `.gz`.
    pub fn read(folder: &Path, which: &str) -> Result<Self> {
        let (sizes, pixels) = idx(folder, &format!("{which}-images-idx3-ubyte"))?;
        let (counts, classes) = idx(folder, &format!("{which}-labels-idx1-ubyte"))?;
        let ([count, height, width], [labels]) = (&sizes[..], &counts[..]) else {
            anyhow::bail!("{}: images have three dimensions, labels one", folder.display())
        };
        ensure!(count == labels, "{}: {count} images and {labels} labels", folder.display());
        let number = classes.iter().max().map_or(0, |class| u32::from(*class) + 1);
        let shape = ImageConfig {
            channels: 1,
            height: u32::try_from(*height)?,
            width: u32::try_from(*width)?,
            classes: number.max(2),
            shift: 0,
            flip: false,
        };
        let values = shape.values() as usize;
        let sample = |(pixels, class): (&[u8], &u8)| [pixels, &[*class, 0]].concat();
        let samples = pixels.chunks(values.max(1)).zip(&classes).flat_map(sample).collect();
        Ok(Self { shape, samples })
    }

    /// Generates images: `draw` appends the image of a number to a list and returns its class.
    pub fn made_up(shape: ImageConfig, count: usize, draw: impl Fn(usize, &mut Vec<u8>) -> u16) -> Self {
        let mut samples = Vec::with_capacity(count * (shape.values() as usize + CLASS_BYTES));
        for at in 0..count {
            let class = draw(at, &mut samples);
            samples.extend(class.to_le_bytes());
        }
        Self { shape, samples }
    }

    /// Keeps only the first images, for short epochs.
    pub fn cut_to(mut self, count: usize) -> Self {
        self.samples.truncate(count * self.width());
        self
    }

    /// Models see pixels as numbers from −1 to 1. With half of the contrast, in the upper half, black is 0
    /// and white 1.
    pub fn with_black_at_zero(mut self) -> Self {
        let width = self.width();
        for sample in self.samples.chunks_mut(width) {
            sample[..width - CLASS_BYTES].iter_mut().for_each(|pixel| *pixel = 128 + *pixel / 2);
        }
        self
    }

    fn width(&self) -> usize {
        self.shape.values() as usize + CLASS_BYTES
    }

    /// Returns the number of images.
    pub fn len(&self) -> u64 {
        (self.samples.len() / self.width()) as u64
    }

    /// Returns the image at a position of a stream with a different order in each epoch.
    pub fn visit(&self, position: u64, seed: u64) -> Visit {
        Visit { sample: sample_at(seed, self.len(), position), epoch: position / self.len() }
    }

    /// Returns the images at these positions.
    pub fn batch(&self, positions: impl Iterator<Item = u64>, seed: u64) -> Batch {
        let mut batch = Batch::of_images(self.width() - CLASS_BYTES);
        for position in positions {
            let start = self.visit(position, seed).sample as usize * self.width();
            batch.push_image(&self.samples[start..start + self.width()]);
        }
        batch
    }

    /// Returns all images, in order.
    pub fn all(&self) -> Vec<Batch> {
        let batch = |samples: &[u8]| {
            let mut batch = Batch::of_images(self.width() - CLASS_BYTES);
            samples.chunks(self.width()).for_each(|sample| batch.push_image(sample));
            batch
        };
        self.samples.chunks(self.width() * LOOKED_AT).map(batch).collect()
    }
}

/// Reads the sizes and bytes of an IDX file.
fn idx(folder: &Path, name: &str) -> Result<(Vec<usize>, Vec<u8>)> {
    const BYTES: u8 = 8;
    let (plain, packed) = (folder.join(name), folder.join(format!("{name}.gz")));
    let mut content = Vec::new();
    if plain.is_file() {
        File::open(&plain).and_then(|mut file| file.read_to_end(&mut content))
    } else {
        File::open(&packed).and_then(|file| MultiGzDecoder::new(file).read_to_end(&mut content))
    }
    .with_context(|| format!("read {} or {}", plain.display(), packed.display()))?;
    let damaged = || format!("{} is no IDX file of bytes", plain.display());
    let (head, rest) = content.split_first_chunk::<4>().with_context(damaged)?;
    let [0, 0, BYTES, dimensions] = *head else { anyhow::bail!(damaged()) };
    let (sizes, values) = rest.split_at_checked(4 * usize::from(dimensions)).with_context(damaged)?;
    let sizes: Vec<usize> =
        sizes.as_chunks::<4>().0.iter().map(|size| u32::from_be_bytes(*size) as usize).collect();
    let all = sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    ensure!(all == Some(values.len()), damaged());
    Ok((sizes, values.to_vec()))
}
