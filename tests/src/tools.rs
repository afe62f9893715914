//! Tools that some tests ask for their opinion, and that not every machine has.

use std::fs::File;
use std::io::Write as _;

/// A variable with which a tool that is missing is an error: where all of them should be, a test that is skipped would go unnoticed.
pub const EVERY_TOOL: &str = "LONGHAUL_EVERY_TOOL";
/// A variable that names a file to which notices are added: `cargo xtask test` shows them once more below its table.
pub const NOTICES: &str = "LONGHAUL_NOTICES";

/// Reasons that a machine of CI cannot mend, by words of each. All others fail with [`EVERY_TOOL`].
const ACCEPTED: [&str; 4] = [
    // It has no GPU, and libtorch for CPUs brings no NCCL.
    "libtorch sees 0 GPUs",
    "nvidia-nccl-cu13",
    // No package of a system has it, and compiling it takes minutes. Another test follows the book's links without it.
    "mdbook is not installed",
    // With its PyTorch 2.5 GB, which CI does not fetch.
    "LONGHAUL_PYTHON names no Python that has transformers",
];

/// Says that a test, or a part of it, is skipped, and why.
///
/// # Panics
/// [`EVERY_TOOL`] is set, and the reason is not on the list.
pub fn skipped(why: &str) {
    let is_accepted = ACCEPTED.iter().any(|reason| why.contains(reason));
    assert!(is_accepted || std::env::var_os(EVERY_TOOL).is_none(), "{EVERY_TOOL} is set, and {why}");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("notice: {name} is skipped, as {why}\n");
    // Not by a macro: the harness would keep it to itself where the test passes. A notice that cannot be written is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    let notices = std::env::var_os(NOTICES).map(|path| File::options().create(true).append(true).open(path));
    if let Some(Ok(mut notices)) = notices {
        let _ = notices.write_all(line.as_bytes());
    }
}
