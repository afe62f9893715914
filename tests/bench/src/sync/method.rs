//! Measured methods: every preset, and references.

use longhaul_common::config::{SyncConfig, SyncPreset};

/// One of our strategies.
#[derive(Clone, Debug)]
pub struct Method {
    pub name: &'static str,
    /// Keys of `[sync]`.
    pub sync: String,
    /// Those of them that are on trial.
    pub on_trial: Option<String>,
    /// Keys of `[train]`.
    pub train: &'static str,
    /// Removes the warm-up where only the steady pace is measured.
    pub steady: String,
    /// Remaining warm-up rounds.
    pub warmup_rounds: u64,
    /// Steps per round.
    pub round: u64,
    /// Rounds before the pace is measured.
    pub warm_up: u64,
    /// Repetitions of the pace: a machine's speed varies more than the difference between the targets of
    /// `auto`.
    pub repeats: u32,
    /// Learning rates to try first; the middle one where only one is tried. The same range for all methods
    /// with AdamW-like steps.
    pub rates: [f64; 3],
    /// Best rate of whole runs of `quality`, from `docs/benchmarks/sync.md`.
    pub best_rate: f64,
}

impl Method {
    /// Adds keys of `[sync]`, separated by semicolons.
    pub fn on_trial(mut self, keys: &str) -> Self {
        for key in keys.split(';') {
            self.sync.push('\n');
            self.sync.push_str(key.trim());
        }
        self.on_trial = Some(keys.to_owned());
        self
    }

    /// Name in results.
    pub fn case_name(&self) -> String {
        match &self.on_trial {
            Some(keys) => format!("{}: {keys}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// Returns the keys of `[train]` of a small model.
    pub fn train(&self, learning_rate: f64) -> String {
        format!("{}\n{}", super::small::train(learning_rate), self.train)
    }
}

/// Like AdamW: a step is about as long as the rate, whatever the gradient.
const ADAMW: [f64; 3] = [2.5e-3, 5e-3, 1e-2];
/// By the sign of the gradient all parameters move by the rate, even if gradients disagree.
const SIGN: [f64; 3] = [5e-4, 1e-3, 2e-3];
/// As long as the gradient, whose norm is clipped to 1; AdamW has the same rate in the warm-up.
const SGD: [f64; 3] = [1e-2, 5e-2, 0.3];

/// Keys of `[train]` for Muon in its authors' scale.
const MUON: &str = "optimiser = \"muon\"\nmuon.scale = \"original\"\nmuon.learning_rate = 0.02";

/// Returns every preset, two of them with Muon, and `auto` with a warm-up that is exchanged over any link.
pub fn presets() -> Vec<Method> {
    let with_muon = [(SyncPreset::Auto, "auto with muon"), (SyncPreset::Dense, MUON_REFERENCE)];
    let with_muon = with_muon.map(|(preset, name)| Method {
        name,
        train: MUON,
        steady: if preset == SyncPreset::Auto { "early_share = 0.0".to_owned() } else { String::new() },
        warmup_rounds: 0,
        ..self::preset(preset)
    });
    let auto = preset(SyncPreset::Auto);
    let exchanged = Method {
        name: "auto with exchanged warm-up",
        sync: format!("{}\nwarmup_redundant = \"never\"", auto.sync),
        ..auto
    };
    SyncPreset::ALL.map(preset).into_iter().chain(with_muon).chain([exchanged]).collect()
}

/// Name of the reference of methods with AdamW and SGD, and of PyTorch's.
pub const REFERENCE: &str = "dense";
/// That of methods with Muon.
const MUON_REFERENCE: &str = "dense with muon";
/// Every reference.
pub const REFERENCES: [&str; 2] = [REFERENCE, MUON_REFERENCE];

/// Returns the reference of a method, by its name in results: `dense` with the same optimiser.
pub fn reference(name: &str) -> &'static str {
    let name = name.split(':').next().unwrap_or(name);
    let has_muon = presets().iter().any(|method| method.name == name && method.train == MUON);
    if has_muon { MUON_REFERENCE } else { REFERENCE }
}

/// Returns one preset.
pub fn preset(preset: SyncPreset) -> Method {
    let name = name(preset);
    let round = SyncConfig::of(preset).every;
    // The second moment must be learnt: in few bits, as dense f32 takes six minutes a step at 1 Mbit/s.
    let (warmup_rounds, warmup) = match preset {
        SyncPreset::OnebitAdam => (1, "warmup_values = \"int8\""),
        SyncPreset::Auto => (2, "early_share = 0.0"),
        _ => (0, ""),
    };
    Method {
        name,
        sync: format!("preset = \"{name}\""),
        on_trial: None,
        train: if preset == SyncPreset::Muloco { MUON } else { "" },
        steady: match warmup_rounds {
            0 => "warmup_share = 0.0".to_owned(),
            rounds => format!("warmup_share = 0.0\nwarmup_rounds = {rounds}\n{warmup}"),
        },
        warmup_rounds,
        round,
        warm_up: match preset {
            // It reaches the bits that its link permits after a few rounds; error feedback shifts them over
            // hundreds.
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
            SyncPreset::Auto | SyncPreset::Dense | SyncPreset::Muloco => 5e-3,
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

/// As in `[sync]`.
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
        SyncPreset::Muloco => "muloco",
    }
}

/// PyTorch's methods: a name, the script's arguments, steps per round.
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

    #[test]
    fn methods_are_compared_with_dense_of_their_optimiser() {
        let on_trial = presets().remove(0).on_trial("bits_max = 1.0; groups = 3");
        assert!(on_trial.sync.ends_with("\nbits_max = 1.0\ngroups = 3"), "{}", on_trial.sync);
        assert_eq!(on_trial.case_name(), "auto: bits_max = 1.0; groups = 3");
        let with_muon = ["muloco", "auto with muon", "auto with muon: groups = 3", "dense with muon"];
        assert!(with_muon.iter().all(|name| reference(name) == "dense with muon"));
        assert!(["auto", "dense", "dgc", "PyTorch DDP f32"].iter().all(|name| reference(name) == "dense"));
        assert!(REFERENCES.iter().all(|name| presets().iter().any(|method| method.name == *name)));
    }
}
