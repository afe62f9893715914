//! The user's interrupt (`SIGINT`, `SIGTERM`), checked while waiting for other processes: as the error
//! propagates, all started processes end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// A shell's exit code of an interrupted process.
const INTERRUPTED: i32 = 130;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes [`check`] fail after such a signal; a second one ends the process at once, without its children.
///
/// # Errors
/// The system accepts no handler.
pub fn watch() -> io::Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // Tests the flag of an earlier signal, so it comes first.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(asked))?;
        flag::register(signal, Arc::clone(asked))?;
    }
    Ok(())
}

/// Checks for an interrupt.
///
/// # Errors
/// A signal came since [`watch`].
pub fn check() -> Result<()> {
    ensure!(!ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed)), "interrupted");
    Ok(())
}
