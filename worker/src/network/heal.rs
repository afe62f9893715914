//! Fetching the state of the run from a member that holds it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::plan::Member;
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::identity::PeerName;
use longhaul_proto::transport::bulk::{PullResponse, ReceiveLimits, pull};
use tokio::time::timeout;

use super::Network;
use super::request::{Manifest, Request, STATE_FRAME_VALUES};
use crate::sync::HealedState;

/// A donor that has not answered at all by then is passed over.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The state, from the first donor that gives it whole.
pub(super) async fn fetch_state(
    network: &Network,
    donors: Vec<Member>,
    buffers: usize,
    values: usize,
) -> Result<HealedState> {
    let mut failures = Vec::new();
    for donor in &donors {
        match fetch_from(network, donor, buffers, values).await {
            Ok(state) => {
                tracing::info!(donor = %donor.worker, next_round = state.next_round.0, "the state is here");
                return Ok(state);
            }
            Err(error) => failures.push(format!("{}: {error:#}", donor.worker)),
        }
    }
    bail!("{}", if failures.is_empty() { "there is no donor".to_owned() } else { failures.join("; ") })
}

async fn fetch_from(network: &Network, donor: &Member, buffers: usize, values: usize) -> Result<HealedState> {
    let name = PeerName::Worker(donor.worker).in_run(network.run);
    let address = network.address_of(donor);
    let connecting = network.endpoint.connect_with(network.client(), address, &name).context("dial")?;
    let connection = timeout(CONNECT_MAX, connecting).await.context("no answer")?.context("connect")?;
    let request = postcard::to_stdvec(&Request::State).context("write a request")?;
    let mut response = pull(&connection, &request, ReceiveLimits::default()).await?;
    let manifest: Manifest =
        postcard::from_bytes(next_state_frame(&mut response).await?.body()).context("read the manifest")?;
    ensure!(
        manifest.buffers as usize == buffers && manifest.values == values as u64,
        "its state has {} vectors of {} values, not {buffers} of {values}",
        manifest.buffers,
        manifest.values
    );
    let mut fetched = Vec::with_capacity(buffers);
    for _ in 0..buffers {
        fetched.push(Arc::new(fetch_buffer(&mut response, values).await?));
    }
    Ok(HealedState { next_round: manifest.next_round, buffers: fetched, updates: manifest.updates })
}

async fn fetch_buffer(response: &mut PullResponse, values: usize) -> Result<Vec<f32>> {
    let mut buffer = Vec::with_capacity(values);
    while buffer.len() < values {
        let frame = next_state_frame(response).await?;
        let expected = STATE_FRAME_VALUES.min(values - buffer.len());
        ensure!(frame.body().len() == expected * 4, "a frame of the state has the wrong length");
        buffer.extend(frame.body().as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)));
    }
    Ok(buffer)
}

async fn next_state_frame(response: &mut PullResponse) -> Result<Frame> {
    let frame = response.next().await?.context("the state ends early")?;
    ensure!(frame.meta().kind == FrameKind::State, "the answer is not a state");
    Ok(frame)
}
