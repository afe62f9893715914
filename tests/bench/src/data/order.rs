//! Throughput of samples in training order, compared with storage order.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use longhaul_data::{Dataset, ReadRequest, STEPS_AHEAD};
use longhaul_engine::read_ahead;

use super::memory_limit::MemoryLimit;
use super::{SEED, open, print, write_tokens};
use crate::kit::clock::seconds_of;
use crate::kit::progress;

const SEQUENCES: usize = 32;
/// Tokens of a sample: 8 KiB, two pages and a bit.
const LENGTH: u32 = 4096;
/// Ratio of the data to its memory limit.
const OVER_LIMIT: usize = 2;

/// Reads each sample once, in either order, with memory for half of the data; without cgroups, from data that
/// is not cached when a pass begins.
pub fn bench(folder: &Path, quick: bool) -> Result<()> {
    let limit_bytes: usize = if quick { 128 << 20 } else { 512 << 20 };
    let bytes = OVER_LIMIT * limit_bytes;
    write_tokens(&folder.join("order.bin"), bytes / 2)?;
    let data = open(folder, "order.bin", LENGTH)?;
    let samples = data.samples();
    let shuffled = [0, samples].map(|first| (first..first + samples).collect::<Vec<u64>>());
    let stored = [in_stored_order(&data, &shuffled[0])?, in_stored_order(&data, &shuffled[1])?];
    drop(data);
    let limit = MemoryLimit::begin(limit_bytes as u64);
    let case = match &limit {
        Ok(_) => format!("{} MiB in a cgroup of {} MiB", bytes >> 20, limit_bytes >> 20),
        Err(error) => {
            progress(format!("no memory limit ({error:#}): passes begin with data that is not in memory"));
            format!("{} MiB, not in memory at first", bytes >> 20)
        }
    };
    let [sequential_s, shuffled_s] = [passes(folder, &stored)?, passes(folder, &shuffled)?];
    drop(limit);
    let sample_bytes = 2 * LENGTH as usize;
    match super::disk::speeds(&folder.join("order.bin"), sample_bytes) {
        Ok(speeds) => {
            let [sequential, shuffled] = speeds.map(|bytes_per_s| bytes_per_s / sample_bytes as f64);
            print(&case, "disk_sequential", sequential, "samples/s");
            print(&case, "disk_shuffled", shuffled, "samples/s");
            print(&case, "disk_shuffled_over_sequential", shuffled / sequential, "");
        }
        Err(error) => progress(format!("the disk by itself is not measured: {error:#}")),
    }
    for (of, place) in [("", 0), ("later_", 1)] {
        let (sequential_s, shuffled_s) = (sequential_s[place], shuffled_s[place]);
        print(&case, &format!("{of}sequential"), samples as f64 / sequential_s, "samples/s");
        print(&case, &format!("{of}shuffled"), samples as f64 / shuffled_s, "samples/s");
        print(&case, &format!("{of}shuffled_over_sequential"), sequential_s / shuffled_s, "");
    }
    Ok(())
}

/// Sorts positions by the place of their samples.
fn in_stored_order(data: &Dataset, positions: &[u64]) -> Result<Vec<u64>> {
    let placed = positions.iter().map(|&position| Ok((data.sample(position, SEED)?.index, position)));
    let mut placed: Vec<(u64, u64)> = placed.collect::<Result<_>>()?;
    placed.sort_unstable();
    Ok(placed.into_iter().map(|(_, position)| position).collect())
}

/// Returns the seconds of reading the first epoch by a restarted worker, from uncached data whose blocks it
/// checks on first use; and of reading the second one.
fn passes(folder: &Path, epochs: &[Vec<u64>; 2]) -> Result<[f64; 2]> {
    forget(&folder.join("cache/data/shards"))?;
    let data: Arc<Dataset> = open(folder, "order.bin", LENGTH)?;
    Ok([pass(&data, &epochs[0])?, pass(&data, &epochs[1])?])
}

fn pass(data: &Arc<Dataset>, positions: &[u64]) -> Result<f64> {
    let ahead = read_ahead(Arc::clone(data), SEED, tch::Device::Cpu)?;
    let steps: Vec<ReadRequest> = positions
        .chunks(SEQUENCES)
        .map(|positions| ReadRequest { positions: positions.to_vec(), micro_batch: SEQUENCES })
        .collect();
    seconds_of(|| {
        for at in 0..steps.len() {
            ahead.take(steps[at..].iter().take(STEPS_AHEAD).cloned())?;
        }
        Ok(())
    })
}

/// Evicts a folder's unmapped files from the page cache.
fn forget(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let file = std::fs::File::open(entry?.path()).context("open a shard")?;
        file.sync_all().context("write a shard to the disk")?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).context("forget a shard")?;
    }
    Ok(())
}
