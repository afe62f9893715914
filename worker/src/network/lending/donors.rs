//! Connections to workers that have data, and what was seen of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use longhaul_common::id::WorkerId;
use longhaul_common::plan::Member;
use longhaul_proto::identity::PeerName;
use quinn::Connection;
use tokio::time::{Instant, timeout};

use super::super::Network;

/// Who has not answered at all by then is passed over.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// For so long who has failed is asked after all others, the first time,
const PASSED_OVER: Duration = Duration::from_secs(2);
/// and at most: each time it is twice as long as before.
const PASSED_OVER_MAX: Duration = Duration::from_secs(120);
/// Who has sent something else than was asked for is asked after all others from then on: it may be the only one, and its disk may have been mended.
const LIED: Duration = Duration::from_secs(3600);

/// Workers that were asked for data.
#[derive(Debug, Default)]
pub struct Donors {
    known: Mutex<BTreeMap<WorkerId, Donor>>,
}

#[derive(Debug, Default)]
struct Donor {
    /// One at a time dials.
    line: Arc<tokio::sync::Mutex<Option<Connection>>>,
    round_trip: Option<Duration>,
    failures: u32,
    passed_over_until: Option<Instant>,
}

impl Donors {
    /// A connection to it: the one that there is, or a new one.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn connection(&self, network: &Network, member: &Member) -> Result<Connection> {
        let line = Arc::clone(&self.lock().entry(member.worker).or_default().line);
        let mut line = line.lock().await;
        if let Some(connection) = line.as_ref().filter(|connection| connection.close_reason().is_none()) {
            return Ok(connection.clone());
        }
        *line = None;
        if network.is_revoked(member.worker) {
            bail!("it was taken out of the run");
        }
        let name = PeerName::Worker(member.worker).in_run(network.run);
        let connecting = network.endpoint.connect_with(network.client(), network.address_of(member), &name);
        let connection = timeout(CONNECT_MAX, connecting.context("dial")?).await.context("no answer")?;
        let connection = connection.context("connect")?;
        *line = Some(connection.clone());
        Ok(connection)
    }

    /// It has given what it was asked for.
    pub fn note_given(&self, worker: WorkerId, round_trip: Duration) {
        let mut known = self.lock();
        let donor = known.entry(worker).or_default();
        (donor.round_trip, donor.failures, donor.passed_over_until) = (Some(round_trip), 0, None);
    }

    /// It has not. Whether that is news.
    pub fn note_failed(&self, worker: WorkerId, has_lied: bool, now: Instant) -> bool {
        let mut known = self.lock();
        let donor = known.entry(worker).or_default();
        let is_news = donor.passed_over_until.is_none_or(|until| until <= now);
        if has_lied {
            donor.passed_over_until = Some(now + LIED);
        } else if is_news {
            let pause = PASSED_OVER.saturating_mul(1 << donor.failures.min(10)).min(PASSED_OVER_MAX);
            donor.failures += 1;
            donor.passed_over_until = Some(now + pause);
        }
        is_news
    }

    /// Whether it has failed just now, and others are asked before it.
    pub fn is_passed_over(&self, worker: WorkerId, now: Instant) -> bool {
        let until = self.lock().get(&worker).and_then(|donor| donor.passed_over_until);
        until.is_some_and(|until| until > now)
    }

    /// Those that are known.
    pub fn round_trips(&self) -> BTreeMap<WorkerId, Duration> {
        self.lock().iter().filter_map(|(worker, donor)| Some((*worker, donor.round_trip?))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Donor>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
