//! cargo-deny: licences, banned and duplicate crates, sources, and known vulnerabilities.

use std::process::Stdio;

use anyhow::bail;

use crate::checkout::Checkout;
use crate::verify::step::{Report, Step};

/// Checks the policy of `deny.toml`, and advisories if their database is available.
pub fn steps(checkout: &Checkout, required: bool) -> Vec<Report> {
    let policy = Step::new("cargo-deny: policy");
    if !is_installed(checkout) {
        let notice = "cargo-deny is not installed; cargo install --locked cargo-deny";
        return vec![if required { policy.checked(|| bail!(notice)) } else { policy.skipped(notice) }];
    }
    let policy = policy.captured(checkout.cargo().args([
        "deny",
        "--locked",
        "--all-features",
        "check",
        "bans",
        "licenses",
        "sources",
    ]));
    let advisories = Step::new("cargo-deny: advisories");
    let database = checkout
        .cargo()
        .args(["deny", "fetch", "db"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let advisories = if database.is_ok_and(|status| status.success()) {
        advisories.captured(checkout.cargo().args([
            "deny",
            "--locked",
            "--all-features",
            "check",
            "--disable-fetch",
            "advisories",
        ]))
    } else {
        advisories.skipped("the database of the RustSec project cannot be reached from here")
    };
    vec![policy, advisories]
}

fn is_installed(checkout: &Checkout) -> bool {
    checkout
        .cargo()
        .args(["deny", "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
