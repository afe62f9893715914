//! The manifests in `deploy/kubernetes`: valid by Kubernetes' own schemas, restricted, and consistent with each other.
//! That the binaries understand their arguments is tested beside the binaries.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's own helpers fail the test, or say why it is skipped"
)]

mod consistency;
mod restricted;
mod schemas;

use longhaul_tests::kubernetes::Manifests;

/// Every folder that one applies.
const KUSTOMIZATIONS: [&str; 2] = ["base", "second-site"];

fn built() -> impl Iterator<Item = (&'static str, Manifests)> {
    KUSTOMIZATIONS.into_iter().map(|folder| (folder, Manifests::build(folder).unwrap()))
}
