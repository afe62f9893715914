//! Fetching blocks of training data from other workers.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context, Error, Result};
use longhaul_common::back_off::BackOff;
use longhaul_common::plan::Member;
use longhaul_data::{BlockName, BlockStore, DataError, NotTheBlock, Supply};
use longhaul_proto::transport::bulk::ReceiveError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::super::Network;
use super::donors::Donors;
use super::fetch::{Fetched, StillFetching, fetch_block};
use super::open::{Asked, Open};
use super::route::{Ask, PeerLocation, route};
use super::told::Told;
use super::turns::{Turns, Wish};

/// Blocks requested at a time: eight MiB in flight fill 600 Mbit/s at a tenth of a second.
const FETCHED_AT_ONCE: usize = 8;
/// Blocks fetched for neighbours alone: twice a neighbour's parallel requests. Beyond that, neighbours fetch themselves.
const FETCHED_FOR_OTHERS: usize = 16;

/// Fetches blocks missing in the cache, each once for all callers. This worker's own requests are repeated, with pauses, until a source appears or the
/// session ends. Blocks are verified and cached before callers are notified.
pub struct Supplier {
    this: Weak<Self>,
    network: Weak<Network>,
    pub(super) stock: Arc<BlockStore>,
    donors: Donors,
    /// Turns for requests to holders. They never wait for requests to keepers, so no two wait for each other.
    turns: Arc<Turns>,
    /// Turns for requests to keepers, which may have to fetch.
    keepers_turns: Arc<Turns>,
    for_others: Arc<Semaphore>,
    open: Mutex<HashMap<BlockName, Arc<Open>>>,
    told: Told,
}

/// A block without a source.
enum NotGiven {
    /// Temporary failures of the workers asked.
    ForNow(Vec<String>),
    /// The block is useless from any worker.
    ForGood(String),
}

impl fmt::Debug for Supplier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supplier").field("open", &self.lock_open().len()).finish_non_exhaustive()
    }
}

impl Supplier {
    /// Creates a supplier that fetches into this stock.
    pub fn new(network: &Arc<Network>, stock: Arc<BlockStore>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            network: Arc::downgrade(network),
            stock,
            donors: Donors::default(),
            turns: Turns::new(FETCHED_AT_ONCE),
            keepers_turns: Turns::new(FETCHED_AT_ONCE),
            for_others: Arc::new(Semaphore::new(FETCHED_FOR_OTHERS)),
            open: Mutex::default(),
            told: Told::default(),
        })
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
        let Some(network) = self.network.upgrade() else { return Err(DataError::Stopped) };
        let (open, _) = self.begin(&network, name, Wish::Needed);
        let (mut stage, mut stopped) = (open.stage(), network.stopped.subscribe());
        drop(network);
        tokio::select! {
            stage = stage.wait_for(|stage| stage.outcome.is_some()) => {
                let outcome = stage.map_err(|_| DataError::Stopped)?.outcome.clone();
                outcome.unwrap_or(Ok(())).map_err(not_kept)
            }
            _ = stopped.wait_for(|stopped| *stopped) => Err(DataError::Stopped),
        }
    }

    /// Waits for a block for a neighbour; reports whether it is in the cache then. Starts a fetch only if this worker `is_relied_on` for it.
    pub async fn is_brought_for_another(&self, name: BlockName, is_relied_on: bool) -> bool {
        let Some(open) = self.open_for_another(name, is_relied_on) else { return false };
        open.wait_for_another(is_relied_on).await
    }

    fn open_for_another(&self, name: BlockName, is_relied_on: bool) -> Option<Arc<Open>> {
        let mut all = self.lock_open();
        if let Some(open) = all.get(&name) {
            if is_relied_on {
                open.wishes.add(Wish::ForAnother);
            }
            return Some(Arc::clone(open));
        }
        if !is_relied_on || self.stock.head_bytes(&name.shard).is_none() {
            return None;
        }
        let place = Arc::clone(&self.for_others).try_acquire_owned().ok()?;
        let network = self.network.upgrade()?;
        Some(self.start(&mut all, &network, name, (Wish::ForAnother, Some(place))))
    }

    /// Starts a fetch unless one is in flight; reports whether it started one.
    fn begin(&self, network: &Arc<Network>, name: BlockName, wish: Wish) -> (Arc<Open>, bool) {
        let mut all = self.lock_open();
        match all.get(&name) {
            Some(open) => {
                open.wishes.add(wish);
                (Arc::clone(open), false)
            }
            None => (self.start(&mut all, network, name, (wish, None)), true),
        }
    }

    fn start(
        &self,
        all: &mut HashMap<BlockName, Arc<Open>>,
        network: &Arc<Network>,
        name: BlockName,
        (wish, place): (Wish, Option<OwnedSemaphorePermit>),
    ) -> Arc<Open> {
        let open = Arc::new(Open::new(wish));
        all.insert(name, Arc::clone(&open));
        let (this, fetching, fetched) = (Weak::clone(&self.this), Arc::clone(network), Arc::clone(&open));
        network.spawn(async move {
            let Some(this) = this.upgrade() else { return };
            let outcome = this.fetch(&fetching, name, &fetched).await;
            let mut all = this.lock_open();
            if all.get(&name).is_some_and(|open| Arc::ptr_eq(open, &fetched)) {
                all.remove(&name);
            }
            drop(all);
            fetched.end(outcome);
            drop(place);
        });
        open
    }

    /// Asks one after the other, repeatedly while this worker itself wants it. An error comes from the cache, or no worker waits any more.
    async fn fetch(&self, network: &Arc<Network>, name: BlockName, open: &Arc<Open>) -> Result<(), String> {
        // It may have arrived since the caller found it missing.
        if self.is_here(name).await? {
            return Ok(());
        }
        let (mut back_off, mut holders) = (BackOff::default(), network.peer_data.holders.subscribe());
        loop {
            holders.mark_unchanged();
            let failures = match self.ask_all(network, name, open).await {
                Ok((from, fetched)) => return self.keep(network, name, &from, fetched).await,
                Err(NotGiven::ForGood(reason)) => return Err(reason),
                Err(NotGiven::ForNow(failures)) => failures,
            };
            self.told.trouble(name, &failures);
            if self.is_given_up(name, open) {
                return Err("it was for another worker, and no worker has it".to_owned());
            }
            open.note_failed();
            tokio::select! {
                _ = holders.changed() => {}
                () = sleep(back_off.next_pause()) => {}
            }
        }
    }

    /// Reports whether only others wanted it. Later callers begin anew.
    fn is_given_up(&self, name: BlockName, open: &Open) -> bool {
        let mut all = self.lock_open();
        let is_unwanted = !open.wishes.are_own();
        if is_unwanted {
            all.remove(&name);
        }
        is_unwanted
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
    ) -> Result<(Member, Fetched), NotGiven> {
        let place = PeerLocation { worker: network.own.worker, site: network.own.site };
        let holders = network.peer_data.holders.borrow().clone();
        let asks = route(&holders, place, name, &self.donors.round_trips());
        let mut asks: VecDeque<(Ask, bool)> = asks.into_iter().map(|ask| (ask, false)).collect();
        let mut failures = Vec::new();
        while let Some((ask, is_last)) = asks.pop_front() {
            let donor = ask.member.worker;
            let is_put_off = || !is_last && self.donors.is_passed_over(donor, Instant::now());
            let turns = if ask.is_to_fetch { &self.keepers_turns } else { &self.turns };
            let turn = if is_put_off() { None } else { turns.take(&open.wishes).await };
            // Another task may have seen it fail meanwhile.
            let Some(_turn) = turn.filter(|_| !is_put_off()) else {
                if !is_last {
                    asks.push_back((ask, true));
                }
                continue;
            };
            open.now_asks(match (ask.is_to_fetch, ask.member.site == network.own.site) {
                (true, _) => Asked::Keeper,
                (false, true) => Asked::Near,
                (false, false) => Asked::Afar,
            });
            let answer = tokio::select! {
                answer = self.ask(network, &ask, name) => answer,
                () = network.peer_data.until_left(donor) => {
                    failures.push(format!("{donor} has left"));
                    continue;
                }
            };
            match answer {
                Ok(fetched) => return Ok((ask.member, fetched)),
                Err(error) => failures.push(self.note_failure(&ask, name, &error)?),
            }
        }
        Err(NotGiven::ForNow(failures))
    }

    /// Fetches and verifies one block from one worker.
    async fn ask(&self, network: &Arc<Network>, ask: &Ask, name: BlockName) -> Result<Fetched> {
        let connection = self.donors.connection(network, &ask.member).await?;
        let fetching = fetch_block(&connection, &self.stock, name, ask.is_to_fetch);
        let fetched = network.while_of_run(ask.member.worker, &connection, fetching).await?;
        let stock = Arc::clone(&self.stock);
        let checked =
            spawn_blocking(move || stock.check(name, &fetched.head, &fetched.bytes).map(|()| fetched));
        let fetched = checked.await.context("check a block")??;
        self.donors.note_given(ask.member.worker);
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
        let is_wan = from.site != network.own.site;
        network.progress.fetched_data(bytes, is_wan);
        let kept = spawn_blocking(move || stock.keep(name, &fetched.head, &fetched.bytes)).await;
        kept.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        self.told.progress(bytes, is_wan);
        Ok(())
    }

    /// Notes a failure, and returns it as text.
    fn note_failure(&self, ask: &Ask, name: BlockName, error: &Error) -> Result<String, NotGiven> {
        let donor = ask.member.worker;
        let is_refusal = error
            .chain()
            .any(|cause| cause.downcast_ref::<ReceiveError>().is_some_and(ReceiveError::is_refusal));
        match error.downcast_ref::<NotTheBlock>() {
            // The hash of the run's data is of these useless items.
            Some(useless @ NotTheBlock::Items) => return Err(NotGiven::ForGood(useless.to_string())),
            Some(lie) => {
                self.donors.note_lied(donor, Instant::now());
                tracing::warn!(%donor, block = %name, reason = %lie, "a worker sent wrong data: it is asked last from now on");
            }
            // On a slow link that is no fault of the keeper's.
            None if is_refusal || error.is::<StillFetching>() => {}
            None => {
                if self.donors.note_failed(donor, Instant::now()) {
                    tracing::info!(%donor, block = %name, reason = format!("{error:#}"), "a worker did not deliver training data: asking others");
                }
            }
        }
        Ok(if is_refusal { format!("{donor} does not have it") } else { format!("{donor}: {error:#}") })
    }

    #[cfg(test)]
    pub fn open(&self, name: BlockName) -> Option<Arc<Open>> {
        self.lock_open().get(&name).cloned()
    }

    #[cfg(test)]
    pub fn donors(&self) -> &Donors {
        &self.donors
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<BlockName, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supply for Supplier {
    fn expect(&self, block: BlockName) -> bool {
        // After the session, the block is never read.
        self.network.upgrade().is_some_and(|network| self.begin(&network, block, Wish::Expected).1)
    }

    fn bring(&self, block: BlockName) -> Result<(), DataError> {
        let Some(runtime) = self.network.upgrade().map(|network| network.runtime.clone()) else {
            return Err(DataError::Stopped);
        };
        runtime.block_on(self.until_here(block))
    }
}
