//! Fetching the run's state from several members at a time, piece by piece.

#[cfg(test)]
mod tests;
mod transfer;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use longhaul_common::back_off::BackOff;
use longhaul_common::id::{Round, WorkerId};
use longhaul_common::plan::Member;
use longhaul_member::HealedState;
use longhaul_proto::control::message::Hash;
use longhaul_proto::identity::PeerName;
use longhaul_proto::transport::bulk::ReceiveError;
use quinn::Connection;
use tokio::sync::Notify;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use self::transfer::Transfer;
use super::Network;
use super::request::{Manifest, STATE_PIECE_VALUES, ask_for_state, fetch_piece};
use super::snapshots::UNUSED_MAX;

/// Longest wait for a donor's answer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Donors asked at a time: each makes a copy of its state.
const DONORS_AT_ONCE: usize = 4;
/// Longest wait for further manifests after the first one. All donors are asked at the same time, and members end their rounds together.
const GATHER_MAX: Duration = Duration::from_millis(500);
/// Longest time without progress during which refusing donors are asked again: a transfer of a gigabyte at 30 Mbit/s. Afterwards the donors may be other
/// ones.
const REFUSED_MAX: Duration = Duration::from_secs(300);
/// The same after lost connections with partial transfers: donors keep the state for this long.
const LOST_MAX: Duration = UNUSED_MAX;

/// A donor's answer or failure.
type Answer<T> = Result<T, Failure>;

struct Failure {
    words: String,
    /// A refusal by the donor, which may answer differently later.
    is_refusal: bool,
}

impl Failure {
    fn of(donor: WorkerId, error: &Error) -> Self {
        let mut said = error.chain().filter_map(|cause| cause.downcast_ref::<ReceiveError>());
        Self { words: format!("{donor}: {error:#}"), is_refusal: said.any(ReceiveError::is_refusal) }
    }
}

/// Shape of this run's state.
#[derive(Clone, Copy)]
struct Shape {
    buffers: usize,
    values: usize,
}

/// A state in flight.
struct Fetching {
    transfer: Mutex<Transfer>,
    /// Signals a complete state.
    whole: Notify,
}

impl Fetching {
    fn lock(&self) -> MutexGuard<'_, Transfer> {
        self.transfer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A donor, and the state that it keeps for this worker.
struct Source {
    donor: Member,
    connection: Connection,
    manifest: Manifest,
}

/// Fetches the state, as `buffers` vectors of `values`. Donors that refused for lack of a slot, or were lost, are asked again with growing pauses. Received
/// pieces are not fetched again.
pub(super) async fn fetch_state(
    network: &Arc<Network>,
    donors: Vec<Member>,
    buffers: usize,
    values: usize,
) -> Result<HealedState> {
    let shape = Shape { buffers, values };
    let (mut before, mut back_off) = (None, BackOff::default());
    let (mut arrived, mut last_came) = (0, Instant::now());
    loop {
        let failures = match ask_in_turn(network, &donors, shape, &mut before).await {
            Ok(state) => return Ok(state),
            Err(failures) => failures,
        };
        let has = before.as_ref().map_or(0, Transfer::arrived);
        if has > arrived {
            (last_came, back_off) = (Instant::now(), BackOff::default());
        }
        arrived = arrived.max(has);
        let is_refused = failures.iter().any(|failure| failure.is_refusal);
        let patience = match (is_refused, arrived) {
            (true, _) => REFUSED_MAX,
            (false, 1..) => LOST_MAX,
            (false, 0) => Duration::ZERO,
        };
        let words = failures.into_iter().map(|failure| failure.words).collect::<Vec<_>>().join("; ");
        if last_came.elapsed() >= patience {
            bail!("{words}");
        }
        tracing::debug!(reason = words, arrived, "asking the donors again");
        sleep(back_off.next_pause()).await;
    }
}

/// Asks the first donors that have the same state, only those of the own site if any; then each by itself, in case it sent another state than announced.
async fn ask_in_turn(
    network: &Arc<Network>,
    donors: &[Member],
    shape: Shape,
    before: &mut Option<Transfer>,
) -> Result<HealedState, Vec<Failure>> {
    let mut failures = Vec::new();
    let alone = donors.iter().map(std::slice::from_ref);
    // One is tried again as well: its round may have been the trouble.
    let together = &donors[..donors.len().min(DONORS_AT_ONCE)];
    for donors in std::iter::once(together).chain(alone) {
        match attempt(network, donors, shape, before, &mut failures).await {
            Ok(state) => return Ok(state),
            Err(error) => failures.push(Failure { words: format!("{error:#}"), is_refusal: false }),
        }
    }
    Err(failures)
}

async fn attempt(
    network: &Arc<Network>,
    donors: &[Member],
    shape: Shape,
    before: &mut Option<Transfer>,
    failures: &mut Vec<Failure>,
) -> Result<HealedState> {
    let known = before.as_ref().map(|transfer| transfer.manifest().clone());
    let mut asking = ask_all(network, donors, shape, known.as_ref().map(Manifest::name));
    let sources = gather(&mut asking, failures).await;
    let is_near = |source: &Source| source.donor.site == network.own.site;
    let near_alone = sources.iter().any(is_near);
    let is_of_use = |source: &Source| !near_alone || is_near(source);
    let of_use = sources.iter().filter(|source| is_of_use(source));
    let chosen = chosen(of_use, known.as_ref()).context("no donor has a usable state")?;
    let transfer = Mutex::new(Transfer::new(chosen, before.take()));
    let fetching = Arc::new(Fetching { transfer, whole: Notify::new() });
    let mut tasks = JoinSet::new();
    let start = |tasks: &mut JoinSet<Answer<()>>, source| {
        tasks.spawn(fetch_while_of_run(Arc::clone(network), source, shape, Arc::clone(&fetching)));
    };
    sources.into_iter().filter(is_of_use).for_each(|source| start(&mut tasks, source));
    // `whole` is not signalled if nothing was left to fetch, or if all possible donors have ended.
    while !(fetching.lock().is_whole() || tasks.is_empty() && asking.is_empty()) {
        tokio::select! {
            () = fetching.whole.notified() => break,
            Some(ended) = tasks.join_next() => failures.extend(ended.context("fetch the state")?.err()),
            Some(late) = asking.join_next() => match late.context("ask for the state")?.1 {
                Ok(source) if is_of_use(&source) => start(&mut tasks, source),
                Ok(_) => {}
                Err(failure) => failures.push(failure),
            },
        }
    }
    // Pieces that have arrived from another donor need not be sent.
    tasks.shutdown().await;
    let fetching = Arc::into_inner(fetching).context("the state is still being fetched")?;
    let transfer = fetching.transfer.into_inner().unwrap_or_else(PoisonError::into_inner);
    finish(transfer, before).await
}

async fn finish(transfer: Transfer, before: &mut Option<Transfer>) -> Result<HealedState> {
    if !transfer.is_whole() {
        *before = Some(transfer);
        bail!("the state is incomplete");
    }
    let finished = spawn_blocking(move || transfer.finish()).await.context("read the state")?;
    let (state, given) = finished?;
    let next_round = state.next_round.0;
    let mebibytes = given.values().sum::<u64>() >> 20;
    tracing::info!(next_round, mebibytes, donors = given.len(), "the state was fetched");
    Ok(state)
}

/// Returns the manifest of the partly fetched state; or else of the newest one, from the nearest donor: others are about to reach that round.
fn chosen<'a>(
    sources: impl Iterator<Item = &'a Source> + Clone,
    known: Option<&Manifest>,
) -> Option<Manifest> {
    let mut manifests = sources.map(|source| &source.manifest);
    let newest = manifests.clone().map(|manifest| manifest.next_round).max();
    let again = manifests.clone().find(|manifest| Some(*manifest) == known);
    again.or_else(|| manifests.find(|manifest| Some(manifest.next_round) == newest)).cloned()
}

/// Requests all donors' manifests at once. Answers come with the donors' indices.
fn ask_all(
    network: &Arc<Network>,
    donors: &[Member],
    shape: Shape,
    known: Option<Hash>,
) -> JoinSet<(usize, Answer<Source>)> {
    let mut asking = JoinSet::new();
    for (place, donor) in donors.iter().cloned().enumerate() {
        let network = Arc::clone(network);
        asking.spawn(async move {
            let answer = ask(&network, &donor, shape, known).await;
            (place, answer.map_err(|error| Failure::of(donor.worker, &error)))
        });
    }
    asking
}

/// Returns the first sources to answer, in the donors' order.
async fn gather(asking: &mut JoinSet<(usize, Answer<Source>)>, failures: &mut Vec<Failure>) -> Vec<Source> {
    let mut sources = Vec::new();
    loop {
        let next = match sources.is_empty() {
            true => asking.join_next().await,
            false => timeout(GATHER_MAX, asking.join_next()).await.ok().flatten(),
        };
        match next {
            Some(Ok((place, Ok(source)))) => sources.push((place, source)),
            Some(Ok((_, Err(failure)))) => failures.push(failure),
            Some(Err(_)) => {}
            None => break,
        }
    }
    sources.sort_by_key(|(place, _)| *place);
    sources.into_iter().map(|(_, source)| source).collect()
}

/// Fetches while neither this worker nor the donor is removed from the run.
async fn fetch_while_of_run(
    network: Arc<Network>,
    source: Source,
    shape: Shape,
    fetching: Arc<Fetching>,
) -> Answer<()> {
    let Source { donor, connection, manifest } = source;
    let fetched = fetch_from(donor.worker, &connection, manifest, shape, &fetching);
    let fetched = network.while_of_run(donor.worker, &connection, fetched).await;
    fetched.map_err(|error| {
        // After one stream's failure, the other one ends within a piece.
        fetching.lock().forget(donor.worker);
        Failure::of(donor.worker, &error)
    })
}

async fn ask(network: &Arc<Network>, donor: &Member, shape: Shape, known: Option<Hash>) -> Result<Source> {
    let name = PeerName::Worker(donor.worker).in_run(network.own.run);
    let address = network.address_of(donor);
    let connecting = network.endpoint.connect_with(network.client(), address, &name).context("dial")?;
    let connection = timeout(CONNECT_MAX, connecting).await.context("no answer")?.context("connect")?;
    let asked = offer(&connection, (Round(0), known), shape);
    let manifest = network.while_of_run(donor.worker, &connection, asked).await?;
    Ok(Source { donor: donor.clone(), connection, manifest })
}

async fn offer(
    connection: &Connection,
    (from, known): (Round, Option<Hash>),
    shape: Shape,
) -> Result<Manifest> {
    let manifest = ask_for_state(connection, from, known).await?;
    let (vectors, pieces) = (manifest.buffers.len(), shape.values.div_ceil(STATE_PIECE_VALUES));
    ensure!(
        vectors == shape.buffers && manifest.values == shape.values as u64,
        "its state has {vectors} vectors of {} values, not {} of {}",
        manifest.values,
        shape.buffers,
        shape.values
    );
    let has_all = manifest.buffers.iter().all(|hashes| hashes.len() == pieces);
    ensure!(has_all, "its state is not announced in {pieces} pieces a vector");
    Ok(manifest)
}

/// Fetches pieces from one donor until none is left to request.
async fn fetch_from(
    donor: WorkerId,
    connection: &Connection,
    mut manifest: Manifest,
    shape: Shape,
    fetching: &Fetching,
) -> Result<()> {
    let wanted = fetching.lock().manifest().next_round;
    if manifest.next_round < wanted {
        manifest = offer(connection, (wanted, None), shape).await?;
    }
    if manifest.next_round != wanted {
        return Ok(());
    }
    let offered: BTreeSet<Hash> = manifest.buffers.into_iter().flatten().collect();
    let fetch = || fetch_pieces(donor, connection, &offered, fetching);
    tokio::try_join!(fetch(), fetch()).map(|_| ())
}

/// Fetches one piece after the other. Two of these at a time keep a link full.
async fn fetch_pieces(
    donor: WorkerId,
    connection: &Connection,
    offered: &BTreeSet<Hash>,
    fetching: &Fetching,
) -> Result<()> {
    loop {
        let Some(piece) = fetching.lock().take(donor, offered) else { return Ok(()) };
        let values = fetch_piece(connection, piece).await?;
        let mut transfer = fetching.lock();
        transfer.put(piece, donor, values)?;
        if transfer.is_whole() {
            fetching.whole.notify_one();
        }
    }
}
