//! What is measured: every preset, and what they are compared with.

use longhaul_common::config::{SyncConfig, SyncPreset};

/// A strategy of ours.
#[derive(Clone, Debug)]
pub struct Method {
    pub name: &'static str,
    /// Keys of `[sync]`.
    pub sync: String,
    /// What takes the warm-up away, where only the steady pace is measured,
    pub steady: String,
    /// but for so many rounds.
    pub warmup_rounds: u64,
    /// Steps of a round.
    pub round: u64,
    /// Rounds before the pace is measured.
    pub warm_up: u64,
    /// How often the pace is measured: a machine's speed moves by more than what the targets of `auto` are apart.
    pub repeats: u32,
    /// Learning rates that are tried first; the one in the middle where only one is. The same span for all that step as AdamW does.
    pub rates: [f64; 3],
    /// That which is best in whole runs of `quality`, as `docs/benchmarks/sync.md` has it.
    pub best_rate: f64,
}

/// As AdamW does it: a step is about as long as the rate, whatever the gradient.
const ADAMW: [f64; 3] = [2.5e-3, 5e-3, 1e-2];
/// By the sign of the gradient all parameters move by the rate, those too whose gradients disagree.
const SIGN: [f64; 3] = [5e-4, 1e-3, 2e-3];
/// As long as the gradient, whose norm is clipped to 1; AdamW has the same rate in the warm-up.
const SGD: [f64; 3] = [1e-2, 5e-2, 0.3];

/// Every preset as it is.
pub fn presets() -> Vec<Method> {
    SyncPreset::ALL.map(preset).to_vec()
}

/// One of them.
pub fn preset(preset: SyncPreset) -> Method {
    let name = name(preset);
    let round = SyncConfig::of(preset).every;
    // A second moment has to come from somewhere: in few bits, as dense f32 takes six minutes a step at 1 Mbit/s.
    let (warmup_rounds, warmup) = match preset {
        SyncPreset::OnebitAdam => (1, "warmup_values = \"int8\""),
        SyncPreset::Auto => (2, "early_share = 0.0"),
        _ => (0, ""),
    };
    Method {
        name,
        sync: format!("preset = \"{name}\""),
        steady: match warmup_rounds {
            0 => "warmup_share = 0.0".to_owned(),
            rounds => format!("warmup_share = 0.0\nwarmup_rounds = {rounds}\n{warmup}"),
        },
        warmup_rounds,
        round,
        warm_up: match preset {
            // It has the bits that its link allows after a few rounds; what waits in error feedback moves them over hundreds.
            SyncPreset::Auto => 16,
            _ if round > 1 => 1,
            _ => 4,
        },
        repeats: if preset == SyncPreset::Auto { 3 } else { 1 },
        rates: match preset {
            SyncPreset::Dgc => SGD,
            SyncPreset::Demo => SIGN,
            _ => ADAMW,
        },
        best_rate: match preset {
            SyncPreset::Auto | SyncPreset::Dense => 5e-3,
            SyncPreset::Diloco | SyncPreset::OnebitAdam => 2.5e-3,
            SyncPreset::Demo => 4e-3,
            SyncPreset::Dgc => 2e-3,
            SyncPreset::StreamingDiloco
            | SyncPreset::Cocktail
            | SyncPreset::SparseLocal
            | SyncPreset::Powersgd => 1e-2,
        },
    }
}

/// As `[sync]` has it.
fn name(preset: SyncPreset) -> &'static str {
    match preset {
        SyncPreset::Auto => "auto",
        SyncPreset::Dense => "dense",
        SyncPreset::Dgc => "dgc",
        SyncPreset::Powersgd => "powersgd",
        SyncPreset::OnebitAdam => "onebit-adam",
        SyncPreset::Demo => "demo",
        SyncPreset::Diloco => "diloco",
        SyncPreset::StreamingDiloco => "streaming-diloco",
        SyncPreset::Cocktail => "cocktail",
        SyncPreset::SparseLocal => "sparse-local",
    }
}

/// What PyTorch has: a name, the script's arguments, steps of a round.
pub const PYTORCH: [(&str, &[&str], u64); 4] = [
    ("PyTorch DDP f32", &["ddp", "--hook", "none"], 1),
    ("PyTorch DDP fp16", &["ddp", "--hook", "fp16"], 1),
    ("PyTorch DDP PowerSGD", &["ddp", "--hook", "powersgd", "--powersgd-rank", "4"], 1),
    ("PyTorch DiLoCo H=20", &["diloco", "--inner-steps", "20"], 20),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_its_preset() {
        for preset in SyncPreset::ALL {
            assert_eq!(serde_json::json!(preset), name(preset));
        }
    }
}
