//! Cores that are idle while the device computes.

use std::num::NonZeroUsize;

/// Sums the activity of this machine's cores during the device's steps, whichever process causes it. With a worker per core, none is spare, although each worker
/// trains on one.
#[derive(Debug)]
pub(super) struct SpareCores {
    /// Cores that this process may use besides those of its device.
    allowed: usize,
    before: Option<Reading>,
    idle: u64,
    total: u64,
    cores: u64,
}

/// The activity of all cores since boot, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    idle: u64,
    total: u64,
    cores: u64,
}

impl SpareCores {
    /// Excludes the `training` cores that the device occupies.
    pub fn beside(training: usize) -> Self {
        // A container may have fewer cores than the machine.
        let allowed = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self { allowed: allowed.saturating_sub(training), before: None, idle: 0, total: 0, cores: 0 }
    }

    /// Starts with a step of the device.
    pub fn begin(&mut self) {
        self.before = Reading::now();
    }

    /// Ends with the step.
    pub fn end(&mut self) {
        if let Some(before) = self.before.take()
            && let Some(after) = Reading::now()
        {
            self.add(before, after);
        }
    }

    fn add(&mut self, before: Reading, after: Reading) {
        self.idle += after.idle.saturating_sub(before.idle);
        self.total += after.total.saturating_sub(before.total);
        self.cores = after.cores;
    }

    /// Returns the average number of spare cores; zero if the system does not report it.
    pub fn count(&self) -> f32 {
        self.idle_cores().min(self.allowed as f32)
    }

    fn idle_cores(&self) -> f32 {
        if self.total == 0 { 0.0 } else { (self.idle as f64 / self.total as f64 * self.cores as f64) as f32 }
    }
}

impl Reading {
    fn now() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses `/proc/stat` (`proc_stat(5)`): a line for all cores, `cpu user nice system idle iowait irq softirq steal …`, and one for each.
    fn parse(text: &str) -> Option<Self> {
        /// Later fields are already included in these.
        const FIELDS: usize = 8;
        let mut lines = text.lines();
        let all = lines.next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            all.split_whitespace().take(FIELDS).map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[_, _, _, idle, iowait, ..] = ticks.as_slice() else { return None };
        let cores = lines.take_while(|line| line.starts_with("cpu")).count() as u64;
        Some(Self { idle: idle + iowait, total: ticks.iter().sum(), cores })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_tells_is_read() {
        let text =
            "cpu  100 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 5 6\ncpu_something 1\n";
        assert_eq!(Reading::parse(text), Some(Reading { idle: 450, total: 621, cores: 2 }));
        for bad in ["", "cpu", "cpu  1 2 3", "cpu  1 2 3 x 5", "intr 1"] {
            assert_eq!(Reading::parse(bad), None, "{bad}");
        }
        #[cfg(target_os = "linux")]
        assert!(Reading::now().is_some_and(|reading| reading.cores > 0 && reading.idle <= reading.total));
    }

    #[test]
    fn cores_are_to_spare_as_far_as_they_were_idle_while_the_device_computed() {
        let reading = |idle, total| Reading { idle, total, cores: 4 };
        let mut spare = SpareCores::beside(usize::MAX);
        assert_eq!(spare.idle_cores(), 0.0);
        spare.add(reading(1000, 9000), reading(1020, 9040));
        assert_eq!(spare.idle_cores(), 2.0);
        // Later steps, without idle time.
        spare.add(reading(1500, 9900), reading(1500, 9940));
        assert_eq!(spare.idle_cores(), 1.0);
        assert_eq!(spare.count(), 0.0, "the machine has no more than what trains");
    }
}
