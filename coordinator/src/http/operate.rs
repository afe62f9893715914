//! An operator's calls: status, members, events, pause, resume, drain and kick.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::Api;
use super::calls::{ask, empty, failure};
use super::members::members_of;
use crate::inbox::{Answered, ApiCall, CallRefusal};
use crate::journal::NumberedEvent;
use longhaul_run::Phase;

/// Longest wait of a call for events, or for the run's end, in seconds: shorter than the timeouts of proxies.
pub const WAIT_S_MAX: u64 = 25;

/// Query of `GET /api/v1/status`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StatusQuery {
    /// How long to wait for the run's end, in seconds.
    wait_s: u64,
}

/// Query of `GET /api/v1/events`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsQuery {
    /// Events with higher numbers are wanted.
    after: u64,
    /// How long to wait for one, in seconds, where there is none.
    wait_s: u64,
}

/// Its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// In order; those that are too old are not kept.
    pub events: Vec<NumberedEvent>,
    /// Value of `after` for the next request.
    pub next: u64,
    /// Whether the run was finished by then: its last event is among these, or was sent before.
    #[serde(default)]
    pub finished: bool,
}

pub async fn status(
    State(api): State<Api>,
    query: Result<Query<StatusQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let wait_s = match query {
        Ok(Query(StatusQuery { wait_s })) => wait_s,
        Err(error) => {
            let text = format!("invalid query ({error}): use ?wait_s=SECONDS");
            return failure(StatusCode::BAD_REQUEST, &text);
        }
    };
    if wait_s > 0 && !is_finished(&api) {
        let Ok(_place) = api.followers.try_acquire() else {
            return failure(
                StatusCode::TOO_MANY_REQUESTS,
                "too many clients follow the run; ask without wait_s",
            );
        };
        let mut status = api.status.clone();
        let end = status.wait_for(|status| status.run.phase == Phase::Finished);
        // It goes on: that is an answer, too.
        let _ = timeout(Duration::from_secs(wait_s.min(WAIT_S_MAX)), end).await;
    }
    let status = api.status.borrow().clone();
    Json(&*status).into_response()
}

pub async fn members(State(api): State<Api>) -> Response {
    let status = api.status.borrow().clone();
    Json(members_of(&status)).into_response()
}

pub async fn events(
    State(api): State<Api>,
    query: Result<Query<EventsQuery>, axum::extract::rejection::QueryRejection>,
) -> Response {
    let Query(EventsQuery { after, wait_s }) = match query {
        Ok(query) => query,
        Err(error) => {
            let text = format!("invalid query ({error}): use ?after=NUMBER&wait_s=SECONDS");
            return failure(StatusCode::BAD_REQUEST, &text);
        }
    };
    // Read first: once the status is finished, the journal has the run's last events.
    let mut finished = is_finished(&api);
    let mut events = api.journal.after(after);
    if events.is_empty() && wait_s > 0 && !finished {
        let Ok(_place) = api.followers.try_acquire() else {
            return failure(
                StatusCode::TOO_MANY_REQUESTS,
                "too many clients follow the events; ask without wait_s",
            );
        };
        let at_most = Duration::from_secs(wait_s.min(WAIT_S_MAX));
        let mut status = api.status.clone();
        let end = status.wait_for(|status| status.run.phase == Phase::Finished);
        // Nothing happened: that is an answer, too.
        let _ = timeout(at_most, async {
            tokio::select! {
                () = api.journal.until_after(after) => {}
                _ = end => {}
            }
        })
        .await;
        finished = is_finished(&api);
        events = api.journal.after(after);
    }
    let next = events.last().map_or(after, |event| event.number);
    Json(Events { events, next, finished }).into_response()
}

fn is_finished(api: &Api) -> bool {
    api.status.borrow().run.phase == Phase::Finished
}

pub async fn suspend(State(api): State<Api>) -> Response {
    done(&api, ApiCall::Suspend).await
}

pub async fn checkpoint(State(api): State<Api>) -> Response {
    done(&api, ApiCall::Checkpoint).await
}

pub async fn pause(State(api): State<Api>) -> Response {
    done(&api, ApiCall::Pause).await
}

pub async fn resume(State(api): State<Api>) -> Response {
    done(&api, ApiCall::Resume).await
}

pub async fn drain(State(api): State<Api>, Path(worker): Path<String>) -> Response {
    match parse_worker(&worker) {
        Some(worker) => done(&api, |reply| ApiCall::Dismiss(worker, reply)).await,
        None => no_worker(&worker),
    }
}

pub async fn kick(State(api): State<Api>, Path(worker): Path<String>) -> Response {
    let Some(worker) = parse_worker(&worker) else { return no_worker(&worker) };
    match ask(&api, |reply| ApiCall::Kick(worker, reply)).await {
        Ok(Ok(kicked)) => Json(kicked).into_response(),
        Ok(Err(refusal)) => refused(&refusal),
        Err(failed) => failed,
    }
}

async fn done(api: &Api, call: impl FnOnce(Answered<()>) -> ApiCall) -> Response {
    match ask(api, call).await {
        Ok(Ok(())) => empty(),
        Ok(Err(refusal)) => refused(&refusal),
        Err(failed) => failed,
    }
}

fn refused(refusal: &CallRefusal) -> Response {
    match refusal {
        CallRefusal::Unknown(text) => failure(StatusCode::NOT_FOUND, text),
        CallRefusal::Untimely(text) => failure(StatusCode::CONFLICT, text),
    }
}

fn no_worker(text: &str) -> Response {
    let shown: String = text.chars().filter(|c| !c.is_control()).take(32).collect();
    let text = format!("{shown:?} is no worker id such as w3: `coordinator members` lists them");
    failure(StatusCode::BAD_REQUEST, &text)
}

/// `w3` or `3`.
fn parse_worker(text: &str) -> Option<WorkerId> {
    let digits = text.strip_prefix('w').unwrap_or(text);
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| valid).map(WorkerId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_named_with_or_without_its_letter() {
        assert_eq!(parse_worker("w3"), Some(WorkerId(3)));
        assert_eq!(parse_worker("3"), Some(WorkerId(3)));
        assert_eq!(parse_worker(&WorkerId(70_000).to_string()), Some(WorkerId(70_000)));
        for wrong in ["", "w", "w+3", "-3", "x3", "w99999999999"] {
            assert_eq!(parse_worker(wrong), None, "{wrong}");
        }
    }
}
