//! The dashboard of a run that is over, or that nobody coordinates now.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};

use super::calls::failure;
use super::history::Record;
use super::{access, page};

/// Routes that show a record, which has the curves of the runs that it can be compared with.
pub fn router(record: Record) -> Router {
    let reading = Router::new().route("/api/v1/history", get(history)).route_layer(from_fn(access::locals));
    let nothing = async || failure(StatusCode::NOT_FOUND, "there is nothing here; GET / shows the run");
    Router::new().merge(page::routes()).merge(reading).fallback(nothing).with_state(Arc::new(record))
}

async fn history(State(record): State<Arc<Record>>) -> Response {
    Json(&*record).into_response()
}
