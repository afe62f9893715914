//! Tools that some tests ask for their opinion, and that not every machine has.

/// A variable with which a tool that is missing is an error: where all of them should be, a test that is skipped would go unnoticed.
pub const EVERY_TOOL: &str = "LONGHAUL_EVERY_TOOL";

/// Says that a test is skipped, and why.
///
/// # Panics
/// [`EVERY_TOOL`] is set.
#[allow(clippy::print_stdout, reason = "whoever reads a test's output should know what it did not do")]
pub fn skipped(why: &str) {
    assert!(std::env::var_os(EVERY_TOOL).is_none(), "{EVERY_TOOL} is set, and {why}");
    println!("notice: skipped, as {why}");
}
