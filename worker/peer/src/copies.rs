//! Transfers of checkpoints between workers: a model's part for its next worker, and copies of single ones.

use std::io::SeekFrom;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use longhaul_checkpoint::{COMPANIONS_MAX, CheckpointFile, CheckpointStore, FileToCopy, Incoming};
use longhaul_common::id::{FragmentId, Round};
use longhaul_common::model::ModelSpec;
use longhaul_common::plan::Member;
use longhaul_common::units::Bytes as Size;
use longhaul_member::SyncEvent;
use longhaul_proto::control::message::{CheckpointOffer, HeldPart};
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::identity::PeerName;
use longhaul_proto::transport::bulk::{PullReply, ReceiveLimits, pull};
use quinn::Connection;
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Network;
use super::request::{CheckpointName, FILE_FRAME_BYTES, Request, meta};

/// Longest wait for a holder's answer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Most files of a copied checkpoint: one of each kind, because only one private state is copied.
const FILES_MAX: usize = 7 + COMPANIONS_MAX;

/// Wanted part of a model. Its whole bounds the size of a checkpoint.
#[derive(Clone, Copy)]
enum RequestedParts<'a> {
    /// Any part of it.
    Any(&'a ModelSpec),
    /// Parts with a block of this part.
    BlocksOf(&'a ModelSpec),
}

impl RequestedParts<'_> {
    fn model(&self) -> &ModelSpec {
        match self {
            Self::Any(model) | Self::BlocksOf(model) => model,
        }
    }
}

impl Network {
    /// Shares these checkpoints of any part with peers, and permits copies of theirs up to the size of this model.
    pub fn share_checkpoints(&self, store: CheckpointStore, largest: ModelSpec) {
        self.lock().checkpoints = Some((store, largest));
    }

    /// Fetches those parts of one checkpoint that have a block of the `wanted` part of the model; the answer is [`SyncEvent::CopiesHere`], with the attempt's
    /// number.
    pub fn fetch_parts(
        self: &Arc<Self>,
        attempt: u64,
        store: CheckpointStore,
        parts: Vec<HeldPart>,
        wanted: ModelSpec,
    ) {
        let network = Arc::clone(self);
        self.spawn(async move {
            let fetched = fetch_overlapping(&network, &store, &parts, &wanted).await;
            let answer = fetched.map(|()| parts).map_err(|error| format!("{error:#}"));
            let _ = network.queue.send(SyncEvent::CopiesHere { attempt, answer }).await;
        });
    }

    /// Copies another worker's only checkpoint; the answer is [`SyncEvent::Kept`]. One at a time: meanwhile, others are declined.
    pub fn keep(self: &Arc<Self>, store: CheckpointStore, part: HeldPart) {
        let network = Arc::clone(self);
        self.spawn(async move {
            let kept = if network.keeping.swap(true, Ordering::AcqRel) {
                None
            } else {
                let fetched = fetch_any(&network, &store, &part).await;
                network.keeping.store(false, Ordering::Release);
                if let Err(error) = &fetched {
                    tracing::debug!(reason = format!("{error:#}"), "a checkpoint could not be copied");
                }
                fetched.ok().map(|()| CheckpointOffer { private: false, ..part.offer })
            };
            let _ = network.queue.send(SyncEvent::Kept(kept)).await;
        });
    }
}

async fn fetch_any(network: &Network, store: &CheckpointStore, part: &HeldPart) -> Result<()> {
    let (_, largest) = network.lock().checkpoints.clone().context("no checkpoints are shared in this run")?;
    fetch_part(network, store, part, RequestedParts::Any(&largest)).await
}

async fn fetch_overlapping(
    network: &Network,
    store: &CheckpointStore,
    parts: &[HeldPart],
    wanted: &ModelSpec,
) -> Result<()> {
    for part in parts {
        fetch_part(network, store, part, RequestedParts::BlocksOf(wanted)).await?;
    }
    Ok(())
}

/// Fetches a part from the first holder that delivers it whole, unless it has no block of the `wanted` part. Data from failed holders is not fetched again.
async fn fetch_part(
    network: &Network,
    store: &CheckpointStore,
    part: &HeldPart,
    wanted: RequestedParts<'_>,
) -> Result<()> {
    let HeldPart { offer, holders } = part;
    let store = store.clone().of_part(offer.rank, offer.parts);
    if store.holds(offer.next_round, offer.state_hash) {
        return Ok(());
    }
    let mut failures = Vec::new();
    for holder in holders {
        match fetch_from(network, &store, offer, holder, wanted).await {
            Ok(()) => return Ok(()),
            Err(error) => failures.push(format!("{}: {error:#}", holder.worker)),
        }
    }
    let whose =
        format!("part {} of {} of the checkpoint before {}", offer.rank + 1, offer.parts, offer.next_round);
    bail!(
        "no holder delivered {whose}: {}",
        if failures.is_empty() { "it has no holder".to_owned() } else { failures.join("; ") }
    )
}

async fn fetch_from(
    network: &Network,
    store: &CheckpointStore,
    offer: &CheckpointOffer,
    holder: &Member,
    wanted: RequestedParts<'_>,
) -> Result<()> {
    let name = PeerName::Worker(holder.worker).in_run(network.own.run);
    let connecting = network.endpoint.connect_with(network.client(), network.address_of(holder), &name);
    let connection = timeout(CONNECT_MAX, connecting.context("dial")?).await.context("no answer")?;
    let connection = connection.context("connect")?;
    let fetched = fetch_over(&connection, store, offer, holder, wanted);
    network.while_of_run(holder.worker, &connection, fetched).await
}

async fn fetch_over(
    connection: &Connection,
    store: &CheckpointStore,
    offer: &CheckpointOffer,
    holder: &Member,
    wanted: RequestedParts<'_>,
) -> Result<()> {
    let CheckpointOffer { next_round, state_hash, rank, parts, .. } = *offer;
    let of = CheckpointName { next_round, rank, parts, state_hash };
    let files = fetch_list(connection, of).await?;
    check_lengths(&files, wanted.model())?;
    let incoming = store.receive(next_round).context("make room for a checkpoint")?;
    // The manifest comes last in the list, and names the blocks.
    if let (RequestedParts::BlocksOf(wanted), Some(manifest)) = (wanted, files.last()) {
        fetch_file(connection, of, manifest, &incoming).await?;
        if !incoming.overlaps(wanted)? {
            return Ok(());
        }
    }
    for file in &files {
        fetch_file(connection, of, file, &incoming).await?;
    }
    spawn_blocking(move || incoming.publish(&files, state_hash)).await.context("publish a copy")??;
    tracing::info!(holder = %holder.worker, %next_round, part = rank + 1, of = parts, "a checkpoint's part is here");
    Ok(())
}

async fn fetch_list(connection: &Connection, of: CheckpointName) -> Result<Vec<FileToCopy>> {
    let request = postcard::to_stdvec(&Request::Checkpoint(of)).context("write a request")?;
    let mut response = pull(connection, &request, ReceiveLimits::default()).await?;
    let frame = response.next().await?.context("the answer is empty")?;
    read_list(frame.body())
}

/// Decodes a peer's list of a checkpoint's files.
pub(super) fn read_list(bytes: &[u8]) -> Result<Vec<FileToCopy>> {
    let files: Vec<FileToCopy> = postcard::from_bytes(bytes).context("read the list of files")?;
    let is_complete = files.last().is_some_and(|last| last.file == CheckpointFile::Manifest);
    ensure!(files.len() <= FILES_MAX && is_complete, "the list of files is not a checkpoint's");
    Ok(files)
}

/// Before any transfer: no file may exceed the size possible for a checkpoint of this model.
fn check_lengths(files: &[FileToCopy], model: &ModelSpec) -> Result<()> {
    for file in files {
        let most = file.file.bytes_max(model);
        ensure!(
            file.bytes <= most,
            "the announced {} has {}, but that of a checkpoint of this model has {} at most: its holder has another model, or is not to be trusted",
            file.name(),
            Size(file.bytes),
            Size(most)
        );
    }
    Ok(())
}

/// Fetches the missing rest of a file.
async fn fetch_file(
    connection: &Connection,
    of: CheckpointName,
    wanted: &FileToCopy,
    incoming: &Incoming,
) -> Result<()> {
    if is_whole(incoming, wanted).await? {
        return Ok(());
    }
    let path = incoming.path_of(wanted.file);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).await.context("open a file")?;
    let offset = file.metadata().await.context("ask for a file's length")?.len();
    let request = Request::CheckpointFile { of, file: wanted.file, offset };
    let request = postcard::to_stdvec(&request).context("write a request")?;
    let mut response = pull(connection, &request, ReceiveLimits::default()).await?;
    let mut length = offset;
    while let Some(frame) = response.next().await? {
        length += frame.body().len() as u64;
        ensure!(length <= wanted.bytes, "{} is longer than announced", wanted.name());
        file.write_all(frame.body()).await.context("write a file")?;
    }
    file.flush().await.context("write a file")?;
    ensure!(is_whole(incoming, wanted).await?, "{} differs from the announced file", wanted.name());
    Ok(())
}

/// Reports whether a file is complete and correct; reads all of it, which takes a while.
async fn is_whole(incoming: &Incoming, wanted: &FileToCopy) -> Result<bool> {
    let (incoming, wanted) = (incoming.clone(), *wanted);
    Ok(spawn_blocking(move || incoming.check(&wanted)).await.context("check a file")??)
}

/// Answers with the files of a checkpoint.
pub(super) async fn send_list(network: &Network, mut reply: PullReply, of: CheckpointName) -> Result<()> {
    let Some(store) = store_of(network, of) else {
        reply.refuse();
        return Ok(());
    };
    let listing = spawn_blocking(move || store.files_to_copy(of.next_round, of.state_hash));
    let files = match listing.await.context("list a checkpoint")? {
        Ok(files) => files,
        Err(error) => {
            reply.refuse();
            return Err(error);
        }
    };
    let body = postcard::to_stdvec(&files).context("write the list of files")?;
    let meta = meta(FrameKind::State, network.own.worker, of.next_round, FragmentId(0), of.rank);
    reply.send(&Frame::new(meta, body.into())?).await?;
    Ok(reply.finish().await?)
}

/// Answers with a checkpoint file's bytes from `offset` on.
pub(super) async fn send_file(
    network: &Network,
    reply: PullReply,
    (of, file): (CheckpointName, CheckpointFile),
    offset: u64,
) -> Result<()> {
    let store = store_of(network, of).filter(|store| store.holds(of.next_round, of.state_hash));
    let Some(store) = store else {
        reply.refuse();
        bail!("this checkpoint is not here");
    };
    send_from(network, reply, &store.path_of(of.next_round, file), offset, (of.next_round, of.rank)).await
}

/// Answers with the bytes of a file from `offset` on, in frames of [`FILE_FRAME_BYTES`] of this round and part.
pub(super) async fn send_from(
    network: &Network,
    mut reply: PullReply,
    path: &Path,
    offset: u64,
    (round, part): (Round, u32),
) -> Result<()> {
    let mut file = match open_at(path, offset).await {
        Ok(file) => file,
        Err(error) => {
            reply.refuse();
            return Err(error);
        }
    };
    let mut buffer = vec![0; FILE_FRAME_BYTES];
    for index in 0.. {
        let count = fill(&mut file, &mut buffer).await.context("read a file")?;
        if count == 0 {
            break;
        }
        let meta = meta(FrameKind::State, network.own.worker, round, FragmentId(index), part);
        reply.send(&Frame::new(meta, Bytes::copy_from_slice(&buffer[..count]))?).await?;
    }
    Ok(reply.finish().await?)
}

fn store_of(network: &Network, of: CheckpointName) -> Option<CheckpointStore> {
    let (store, _) = network.lock().checkpoints.clone()?;
    (of.rank < of.parts).then(|| store.of_part(of.rank, of.parts))
}

async fn open_at(path: &Path, offset: u64) -> Result<File> {
    let mut file = File::open(path).await.context("open a file")?;
    file.seek(SeekFrom::Start(offset)).await.context("seek in a file")?;
    Ok(file)
}

/// Reads until the buffer is full or the file ends.
async fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]).await? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests;
