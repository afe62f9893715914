//! Durations of the parts of a demo.

use std::fmt;
use std::time::Duration;

/// Parts in chronological order.
#[derive(Debug, Default)]
pub struct Parts(Vec<(&'static str, Duration)>);

impl Parts {
    /// Adds a finished part.
    pub fn add(&mut self, name: &'static str, took: Duration) {
        self.0.push((name, took));
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, took)) in self.0.iter().enumerate() {
            let gap = if index == 0 { "" } else { ", " };
            write!(formatter, "{gap}{name} {:.1} s", took.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_listed_in_their_order_with_their_seconds() {
        let mut parts = Parts::default();
        assert_eq!(parts.to_string(), "");
        parts.add("build", Duration::from_millis(61_250));
        parts.add("to a first loss", Duration::from_secs(4));
        assert_eq!(parts.to_string(), "build 61.2 s, to a first loss 4.0 s");
    }
}
