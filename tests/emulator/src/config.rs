//! Properties of one direction of a link, and their `key=value` notation.

use std::str::FromStr;
use std::time::Duration;

/// Minimum default length of a drop-tail queue: about 43 full packets, so that slow or short links still
/// absorb a burst.
const QUEUE_BYTES_DEFAULT_MIN: u64 = 64 << 10;

/// Maximum bytes of one link in its queue and in flight, which bounds the emulator's memory.
const HELD_BYTES_MAX: u64 = 1 << 30;

/// 1 Gbit/s: fast enough to be irrelevant by default, and within the relay's capacity.
const RATE_BYTES_PER_S_DEFAULT: u64 = 125_000_000;

/// Ethernet's, as in a WAN without tunnels.
const MTU_BYTES_DEFAULT: u64 = 1500;

/// One direction of a link.
///
/// Its notation is a list such as `rate_mbit=50,delay_ms=20,loss_percent=0.1`; other keys keep their
/// defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bytes per second, IP headers included (`rate_mbit`, 1000 by default).
    pub rate_bytes_per_s: u64,
    /// One-way propagation delay (`delay_ms`, 0 by default).
    pub delay: Duration,
    /// Maximum additional delay, which varies between 0 and this without reordering (`jitter_ms`, 0 by
    /// default).
    pub jitter: Duration,
    /// Share of packets lost on the wire, 0 to 1 (`loss_percent`, 0 by default).
    pub loss: f64,
    /// Mean number of consecutive lost packets; `None`: independent losses (`loss_burst`).
    pub loss_burst_packets: Option<f64>,
    /// Share of packets delayed so that later ones overtake them, 0 to 1 (`reorder_percent`, 0 by default).
    pub reorder: f64,
    /// Maximum delay of a reordered packet (`reorder_ms`, 5 by default).
    pub reorder_hold: Duration,
    /// Drop-tail limit of the queue, in bytes; `None`: the larger of the rate times twice the delay and 64
    /// KiB (`queue_kib`).
    pub queue_limit_bytes: Option<u64>,
    /// Bytes that an idle link forwards at once, like a token-bucket shaper of that depth, with the same rate
    /// in the long term. 0 is a wire, on which each packet takes its length over the rate (`burst_kib`, 0 by
    /// default).
    pub burst_bytes: u64,
    /// Maximum IP packet; a longer one is dropped (`mtu`, 1500 by default).
    pub mtu_bytes: u64,
}

/// Errors of link properties and their notation.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// An item without `=`.
    #[error("`{0}` is not KEY=VALUE")]
    NotAPair(String),
    /// An unknown key.
    #[error("no link has `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        /// The key as given.
        key: String,
        /// The most similar known key.
        nearest: &'static str,
    },
    /// A value that is not a number, or outside the key's range.
    #[error("`{key}={value}`: {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// The value as given.
        value: String,
        /// Expected value.
        expected: &'static str,
    },
    /// Bursts of this mean length cannot reach this loss share.
    #[error("a loss share of {loss} needs bursts longer than {burst} packets on average")]
    BurstTooShort {
        /// Requested share.
        loss: f64,
        /// Requested mean burst length.
        burst: f64,
    },
    /// Rate, delays and queue together would occupy too much memory.
    #[error("rate, delays and queue would hold {held_bytes} bytes in memory; the limit is {HELD_BYTES_MAX}")]
    HoldsTooMuch {
        /// Maximum bytes that the link could hold.
        held_bytes: u64,
    },
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            rate_bytes_per_s: RATE_BYTES_PER_S_DEFAULT,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            loss_burst_packets: None,
            reorder: 0.0,
            reorder_hold: Duration::from_millis(5),
            queue_limit_bytes: None,
            burst_bytes: 0,
            mtu_bytes: MTU_BYTES_DEFAULT,
        }
    }
}

impl LinkConfig {
    /// Every key of the notation.
    pub const KEYS: [&str; 10] = [
        "rate_mbit",
        "delay_ms",
        "jitter_ms",
        "loss_percent",
        "loss_burst",
        "reorder_percent",
        "reorder_ms",
        "queue_kib",
        "burst_kib",
        "mtu",
    ];

    /// Returns the drop-tail limit in bytes.
    pub fn queue_bytes(&self) -> u64 {
        self.queue_limit_bytes
            .unwrap_or_else(|| self.bytes_in(self.delay.saturating_mul(2)).max(QUEUE_BYTES_DEFAULT_MIN))
    }

    /// Sets one key of the notation, without validating the whole.
    ///
    /// # Errors
    /// An unknown key, or a value outside its range.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        match key {
            "rate_mbit" => {
                self.rate_bytes_per_s = (number(key, value, RATE_MBIT)? * 125_000.0).round() as u64
            }
            "delay_ms" => self.delay = milliseconds(key, value)?,
            "jitter_ms" => self.jitter = milliseconds(key, value)?,
            "loss_percent" => self.loss = number(key, value, PERCENT)? / 100.0,
            "loss_burst" => self.loss_burst_packets = Some(number(key, value, BURST)?),
            "reorder_percent" => self.reorder = number(key, value, PERCENT)? / 100.0,
            "reorder_ms" => self.reorder_hold = milliseconds(key, value)?,
            "queue_kib" => self.queue_limit_bytes = Some((number(key, value, QUEUE_KIB)? * 1024.0) as u64),
            "burst_kib" => self.burst_bytes = (number(key, value, QUEUE_KIB)? * 1024.0) as u64,
            "mtu" => self.mtu_bytes = number(key, value, MTU)? as u64,
            _ => return Err(ConfigError::UnknownKey { key: key.to_owned(), nearest: nearest_key(key) }),
        }
        Ok(())
    }

    /// Checks constraints across keys: bursts must reach the loss share, and memory must be bounded.
    ///
    /// # Errors
    /// [`ConfigError::BurstTooShort`] or [`ConfigError::HoldsTooMuch`].
    pub fn validated(self) -> Result<Self, ConfigError> {
        if let Some(burst) = self.loss_burst_packets
            && self.loss / (burst * (1.0 - self.loss)) > 1.0
        {
            return Err(ConfigError::BurstTooShort { loss: self.loss, burst });
        }
        let longest = self.delay.saturating_add(self.jitter).saturating_add(self.reorder_hold);
        let held_bytes = self.bytes_in(longest).saturating_add(self.queue_bytes());
        if held_bytes > HELD_BYTES_MAX {
            return Err(ConfigError::HoldsTooMuch { held_bytes });
        }
        Ok(self)
    }

    fn bytes_in(&self, time: Duration) -> u64 {
        let bytes = u128::from(self.rate_bytes_per_s) * time.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl FromStr for LinkConfig {
    type Err = ConfigError;

    fn from_str(notation: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for pair in notation.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| ConfigError::NotAPair(pair.to_owned()))?;
            config.set(key.trim(), value.trim())?;
        }
        config.validated()
    }
}

/// A closed range of values, and its description.
type Range = (f64, f64, &'static str);

const RATE_MBIT: Range = (0.001, 100_000.0, "a rate in Mbit/s, 0.001 to 100000");
const MILLISECONDS: Range = (0.0, 60_000.0, "a time in milliseconds, 0 to 60000");
const PERCENT: Range = (0.0, 100.0, "a percentage, 0 to 100");
const BURST: Range = (1.0, 10_000.0, "a mean number of packets, 1 to 10000");
const QUEUE_KIB: Range = (0.0, 1_048_576.0, "a size in KiB, 0 to 1048576");
const MTU: Range = (68.0, 65_535.0, "bytes, 68 to 65535");

fn number(key: &str, value: &str, (low, high, expected): Range) -> Result<f64, ConfigError> {
    value.parse().ok().filter(|number| (low..=high).contains(number)).ok_or_else(|| ConfigError::BadValue {
        key: key.to_owned(),
        value: value.to_owned(),
        expected,
    })
}

fn milliseconds(key: &str, value: &str) -> Result<Duration, ConfigError> {
    number(key, value, MILLISECONDS).map(|number| Duration::from_secs_f64(number / 1000.0))
}

fn nearest_key(key: &str) -> &'static str {
    let likeness = |known: &&str| strsim::jaro_winkler(known, key);
    let keys = LinkConfig::KEYS;
    keys.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b))).unwrap_or(keys[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notation_sets_every_key() {
        let config: LinkConfig = "rate_mbit=50,delay_ms=20,jitter_ms=1.5,loss_percent=0.1,loss_burst=3,\
                                  reorder_percent=2,reorder_ms=4,queue_kib=128,burst_kib=1.5,mtu=1400"
            .parse()
            .unwrap();
        assert_eq!(
            config,
            LinkConfig {
                rate_bytes_per_s: 6_250_000,
                delay: Duration::from_millis(20),
                jitter: Duration::from_micros(1500),
                loss: 0.001,
                loss_burst_packets: Some(3.0),
                reorder: 0.02,
                reorder_hold: Duration::from_millis(4),
                queue_limit_bytes: Some(128 << 10),
                burst_bytes: 1536,
                mtu_bytes: 1400,
            }
        );
    }

    #[test]
    fn the_default_queue_is_a_round_trip_of_the_rate_but_never_under_64_kib() {
        let long: LinkConfig = "rate_mbit=100,delay_ms=25".parse().unwrap();
        assert_eq!(long.queue_bytes(), 625_000);
        let short: LinkConfig = "rate_mbit=1,delay_ms=1".parse().unwrap();
        assert_eq!(short.queue_bytes(), 64 << 10);
    }

    #[test]
    fn a_misspelt_key_is_answered_with_the_nearest_one() {
        let error = "dealy_ms=3".parse::<LinkConfig>().unwrap_err();
        assert_eq!(error, ConfigError::UnknownKey { key: "dealy_ms".into(), nearest: "delay_ms" });
        let error = "rate=3".parse::<LinkConfig>().unwrap_err();
        assert_eq!(error, ConfigError::UnknownKey { key: "rate".into(), nearest: "rate_mbit" });
    }

    #[test]
    fn values_outside_their_range_and_impossible_links_are_refused() {
        for notation in ["loss_percent=101", "rate_mbit=0", "rate_mbit=NaN", "delay_ms=-1", "delay_ms"] {
            assert!(notation.parse::<LinkConfig>().is_err(), "{notation}");
        }
        assert!(matches!(
            "loss_percent=90,loss_burst=2".parse::<LinkConfig>(),
            Err(ConfigError::BurstTooShort { .. })
        ));
        assert!(matches!(
            "rate_mbit=10000,delay_ms=5000".parse::<LinkConfig>(),
            Err(ConfigError::HoldsTooMuch { .. })
        ));
    }
}
