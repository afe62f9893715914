//! What is known of a run over time, for the dashboard.

use std::path::Path as FilePath;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use longhaul_common::id::RunId;
use serde::{Deserialize, Serialize};

use super::Api;
use super::calls::failure;
use crate::history::{Folder, History, HistoryError, Interval, Mark, Meta, RoundPoint, Sample};
use crate::run::Status;
use crate::runtime::{NumberedEvent, SharedHistory};

/// Earlier runs that are offered for comparison: the newest.
pub const EARLIER_MAX: usize = 16;

/// Where the curves of this run and of earlier ones are.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Those of this run.
    pub history: SharedHistory,
    /// The state directory with the earlier ones.
    pub state_dir: Arc<FilePath>,
}

/// The curves of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Of which.
    pub meta: Meta,
    /// The names of sites, by their place in samples.
    pub sites: Vec<String>,
    /// The ways between them, from and to, likewise.
    pub ways: Vec<(String, String)>,
    /// The run over time.
    pub samples: Vec<Sample>,
    /// Its rounds.
    pub rounds: Vec<RoundPoint>,
}

/// All that the dashboard shows. What is not known is null.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Whether a coordinator runs, whose stream goes on from here.
    pub live: bool,
    /// Unix time in milliseconds of the last word, where it is not live.
    pub at_ms: Option<u64>,
    /// What to ask the stream for, as `after`.
    pub next: String,
    /// The curves.
    #[serde(flatten)]
    pub curves: Curves,
    /// What each worker did lately.
    pub activity: Vec<Interval>,
    /// How it goes, or went.
    pub status: Option<Status>,
    /// The newest events, oldest first.
    pub events: Vec<NumberedEvent>,
    /// Runs to compare with, the newest first.
    pub earlier: Vec<Meta>,
    /// Their curves, where there is nobody to ask for them.
    #[serde(default)]
    pub compared: Vec<Curves>,
}

/// What came since somebody asked last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// What to ask for next.
    pub next: String,
    /// All sites,
    pub sites: Vec<String>,
    /// and all ways.
    pub ways: Vec<(String, String)>,
    /// New samples,
    pub samples: Vec<Sample>,
    /// rounds,
    pub rounds: Vec<RoundPoint>,
    /// intervals of activity,
    pub activity: Vec<Interval>,
    /// and events.
    pub events: Vec<NumberedEvent>,
    /// How it goes.
    pub status: Status,
}

/// How far somebody has come: `RUN.CHANGES.SAMPLES.ROUNDS.ACTIVITY.EVENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    run: String,
    mark: Mark,
    event: u64,
}

impl Place {
    /// None of what is no such place.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('.');
        let run = words.next()?.to_owned();
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        let [changes, samples, rounds, activity_ms, event] = numbers.try_into().ok()?;
        let mark = Mark {
            changes,
            samples: usize::try_from(samples).ok()?,
            rounds: usize::try_from(rounds).ok()?,
            activity_ms,
        };
        Some(Self { run, mark, event })
    }

    fn text(&self) -> String {
        let Mark { changes, samples, rounds, activity_ms } = self.mark;
        format!("{}.{changes}.{samples}.{rounds}.{activity_ms}.{}", self.run, self.event)
    }
}

impl Curves {
    /// All that a history has.
    #[must_use]
    pub fn of(history: &History) -> Self {
        Self {
            meta: history.meta().clone(),
            sites: history.sites().to_vec(),
            ways: history.ways().to_vec(),
            samples: history.samples().kept().to_vec(),
            rounds: history.rounds().kept().to_vec(),
        }
    }
}

/// All of it as of now. Earlier runs are read from the disk.
pub fn record_of(api: &Api) -> Result<Record, HistoryError> {
    let (mark, curves, activity) = api.recorded.history.look(|history| {
        (history.mark(), Curves::of(history), history.activity().intervals().iter().cloned().collect())
    });
    let events = api.journal.after(0);
    let event = events.last().map_or(0, |event| event.number);
    let mut earlier = Folder::runs(&api.recorded.state_dir)?;
    earlier.retain(|meta| meta.run != curves.meta.run);
    earlier.truncate(EARLIER_MAX);
    Ok(Record {
        live: true,
        at_ms: None,
        next: Place { run: curves.meta.run.clone(), mark, event }.text(),
        curves,
        activity,
        status: Some(Status::clone(&api.status.borrow())),
        events,
        earlier,
        compared: Vec::new(),
    })
}

/// What came after a place; none where that place is no part of what is: a record says all.
pub fn update_of(api: &Api, place: &Place) -> Option<(Update, Place)> {
    let (mut update, mark) = api.recorded.history.look(|history| {
        let Place { run, mark, .. } = place;
        (*run == history.meta().run && history.goes_on_from(mark)).then(|| {
            let update = Update {
                next: String::new(),
                sites: history.sites().to_vec(),
                ways: history.ways().to_vec(),
                samples: history.samples().kept()[mark.samples..].to_vec(),
                rounds: history.rounds().kept()[mark.rounds..].to_vec(),
                activity: history.activity().after(mark.activity_ms).cloned().collect(),
                events: api.journal.after(place.event),
                status: Status::clone(&api.status.borrow()),
            };
            (update, history.mark())
        })
    })?;
    let event = update.events.last().map_or(place.event, |event| event.number);
    let place = Place { run: place.run.clone(), mark, event };
    update.next = place.text();
    Some((update, place))
}

/// `GET /api/v1/history`
pub async fn history(State(api): State<Api>) -> Response {
    match tokio::task::spawn_blocking(move || record_of(&api)).await {
        Ok(Ok(record)) => Json(record).into_response(),
        Ok(Err(error)) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        Err(_) => failure(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is stopping"),
    }
}

/// `GET /api/v1/history/{run}`
pub async fn earlier(State(api): State<Api>, Path(run): Path<String>) -> Response {
    let state_dir = Arc::clone(&api.recorded.state_dir);
    curves_of(move |run| Folder::read(&state_dir, run), run).await
}

/// The curves of a run that somebody names.
pub async fn curves_of(
    read: impl FnOnce(&str) -> Result<Option<History>, HistoryError> + Send + 'static,
    run: String,
) -> Response {
    let Ok(run) = run.parse::<RunId>() else {
        return failure(StatusCode::BAD_REQUEST, "a run's id is 32 hexadecimal digits");
    };
    match tokio::task::spawn_blocking(move || read(&run.to_string())).await {
        Ok(Ok(Some(history))) => Json(Curves::of(&history)).into_response(),
        Ok(Ok(None)) => failure(StatusCode::NOT_FOUND, "there is no history of such a run here"),
        Ok(Err(error)) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        Err(_) => failure(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is stopping"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_its_text_form() {
        let mark = Mark { changes: 1, samples: 2, rounds: 3, activity_ms: 4 };
        let place = Place { run: "ab".to_owned(), mark, event: 5 };
        assert_eq!(Place::parse(&place.text()), Some(place));
        for wrong in ["", "ab.1.2.3.4", "ab.1.2.3.4.5.6", "ab.1.2.-3.4.5", "ab.1.2.x.4.5"] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
    }
}
