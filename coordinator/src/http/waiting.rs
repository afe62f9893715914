//! Answers of a coordinator that waits to take over.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use tokio::sync::watch;

use super::calls::failure;

/// Routes of a coordinator that waits: it lives, and everything else is the leader's to answer.
pub fn router(leader: watch::Receiver<Option<String>>) -> Router {
    Router::new().route("/healthz", get(|| async { "ok\n" })).fallback(elsewhere).with_state(leader)
}

async fn elsewhere(State(leader): State<watch::Receiver<Option<String>>>) -> Response {
    let leader = leader.borrow().clone();
    let text = match leader.filter(|advertised| !advertised.is_empty()) {
        Some(advertised) => format!(
            "this coordinator waits to take over; the one that leads is at {advertised} (UDP): ask it, or use the command \
             line on its machine"
        ),
        None => "this coordinator waits to take over; no coordinator leads yet".to_owned(),
    };
    failure(StatusCode::SERVICE_UNAVAILABLE, &text)
}
