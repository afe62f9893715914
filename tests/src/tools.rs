//! Tools that some tests ask for their opinion, and that not every machine has.

use std::fs::File;
use std::io::Write as _;

/// A variable with which a tool that is missing is an error: where all of them should be, a test that is skipped would go unnoticed.
pub const EVERY_TOOL: &str = "LONGHAUL_EVERY_TOOL";
/// A variable that names a file to which notices are added: `cargo xtask test` shows them once more below its table.
pub const NOTICES: &str = "LONGHAUL_NOTICES";

/// Says that a test is skipped, and why.
///
/// # Panics
/// [`EVERY_TOOL`] is set.
pub fn skipped(why: &str) {
    assert!(std::env::var_os(EVERY_TOOL).is_none(), "{EVERY_TOOL} is set, and {why}");
    notice(why);
}

/// Says what a test does not do here, and why; it is no error, as no machine has all of that.
pub fn notice(why: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("notice: {name} is skipped, as {why}\n");
    // Not by a macro: the harness would keep it to itself where the test passes. A notice that cannot be written is no reason to fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    let notices = std::env::var_os(NOTICES).map(|path| File::options().create(true).append(true).open(path));
    if let Some(Ok(mut notices)) = notices {
        let _ = notices.write_all(line.as_bytes());
    }
}
