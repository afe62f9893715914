//! Memory of processes.

use std::fmt::Display;

use anyhow::{Context, Result};

/// Returns the bytes of a field of proc_pid_status(5), as `RssAnon`. `process`: its number, or `self`.
///
/// # Errors
/// There is no such process or field.
pub fn bytes(process: impl Display, field: &str) -> Result<f64> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib: u64 = value
        .and_then(|value| value.trim().strip_suffix(" kB")?.parse().ok())
        .with_context(|| format!("{path} has no {field} in kB"))?;
    Ok((kib << 10) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_what_it_has_written() {
        let before = bytes("self", "RssAnon").unwrap();
        let written = vec![1u8; 64 << 20];
        let more = bytes("self", "RssAnon").unwrap() - before;
        assert!((more / f64::from(64 << 20) - 1.0).abs() < 0.2, "{more}");
        assert_eq!(written[12345], 1);
        assert!(bytes("self", "Rss").is_err() && bytes("self", "Threads").is_err());
    }
}
