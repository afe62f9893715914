//! Requests between workers, and their answers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use longhaul_checkpoint::CheckpointFile;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_member::HealedState;
use longhaul_proto::control::message::Hash;
use longhaul_proto::frame::{Frame, FrameKind, FrameMeta};
use longhaul_proto::little_endian::{extend_f32, of_f32};
use longhaul_proto::masking::MASK_SECRET_BYTES;
use longhaul_proto::transport::bulk::{PullReply, PullResponse, ReceiveLimits, pull};
use quinn::Connection;
use serde::{Deserialize, Serialize};

/// A request, in postcard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// The result of (round, fragment): one frame with its bytes.
    Result { round: Round, fragment: FragmentId },
    /// A consistent copy of the synchronised state, which the peer keeps during the transfer: one frame with a [`Manifest`].
    State {
        /// First acceptable round; the peer waits for it.
        from: Round,
        /// The [name](Manifest::name) of a partly fetched copy, which the peer offers again if it still keeps it.
        known: Option<Hash>,
    },
    /// A piece of such a copy, by hash: frames of [`STATE_FRAME_VALUES`].
    StatePiece(Hash),
    /// A timed transfer of zeros, at most [`PROBE_BYTES_MAX`], in frames.
    Probe { bytes: u32 },
    /// The secret for the common masks of a generation: one frame.
    MaskSecret { generation: Generation },
    /// The files of a checkpoint: one frame with a list of [`FileToCopy`](longhaul_checkpoint::FileToCopy).
    Checkpoint(CheckpointName),
    /// A file of a checkpoint, from an offset on, in frames of [`FILE_FRAME_BYTES`].
    CheckpointFile {
        of: CheckpointName,
        file: CheckpointFile,
        /// Bytes already here.
        offset: u64,
    },
    /// A sign of life for the coordinator: answered by one frame with the time until its report, in milliseconds (u16, little-endian).
    Alive { incarnation: u64 },
    /// The catalogue of the run's data, in frames of [`FILE_FRAME_BYTES`].
    Catalogue,
    /// The `tokenizer.json` of the run's data, likewise.
    Tokenizer,
    /// A block of the run's data: a frame with the head of its shard, and one with the items; empty frames while it is being fetched.
    Block {
        /// Hash of the shard's head.
        shard: Hash,
        block: u32,
        /// Whether the requester, of the same site, relies on this worker to fetch a missing block.
        to_be_fetched: bool,
    },
    /// The list of files of the pretrained model with this hash, likewise.
    ModelFiles(Hash),
    /// A file of that model, from an offset on, likewise.
    ModelFile {
        model: Hash,
        /// Place in the list.
        index: u32,
        /// Bytes already here.
        offset: u64,
    },
}

/// A checkpoint of a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckpointName {
    /// Following round.
    pub next_round: Round,
    /// Part.
    pub rank: u32,
    /// Number of parts.
    pub parts: u32,
    /// Hash of the state.
    pub state_hash: Hash,
}

/// Bytes in a frame of a file, as in one of a state.
pub(super) const FILE_FRAME_BYTES: usize = 1 << 20;

/// The content of a state, in postcard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// First round not contained.
    pub next_round: Round,
    /// Values in each vector.
    pub values: u64,
    /// Optimiser steps behind the moments.
    pub updates: u64,
    /// BLAKE3 of each piece of each vector, over its values as little-endian f32. A round may be repeated with another result, and moments may differ by
    /// member.
    pub buffers: Vec<Vec<Hash>>,
}

impl Manifest {
    /// Returns a hash of all fields, unique to this state.
    pub fn name(&self) -> Hash {
        let mut hasher = blake3::Hasher::new();
        for number in [self.next_round.0, self.values, self.updates, self.buffers.len() as u64] {
            hasher.update(&number.to_le_bytes());
        }
        self.buffers.iter().flatten().for_each(|piece| {
            hasher.update(piece);
        });
        *hasher.finalize().as_bytes()
    }
}

/// Values in a frame of state: 1 MiB, so that many are in flight on a long link.
pub(super) const STATE_FRAME_VALUES: usize = 256 * 1024;
/// Values in a piece, except a vector's last one: two frames, so that a lost connection costs little.
pub(super) const STATE_PIECE_VALUES: usize = 2 * STATE_FRAME_VALUES;

/// Longest wait for a donor's manifest: it answers after its round, which may be a hundred steps of three seconds.
const STATE_ANSWER_MAX: Duration = Duration::from_secs(300);
/// Longest time for a frame of a state: one takes 8 s at 1 Mbit/s.
const STATE_FRAME_MAX: Duration = Duration::from_secs(120);

/// Limit of a probe: four seconds at 32 Mbit/s.
pub(super) const PROBE_BYTES_MAX: u32 = 16 << 20;
/// Bytes in a frame of a probe.
const PROBE_FRAME_BYTES: usize = 64 << 10;

/// Requests `bytes` bytes from a peer; returns the received number.
pub(super) async fn fetch_probe(connection: &Connection, bytes: u32) -> Result<usize> {
    let request = postcard::to_stdvec(&Request::Probe { bytes }).context("write a request")?;
    let mut response = pull(connection, &request, ReceiveLimits::default()).await?;
    let mut got = 0;
    while let Some(frame) = response.next().await? {
        got += frame.body().len();
    }
    Ok(got)
}

/// Answers with `bytes` bytes.
pub(super) async fn send_probe(mut reply: PullReply, own: WorkerId, bytes: u32) -> Result<()> {
    let nothing = Bytes::from_static(&[0; PROBE_FRAME_BYTES]);
    let mut left = bytes.min(PROBE_BYTES_MAX) as usize;
    while left > 0 {
        let body = nothing.slice(..left.min(PROBE_FRAME_BYTES));
        left -= body.len();
        let meta = meta(FrameKind::State, own, Round(0), FragmentId(0), 0);
        reply.send(&Frame::new(meta, body)?).await?;
    }
    Ok(reply.finish().await?)
}

pub(super) async fn fetch_result(
    connection: &Connection,
    round: Round,
    fragment: FragmentId,
) -> Result<(Bytes, Hash)> {
    let request = postcard::to_stdvec(&Request::Result { round, fragment }).context("write a request")?;
    let mut response = pull(connection, &request, ReceiveLimits::default()).await?;
    let frame = response.next().await?.context("the answer is empty")?;
    ensure!(frame.meta().kind == FrameKind::Result, "the answer is not a result");
    let (header, body) = frame.into_parts();
    Ok((body, *header.body_hash.as_bytes()))
}

pub(super) async fn send_result(
    mut reply: PullReply,
    own: WorkerId,
    round: Round,
    fragment: FragmentId,
    body: Bytes,
    hash: Hash,
) -> Result<()> {
    let meta = meta(FrameKind::Result, own, round, fragment, 0);
    reply.send(&Frame::with_known_hash(meta, body, hash.into())?).await?;
    Ok(reply.finish().await?)
}

pub(super) async fn fetch_mask_secret(
    connection: &Connection,
    generation: Generation,
) -> Result<[u8; MASK_SECRET_BYTES]> {
    let request = postcard::to_stdvec(&Request::MaskSecret { generation }).context("write a request")?;
    let mut response = pull(connection, &request, ReceiveLimits::default()).await?;
    let frame = response.next().await?.context("the answer is empty")?;
    ensure!(frame.meta().kind == FrameKind::MaskSecret, "the answer is no secret");
    frame.body().as_ref().try_into().context("the secret has another length")
}

pub(super) async fn send_mask_secret(
    mut reply: PullReply,
    own: WorkerId,
    secret: [u8; MASK_SECRET_BYTES],
) -> Result<()> {
    let meta = meta(FrameKind::MaskSecret, own, Round(0), FragmentId(0), 0);
    reply.send(&Frame::new(meta, Bytes::copy_from_slice(&secret))?).await?;
    Ok(reply.finish().await?)
}

/// Sends a sign of life to a peer; returns the time until its report to the coordinator.
pub(super) async fn show_sign(connection: &Connection, incarnation: u64) -> Result<Duration> {
    let request = postcard::to_stdvec(&Request::Alive { incarnation }).context("write a request")?;
    let mut response = pull(connection, &request, ReceiveLimits::default()).await?;
    let frame = response.next().await?.context("the answer is empty")?;
    let next_in_ms = frame.body().as_ref().try_into().context("the time has another length")?;
    Ok(Duration::from_millis(u16::from_le_bytes(next_in_ms).into()))
}

/// Answers with the time until that report.
pub(super) async fn answer_sign(mut reply: PullReply, own: WorkerId, next_in: Duration) -> Result<()> {
    let next_in_ms = u16::try_from(next_in.as_millis()).unwrap_or(u16::MAX);
    let meta = meta(FrameKind::State, own, Round(0), FragmentId(0), 0);
    reply.send(&Frame::new(meta, Bytes::copy_from_slice(&next_in_ms.to_le_bytes()))?).await?;
    Ok(reply.finish().await?)
}

/// Returns the manifest of a state. Reads all of it, and so blocks the thread.
pub(super) fn manifest_of(state: &HealedState) -> Manifest {
    Manifest {
        next_round: state.next_round,
        values: state.buffers.first().map_or(0, |buffer| buffer.len() as u64),
        updates: state.updates,
        buffers: state.buffers.iter().map(|buffer| hashes_of_pieces(buffer)).collect(),
    }
}

fn hashes_of_pieces(values: &[f32]) -> Vec<Hash> {
    values.chunks(STATE_PIECE_VALUES).map(|piece| *blake3::hash(of_f32(piece)).as_bytes()).collect()
}

/// Requests a copy of the state, which the peer keeps from then on; if `known`, the one that it has kept.
pub(super) async fn ask_for_state(
    connection: &Connection,
    from: Round,
    known: Option<Hash>,
) -> Result<Manifest> {
    let request = postcard::to_stdvec(&Request::State { from, known }).context("write a request")?;
    let limits = ReceiveLimits { stall_deadline: STATE_ANSWER_MAX, ..ReceiveLimits::default() };
    let mut response = pull(connection, &request, limits).await?;
    let frame = next_state_frame(&mut response).await?.context("the answer is empty")?;
    postcard::from_bytes(frame.body()).context("read the manifest")
}

/// Requests a piece of such a copy.
///
/// # Errors
/// The answer does not have the hash. It is not read beyond a piece's length.
pub(super) async fn fetch_piece(connection: &Connection, piece: Hash) -> Result<Vec<f32>> {
    let request = postcard::to_stdvec(&Request::StatePiece(piece)).context("write a request")?;
    let limits = ReceiveLimits { frame_deadline: STATE_FRAME_MAX, ..ReceiveLimits::default() };
    let mut response = pull(connection, &request, limits).await?;
    let (mut hasher, mut values) = (blake3::Hasher::new(), Vec::new());
    while let Some(frame) = next_state_frame(&mut response).await? {
        ensure!(
            values.len() + frame.body().len() / size_of::<f32>() <= STATE_PIECE_VALUES,
            "a piece of the state is too long"
        );
        hasher.update(frame.body());
        extend_f32(&mut values, frame.body());
    }
    ensure!(hasher.finalize() == piece, "a piece of the state is not the one that was announced");
    Ok(values)
}

pub(super) async fn send_manifest(mut reply: PullReply, own: WorkerId, manifest: &Manifest) -> Result<()> {
    let body = postcard::to_stdvec(manifest).context("write a manifest")?;
    let meta = meta(FrameKind::State, own, manifest.next_round, FragmentId(0), 0);
    reply.send(&Frame::new(meta, body.into())?).await?;
    Ok(reply.finish().await?)
}

pub(super) async fn send_piece(mut reply: PullReply, own: WorkerId, values: &[f32]) -> Result<()> {
    for (values, index) in values.chunks(STATE_FRAME_VALUES).zip(0..) {
        let meta = meta(FrameKind::State, own, Round(0), FragmentId(index), 0);
        reply.send(&Frame::new(meta, Bytes::copy_from_slice(of_f32(values)))?).await?;
    }
    Ok(reply.finish().await?)
}

/// Returns the next frame of a state; `None` after the last.
async fn next_state_frame(response: &mut PullResponse) -> Result<Option<Frame>> {
    let Some(frame) = response.next().await? else { return Ok(None) };
    ensure!(frame.meta().kind == FrameKind::State, "the answer is not a state");
    Ok(Some(frame))
}

pub(super) fn meta(
    kind: FrameKind,
    sender: WorkerId,
    round: Round,
    fragment: FragmentId,
    part: u32,
) -> FrameMeta {
    FrameMeta { kind, generation: Generation(0), round, fragment, sender, weight: 0, part }
}
