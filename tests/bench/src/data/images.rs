//! Throughput of images decoded once, compared with decoding each time and with PyTorch's DataLoader.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use image::RgbImage;
use image::codecs::jpeg::JpegEncoder;
use longhaul_common::config::{DataConfig, ImageConfig, read_toml};
use longhaul_data::{
    Dataset, HostBatch, ReadAhead, ReadRequest, STEPS_AHEAD, Tokenizer, Work, augment, image_sample,
};
use longhaul_engine::{Batch, read_ahead};
use rayon::prelude::*;
use tempfile::TempDir;

use super::{SEED, print};
use crate::kit::clock::{now, seconds_of};
use crate::kit::{progress, python};

/// Columns and rows of the files, as in most of ImageNet.
const SIZE: (u32, u32) = (500, 375);
/// JPEG quality, from 1 to 100.
const QUALITY: u8 = 90;
/// Rows and columns of a sample.
const SIDE: u32 = 224;
const CLASSES: u32 = 8;
const BATCH: usize = 64;
/// Passes measured, after the first.
const PASSES: usize = 3;
/// First passes, each after one without a cache: the median counts.
const ROUNDS: usize = 15;
/// Copies of each sample while a folder is prepared: decoded, and in a shard; and one to spare.
const COPIES: u64 = 3;
/// Processes that decode for PyTorch.
const WORKERS: &str = "2";

/// Writes JPEG files, then measures each variant.
pub fn bench(folder: &Path, python: Option<&Path>, quick: bool) -> Result<()> {
    let count = if quick { 64 } else { 2048 };
    let place = folder.join("images");
    let files = write_images(&place, count)?;
    let case = format!("{count} JPEG of {} × {} to {SIDE} × {SIDE}, batch {BATCH}", SIZE.0, SIZE.1);
    let config: DataConfig = read_toml(&format!(
        "validation_share = 0.0\nsources = [{{ path = \"images\", format = \"images\" }}]\n\
         image = {{ height = {SIDE}, width = {SIDE}, classes = {CLASSES}, shift = 16, flip = true }}"
    ))?;
    let config = config.found_at(folder);
    let shape = config.image.clone().context("images have a shape")?;
    // For the page cache; then for the clock, alternating.
    uncached_pass(&files, &shape)?;
    let kept_bytes = u64::from(count) * shape.values() * COPIES;
    let (mut rounds, mut last) = (Vec::new(), None);
    for _ in 0..if quick { 1 } else { ROUNDS } {
        take_memory(folder, kept_bytes)?;
        let uncached_s = uncached_pass(&files, &shape)?;
        drop(last.take());
        take_memory(folder, kept_bytes)?;
        let first = first_pass(&config, folder)?;
        rounds.push([uncached_s, first.pass_s, first.prepared_s]);
        last = Some(first);
    }
    let FirstPass { data, ahead, _cache, .. } = last.context("there is a round")?;
    rounds.sort_by(|[uncached_s, first_s, _], [other_uncached_s, other_s, _]| {
        f64::total_cmp(&(first_s / uncached_s), &(other_s / other_uncached_s))
    });
    let slower =
        |[uncached_s, first_s, _]: &[f64; 3]| format!("{:+.1}", 100.0 * (first_s / uncached_s - 1.0));
    let told = rounds.iter().map(slower).collect::<Vec<_>>().join(", ");
    progress(format!("first passes, in %: {told}"));
    let [uncached_s, first_s, prepared_s] = rounds[rounds.len() / 2];
    let later = || (1..=PASSES as u64).try_for_each(|epoch| cached_pass(&ahead, data.samples(), epoch));
    let later_s = seconds_of(later)? / PASSES as f64;
    let rate = |seconds: f64| f64::from(count) / seconds;
    print(&case, "images_uncached", rate(uncached_s), "samples/s");
    print(&case, "images_first_pass", rate(first_s), "samples/s");
    print(&case, "images_later_passes", rate(later_s), "samples/s");
    print(&case, "speedup_over_uncached", uncached_s / later_s, "");
    print(&case, "first_pass_overhead", first_s / uncached_s - 1.0, "");
    print(&case, "first_pass_until_prepared", prepared_s / first_s, "");
    let Some(python) = python else {
        progress(
            "no --python PROGRAM is given that has PyTorch, numpy and Pillow: DataLoader is not measured",
        );
        return Ok(());
    };
    let pytorch = pytorch(python, &place)?;
    print(&case, "images_pytorch", pytorch, "samples/s");
    print(&case, "speedup_over_pytorch", rate(later_s) / pytorch, "");
    print(&case, "uncached_speedup_over_pytorch", rate(uncached_s) / pytorch, "");
    Ok(())
}

/// Makes the system fill this much memory with a file and free it. The host of a virtual machine may have
/// reclaimed free memory, and its first use then waits for the host, several times as long as for copying.
/// The benchmark excludes that.
fn take_memory(folder: &Path, bytes: u64) -> Result<()> {
    let path = folder.join("memory");
    let mut file = std::fs::File::create(&path).context("create a file")?;
    let part = vec![1; 1 << 20];
    (0..bytes.div_ceil(part.len() as u64)).try_for_each(|_| file.write_all(&part)).context("write a file")?;
    std::fs::remove_file(&path).context("remove a file")
}

/// A pass through images that are not prepared.
struct FirstPass {
    /// Seconds from the start to the last batch.
    pass_s: f64,
    /// Seconds from the start until all is in shards.
    prepared_s: f64,
    ahead: ReadAhead<Batch>,
    data: Arc<Dataset>,
    /// Removed with this.
    _cache: TempDir,
}

fn first_pass(config: &DataConfig, folder: &Path) -> Result<FirstPass> {
    let cache = TempDir::new_in(folder).context("make a folder for the cache")?;
    let began = now();
    let place = (cache.path(), None);
    let data = Arc::new(Dataset::begin_within(config, &Tokenizer::Bytes, place, &Work::default())?);
    let ahead = read_ahead(Arc::clone(&data), SEED, tch::Device::Cpu)?;
    cached_pass(&ahead, data.samples(), 0)?;
    let pass_s = began.elapsed().as_secs_f64();
    data.coming().wait()?;
    Ok(FirstPass { pass_s, prepared_s: began.elapsed().as_secs_f64(), ahead, data, _cache: cache })
}

/// Decodes each file on all cores, shifts and mirrors it, batch after batch. Returns seconds.
fn uncached_pass(files: &[(u32, PathBuf)], shape: &ImageConfig) -> Result<f64> {
    let began = now();
    for (at, files) in files.chunks(BATCH).enumerate() {
        let sample = |(place, (class, path)): (usize, &(u32, PathBuf))| {
            let file = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
            let mut sample = image_sample(file, *class, shape).map_err(anyhow::Error::msg)?;
            augment(&mut sample[..shape.values() as usize], shape, SEED, (at * BATCH + place) as u64);
            anyhow::Ok(sample)
        };
        let samples: Vec<Vec<u8>> = files.par_iter().enumerate().map(sample).collect::<Result<_>>()?;
        let mut batch = HostBatch::of_images(shape.values() as usize);
        samples.iter().for_each(|sample| batch.push_image(sample));
        ensure!(batch.sequences() == files.len(), "a batch has all of its images");
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Reads an epoch as a device does.
fn cached_pass(ahead: &ReadAhead<Batch>, samples: u64, epoch: u64) -> Result<()> {
    let positions: Vec<u64> = (epoch * samples..(epoch + 1) * samples).collect();
    let wanted = |positions: &[u64]| ReadRequest { positions: positions.to_vec(), micro_batch: BATCH };
    let steps: Vec<ReadRequest> = positions.chunks(BATCH).map(wanted).collect();
    for at in 0..steps.len() {
        ahead.take(steps[at..].iter().take(STEPS_AHEAD).cloned())?;
    }
    Ok(())
}

/// Returns the samples per second of a DataLoader that decodes the same files.
fn pytorch(python: &Path, images: &Path) -> Result<f64> {
    let (side, batch, passes) = (SIDE.to_string(), BATCH.to_string(), PASSES.to_string());
    let options = [&*side, &*batch, WORKERS, &*passes].map(AsRef::as_ref);
    let rate = python::run(python, "loader.py", [images.as_os_str()].into_iter().chain(options))?;
    rate.trim().parse().with_context(|| format!("read what python says: {rate}"))
}

/// Writes this many files in folders of classes.
fn write_images(place: &Path, count: u32) -> Result<Vec<(u32, PathBuf)>> {
    for class in 0..CLASSES {
        let folder = place.join(format!("class-{class}"));
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    }
    let write = |number: u32| {
        let class = number % CLASSES;
        let path = place.join(format!("class-{class}/{number:05}.jpg"));
        let mut file = Vec::new();
        JpegEncoder::new_with_quality(&mut file, QUALITY)
            .encode_image(&drawn(number))
            .context("encode an image")?;
        std::fs::write(&path, file).with_context(|| format!("write {}", path.display()))?;
        Ok((class, path))
    };
    (0..count).into_par_iter().map(write).collect()
}

/// Waves of several lengths and directions, and noise: about as many bytes as a photograph of that size.
fn drawn(number: u32) -> RgbImage {
    let wave = |x: f32, y: f32, k: u32| {
        let turn = 0.7 * (number * 5 + k) as f32;
        (0.03 * (k + 1) as f32 * (x * turn.cos() + y * turn.sin())).sin()
    };
    let mut state = u64::from(number) + 1;
    RgbImage::from_fn(SIZE.0, SIZE.1, |column, row| {
        let (x, y) = (column as f32, row as f32);
        // Knuth's multiplier and increment (MMIX).
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let noise = f32::from(state.to_be_bytes()[0]) / 16.0;
        image::Rgb([0, 3, 6].map(|channel| {
            let waves: f32 = (channel..channel + 5).map(|k| wave(x, y, k)).sum();
            (110.0 + 22.0 * waves + noise) as u8
        }))
    })
}
