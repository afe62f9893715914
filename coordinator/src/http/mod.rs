//! The HTTP API.
//!
//! | call | answers | who may |
//! | --- | --- | --- |
//! | `GET /healthz` | 200 while the process serves | anybody |
//! | `GET /readyz` | 200 while decisions are made | anybody |
//! | `GET /metrics` | Prometheus text, see [`metrics`] | readers |
//! | `GET /api/v1/status?wait_s=S` | [`Status`]; with `wait_s`, after so long, or when the run is finished | readers |
//! | `POST /api/v1/stop` | `{}`: the run drains | writers |
//! | `GET /api/v1/members` | [`Member`]s, those that are gone included | readers |
//! | `GET /api/v1/events?after=N&wait_s=S` | [`Events`] with higher numbers; waits for one, or for the run's end, for so long | readers |
//! | `GET /api/v1/history` | [`Record`]: all that is known over time | readers |
//! | `GET /api/v1/history/{run}` | [`Curves`] of an earlier run in the same state directory | readers |
//! | `GET /api/v1/stream?after=NEXT` | server-sent events: `record` ([`Record`]) where that is needed, then an `update` ([`Update`]) each second | readers |
//! | `GET /`, `GET /assets/…` | the dashboard, which shows all that | anybody |
//! | `POST /api/v1/suspend` | `{}`: all write a checkpoint and leave, and the coordinator ends | writers |
//! | `POST /api/v1/checkpoint` | `{}`: all write a checkpoint after the next round, and train on | writers |
//! | `POST /api/v1/pause`, `POST /api/v1/resume` | `{}`: nobody trains, or all go on | writers |
//! | `POST /api/v1/workers/{id}/drain` | `{}`: that worker leaves | writers |
//! | `POST /api/v1/workers/{id}/kick` | [`Kicked`](crate::inbox::Kicked): that worker is out for good | writers |
//! | `POST /api/v1/tokens` | [`NewToken`](crate::inbox::NewToken) for `{"life_s": 3600, "uses": 4}` | writers |
//! | `GET /api/v1/tokens` | [`TokenStatus`](crate::inbox::TokenStatus)es | writers |
//! | `DELETE /api/v1/tokens/{id}` | `{}` | writers |
//!
//! Writers show `Authorization: Bearer` and the contents of `api-token` in the state directory. Readers need nothing when
//! the API listens on loopback, and that token or the one in `api-read-token` elsewhere. Answers to wrong tokens take their time. Failures
//! are `{"error": "…"}`. A coordinator that waits to take over answers `/healthz` alone; everything else is 503, with who leads ([`waiting`]).

mod access;
mod calls;
mod history;
pub(crate) mod listen;
mod members;
pub mod metrics;
mod operate;
mod page;
mod recent;
pub mod recorded;
#[cfg(test)]
mod status_document;
mod stream;
pub mod waiting;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::inbox::Input;
use crate::journal::Journal;
use crate::slowdown::Slowdown;
use longhaul_run::Status;

pub use access::ApiTokens;
pub use calls::{TOKEN_LIFE_S, TOKEN_LIFE_S_MAX, TokenRequest};
pub use history::{ALL_TIMES, Curves, EARLIER_MAX, Record, Recorded, Update};
pub use members::Member;
pub use operate::{Events, WAIT_S_MAX};
pub use page::exported;
pub use stream::LISTENERS_MAX;

/// Requests to this API are small, in bytes.
const BODY_BYTES_MAX: usize = 4096;
/// Calls that wait for an event or for the run's end at a time: each holds a connection.
const FOLLOWERS_MAX: usize = 64;

/// State shared by the handlers.
#[derive(Clone, Debug)]
pub struct Api {
    status: watch::Receiver<Arc<Status>>,
    inputs: mpsc::Sender<Input>,
    journal: Arc<Journal>,
    recorded: Recorded,
    tokens: ApiTokens,
    loopback: bool,
    slowdown: Slowdown,
    followers: Arc<Semaphore>,
    listeners: Arc<Semaphore>,
}

impl Api {
    /// Creates the API of a run. `status` publishes its status, `journal` has its notices, `recorded` its curves, and the owner takes `inputs`.
    #[must_use]
    pub fn new(
        status: watch::Receiver<Arc<Status>>,
        inputs: mpsc::Sender<Input>,
        journal: Arc<Journal>,
        recorded: Recorded,
        tokens: ApiTokens,
        loopback: bool,
    ) -> Self {
        Self {
            status,
            inputs,
            journal,
            recorded,
            tokens,
            loopback,
            slowdown: Slowdown::default(),
            followers: Arc::new(Semaphore::new(FOLLOWERS_MAX)),
            listeners: Arc::new(Semaphore::new(LISTENERS_MAX)),
        }
    }
}

/// All routes.
pub fn router(api: Api) -> Router {
    let writing = Router::new()
        .route("/api/v1/stop", post(calls::stop))
        .route("/api/v1/suspend", post(operate::suspend))
        .route("/api/v1/checkpoint", post(operate::checkpoint))
        .route("/api/v1/pause", post(operate::pause))
        .route("/api/v1/resume", post(operate::resume))
        .route("/api/v1/workers/{id}/drain", post(operate::drain))
        .route("/api/v1/workers/{id}/kick", post(operate::kick))
        .route("/api/v1/tokens", post(calls::create_token).get(calls::list_tokens))
        .route("/api/v1/tokens/{id}", delete(calls::revoke_token))
        .route_layer(from_fn_with_state(api.clone(), access::writers));
    let reading = Router::new()
        .route("/api/v1/status", get(operate::status))
        .route("/api/v1/members", get(operate::members))
        .route("/api/v1/events", get(operate::events))
        .route("/api/v1/history", get(history::history))
        .route("/api/v1/history/{run}", get(history::earlier))
        .route("/api/v1/stream", get(stream::stream))
        .route("/metrics", get(calls::metrics))
        .route_layer(from_fn_with_state(api.clone(), access::readers));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(calls::ready))
        .merge(page::routes())
        .merge(reading)
        .merge(writing)
        .fallback(calls::not_found)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
}
