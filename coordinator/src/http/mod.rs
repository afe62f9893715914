//! The HTTP API.
//!
//! | call | answers | who may |
//! | --- | --- | --- |
//! | `GET /healthz` | 200 while the process serves | anybody |
//! | `GET /readyz` | 200 while decisions are made | anybody |
//! | `GET /metrics` | Prometheus text, see [`metrics`] | readers |
//! | `GET /api/v1/status` | [`Status`] | readers |
//! | `POST /api/v1/stop` | `{}`: the run drains | writers |
//! | `POST /api/v1/tokens` | [`NewToken`](crate::runtime::NewToken) for `{"life_s": 3600, "uses": 4}` | writers |
//! | `GET /api/v1/tokens` | [`TokenStatus`](crate::runtime::TokenStatus)es | writers |
//! | `DELETE /api/v1/tokens/{id}` | `{}` | writers |
//!
//! Writers show `Authorization: Bearer` and the contents of `api-token` in the state directory. Readers need nothing when
//! the API listens on loopback, and the same token elsewhere. Failures are `{"error": "…"}`. A coordinator that waits to take over answers
//! `/healthz` alone; everything else is 503, with who leads ([`waiting`]).

mod access;
mod calls;
pub mod metrics;
pub mod waiting;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use tokio::sync::{mpsc, watch};

use crate::run::Status;
use crate::runtime::Input;

pub use calls::{TOKEN_LIFE_S, TOKEN_LIFE_S_MAX, TokenRequest};

/// Requests to this API are small, in bytes.
const BODY_BYTES_MAX: usize = 4096;

/// What the handlers share.
#[derive(Clone, Debug)]
pub struct Api {
    status: watch::Receiver<Arc<Status>>,
    inputs: mpsc::Sender<Input>,
    token: Arc<str>,
    loopback: bool,
}

impl Api {
    /// The API of a run whose status is published to `status` and whose owner takes `inputs`.
    #[must_use]
    pub fn new(
        status: watch::Receiver<Arc<Status>>,
        inputs: mpsc::Sender<Input>,
        token: String,
        loopback: bool,
    ) -> Self {
        Self { status, inputs, token: token.into(), loopback }
    }
}

/// All routes.
pub fn router(api: Api) -> Router {
    let writing = Router::new()
        .route("/api/v1/stop", post(calls::stop))
        .route("/api/v1/tokens", post(calls::create_token).get(calls::list_tokens))
        .route("/api/v1/tokens/{id}", delete(calls::revoke_token))
        .route_layer(from_fn_with_state(api.clone(), access::writers));
    let reading = Router::new()
        .route("/api/v1/status", get(calls::status))
        .route("/metrics", get(calls::metrics))
        .route_layer(from_fn_with_state(api.clone(), access::readers));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(calls::ready))
        .merge(reading)
        .merge(writing)
        .fallback(calls::not_found)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
}
