//! Common options of benchmarks.

use std::path::PathBuf;

use clap::Args;

/// Duration.
#[derive(Args, Clone, Copy)]
pub struct Quick {
    /// Takes a fraction of the time, for a first look; published figures need the whole run
    #[arg(long)]
    pub quick: bool,
}

impl Quick {
    /// Returns the first for a quick run, otherwise the second.
    pub fn choose<T>(self, quick: T, whole: T) -> T {
        if self.quick { quick } else { whole }
    }
}

/// Seed of randomness.
#[derive(Args)]
pub struct Seed {
    /// The same number gives the same cases
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// Reference for comparison.
#[derive(Args)]
pub struct Python {
    /// A Python with PyTorch, which is also measured
    #[arg(long, value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
}

/// Selection of cases by name.
#[derive(Args, Clone)]
pub struct Only {
    /// Only cases whose names contain this; `=NAME`: only the case of exactly this name
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
}

impl Only {
    /// Whether the case of this name is selected.
    pub fn wants(&self, case: &str) -> bool {
        self.only.as_deref().is_none_or(|only| match only.strip_prefix('=') {
            Some(name) => case == name,
            None => case.contains(only),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_chooses_and_nothing_chooses_all() {
        let only = |only: Option<&str>| Only { only: only.map(str::to_owned) };
        assert!(only(None).wants("dense") && only(Some("den")).wants("dense"));
        assert!(!only(Some("sparse")).wants("dense"));
        assert!(only(Some("=auto")).wants("auto") && !only(Some("=auto")).wants("auto with muon"));
    }
}
