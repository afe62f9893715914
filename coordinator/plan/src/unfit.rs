//! Reasons for the lack of a plan, and remedies.

use longhaul_common::memory::{Memory, PerMemory};
use longhaul_common::units::Bytes;

/// Why a plan is none.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unfit {
    /// Something does not fit.
    #[error("rank {rank} needs {}{}, but has {}", Bytes(*needed_bytes as u64), whose(*memory), Bytes(*bytes as u64))]
    Memory {
        /// Of which rank.
        rank: usize,
        /// Which memory is too small.
        memory: Memory,
        /// Bytes that it would need.
        needed_bytes: f64,
        /// Bytes of its smallest device.
        bytes: f64,
    },
    /// No schedule goes with the numbers.
    #[error("{0}")]
    Schedule(String),
}

/// No plan fits.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "no plan fits: {closest}. The model's parameters and the state kept with them take {}. {} may help",
    totals(*fixed_bytes, *memory_bytes),
    remedy(closest)
)]
pub struct NoPlan {
    /// Shortfall of the plan that comes closest.
    pub closest: Unfit,
    /// Bytes of the parameters alone.
    pub fixed_bytes: PerMemory,
    /// Bytes of all devices; zero where none has such a memory.
    pub memory_bytes: PerMemory,
}

impl Unfit {
    /// Ratio of the need to the available memory.
    pub(super) fn times(&self) -> f64 {
        match self {
            Self::Memory { needed_bytes, bytes, .. } => needed_bytes / bytes,
            Self::Schedule(_) => f64::INFINITY,
        }
    }
}

/// Returns the smaller of two shortfalls: of known ones, that with the lower ratio.
pub(super) fn closer(closest: Option<Unfit>, next: Unfit) -> Option<Unfit> {
    Some(match closest {
        Some(closest) if closest.times() <= next.times() => closest,
        _ => next,
    })
}

/// Names the memory.
fn whose(memory: Memory) -> &'static str {
    match memory {
        Memory::Machine => "",
        Memory::Gpu => " of its GPU's memory",
        Memory::Host => " of host memory",
    }
}

/// Describes the parameters' need of each memory present, beside its size.
fn totals(fixed: PerMemory, has: PerMemory) -> String {
    let total = |memory: Memory| {
        let (fixed, has) = (Bytes(fixed[memory] as u64), Bytes(has[memory] as u64));
        match memory {
            Memory::Machine => format!("{fixed}, and all devices have {has} in total"),
            Memory::Gpu => format!("{fixed} on GPUs, which have {has} in total"),
            Memory::Host => format!("{fixed} in host memory, which has {has} in total"),
        }
    };
    let is_there = |memory: &Memory| has[*memory] > 0.0;
    Memory::ALL.into_iter().filter(is_there).map(total).collect::<Vec<_>>().join("; ")
}

fn remedy(closest: &Unfit) -> &'static str {
    match closest {
        Unfit::Memory { memory: Memory::Host, .. } => {
            "More memory in the machines with GPUs, more machines with fewer GPUs each, a strategy with less state (sync.preset) or a smaller model"
        }
        _ => "More or larger devices, a smaller train.micro_batch or a smaller model",
    }
}
