//! Who fetches blocks of training data from other workers.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Error, Result};
use longhaul_common::id::WorkerId;
use longhaul_common::plan::Member;
use longhaul_proto::control::message::DataHolders;
use longhaul_proto::transport::bulk::ReceiveError;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::super::Network;
use super::donors::Donors;
use super::fetch::{Fetched, fetch_block};
use super::route::{Ask, Place, route};
use crate::back_off::BackOff;
use crate::data::{BlockName, DataError, NotTheBlock, Stock, Supply};

/// Blocks that are asked for at a time: eight MiB on their way fill 600 Mbit/s at a tenth of a second.
const FETCHED_AT_ONCE: usize = 8;
/// How often it is said how much has come,
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// and that nothing comes.
const TROUBLE_EVERY: Duration = Duration::from_secs(30);

/// Fetches blocks that are not in the cache, each once however many want it. Blocks that were asked for and that nobody has are asked for again, with pauses, until somebody has them or the session
/// ends. What came is checked and in the cache before anybody hears of it.
pub struct Supplier {
    this: Weak<Self>,
    network: Weak<Network>,
    pub(super) stock: Arc<Stock>,
    donors: Donors,
    /// What is asked of who has it. It never waits for what is asked of keepers, so that no two wait for each other.
    turns: Semaphore,
    /// What is asked of keepers, which may have to fetch it.
    keepers_turns: Semaphore,
    open: Mutex<HashMap<BlockName, Arc<Open>>>,
    told: Mutex<Told>,
}

/// A block that is being fetched.
#[derive(Debug)]
struct Open {
    /// Why it cannot be kept, or that it is here.
    done: watch::Sender<Option<Result<(), String>>>,
    /// It is asked of a worker elsewhere just now.
    is_afar: AtomicBool,
}

/// What was fetched, and what was said of it.
#[derive(Debug, Default)]
struct Told {
    blocks: u64,
    wan_bytes: u64,
    lan_bytes: u64,
    progress_at: Option<Instant>,
    trouble_at: Option<Instant>,
}

impl fmt::Debug for Supplier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supplier").field("open", &self.lock_open().len()).finish_non_exhaustive()
    }
}

impl Supplier {
    /// One that puts what it fetches into this stock.
    pub fn new(network: &Arc<Network>, stock: Arc<Stock>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            network: Arc::downgrade(network),
            stock,
            donors: Donors::default(),
            turns: Semaphore::new(FETCHED_AT_ONCE),
            keepers_turns: Semaphore::new(FETCHED_AT_ONCE),
            open: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Whether a block is on its way from another site.
    pub fn is_fetching_from_afar(&self, name: BlockName) -> bool {
        self.lock_open().get(&name).is_some_and(|open| open.is_afar.load(Ordering::Relaxed))
    }

    /// Returns when a block is in the cache.
    ///
    /// # Errors
    /// The cache cannot take it, or the session is over.
    pub async fn until_here(&self, name: BlockName) -> Result<(), DataError> {
        let not_kept = |reason| DataError::NotKept { block: name.to_string(), reason };
        if self.stock.head_bytes(&name.shard).is_none() {
            return Err(not_kept(NotTheBlock::Unknown.to_string()));
        }
        let Some((open, network)) = self.begin(name) else { return Err(DataError::Stopped) };
        let (mut done, mut stopped) = (open.done.subscribe(), network.stopped.subscribe());
        drop(network);
        tokio::select! {
            done = done.wait_for(Option::is_some) => {
                let outcome = done.map_err(|_| DataError::Stopped)?.clone();
                outcome.unwrap_or(Ok(())).map_err(not_kept)
            }
            _ = stopped.wait_for(|stopped| *stopped) => Err(DataError::Stopped),
        }
    }

    /// Fetches it, where nobody does yet. None: the session is over.
    fn begin(&self, name: BlockName) -> Option<(Arc<Open>, Arc<Network>)> {
        let (network, this) = (self.network.upgrade()?, self.this.upgrade()?);
        let mut all = self.lock_open();
        if let Some(open) = all.get(&name) {
            return Some((Arc::clone(open), network));
        }
        let open = Arc::new(Open { done: watch::channel(None).0, is_afar: AtomicBool::new(false) });
        all.insert(name, Arc::clone(&open));
        drop(all);
        let (fetching, fetched) = (Arc::clone(&network), Arc::clone(&open));
        network.spawn(async move {
            let outcome = this.fetch(&fetching, name, &fetched).await;
            this.lock_open().remove(&name);
            fetched.done.send_replace(Some(outcome));
        });
        Some((open, network))
    }

    /// Asks one after the other, again and again. An error is one of the cache.
    async fn fetch(&self, network: &Arc<Network>, name: BlockName, open: &Open) -> Result<(), String> {
        // Somebody saw that it was missing before it came the last time.
        if self.is_here(name).await? {
            return Ok(());
        }
        let (mut back_off, mut holders) = (BackOff::default(), network.shelf.holders.subscribe());
        loop {
            holders.mark_unchanged();
            let failures = match self.ask_all(network, name, open).await {
                Ok((from, fetched)) => return self.keep(network, name, &from, fetched).await,
                Err(failures) => failures,
            };
            self.tell_trouble(name, &failures);
            tokio::select! {
                _ = holders.changed() => {}
                () = sleep(back_off.next_pause()) => {}
            }
        }
    }

    async fn is_here(&self, name: BlockName) -> Result<bool, String> {
        let stock = Arc::clone(&self.stock);
        let found = spawn_blocking(move || stock.has(name)).await.map_err(|error| error.to_string())?;
        found.map_err(|error| error.to_string())
    }

    async fn ask_all(
        &self,
        network: &Arc<Network>,
        name: BlockName,
        open: &Open,
    ) -> Result<(Member, Fetched), Vec<String>> {
        let place = Place { worker: network.worker, site: network.site };
        let holders = network.shelf.holders.borrow().clone();
        let mut asks = route(&holders, place, name, &self.donors.round_trips());
        let now = Instant::now();
        asks.sort_by_key(|ask| self.donors.is_passed_over(ask.member.worker, now));
        let mut failures = Vec::new();
        for ask in asks {
            let turns = if ask.is_to_fetch { &self.keepers_turns } else { &self.turns };
            let Ok(_turn) = turns.acquire().await else { break };
            open.is_afar.store(ask.member.site != network.site, Ordering::Relaxed);
            let answer = tokio::select! {
                answer = self.ask(network, &ask, name) => answer,
                () = until_unlisted(network, ask.member.worker) => Err(anyhow::anyhow!("it has left")),
            };
            match answer {
                Ok(fetched) => return Ok((ask.member, fetched)),
                Err(error) => failures.push(self.note_failure(&ask, name, &error)),
            }
        }
        open.is_afar.store(false, Ordering::Relaxed);
        Err(failures)
    }

    /// One block from one worker, checked.
    async fn ask(&self, network: &Arc<Network>, ask: &Ask, name: BlockName) -> Result<Fetched> {
        let connection = self.donors.connection(network, &ask.member).await?;
        let fetching = fetch_block(&connection, &self.stock, name, ask.is_to_fetch);
        let fetched = network.while_of_run(ask.member.worker, &connection, fetching).await?;
        let stock = Arc::clone(&self.stock);
        let checked =
            spawn_blocking(move || stock.check(name, &fetched.head, &fetched.bytes).map(|()| fetched));
        let fetched = checked.await.context("check a block")??;
        self.donors.note_given(ask.member.worker, connection.rtt());
        Ok(fetched)
    }

    async fn keep(
        &self,
        network: &Network,
        name: BlockName,
        from: &Member,
        fetched: Fetched,
    ) -> Result<(), String> {
        let (stock, bytes) = (Arc::clone(&self.stock), (fetched.head.len() + fetched.bytes.len()) as u64);
        let is_wan = from.site != network.site;
        network.progress.fetched_data(bytes, is_wan);
        let kept = spawn_blocking(move || stock.keep(name, &fetched.head, &fetched.bytes)).await;
        kept.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.tell_progress(bytes, is_wan);
        Ok(())
    }

    /// In words.
    fn note_failure(&self, ask: &Ask, name: BlockName, error: &Error) -> String {
        let donor = ask.member.worker;
        let lie = error.downcast_ref::<NotTheBlock>();
        let is_refusal = error
            .chain()
            .any(|cause| cause.downcast_ref::<ReceiveError>().is_some_and(ReceiveError::is_refusal));
        if let Some(lie) = lie {
            self.donors.note_failed(donor, true, Instant::now());
            tracing::warn!(%donor, block = %name, reason = %lie, "a worker has sent other data than it was asked for: it is asked last from now on");
        } else if !is_refusal && self.donors.note_failed(donor, false, Instant::now()) {
            tracing::info!(%donor, block = %name, reason = format!("{error:#}"), "a worker gives no training data: others are asked");
        }
        if is_refusal { format!("{donor} does not have it") } else { format!("{donor}: {error:#}") }
    }

    fn tell_trouble(&self, name: BlockName, failures: &[String]) {
        let (mut told, now) = (self.lock_told(), Instant::now());
        if told.trouble_at.is_some_and(|at| now < at + TROUBLE_EVERY) {
            return;
        }
        told.trouble_at = Some(now);
        let reason = match failures {
            [] => "nobody who has the run's data is here".to_owned(),
            failures => failures.join("; "),
        };
        tracing::warn!(block = %name, reason, "training data cannot be had from any worker: waiting, and trying again");
    }

    fn tell_progress(&self, bytes: u64, is_wan: bool) {
        let (mut told, now) = (self.lock_told(), Instant::now());
        told.blocks += 1;
        *(if is_wan { &mut told.wan_bytes } else { &mut told.lan_bytes }) += bytes;
        if told.trouble_at.take().is_some() {
            tracing::info!("training data comes again");
        } else if told.progress_at.is_some_and(|at| now < at + PROGRESS_EVERY) {
            return;
        }
        told.progress_at = Some(now);
        let (wan_mib, lan_mib) = (told.wan_bytes >> 20, told.lan_bytes >> 20);
        tracing::info!(
            blocks = told.blocks,
            wan_mib,
            lan_mib,
            "training data from other workers is in the cache"
        );
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<BlockName, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supply for Supplier {
    fn expect(&self, block: BlockName) {
        // Where the session is over, nobody reads it.
        let _ = self.begin(block);
    }

    fn bring(&self, block: BlockName) -> Result<(), DataError> {
        let Some(runtime) = self.network.upgrade().map(|network| network.runtime.clone()) else {
            return Err(DataError::Stopped);
        };
        runtime.block_on(self.until_here(block))
    }
}

/// Returns when the coordinator does not name a worker any more.
async fn until_unlisted(network: &Network, worker: WorkerId) {
    let mut holders = network.shelf.holders.subscribe();
    let is_gone = |holders: &DataHolders| {
        holders.holders.iter().chain(&holders.neighbours).all(|member| member.worker != worker)
    };
    // The sender lives as long as the network.
    let _ = holders.wait_for(is_gone).await;
}
