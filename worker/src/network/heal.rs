//! Fetching the state of the run from a member that holds it.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use longhaul_common::plan::Member;
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::identity::PeerName;
use longhaul_proto::transport::bulk::{PullResponse, ReceiveLimits, pull};
use quinn::Connection;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Network;
use super::partial::Partial;
use super::request::{Manifest, Request};
use crate::sync::HealedState;

/// A donor that has not answered at all by then is passed over.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The state, from the first donor that gives it whole. What one that failed has sent is not sent again by the next that has the same state.
pub(super) async fn fetch_state(
    network: &Network,
    donors: Vec<Member>,
    buffers: usize,
    values: usize,
) -> Result<HealedState> {
    let mut failures = Vec::new();
    let mut partial = None;
    for donor in &donors {
        match fetch_from(network, donor, buffers, values, &mut partial).await {
            Ok(state) => {
                tracing::info!(donor = %donor.worker, next_round = state.next_round.0, "the state is here");
                return Ok(state);
            }
            Err(error) => failures.push(format!("{}: {error:#}", donor.worker)),
        }
    }
    bail!("{}", if failures.is_empty() { "there is no donor".to_owned() } else { failures.join("; ") })
}

async fn fetch_from(
    network: &Network,
    donor: &Member,
    buffers: usize,
    values: usize,
    partial: &mut Option<Partial>,
) -> Result<HealedState> {
    let name = PeerName::Worker(donor.worker).in_run(network.run);
    let address = network.address_of(donor);
    let connecting = network.endpoint.connect_with(network.client(), address, &name).context("dial")?;
    let connection = timeout(CONNECT_MAX, connecting).await.context("no answer")?.context("connect")?;
    let fetched = fetch_over(&connection, donor, buffers, values, partial);
    network.while_of_run(donor.worker, &connection, fetched).await
}

async fn fetch_over(
    connection: &Connection,
    donor: &Member,
    buffers: usize,
    values: usize,
    partial: &mut Option<Partial>,
) -> Result<HealedState> {
    let request = Request::State { held: partial.as_ref().map(Partial::held) };
    let request = postcard::to_stdvec(&request).context("write a request")?;
    let mut response = pull(connection, &request, ReceiveLimits::default()).await?;
    let manifest: Manifest =
        postcard::from_bytes(next_state_frame(&mut response).await?.body()).context("read the manifest")?;
    ensure!(
        manifest.buffers as usize == buffers && manifest.values == values as u64,
        "its state has {} vectors of {} values, not {buffers} of {values}",
        manifest.buffers,
        manifest.values
    );
    if partial.take_if(|begun| begun.held().manifest != manifest).is_some() {
        tracing::info!(donor = %donor.worker, "this donor has another state: it is fetched from the start");
    }
    let arrived = partial.get_or_insert_with(|| Partial::new(manifest));
    while !arrived.is_whole() {
        arrived.take(next_state_frame(&mut response).await?.body())?;
    }
    let whole = partial.take().context("the state is gone")?;
    spawn_blocking(move || whole.finish()).await.context("read the state")?
}

async fn next_state_frame(response: &mut PullResponse) -> Result<Frame> {
    let frame = response.next().await?.context("the state ends early")?;
    ensure!(frame.meta().kind == FrameKind::State, "the answer is not a state");
    Ok(frame)
}
