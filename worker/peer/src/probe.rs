//! Measurement of the link from another worker to this one.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use longhaul_common::plan::Member;
use longhaul_proto::control::message::MeasuredLink;
use longhaul_proto::identity::PeerName;
use quinn::Connection;
use tokio::time::{Instant, timeout};

use super::Network;
use super::request::{PROBE_BYTES_MAX, fetch_probe};

/// Bytes of the first transfer; each later one has four times as many, until one takes long enough.
const FIRST_BYTES: u32 = 64 << 10;
const GROWTH: u32 = 4;
/// Duration of a sufficient transfer: the connection had reached full speed before, and clocks and queues are negligible.
const ENOUGH: Duration = Duration::from_millis(400);
/// Longest time for one peer.
const PROBE_MAX: Duration = Duration::from_secs(10);

impl Network {
    /// Measures the links from these workers to this one, one after the other; `None`: no answer in time.
    pub async fn probe(&self, peers: &[Member]) -> Vec<Option<MeasuredLink>> {
        let mut links = Vec::with_capacity(peers.len());
        for peer in peers {
            let measured =
                timeout(PROBE_MAX, self.probe_one(peer)).await.context("no answer in time").flatten();
            if let Err(error) = &measured {
                tracing::warn!(peer = %peer.worker, reason = format!("{error:#}"), "a peer cannot be reached");
            }
            links.push(measured.ok());
        }
        links
    }

    async fn probe_one(&self, peer: &Member) -> Result<MeasuredLink> {
        let name = PeerName::Worker(peer.worker).in_run(self.own.run);
        let address = self.address_of(peer);
        let connecting = self.endpoint.connect_with(self.client(), address, &name).context("dial")?;
        let connection = connecting.await.context("connect")?;
        self.while_of_run(peer.worker, &connection, measure(&connection)).await
    }
}

async fn measure(connection: &Connection) -> Result<MeasuredLink> {
    let mut bytes = FIRST_BYTES;
    loop {
        let began = Instant::now();
        let got = fetch_probe(connection, bytes).await?;
        ensure!(got == bytes as usize, "the answer has {got} bytes, not {bytes}");
        let (took, round_trip) = (began.elapsed(), connection.rtt());
        if took >= ENOUGH || bytes >= PROBE_BYTES_MAX {
            // The request took a round trip to arrive and to begin to be answered.
            let transfer = took.saturating_sub(round_trip).max(Duration::from_micros(1));
            return Ok(MeasuredLink {
                bytes_per_s: f64::from(bytes) / transfer.as_secs_f64(),
                round_trip_s: round_trip.as_secs_f64(),
            });
        }
        bytes = bytes.saturating_mul(GROWTH).min(PROBE_BYTES_MAX);
    }
}
