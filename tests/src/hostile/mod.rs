//! Attacks by strangers and malicious members on every port of a running run, with checks for breaches.
//! `SECURITY.md` describes their possibilities.

mod arms;
mod http;
mod kind;
mod memory;
mod quic;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

pub use kind::Kind;
pub use memory::{Memory, memory_of};

use crate::cluster::Cluster;
use arms::Arms;

/// Concurrent attacks.
const AT_A_TIME: usize = 192;
/// Longer than any port's timeout for a silent peer.
const STRIKE_MAX: Duration = Duration::from_secs(40);

/// A run under attack.
#[derive(Clone, Debug)]
pub struct Target {
    /// Coordinator's address for workers.
    pub coordinator: SocketAddr,
    /// Address of its HTTP API.
    pub http: SocketAddr,
    /// The API's token for write access.
    pub api_token: String,
    /// Workers' addresses for each other.
    pub workers: Vec<SocketAddr>,
    /// A join token. Two workers enrol, of which one is kicked.
    pub join_token: String,
}

impl Target {
    /// Describes a run of real processes, with this many joined workers.
    ///
    /// # Errors
    /// Its tokens cannot be read.
    pub fn of(cluster: &Cluster, workers: usize) -> Result<Self> {
        let api_token = std::fs::read_to_string(cluster.folder().join("state/api-token"))?;
        Ok(Self {
            coordinator: cluster.listen(),
            http: cluster.http(),
            api_token: api_token.trim().to_owned(),
            workers: (0..workers).map(|index| cluster.worker_address(index)).collect(),
            join_token: cluster.token()?,
        })
    }
}

/// Result of many attacks.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Number of attacks by kind.
    pub made: BTreeMap<Kind, u64>,
    /// Breaches.
    pub breaches: Vec<String>,
}

/// Attackers: one with a valid certificate, and one with a revoked one.
#[derive(Clone, Debug)]
pub struct Attackers {
    arms: Arc<Arms>,
}

impl Attackers {
    /// Enrols both.
    ///
    /// # Errors
    /// The coordinator refuses them, or does not kick.
    pub async fn enlist(target: Target) -> Result<Self> {
        Ok(Self { arms: Arc::new(Arms::gather(target).await?) })
    }

    /// Makes attacks of all kinds, in an order derived from `seed`, evenly over `duration`, and waits for the
    /// last.
    ///
    /// # Errors
    /// One could not be made because of this machine.
    #[allow(clippy::disallowed_methods, reason = "attacks are made in real time")]
    pub async fn attack(&self, count: u64, duration: Duration, seed: u64) -> Result<Outcome> {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        let (turns, began) = (Arc::new(Semaphore::new(AT_A_TIME)), Instant::now());
        let (mut strikes, mut outcome) = (JoinSet::new(), Outcome::default());
        for number in 0..count {
            sleep_until(began + duration.mul_f64(number as f64 / count.max(1) as f64)).await;
            let turn = Arc::clone(&turns).acquire_owned().await.context("take a turn")?;
            // In turns, so that all kinds occur.
            let kind = Kind::ALL[(number % Kind::ALL.len() as u64) as usize];
            *outcome.made.entry(kind).or_default() += 1;
            let (arms, own) = (Arc::clone(&self.arms), ChaCha12Rng::seed_from_u64(random.random()));
            strikes.spawn(async move {
                let struck = timeout(STRIKE_MAX, kind.strike(&arms, own)).await;
                drop(turn);
                match struck {
                    Err(_) => Some(format!("{kind}: nobody hung up within {STRIKE_MAX:?}")),
                    Ok(Err(breach)) => Some(format!("{kind}: {breach:#}")),
                    Ok(Ok(())) => None,
                }
            });
            while let Some(ended) = strikes.try_join_next() {
                outcome.breaches.extend(ended.context("an attack panicked")?);
            }
        }
        while let Some(ended) = strikes.join_next().await {
            outcome.breaches.extend(ended.context("an attack panicked")?);
        }
        Ok(outcome)
    }
}
