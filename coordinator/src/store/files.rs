//! The small files beside the database, which the command line reads.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// File with the token for write calls of the HTTP API.
pub const API_TOKEN_FILE: &str = "api-token";
/// File with the token for reading.
pub const API_READ_TOKEN_FILE: &str = "api-read-token";
/// Holds where the HTTP API listens.
pub const HTTP_ADDRESS_FILE: &str = "http-address";
/// No such file is longer, in bytes.
const SMALL_FILE_BYTES_MAX: u64 = 4096;

/// Writes a file that only its owner may read; it is complete or absent.
///
/// # Errors
/// The system's error.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    write(path, text, 0o600)
}

/// Writes a world-readable file, likewise.
///
/// # Errors
/// The system's error.
pub fn write_public(path: &Path, text: &str) -> io::Result<()> {
    write(path, text, 0o644)
}

fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let partial = path.with_extension("partial");
    // One that a crash left behind may have another mode.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = options.open(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(partial, path)
}

/// Reads a small file; `None`: absent.
///
/// # Errors
/// The system's error.
pub fn read_small(path: &Path) -> io::Result<Option<String>> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    file.take(SMALL_FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(Some(text.trim().to_owned()))
}
