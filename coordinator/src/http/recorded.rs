//! The dashboard of a run that is over, or has no coordinator now.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use super::calls::failure;
use super::history::Record;
use super::{access, page};

/// Routes that show a record, which has the curves of the runs that it can be compared with. It is written as JSON once.
///
/// # Errors
/// Where it cannot be.
pub fn router(record: &Record) -> serde_json::Result<Router> {
    let record = Bytes::from(serde_json::to_vec(record)?);
    let reading = Router::new().route("/api/v1/history", get(history)).route_layer(from_fn(access::locals));
    let nothing = async || failure(StatusCode::NOT_FOUND, "not found; GET / shows the run");
    Ok(Router::new().merge(page::routes()).merge(reading).fallback(nothing).with_state(record))
}

async fn history(State(record): State<Bytes>) -> Response {
    ([(CONTENT_TYPE, "application/json")], record).into_response()
}
