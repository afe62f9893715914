//! The user's wish to stop (`SIGINT`, `SIGTERM`), which those who wait for other processes look at: as the error goes up, everything that was started ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, ensure};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What a shell says of a process that was interrupted.
const INTERRUPTED: i32 = 130;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on such a signal makes [`check`] fail, and a second one ends the process at once, without those that it has started.
///
/// # Errors
/// The system takes no handler.
pub fn watch() -> io::Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // Looks at what was set by an earlier one, so it comes first.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(asked))?;
        flag::register(signal, Arc::clone(asked))?;
    }
    Ok(())
}

/// Whether the user wishes to go on.
///
/// # Errors
/// A signal came since [`watch`].
pub fn check() -> Result<()> {
    ensure!(!ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed)), "interrupted");
    Ok(())
}
