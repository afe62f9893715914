//! A coordinator that waits while another one leads: it reports so to people, HTTP and workers, and takes over when the lead is free.

use std::sync::Arc;
use std::time::Duration;

use longhaul_proto::control::{Acceptor, NotLeader};
use longhaul_proto::identity::Authority;
use quinn::Endpoint;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::clock::Clock;
use super::found::{FoundError, RequestedRun, check_config};
use super::serve::{AbortOnDrop, ServeError, Served};
use crate::http::waiting;
use crate::store::etcd::{Candidate, Election, Leader};
use crate::store::{Founding, Store, StoreError};

/// Time between a candidate's attempts, in milliseconds. It adds to the time of a take-over.
const LOOK_INTERVAL_MS: u64 = 500;
/// How long open HTTP requests may take when the waiting ends, in milliseconds: they are answered at once.
const HTTP_SHUTDOWN_MS: u64 = 500;

/// Why waiting ended without the lead.
#[derive(Debug, thiserror::Error)]
pub enum StandbyError {
    /// The place where the state is.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The records present are not the wanted ones.
    #[error(transparent)]
    Found(#[from] FoundError),
    /// The sockets.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A task panicked.
    #[error("a task of the coordinator failed: {0}")]
    Task(#[from] JoinError),
}

/// A coordinator that wishes to lead.
#[derive(Debug)]
pub struct Standby {
    candidate: Arc<Candidate>,
    wanted: RequestedRun,
    clock: Clock,
    /// Whether etcd has ever answered: where it never has, the address is more likely wrong than etcd away.
    has_answered: bool,
    founding: Option<Founding>,
    /// Whether another one has led since this process began.
    has_waited: bool,
    /// The last reported reason why etcd does not answer.
    away: Option<String>,
}

impl Standby {
    /// One that has not asked anybody yet.
    #[must_use]
    pub fn new(candidate: Candidate, wanted: RequestedRun, clock: Clock) -> Self {
        Self {
            candidate: Arc::new(candidate),
            wanted,
            clock,
            has_answered: false,
            founding: None,
            has_waited: false,
            away: None,
        }
    }

    /// Whether another one has led since this process began: then it has extended the run, if anybody was to.
    #[must_use]
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Waits until this process leads. When cancelled, it gives back a lead that it may just have won.
    ///
    /// # Errors
    /// [`StandbyError`]: waiting does not help.
    pub async fn lead(&mut self, served: &Served) -> Result<Store, StandbyError> {
        if let Some(store) = self.stand().await?.0 {
            return Ok(store);
        }
        let (leader, seen) = watch::channel(None);
        let (http_stop, stopped) = watch::channel(false);
        let serving = served.answer_http(waiting::router(seen), stopped)?;
        let store = self.wait(served, &leader).await;
        http_stop.send_replace(true);
        // A courtesy to peers that may be gone.
        let _ = timeout(Duration::from_millis(HTTP_SHUTDOWN_MS), serving).await;
        store
    }

    async fn wait(
        &mut self,
        served: &Served,
        leader: &watch::Sender<Option<String>>,
    ) -> Result<Store, StandbyError> {
        let mut look = interval(Duration::from_millis(LOOK_INTERVAL_MS));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut refusing = None;
        loop {
            look.tick().await;
            match self.stand().await? {
                (Some(store), _) => return Ok(store),
                (None, Some(Leader { advertised })) => {
                    let news = leader.borrow().as_ref() != Some(&advertised);
                    if news {
                        tracing::info!(
                            leader = advertised,
                            "another coordinator leads this run: waiting to take over"
                        );
                        leader.send_replace(Some(advertised));
                    }
                }
                (None, None) => {}
            }
            if refusing.is_none()
                && let Some(founding) = self.look_for_founding().await?
            {
                let authority = Authority::from_pem(&founding.authority).map_err(FoundError::from)?;
                let acceptor = served.open(&authority, self.clock.unix_s())?;
                let task = tokio::spawn(refuse(served.endpoint.clone(), acceptor, leader.subscribe()));
                refusing = Some(AbortOnDrop(task.abort_handle()));
            }
        }
    }

    /// Stands once: returns the store if it won, or the leader; neither, if etcd is unreachable.
    async fn stand(&mut self) -> Result<(Option<Store>, Option<Leader>), StandbyError> {
        let candidate = Arc::clone(&self.candidate);
        match spawn_blocking(move || candidate.stand()).await? {
            Ok(election) => {
                (self.has_answered, self.away) = (true, None);
                Ok(match election {
                    Election::Won(store) => (Some(*store), None),
                    Election::Lost(leader) => {
                        self.has_waited = true;
                        (None, Some(leader))
                    }
                })
            }
            // Another one was faster, between its winning and its reading.
            Err(StoreError::Deposed { .. }) => Ok((None, None)),
            Err(error @ StoreError::Unreachable { .. }) if self.has_answered => {
                if self.away.replace(error.to_string()).is_none() {
                    tracing::warn!(%error, "waiting for etcd");
                }
                Ok((None, None))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// How the run was founded, as soon as it is: with that, this coordinator can show workers that it is one of theirs.
    async fn look_for_founding(&mut self) -> Result<Option<Founding>, StandbyError> {
        if self.founding.is_none() {
            let candidate = Arc::clone(&self.candidate);
            match spawn_blocking(move || candidate.founding()).await? {
                Ok(Some(founding)) => {
                    check_config(self.candidate.place(), &founding, &self.wanted)?;
                    self.founding = Some(founding);
                }
                Ok(None) | Err(StoreError::Unreachable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.founding.clone())
    }
}

/// Names the leader to every caller, and disconnects.
async fn refuse(endpoint: Endpoint, acceptor: Acceptor, leader: watch::Receiver<Option<String>>) {
    // The door bounds how many are inside.
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => {
                    let (acceptor, leader) = (acceptor.clone(), leader.clone());
                    tasks.spawn(async move {
                        let Ok(guest) = acceptor.admit(incoming).await else { return };
                        let advertised = leader.borrow().clone().unwrap_or_default();
                        // The leader's own address is the first.
                        let leader = advertised.split(',').next().filter(|own| !own.is_empty());
                        NotLeader { leader: leader.map(str::to_owned) }.close(guest.connection());
                    });
                }
                None => return,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}
