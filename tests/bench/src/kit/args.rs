//! Options that mean the same for all benchmarks that have them.

use std::path::PathBuf;

use clap::Args;

/// How long it may take.
#[derive(Args, Clone, Copy)]
pub struct Quick {
    /// Takes a fraction of the time, for a look; figures to keep need the whole run.
    #[arg(long)]
    pub quick: bool,
}

impl Quick {
    /// The first of two for a quick run, else the second.
    pub fn choose<T>(self, quick: T, whole: T) -> T {
        if self.quick { quick } else { whole }
    }
}

/// Where chance comes from.
#[derive(Args)]
pub struct Seed {
    /// The same number gives the same cases.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// Whom ours is compared with.
#[derive(Args)]
pub struct Python {
    /// A Python with PyTorch, which is measured as well.
    #[arg(long, value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
}

/// Which cases, by their names.
#[derive(Args, Clone)]
pub struct Only {
    /// Only cases whose names contain this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
}

impl Only {
    /// Whether the case of this name is wanted.
    pub fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|only| case.contains(only.as_str()))
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
    }
}
