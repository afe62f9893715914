//! Optional tools of tests, which not every machine has.

use std::fs::File;
use std::io::Write as _;

/// Variable that makes a missing tool an error: where all should be installed, a skipped test would go
/// unnoticed.
pub const EVERY_TOOL: &str = "LONGHAUL_EVERY_TOOL";
/// Variable with a file to which notices are appended: `cargo xtask test` repeats them below its table.
pub const NOTICES: &str = "LONGHAUL_NOTICES";

/// Reasons that CI machines cannot fix, by words of each. All others fail with [`EVERY_TOOL`].
const ACCEPTED: [&str; 4] = [
    // No GPU, and libtorch for CPUs contains no NCCL.
    "libtorch sees 0 GPUs",
    "nvidia-nccl-cu13",
    // No distribution packages it, and compiling it takes minutes. Another test follows the book's links
    // without it.
    "mdbook is not installed",
    // A model of 90 MB from another package index than the tools'.
    "LONGHAUL_MINILM names no folder",
];

/// Reports that a test, or a part of it, is skipped, with the reason.
///
/// # Panics
/// [`EVERY_TOOL`] is set, and the reason is not on the list.
pub fn skipped(why: &str) {
    let is_accepted = ACCEPTED.iter().any(|reason| why.contains(reason));
    assert!(is_accepted || std::env::var_os(EVERY_TOOL).is_none(), "{EVERY_TOOL} is set, and {why}");
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("notice: {name} is skipped, as {why}\n");
    // Not by a macro: the harness would capture the output of a passing test. A notice that cannot be written
    // is not a failure.
    let _ = std::io::stderr().write_all(line.as_bytes());
    let notices = std::env::var_os(NOTICES).map(|path| File::options().create(true).append(true).open(path));
    if let Some(Ok(mut notices)) = notices {
        let _ = notices.write_all(line.as_bytes());
    }
}
