//! Bulk frames from one end to the other, and their rate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::frame::{Frame, FrameKind, FrameMeta};
use longhaul_proto::transport::bulk::{BULK_STREAMS_MAX, BulkReceiver, BulkSender, ReceiveLimits};
use quinn::Connection;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::wan::WanSpec;
use crate::kit::clock::now;

/// A frame is the link's payload in this time, for finely resolved arrivals ...
const FRAME_TIME: Duration = Duration::from_millis(50);
/// ... but at most this long.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// A fragment of 32,768 values in two bits.
const SMALL_FRAME_BYTES: usize = 8 << 10;

/// Times and sizes of arrivals.
#[derive(Clone, Default)]
pub struct Arrivals(Arc<Mutex<Vec<(Instant, u64)>>>);

/// Endless frames in one direction, counted on arrival. Dropping it ends them.
pub struct Stream {
    pub arrivals: Arrivals,
    _tasks: JoinSet<()>,
}

impl Stream {
    pub fn start(from: &Connection, to: &Connection, spec: WanSpec) -> Result<Self> {
        Self::of(from, to, frame_bytes(spec))
    }

    /// Uses frames as small as those of slow rounds.
    pub fn small(from: &Connection, to: &Connection) -> Result<Self> {
        Self::of(from, to, SMALL_FRAME_BYTES)
    }

    /// Keeps as many in flight as a sender permits.
    fn of(from: &Connection, to: &Connection, bytes: usize) -> Result<Self> {
        let arrivals = Arrivals::default();
        let mut tasks = JoinSet::new();
        receive(&mut tasks, to.clone(), arrivals.clone());
        let sender = BulkSender::new(from.clone());
        let frame = frame(bytes)?;
        for _ in 0..BULK_STREAMS_MAX {
            let (sender, frame) = (sender.clone(), frame.clone());
            tasks.spawn(async move { while sender.send(&frame).await.is_ok() {} });
        }
        Ok(Self { arrivals, _tasks: tasks })
    }
}

impl Arrivals {
    pub fn note(&self, bytes: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((now(), bytes));
    }

    /// Returns the bytes per second that arrived between two times: the slope of a least-squares line, which
    /// does not depend on whether a frame was complete just before or after one of them.
    pub fn rate_between(&self, from: Instant, to: Instant) -> Result<f64> {
        let arrivals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = 0.0;
        let points: Vec<(f64, f64)> = arrivals
            .iter()
            .filter(|(at, _)| *at >= from && *at <= to)
            .map(|(at, bytes)| {
                sum += *bytes as f64;
                (at.duration_since(from).as_secs_f64(), sum)
            })
            .collect();
        ensure!(points.len() >= 10, "only {} frames arrived", points.len());
        let count = points.len() as f64;
        let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
        let (mean_t, mean_b) = (mean(|point| point.0), mean(|point| point.1));
        let covariance: f64 = points.iter().map(|(t, b)| (t - mean_t) * (b - mean_b)).sum();
        let variance: f64 = points.iter().map(|(t, _)| (t - mean_t).powi(2)).sum();
        Ok(covariance / variance)
    }

    /// Returns the total bytes that arrived.
    pub fn sum(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Sends `bytes` in frames and waits until all are acknowledged.
pub async fn send_all(from: &Connection, to: &Connection, bytes: usize, spec: WanSpec) -> Result<()> {
    let mut receiving = JoinSet::new();
    receive(&mut receiving, to.clone(), Arrivals::default());
    let sender = BulkSender::new(from.clone());
    let frame = frame(frame_bytes(spec))?;
    let mut sends = JoinSet::new();
    for _ in 0..bytes.div_ceil(frame.body().len()) {
        let (sender, frame) = (sender.clone(), frame.clone());
        sends.spawn(async move { sender.send(&frame).await });
    }
    while let Some(sent) = sends.join_next().await {
        sent??;
    }
    Ok(())
}

/// What frames of so many bytes take from sending to arrival: so many of them, each after a pause once the one before has arrived. The first ones, by which a connection
/// learns what its path carries, are left out.
pub async fn times_of_bursts(
    from: &Connection,
    to: &Connection,
    bytes: usize,
    (count, pause): (u32, Duration),
) -> Result<Vec<Duration>> {
    let (receiver, mut queue) = BulkReceiver::new(ReceiveLimits::default(), |_| true);
    let mut tasks = JoinSet::new();
    let at = to.clone();
    tasks.spawn(async move {
        receiver.serve(&at).await;
    });
    let sender = BulkSender::new(from.clone());
    let frame = frame(bytes)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let sent_at = now();
        let (sender, frame) = (sender.clone(), frame.clone());
        tasks.spawn(async move {
            let _ = sender.send(&frame).await;
        });
        queue.recv().await.context("the connection ended")?;
        times.push(now().duration_since(sent_at));
        sleep(pause).await;
    }
    Ok(times.split_off(times.len() / 4))
}

fn receive(tasks: &mut JoinSet<()>, at: Connection, arrivals: Arrivals) {
    let (receiver, mut queue) = BulkReceiver::new(ReceiveLimits::default(), |_| true);
    tasks.spawn(async move {
        receiver.serve(&at).await;
    });
    tasks.spawn(async move {
        while let Some(received) = queue.recv().await {
            arrivals.note(received.frame().body().len() as u64);
        }
    });
}

fn frame_bytes(spec: WanSpec) -> usize {
    ((spec.bytes_per_s() * FRAME_TIME.as_secs_f64()) as usize).min(FRAME_BYTES_MAX)
}

fn frame(bytes: usize) -> Result<Frame> {
    let meta = FrameMeta {
        kind: FrameKind::Contribution,
        generation: Generation(0),
        round: Round(0),
        fragment: FragmentId(0),
        sender: WorkerId(0),
        weight: 1,
        part: 0,
    };
    Ok(Frame::new(meta, Bytes::from(vec![0x5a; bytes]))?)
}
