//! Faults of a simulated run.

use std::ops::RangeInclusive;
use std::time::Duration;

use longhaul_common::config::read_toml;
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use longhaul_plan::Topology;

/// Faults, from TOML.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// Workers that come and go by themselves.
    pub churn: Option<Churn>,
    /// Timed faults.
    #[serde(default)]
    pub outage: Vec<Outage>,
}

/// Workers that come and go by themselves, each independently of the others, with times drawn from exponential distributions.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Churn {
    /// How long a worker lives, on average, in seconds.
    pub life_s: f64,
    /// How long it is away after that, on average, in seconds.
    pub absence_s: f64,
}

/// All workers of a site are killed, and come back.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outage {
    /// The site's name.
    pub site: String,
    /// When, in seconds from the start.
    pub at_s: f64,
    /// For how long, in seconds.
    pub for_s: f64,
}

/// Why faults cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FaultsError {
    /// They are malformed.
    #[error("{0}")]
    Syntax(String),
    /// A number that is no time.
    #[error("{key} = {value}: must be a number of seconds, {}a thousandth to a year", if *.zero { "zero, or " } else { "" })]
    Time {
        /// Which one.
        key: &'static str,
        /// The value.
        value: f64,
        /// Whether zero would do.
        zero: bool,
    },
    /// A site that is not there.
    #[error("outage.site = `{site}`: the topology has the sites {sites}")]
    Site {
        /// Its name.
        site: String,
        /// Those that are there.
        sites: String,
    },
}

impl Faults {
    /// Reads faults for these sites.
    ///
    /// # Errors
    /// The mistake in them, and the remedy.
    pub fn parse(text: &str, topology: &Topology) -> Result<Self, FaultsError> {
        let faults: Self = read_toml(text).map_err(|error| FaultsError::Syntax(error.to_string()))?;
        if let Some(Churn { life_s, absence_s }) = faults.churn {
            seconds("churn.life_s", life_s, false)?;
            seconds("churn.absence_s", absence_s, false)?;
        }
        for Outage { site, at_s, for_s } in &faults.outage {
            seconds("outage.at_s", *at_s, true)?;
            seconds("outage.for_s", *for_s, false)?;
            if !topology.sites.iter().any(|known| known.name == *site) {
                let names: Vec<&str> = topology.sites.iter().map(|site| site.name.as_str()).collect();
                return Err(FaultsError::Site { site: site.clone(), sites: names.join(", ") });
            }
        }
        Ok(faults)
    }
}

impl Churn {
    pub(crate) fn life(&self, rng: &mut ChaCha8Rng) -> Duration {
        exponential(self.life_s, rng)
    }

    pub(crate) fn absence(&self, rng: &mut ChaCha8Rng) -> Duration {
        exponential(self.absence_s, rng)
    }
}

/// From a thousandth of a second to a year.
const TIMES_S: RangeInclusive<f64> = 1e-3..=366.0 * 86_400.0;

fn exponential(mean_s: f64, rng: &mut ChaCha8Rng) -> Duration {
    let uniform: f64 = rng.random();
    Duration::from_secs_f64((-mean_s * (1.0 - uniform).ln()).clamp(1e-6, *TIMES_S.end()))
}

fn seconds(key: &'static str, value: f64, zero: bool) -> Result<(), FaultsError> {
    let is_time = TIMES_S.contains(&value) || zero && value == 0.0;
    if is_time { Ok(()) } else { Err(FaultsError::Time { key, value, zero }) }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn parse(text: &str) -> Result<Faults, FaultsError> {
        let topology = "[[site]]\nname = \"a\"\nworkers = 2\ntflops = 1\nmemory_gib = 1\n";
        Faults::parse(text, &Topology::parse(topology).unwrap())
    }

    #[test]
    fn faults_are_as_they_are_written() {
        assert_eq!(parse("").unwrap(), Faults::default());
        let faults =
            parse("[churn]\nlife_s = 60\nabsence_s = 5\n[[outage]]\nsite = \"a\"\nat_s = 0\nfor_s = 1.5\n");
        let faults = faults.unwrap();
        assert_eq!(faults.churn, Some(Churn { life_s: 60.0, absence_s: 5.0 }));
        assert_eq!(faults.outage[0].for_s, 1.5);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert!(error("[churn]\nlife_s = 0\nabsence_s = 5\n").contains("churn.life_s = 0"));
        assert!(error("[churn]\nlife_s = 1\n").contains("absence_s"));
        assert!(error("[[outage]]\nsite = \"b\"\nat_s = 0\nfor_s = 1\n").contains("the sites a"));
        assert!(error("[churn]\nlife_s = 1e20\nabsence_s = 5\n").contains("a year"));
        assert!(error("[[outage]]\nsite = \"a\"\nat_s = -1\nfor_s = 1\n").contains("outage.at_s = -1"));
    }

    #[test]
    fn lives_have_their_mean() {
        let (churn, mut rng) = (Churn { life_s: 10.0, absence_s: 1.0 }, ChaCha8Rng::seed_from_u64(1));
        let sum: f64 = (0..4000).map(|_| churn.life(&mut rng).as_secs_f64()).sum();
        // Three standard deviations of the mean of 4000 are 0.47.
        assert!((sum / 4000.0 - 10.0).abs() < 0.48, "{}", sum / 4000.0);
    }
}
