//! Quantities for display.

use std::fmt;

/// A number of bytes, displayed with a decimal prefix: `1.46 MB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PREFIXES: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
        if self.0 < 1000 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64;
        let mut prefix = 0;
        // 999.95 would be printed as "1000.0", which belongs to the next prefix.
        while value >= 999.95 && prefix + 1 < PREFIXES.len() {
            value /= 1000.0;
            prefix += 1;
        }
        let decimals = if value < 10.0 { 2 } else { 1 };
        write!(f, "{value:.decimals$} {}", PREFIXES[prefix])
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn bytes_are_shown_with_the_prefix_that_fits() {
        let shown = |n| Bytes(n).to_string();
        assert_eq!(shown(999), "999 B");
        assert_eq!(shown(1_460_000), "1.46 MB");
        assert_eq!(shown(43_600_000), "43.6 MB");
        assert_eq!(shown(999_999), "1.00 MB");
        assert_eq!(shown(u64::MAX), "18446.7 PB");
    }
}
