//! Forbidden dependencies of crates, listed in ARCHITECTURE.md among its invariants, asserted with
//! `cargo tree`.

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;

/// A crate of the workspace, and packages forbidden among its direct and indirect dependencies.
struct Rule {
    crate_name: &'static str,
    tree: Tree,
    never_knows: &'static [&'static str],
}

/// The dependencies to check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    /// With all features, and with those of tests.
    Whole,
    /// Only direct ones, without those of tests.
    Direct,
    /// Without optional features, as for `cargo xtask demo` and for benchmarks that do not need libtorch.
    Least,
}

const RULES: [Rule; 24] = [
    whole("longhaul-common", &["tokio", "quinn", "socket2", "tch", "torch-sys"]),
    whole("longhaul-proto", &["tch", "torch-sys", "aws-lc-rs"]),
    whole("longhaul-coordinator", &["tch", "torch-sys"]),
    direct("longhaul-run", &["anyhow", "axum", "longhaul-member", "quinn", "redb", "tokio", "tracing"]),
    direct("longhaul-plan", &["anyhow", "longhaul-run", "quinn", "tokio", "tracing"]),
    whole("longhaul-data", &["tch", "torch-sys", "longhaul-worker", "longhaul-coordinator"]),
    whole(
        "longhaul-checkpoint",
        &["tch", "torch-sys", "longhaul-data", "longhaul-worker", "longhaul-coordinator"],
    ),
    whole("longhaul-collective", &["tch", "torch-sys", "longhaul-worker", "longhaul-coordinator"]),
    whole(
        "longhaul-member",
        &["tch", "torch-sys", "longhaul-engine", "longhaul-worker", "longhaul-coordinator"],
    ),
    direct("longhaul-member", &["tokio", "quinn", "socket2", "rustix", "object_store", "longhaul-data"]),
    whole(
        "longhaul-peer",
        &["tch", "torch-sys", "longhaul-engine", "longhaul-worker", "longhaul-coordinator"],
    ),
    whole(
        "longhaul-flight",
        &["tch", "torch-sys", "longhaul-peer", "longhaul-worker", "longhaul-coordinator"],
    ),
    whole("longhaul-nccl", &["longhaul-engine", "longhaul-worker", "longhaul-coordinator"]),
    whole(
        "longhaul-engine",
        &["longhaul-checkpoint", "longhaul-nccl", "longhaul-worker", "longhaul-coordinator"],
    ),
    whole("longhaul-worker", &["longhaul-coordinator"]),
    whole("longhaul-worker-launch", &["tch", "torch-sys", "longhaul-worker"]),
    whole("longhaul-sim", &["tch", "torch-sys", "longhaul-engine", "longhaul-peer", "longhaul-worker"]),
    whole("longhaul-emulator", &["tch", "torch-sys"]),
    whole("xtask", &["tch", "torch-sys"]),
    least("longhaul-bench", &["tch", "torch-sys", "longhaul-data", "longhaul-engine", "longhaul-worker"]),
    least(
        "longhaul-worker",
        &["arrow-array", "cudarc", "image", "parquet", "regex-automata", "tokenizers", "url"],
    ),
    least("longhaul-coordinator", &["object_store", "regex-automata", "reqwest", "url"]),
    least("longhaul-emulator", &["longhaul-proto", "tokio", "tun-rs"]),
    least("xtask", &["flate2", "rustls", "sha2", "tokio", "zip"]),
];

const fn whole(crate_name: &'static str, never_knows: &'static [&'static str]) -> Rule {
    Rule { crate_name, tree: Tree::Whole, never_knows }
}

const fn direct(crate_name: &'static str, never_knows: &'static [&'static str]) -> Rule {
    Rule { crate_name, tree: Tree::Direct, never_knows }
}

const fn least(crate_name: &'static str, never_knows: &'static [&'static str]) -> Rule {
    Rule { crate_name, tree: Tree::Least, never_knows }
}

impl Tree {
    /// Returns the arguments of `cargo tree`.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Whole => &["--all-features", "--edges", "normal,build,dev"],
            Self::Direct => &["--all-features", "--edges", "normal,build", "--depth", "1"],
            Self::Least => &["--no-default-features", "--edges", "normal,build"],
        }
    }
}

/// Checks every rule.
///
/// # Errors
/// Names each forbidden dependency, with the command that shows its path.
pub fn check(checkout: &Checkout) -> Result<()> {
    let mut violations = Vec::new();
    for rule in &RULES {
        for package in known_forbidden(checkout, rule)? {
            let (name, arguments) = (rule.crate_name, rule.tree.arguments().join(" "));
            violations.push(format!(
                "{name} depends on {package}; see: cargo tree -p {name} {arguments} -i {package}"
            ));
        }
    }
    if !violations.is_empty() {
        bail!("{}", violations.join("\n"));
    }
    Ok(())
}

fn known_forbidden(checkout: &Checkout, rule: &Rule) -> Result<Vec<String>> {
    let output = checkout
        .cargo()
        .args(["tree", "--locked", "--package", rule.crate_name, "--target", "all"])
        .args(rule.tree.arguments())
        .args(["--prefix", "none", "--format", "{p}"])
        .output()
        .context("run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let listing = String::from_utf8_lossy(&output.stdout);
    let names: Vec<&str> = listing.lines().filter_map(|line| line.split_whitespace().next()).collect();
    if names.first() != Some(&rule.crate_name) {
        bail!("cargo tree listed nothing for {}", rule.crate_name);
    }
    Ok(rule
        .never_knows
        .iter()
        .filter(|package| names.contains(package))
        .map(|&name| name.to_owned())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_dependency_is_found_directly_and_far_down() {
        let rule = whole("xtask", &["clap", "clap_lex", "tch"]);
        let found = known_forbidden(&Checkout::of_this_run(), &rule).unwrap();
        assert_eq!(found, ["clap", "clap_lex"]);
    }

    #[test]
    fn a_rule_about_a_crate_that_does_not_exist_is_an_error() {
        let rule = whole("longhaul-nonexistent", &["tch"]);
        assert!(known_forbidden(&Checkout::of_this_run(), &rule).is_err());
    }
}
