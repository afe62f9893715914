//! Whether a part of the model fits into this worker's memory.

use std::fs;

use anyhow::{Result, ensure};
use longhaul_common::config::RunConfig;
use longhaul_common::memory::{Memory, StageBytes, parameter_bytes};
use longhaul_common::model::{BlockCost, ModelSpec};
use longhaul_common::pipeline::{Held, PipelineSchedule, held_most};
use longhaul_common::units::Bytes;
use tch::{Cuda, Device};

use super::control_group;
use crate::cli::JoinArgs;
use longhaul_engine::claim_device;
use longhaul_nccl::gpu_memory_bytes;

/// Limit on simulated micro-batches when counting those held at a time; beyond it, only one schedule holds more.
const FOLLOWED_MAX: u32 = 1 << 12;

/// Memory available to a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes of compute memory: as configured, else the free memory. Unlimited if unknown.
    pub bytes: u64,
    /// For a GPU: bytes of host memory besides. `None`: compute and host memory are the same.
    pub host_bytes: Option<u64>,
}

/// Returns the free bytes of a GPU; if unknown, a warning names the option that sets them.
fn free_on_gpu(index: usize) -> Option<u64> {
    let unknown = |error: &_| {
        tracing::warn!(
            "the free memory of cuda:{index} is unknown, so every part of the model counts as fitting; set a limit with --memory-gib: {error}"
        );
    };
    gpu_memory_bytes(index).inspect_err(unknown).ok()
}

/// Returns the memory available on this machine.
pub(super) fn room(args: &JoinArgs) -> Room {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (found, host_bytes) = match claim_device(&args.device) {
        Ok(Device::Cuda(index)) => {
            let of_group = control_group::free_bytes().map(|bytes| bytes / gpus().max(1));
            let shared = [host_share(&meminfo, gpus()), of_group];
            (free_on_gpu(index), Some(shared.into_iter().flatten().min().unwrap_or(u64::MAX)))
        }
        Ok(_) => {
            let free = [bytes_of(&meminfo, "MemAvailable:"), control_group::free_bytes()];
            (free.into_iter().flatten().min(), None)
        }
        Err(_) => (None, None),
    };
    Room { bytes: args.memory_bytes().or(found).unwrap_or(u64::MAX), host_bytes }
}

/// Returns the host memory that one of `gpus` GPUs may count on: an equal share, as a worker for another GPU may start at any time, and at most the available memory.
fn host_share(meminfo: &str, gpus: u64) -> Option<u64> {
    let each = bytes_of(meminfo, "MemTotal:")? / gpus.max(1);
    Some(each.min(bytes_of(meminfo, "MemAvailable:")?))
}

/// Counts this machine's GPUs as reported by the driver, whether or not this process may use them.
fn gpus() -> u64 {
    let listed = fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, Iterator::count);
    (listed as u64).max(u64::try_from(Cuda::device_count()).unwrap_or(0))
}

/// Parses a line of `/proc/meminfo` or `/proc/<pid>/status`.
fn bytes_of(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Limit on this worker's device memory, and its source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    bytes: u64,
    by: &'static str,
}

/// Returns the limit of the command line, else that of the control group plus this process's present use; `None`: no limit.
pub(super) fn allowed(args: &JoinArgs, device: Device) -> Option<Allowed> {
    let told = args.memory_bytes().map(|bytes| Allowed { bytes, by: "--memory-gib" });
    let own = || bytes_of(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "RssAnon:");
    let by = "its control group (the container's or the job's limit)";
    let group = || {
        let free = control_group::free_bytes()?;
        Some(Allowed { bytes: free.saturating_add(own().unwrap_or(0)), by })
    };
    told.or_else(|| if matches!(device, Device::Cuda(_)) { None } else { group() })
}

/// Refuses a part of the model that needs more of its device's memory than is allowed.
///
/// # Errors
/// The error has the required memory and possible remedies.
pub(super) fn check(
    allowed: Option<Allowed>,
    device: Device,
    part: &ModelSpec,
    config: &RunConfig,
    rank: u32,
) -> Result<()> {
    let Some(Allowed { bytes: allowed, by }) = allowed else { return Ok(()) };
    let (memory, whose) = match device {
        Device::Cuda(_) => (Memory::Gpu, " of its GPU's memory"),
        _ => (Memory::Machine, ""),
    };
    let needed = needed(memory, part, config, rank);
    let ranks_per_replica = config.parallel.ranks_per_replica();
    ensure!(
        needed <= allowed,
        "part {} of {ranks_per_replica} of the model needs {}{whose}, and {by} allows {}: let more workers share a copy (parallel.stages in run.toml, or parallel.tensor within a site; \
         `coordinator plan` says how), compute activations again (train.recompute), or take a smaller train.micro_batch",
        rank + 1,
        Bytes(needed),
        Bytes(allowed)
    );
    Ok(())
}

/// Bytes for parameters, moments, updates and activations that wait for their backward pass, in compute memory. Network and libtorch buffers are extra.
fn needed(memory: Memory, part: &ModelSpec, config: &RunConfig, rank: u32) -> u64 {
    let sequence = config.predictions_per_sample();
    let blocks = part.blocks_in(config);
    let sequences = config.train.micro_batch.min(config.train.batch.div_ceil(config.replicas()));
    let tokens = f64::from(sequences) * f64::from(sequence);
    let of_chunk = |chunk: &std::ops::Range<u32>| {
        let held: &[BlockCost] = blocks.get(chunk.start as usize..chunk.end as usize).unwrap_or_default();
        StageBytes::of(
            memory,
            held,
            config.train.recompute,
            tokens,
            parameter_bytes(&config.sync, &config.train),
        )
    };
    let stages: Vec<StageBytes> = part.chunks.iter().map(of_chunk).collect();
    let borrowed = part.borrowed().map_or(0, |tensor| tensor.count()) as f64;
    // The borrowed value and its gradient, in f32.
    let (stage, _) = config.parallel.place_of(rank);
    let held = StageBytes::holding(&stages, &held(config, stage)) + 8.0 * borrowed;
    // Activation caches of boundaries are in host memory.
    let remembered = if memory == Memory::Gpu { 0 } else { config.parallel.remembered_bytes(stage) };
    held as u64 + remembered
}

/// Micro-batches, times chunks, whose activations a stage holds at a time, or the remainders of these.
fn held(config: &RunConfig, stage: u32) -> Vec<Held> {
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
    let own = tasks.ok().and_then(|lists| lists.get(stage as usize).map(|list| held_most(list)));
    own.unwrap_or_else(|| all_open(micro_batches))
}

#[cfg(test)]
mod tests {
    use longhaul_run_toml::{Gpt2, RunToml};

    use super::*;

    fn config(parallel: &str) -> RunConfig {
        let run = RunToml::new("r").workers(4).steps(9).batch(32).set("train.micro_batch", 2);
        let run = run.gpt2(Gpt2 { layers: 6, width: 64, heads: 4, context: 32 }).lines("parallel", parallel);
        RunConfig::parse(&run.to_string()).unwrap()
    }

    fn part(config: &RunConfig, rank: usize) -> ModelSpec {
        let whole = ModelSpec::resolve(&config.model, 256).unwrap();
        whole.parts(&config.parallel, 32).unwrap().remove(rank)
    }

    #[test]
    fn what_is_available_is_read_from_the_kernel() {
        let meminfo = "MemTotal:       24607544 kB\nMemFree:         1000 kB\nMemAvailable:   20185920 kB\n";
        let available = |meminfo: &str| bytes_of(meminfo, "MemAvailable:");
        assert_eq!(available(meminfo), Some(20_185_920 * 1024));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
        assert!(
            available(&fs::read_to_string("/proc/meminfo").unwrap()).is_some_and(|bytes| bytes > 1 << 20)
        );
    }

    #[test]
    fn gpus_of_a_machine_share_its_memory_and_none_counts_on_what_others_have_taken() {
        let meminfo = "MemTotal:       800 kB\nMemFree:         1 kB\nMemAvailable:   300 kB\n";
        let share = |gpus| host_share(meminfo, gpus).map(|bytes| bytes / 1024);
        assert_eq!([0, 1, 2, 4, 8].map(share), [Some(300), Some(300), Some(300), Some(200), Some(100)]);
        assert_eq!(host_share("", 1), None);
    }

    /// About fifty bytes per parameter belong to the exchange, in host memory.
    #[test]
    fn a_part_needs_less_of_a_gpu_than_of_a_machine_without_one() {
        let config = config("stages = 2\n[parallel.differences]\nmemory_mib = 64");
        let part = part(&config, 0);
        let [gpu, machine] = [Memory::Gpu, Memory::Machine].map(|memory| needed(memory, &part, &config, 0));
        assert_eq!(machine - gpu, (78 - 24) * part.parameter_count() + (64 << 20));
        let told = |bytes| Some(Allowed { bytes, by: "--memory-gib" });
        let allowed = told((gpu + machine) / 2);
        assert!(check(allowed, Device::Cuda(0), &part, &config, 0).is_ok());
        assert!(check(allowed, Device::Cpu, &part, &config, 0).is_err());
        let error = check(told(1 << 20), Device::Cuda(0), &part, &config, 0).unwrap_err().to_string();
        assert!(error.contains("of its GPU's memory, and --memory-gib allows 1.05 MB"), "{error}");
    }

    #[test]
    fn a_part_needs_less_than_the_whole_and_more_in_flight_need_more() {
        let whole = config("");
        let needed = |part: &ModelSpec, config, rank| needed(Memory::Machine, part, config, rank);
        let all = needed(&part(&whole, 0), &whole, 0);
        let parameters = part(&whole, 0).parameter_count();
        assert!(all > 78 * parameters && all < 78 * parameters + 10_000_000, "{all} for {parameters}");
        let halves = config("stages = 2");
        assert!((0..2).all(|rank| needed(&part(&halves, rank), &halves, rank as u32) < all));
        let gpipe = config("stages = 2\nschedule = \"gpipe\"");
        let open = |config: &RunConfig, rank| held(config, rank).iter().map(|held| held.open).max();
        assert_eq!((open(&halves, 0), open(&halves, 1), open(&gpipe, 1)), (Some(2), Some(1), Some(8)));
    }

    /// Rank r has share r % 2 of stage r / 2; earlier stages have more micro-batches in flight.
    #[test]
    fn a_share_of_a_part_needs_less_than_the_part() {
        let (halves, quarters) = (config("stages = 2"), config("stages = 2\ntensor = 2"));
        let needed = |config: &RunConfig, rank: usize| {
            needed(Memory::Machine, &part(config, rank), config, rank as u32)
        };
        for rank in 0..4 {
            assert!(needed(&quarters, rank) < needed(&halves, rank / 2), "{rank}");
        }
        assert_eq!(needed(&quarters, 0), needed(&quarters, 1));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would_help() {
        let config = config("");
        let part = part(&config, 0);
        let check = |bytes: Option<u64>| {
            let allowed = bytes.map(|bytes| Allowed { bytes, by: "its control group" });
            check(allowed, Device::Cpu, &part, &config, 0)
        };
        assert!(check(None).is_ok() && check(Some(1 << 30)).is_ok());
        let error = check(Some(1 << 20)).unwrap_err().to_string();
        assert!(
            error.contains("its control group allows 1.05 MB") && error.contains("parallel.stages"),
            "{error}"
        );
    }
}
