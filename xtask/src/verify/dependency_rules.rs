//! The "must never know" column of ARCHITECTURE.md, asserted with `cargo tree`.

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;

/// A crate of the workspace, and packages that may not be among its dependencies, however far down.
struct Rule {
    crate_name: &'static str,
    never_knows: &'static [&'static str],
}

const RULES: [Rule; 6] = [
    Rule { crate_name: "longhaul-common", never_knows: &["tokio", "quinn", "socket2", "tch", "torch-sys"] },
    Rule { crate_name: "longhaul-proto", never_knows: &["tch", "torch-sys", "aws-lc-rs"] },
    Rule { crate_name: "longhaul-coordinator", never_knows: &["tch", "torch-sys"] },
    Rule { crate_name: "longhaul-worker", never_knows: &["longhaul-coordinator"] },
    Rule { crate_name: "longhaul-emulator", never_knows: &["tch", "torch-sys"] },
    Rule { crate_name: "xtask", never_knows: &["tch", "torch-sys"] },
];

/// Checks every rule.
///
/// # Errors
/// Names each forbidden dependency that is there, with the command that shows how it came in.
pub fn check(checkout: &Checkout) -> Result<()> {
    let mut violations = Vec::new();
    for rule in &RULES {
        for package in known_forbidden(checkout, rule)? {
            violations.push(format!(
                "{} depends on {package}; see: cargo tree -p {} -e all -i {package}",
                rule.crate_name, rule.crate_name
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
        .args(["tree", "--locked", "--package", rule.crate_name, "--all-features", "--target", "all"])
        .args(["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"])
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
        let rule = Rule { crate_name: "xtask", never_knows: &["clap", "clap_lex", "tch"] };
        let found = known_forbidden(&Checkout::of_this_run(), &rule).unwrap();
        assert_eq!(found, ["clap", "clap_lex"]);
    }

    #[test]
    fn a_rule_about_a_crate_that_does_not_exist_is_an_error() {
        let rule = Rule { crate_name: "longhaul-nonexistent", never_knows: &["tch"] };
        assert!(known_forbidden(&Checkout::of_this_run(), &rule).is_err());
    }
}
