//! Connections to holders of data, and their observed behaviour.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::id::WorkerId;
use longhaul_common::plan::Member;
use longhaul_proto::identity::PeerName;
use quinn::Connection;
use tokio::time::{Instant, timeout};

use super::super::Network;

/// Longest wait for a holder's answer.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time for which a failed holder is asked last, the first time.
const PASSED_OVER: Duration = Duration::from_secs(2);
/// Its maximum: it doubles each time.
const PASSED_OVER_MAX: Duration = Duration::from_secs(120);
/// Time for which a holder of wrong data is asked last, whatever else it sends: it may be the only one, and its disk may have been mended.
const LIED: Duration = Duration::from_secs(3600);

/// Workers asked for data.
#[derive(Debug, Default)]
pub struct Donors {
    known: Mutex<BTreeMap<WorkerId, Donor>>,
}

#[derive(Debug, Default)]
struct Donor {
    line: Arc<Line<Connection>>,
    round_trip: Option<Duration>,
    failures: u32,
    passed_over_until: Option<Instant>,
    lied_until: Option<Instant>,
}

/// A connection made on demand.
#[derive(Debug)]
struct Line<C> {
    /// One caller dials at a time.
    connection: tokio::sync::Mutex<Option<C>>,
    /// Failed dials.
    failures: AtomicU64,
}

impl<C> Default for Line<C> {
    fn default() -> Self {
        Self { connection: tokio::sync::Mutex::default(), failures: AtomicU64::new(0) }
    }
}

impl<C: Clone> Line<C> {
    /// Returns the open connection or a new one. Callers that waited for another's dial share its result.
    async fn connection(
        &self,
        is_open: impl Fn(&C) -> bool,
        dial: impl Future<Output = Result<C>>,
    ) -> Result<C> {
        let failures = self.failures.load(Ordering::Relaxed);
        let mut connection = self.connection.lock().await;
        if let Some(connection) = connection.as_ref().filter(|connection| is_open(connection)) {
            return Ok(connection.clone());
        }
        *connection = None;
        ensure!(self.failures.load(Ordering::Relaxed) == failures, "it was unreachable just now");
        let dialled = dial.await;
        match &dialled {
            Ok(dialled) => *connection = Some(dialled.clone()),
            Err(_) => _ = self.failures.fetch_add(1, Ordering::Relaxed),
        }
        dialled
    }
}

impl Donors {
    /// Returns a connection: the open one or a new one.
    ///
    /// # Errors
    /// It cannot be reached.
    pub async fn connection(&self, network: &Network, member: &Member) -> Result<Connection> {
        let line = Arc::clone(&self.lock().entry(member.worker).or_default().line);
        let dial = async {
            if network.is_revoked(member.worker) {
                bail!("it was taken out of the run");
            }
            let name = PeerName::Worker(member.worker).in_run(network.own.run);
            let connecting =
                network.endpoint.connect_with(network.client(), network.address_of(member), &name);
            let connection = timeout(CONNECT_MAX, connecting.context("dial")?).await.context("no answer")?;
            connection.context("connect")
        };
        let connection = line.connection(|connection| connection.close_reason().is_none(), dial).await?;
        self.lock().entry(member.worker).or_default().round_trip = Some(connection.rtt());
        Ok(connection)
    }

    /// Notes a delivery. Earlier wrong data is not forgotten.
    pub fn note_given(&self, worker: WorkerId) {
        let mut known = self.lock();
        let donor = known.entry(worker).or_default();
        (donor.failures, donor.passed_over_until) = (0, None);
    }

    /// Notes a failure; reports whether it is new.
    pub fn note_failed(&self, worker: WorkerId, now: Instant) -> bool {
        let mut known = self.lock();
        let donor = known.entry(worker).or_default();
        let is_news = donor.passed_over_until.is_none_or(|until| until <= now);
        if is_news {
            let pause = PASSED_OVER.saturating_mul(1 << donor.failures.min(10)).min(PASSED_OVER_MAX);
            donor.failures += 1;
            donor.passed_over_until = Some(now + pause);
        }
        is_news
    }

    /// Notes wrong data.
    pub fn note_lied(&self, worker: WorkerId, now: Instant) {
        self.lock().entry(worker).or_default().lied_until = Some(now + LIED);
    }

    /// Reports whether it failed recently or sent wrong data, and is asked after others.
    pub fn is_passed_over(&self, worker: WorkerId, now: Instant) -> bool {
        let known = self.lock();
        let Some(donor) = known.get(&worker) else { return false };
        [donor.passed_over_until, donor.lied_until].into_iter().flatten().any(|until| until > now)
    }

    /// Returns the known round trips. An unreachable worker counts as infinitely far.
    pub fn round_trips(&self) -> BTreeMap<WorkerId, Duration> {
        let round_trip = |donor: &Donor| donor.round_trip.or((donor.failures > 0).then_some(Duration::MAX));
        self.lock().iter().filter_map(|(worker, donor)| Some((*worker, round_trip(donor)?))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkerId, Donor>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_dialled_costs_all_that_want_it_one_attempt() {
        let (line, dialled) = (Arc::new(Line::<u8>::default()), Arc::new(AtomicUsize::new(0)));
        let (start, mut asking) = (Instant::now(), JoinSet::new());
        for _ in 0..8 {
            let (line, dialled) = (Arc::clone(&line), Arc::clone(&dialled));
            asking.spawn(async move {
                let dial = async {
                    dialled.fetch_add(1, Ordering::Relaxed);
                    sleep(CONNECT_MAX).await;
                    bail!("no answer")
                };
                line.connection(|_| true, dial).await
            });
        }
        assert!(asking.join_all().await.into_iter().all(|answer| answer.is_err()));
        assert_eq!(dialled.load(Ordering::Relaxed), 1);
        assert!(start.elapsed() < 2 * CONNECT_MAX, "{:?}", start.elapsed());
        // Later callers retry, and others share the result.
        assert_eq!(line.connection(|_| true, async { Ok(7) }).await.unwrap(), 7);
        assert_eq!(line.connection(|_| true, async { bail!("dialled twice") }).await.unwrap(), 7);
        assert_eq!(line.connection(|_| false, async { Ok(8) }).await.unwrap(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_is_passed_over_for_longer_each_time_until_it_gives_and_who_lies_for_an_hour_whatever_it_gives()
     {
        let (donors, start, [failing, lying]) = (Donors::default(), Instant::now(), [1, 2].map(WorkerId));
        assert!(donors.note_failed(failing, start) && !donors.note_failed(failing, start));
        assert_eq!(donors.round_trips()[&failing], Duration::MAX);
        let later = start + PASSED_OVER;
        assert!(donors.is_passed_over(failing, start) && !donors.is_passed_over(failing, later));
        assert!(donors.note_failed(failing, later));
        assert!(donors.is_passed_over(failing, later + PASSED_OVER));
        donors.note_given(failing);
        assert!(!donors.is_passed_over(failing, later));
        donors.note_lied(lying, start);
        donors.note_given(lying);
        assert!(donors.is_passed_over(lying, start + LIED / 2), "a valid block clears wrong data");
        assert!(!donors.is_passed_over(lying, start + LIED));
    }
}
