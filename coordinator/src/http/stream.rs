//! Live progress of a run: server-sent events for the dashboard.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::poll_fn;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::Api;
use super::calls::failure;
use super::history::{Cursor, record_of, update_of};
use longhaul_run::{Health, Status};

/// Most listeners at a time: each holds a connection.
pub const LISTENERS_MAX: usize = 32;
/// Time between updates while all activities stay the same. A change is sent at once: a killed worker is to be visible within three seconds, of which detection takes one
/// or two.
const UPDATE_EVERY: Duration = Duration::from_secs(1);
/// A listener that takes no message for this time is dropped.
const SLOW_MAX: Duration = Duration::from_secs(10);
/// A listener connects again after this time: before the connection is closed for its age.
const STREAM_MAX: Duration = Duration::from_secs(240);

/// Query of `GET /api/v1/stream`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamQuery {
    /// `next` of the last message; otherwise the whole record comes first.
    after: String,
}

pub async fn stream(
    State(api): State<Api>,
    query: Result<Query<StreamQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Ok(Query(StreamQuery { after })) = query else {
        return failure(StatusCode::BAD_REQUEST, "invalid query: use ?after=NEXT");
    };
    let Ok(place) = api.listeners.clone().try_acquire_owned() else {
        return failure(StatusCode::TOO_MANY_REQUESTS, "too many open dashboards; try again later");
    };
    // One frame waits to be taken; the next one is built after that.
    let (frames, mut taken) = mpsc::channel::<String>(1);
    tokio::spawn(tell(api, Cursor::parse(&after), frames, place));
    let body = Body::from_stream(poll_fn(move |context| {
        taken.poll_recv(context).map(|frame| frame.map(Ok::<_, Infallible>))
    }));
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], body).into_response()
}

/// Sends updates until the listener leaves, or the longest life of a stream is over.
async fn tell(api: Api, after: Option<Cursor>, frames: mpsc::Sender<String>, _place: OwnedSemaphorePermit) {
    // The listener requests the rest anew.
    let _ = timeout(STREAM_MAX, async {
        let (mut after, mut status) = (after, api.status.clone());
        loop {
            // Read first: the run's final news is still sent.
            let ends = status.has_changed().is_err();
            let told = Arc::clone(&status.borrow());
            let Some((frame, place)) = next_frame(&api, after.take()).await else { return };
            after = Some(place);
            if frames.send_timeout(frame, SLOW_MAX).await.is_err() || ends {
                return;
            }
            tokio::select! {
                () = sleep(UPDATE_EVERY) => {}
                // At most as often as the run publishes its status.
                () = other_doings(&mut status, &told) => {}
                () = frames.closed() => return,
            }
        }
    })
    .await;
}

/// Resolves when the run or one of its workers changes its activity, or when no more status comes.
async fn other_doings(status: &mut watch::Receiver<Arc<Status>>, told: &Status) {
    let run = |status: &Status| (status.run.phase, status.run.paused, status.run.stopping);
    let is_other = |now: &Arc<Status>| run(now) != run(told) || !workers(now).eq(workers(told));
    // An error means that no more status comes.
    let _ = status.wait_for(is_other).await;
}

/// Activity of each present worker.
fn workers(status: &Status) -> impl Iterator<Item = (&str, &str, Health)> {
    status.cluster.members.iter().map(|worker| (&*worker.place.id, &*worker.work.state, worker.work.health))
}

/// Builds the news since a position, or the whole record, off the threads that take requests.
async fn next_frame(api: &Api, after: Option<Cursor>) -> Option<(String, Cursor)> {
    if let Some(after) = after {
        let api = api.clone();
        let update = tokio::task::spawn_blocking(move || {
            update_of(&api, &after).and_then(|(update, place)| Some((frame("update", &update)?, place)))
        });
        if let Some(update) = update.await.ok()? {
            return Some(update);
        }
    }
    let (recorded, api) = (api.recorded.clone(), api.clone());
    let whole = recorded.in_turn(move || {
        let (record, place) = record_of(&api);
        Some((frame("record", &record)?, place))
    });
    whole.await.flatten()
}

/// JSON has no line breaks of its own, so it is one `data` line.
fn frame(event: &str, data: &impl serde::Serialize) -> Option<String> {
    let data = serde_json::to_string(data).ok()?;
    Some(format!("event: {event}\ndata: {data}\n\n"))
}
