//! Whether a part of the model fits this worker.

use std::fs;

use anyhow::{Result, ensure};
use longhaul_common::config::RunConfig;
use longhaul_common::model::{BlockCost, ModelSpec, StageBytes, parameter_bytes};
use longhaul_common::pipeline::{Held, PipelineSchedule, held_most};
use longhaul_common::units::Bytes;
use tch::Device;

use crate::cli::JoinArgs;
use crate::collective::gpu_memory_bytes;
use crate::engine::choose_device;

/// Micro-batches that are followed to see how many are kept at a time: with more, no schedule but one keeps more.
const FOLLOWED_MAX: u32 = 1 << 12;

/// Bytes that a part of a model may take: as the user says, or else what the device has that nobody uses now. Where that cannot be found out, whatever is asked for.
pub(super) fn allowed(args: &JoinArgs) -> u64 {
    let found = || match choose_device(&args.device).ok()? {
        Device::Cuda(index) => gpu_memory_bytes(index).ok(),
        _ => available(&fs::read_to_string("/proc/meminfo").ok()?),
    };
    args.memory_bytes().or_else(found).unwrap_or(u64::MAX)
}

/// What Linux takes for available, in `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Refuses a part of the model that needs more than is allowed.
///
/// # Errors
/// Says what it needs, and what would help.
pub(super) fn check(allowed: Option<u64>, part: &ModelSpec, config: &RunConfig, rank: u32) -> Result<()> {
    let Some(allowed) = allowed else { return Ok(()) };
    let needed = needed(part, config, rank);
    let seats = config.parallel.seats();
    ensure!(
        needed <= allowed,
        "part {} of {seats} of the model needs {}, and --memory-gib allows {}: let more workers share a copy (parallel.stages in run.toml, or parallel.tensor within a site; \
         `coordinator plan` says how), compute activations again (train.recompute), or take a smaller train.micro_batch",
        rank + 1,
        Bytes(needed),
        Bytes(allowed)
    );
    Ok(())
}

/// Bytes for parameters, moments, updates and the activations that wait for their backward pass. Buffers of the network and of libtorch come on top.
fn needed(part: &ModelSpec, config: &RunConfig, rank: u32) -> u64 {
    let sequence = config.data.sequence_length;
    let blocks = part.blocks(sequence, config.train.precision);
    let sequences = config.train.micro_batch.min(config.train.batch.div_ceil(config.replicas()));
    let tokens = f64::from(sequences) * f64::from(sequence);
    let of_chunk = |chunk: &std::ops::Range<u32>| {
        let held: &[BlockCost] = blocks.get(chunk.start as usize..chunk.end as usize).unwrap_or_default();
        StageBytes::of(held, config.train.recompute, tokens, parameter_bytes(&config.sync))
    };
    let stages: Vec<StageBytes> = part.chunks.iter().map(of_chunk).collect();
    let borrowed = part.borrowed().map_or(0, |tensor| tensor.count()) as f64;
    // The value that is borrowed, and its gradient, in f32.
    let held = StageBytes::holding(&stages, &held(config, rank)) + 8.0 * borrowed;
    held as u64 + config.parallel.remembered_bytes(rank)
}

/// Micro-batches, times chunks, whose activations are held at a time, or what is left of them.
fn held(config: &RunConfig, rank: u32) -> Vec<Held> {
    let parallel = &config.parallel;
    let all_open = |open| vec![Held { open, left: 0 }];
    if !parallel.is_pipelined() {
        return all_open(1);
    }
    let micro_batches = (config.train.batch / config.replicas()).div_ceil(config.train.micro_batch);
    if parallel.schedule == PipelineSchedule::Gpipe {
        return all_open(micro_batches);
    }
    let tasks = parallel.pipeline(micro_batches.clamp(1, FOLLOWED_MAX)).tasks();
    let own = tasks.ok().and_then(|lists| lists.get(rank as usize).map(|list| held_most(list)));
    own.unwrap_or_else(|| all_open(micro_batches))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(parallel: &str) -> RunConfig {
        RunConfig::parse(&format!(
            "[run]\nname = \"r\"\nworkers = 4\nsteps = 9\n[model]\nkind = \"gpt2\"\nlayers = 6\nwidth = 64\nheads = 4\ncontext = 32\n\
             [data]\npath = \"none\"\nsequence_length = 32\n[train]\nbatch = 32\nmicro_batch = 2\n[parallel]\n{parallel}\n"
        ))
        .unwrap()
    }

    fn part(config: &RunConfig, rank: usize) -> ModelSpec {
        let whole = ModelSpec::resolve(&config.model, 256).unwrap();
        whole.parts(&config.parallel, 32).unwrap().remove(rank)
    }

    #[test]
    fn what_is_available_is_read_from_the_kernel() {
        let meminfo = "MemTotal:       24607544 kB\nMemFree:         1000 kB\nMemAvailable:   20185920 kB\n";
        assert_eq!(available(meminfo), Some(20_185_920 * 1024));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
        assert!(
            available(&fs::read_to_string("/proc/meminfo").unwrap()).is_some_and(|bytes| bytes > 1 << 20)
        );
    }

    #[test]
    fn a_part_needs_less_than_the_whole_and_more_in_flight_need_more() {
        let whole = config("");
        let all = needed(&part(&whole, 0), &whole, 0);
        let parameters = part(&whole, 0).parameter_count();
        assert!(all > 78 * parameters && all < 78 * parameters + 10_000_000, "{all} for {parameters}");
        let halves = config("stages = 2");
        assert!((0..2).all(|rank| needed(&part(&halves, rank), &halves, rank as u32) < all));
        let gpipe = config("stages = 2\nschedule = \"gpipe\"");
        let open = |config: &RunConfig, rank| held(config, rank).iter().map(|held| held.open).max();
        assert_eq!((open(&halves, 0), open(&halves, 1), open(&gpipe, 1)), (Some(2), Some(1), Some(8)));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would_help() {
        let config = config("");
        let part = part(&config, 0);
        assert!(check(None, &part, &config, 0).is_ok() && check(Some(1 << 30), &part, &config, 0).is_ok());
        let error = check(Some(1 << 20), &part, &config, 0).unwrap_err().to_string();
        assert!(error.contains("1.05 MB") && error.contains("parallel.stages"), "{error}");
    }
}
