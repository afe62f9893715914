//! History of a run for the dashboard.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use longhaul_common::id::RunId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Api;
use super::calls::failure;
use super::recent::{Runs, StatusText};
use crate::history::SharedHistory;
use crate::history::{Folder, Found, History, HistoryError, Interval, Mark, Meta, News, RoundPoint, Sample};
use crate::journal::NumberedEvent;
use longhaul_run::Status;

/// Most earlier runs offered for comparison: the newest.
pub const EARLIER_MAX: usize = 16;
/// Whole histories built or read at a time: some megabytes each.
const WHOLE_AT_A_TIME: usize = 2;
/// Longest wait for a turn.
const TURN_MAX: Duration = Duration::from_secs(10);
/// All points of earlier runs, whatever the clock.
pub const ALL_TIMES: u64 = u64::MAX;

/// Curves of this run and of earlier ones.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Those of this run.
    history: SharedHistory,
    runs: Arc<Runs>,
    status_text: Arc<StatusText>,
    turns: Arc<Semaphore>,
}

impl Recorded {
    /// The curves of this run, and a state directory with those of earlier ones.
    #[must_use]
    pub fn new(history: SharedHistory, state_dir: &FilePath) -> Self {
        let (runs, turns) = (Arc::new(Runs::new(state_dir)), Arc::new(Semaphore::new(WHOLE_AT_A_TIME)));
        Self { history, runs, status_text: Arc::default(), turns }
    }

    /// Runs an expensive task when it is its turn; `None`: no turn came in time.
    pub async fn in_turn<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let turn = timeout(TURN_MAX, Arc::clone(&self.turns).acquire_owned()).await.ok()?.ok()?;
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            what()
        });
        done.await.ok()
    }
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
    /// The newest samples as they were taken; the last of them is the end of every curve.
    pub recent: Vec<Sample>,
    /// Rounds after the last one, which wait for others to be kept with, as one.
    pub open_round: Option<RoundPoint>,
}

/// All data of the dashboard. Unknown values are null.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Whether a coordinator runs, whose stream goes on from here.
    pub live: bool,
    /// Unix time in milliseconds of the last word, where it is not live.
    pub at_ms: Option<u64>,
    /// Value of `after` for the stream.
    pub next: String,
    /// The curves.
    #[serde(flatten)]
    pub curves: Curves,
    /// Recent activity of each worker.
    pub activity: Vec<Interval>,
    /// How it goes, or went.
    pub status: Option<Status>,
    /// The newest events, oldest first.
    pub events: Vec<NumberedEvent>,
    /// Runs to compare with, the newest first.
    pub earlier: Vec<Meta>,
    /// Their curves, for a page without a coordinator.
    #[serde(default)]
    pub compared: Vec<Curves>,
}

/// News since the last request.
#[derive(Clone, Debug, Serialize)]
pub struct Update {
    /// Value of `after` for the next request.
    pub next: String,
    /// All sites,
    pub sites: Vec<String>,
    /// and all ways.
    pub ways: Vec<(String, String)>,
    /// New samples that are kept,
    pub samples: Vec<Sample>,
    /// rounds,
    pub rounds: Vec<RoundPoint>,
    /// samples as they were taken,
    pub recent: Vec<Sample>,
    /// rounds that wait for others, as one,
    pub open_round: Option<RoundPoint>,
    /// intervals of activity,
    pub activity: Vec<Interval>,
    /// and events.
    pub events: Vec<NumberedEvent>,
    /// How it goes: a [`Status`].
    pub status: Arc<RawValue>,
}

/// Position of a reader: `RUN.EPOCH.CHANGES.SAMPLES.ROUNDS.SAMPLED.ACTIVITY.EVENT`. Valid for the history of that epoch alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    run: String,
    epoch: u64,
    mark: Mark,
    event: u64,
}

impl Cursor {
    /// Parses a position; `None`: malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split('.');
        let run = words.next()?.to_owned();
        let numbers: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        let [epoch, changes, samples, rounds, sampled_ms, activity_ms, event] = numbers.try_into().ok()?;
        let (samples, rounds) = (usize::try_from(samples).ok()?, usize::try_from(rounds).ok()?);
        Some(Self { run, epoch, mark: Mark { changes, samples, rounds, sampled_ms, activity_ms }, event })
    }

    fn text(&self) -> String {
        let Self { run, epoch, mark, event } = self;
        let Mark { changes, samples, rounds, sampled_ms, activity_ms } = mark;
        format!("{run}.{epoch}.{changes}.{samples}.{rounds}.{sampled_ms}.{activity_ms}.{event}")
    }
}

impl Curves {
    /// The end of a history.
    #[must_use]
    pub fn of(history: &History) -> Self {
        // A sample that waits is the newest of the recent ones, unless those were lost.
        let waits =
            history.samples().open().map(|(sample, _)| sample).filter(|_| history.recent().is_empty());
        Self {
            meta: history.meta().clone(),
            sites: history.sites().to_vec(),
            ways: history.ways().to_vec(),
            samples: history.samples().kept().to_vec(),
            rounds: history.rounds().kept().to_vec(),
            recent: history.recent().iter().chain(waits).cloned().collect(),
            open_round: history.open().round.map(|(round, _)| round),
        }
    }
}

/// Returns everything as of now, and its position.
pub fn record_of(api: &Api) -> (Record, Cursor) {
    let Recorded { history, runs, .. } = &api.recorded;
    let (mark, curves, activity) = history.look(|history| {
        (history.mark(), Curves::of(history), history.activity().intervals().iter().cloned().collect())
    });
    let events = api.journal.after(0);
    let event = events.last().map_or(0, |event| event.number);
    let mut earlier = runs.all();
    earlier.retain(|meta| meta.run != curves.meta.run);
    earlier.truncate(EARLIER_MAX);
    let place = Cursor { run: curves.meta.run.clone(), epoch: history.epoch(), mark, event };
    let record = Record {
        live: true,
        at_ms: None,
        next: place.text(),
        curves,
        activity,
        status: Some(Status::clone(&api.status.borrow())),
        events,
        earlier,
        compared: Vec::new(),
    };
    (record, place)
}

/// Returns the news since a position; `None`: the history has changed before it, and a whole record is needed.
pub fn update_of(api: &Api, place: &Cursor) -> Option<(Update, Cursor)> {
    let Recorded { history, status_text, .. } = &api.recorded;
    let Cursor { run, epoch, mark, event } = place;
    let news = history.look(|history| (*run == history.meta().run).then(|| history.since(mark)).flatten())?;
    if *epoch != history.epoch() {
        return None;
    }
    let events = api.journal.after(*event);
    let event = events.last().map_or(*event, |event| event.number);
    let News { sites, ways, samples, rounds, recent, open_round, activity, mark } = news;
    let place = Cursor { run: run.clone(), epoch: *epoch, mark, event };
    let status = Arc::clone(&api.status.borrow());
    let status = status_text.of(&status).ok()?;
    let next = place.text();
    Some((Update { next, sites, ways, samples, rounds, recent, open_round, activity, events, status }, place))
}

/// `GET /api/v1/history`
pub async fn history(State(api): State<Api>) -> Response {
    let recorded = api.recorded.clone();
    match recorded.in_turn(move || serde_json::to_string(&record_of(&api).0)).await {
        Some(text) => json(text),
        None => busy(),
    }
}

/// `GET /api/v1/history/{run}`
pub async fn earlier(State(api): State<Api>, Path(run): Path<String>) -> Response {
    let Ok(run) = run.parse::<RunId>() else {
        return failure(StatusCode::BAD_REQUEST, "a run's id is 32 hexadecimal digits");
    };
    let state_dir = Arc::clone(api.recorded.runs.state_dir());
    match api.recorded.in_turn(move || curves_of(&state_dir, &run.to_string())).await {
        Some(Ok(Some(text))) => json(text),
        Some(Ok(None)) => failure(StatusCode::NOT_FOUND, "no history of such a run"),
        Some(Err(error)) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        None => busy(),
    }
}

/// The curves of an earlier run, as JSON.
fn curves_of(state_dir: &FilePath, run: &str) -> Result<Option<serde_json::Result<String>>, HistoryError> {
    let found = Folder::read(state_dir, run, ALL_TIMES)?;
    Ok(found.map(|Found { history, .. }| serde_json::to_string(&Curves::of(&history))))
}

fn json(text: serde_json::Result<String>) -> Response {
    match text {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], Body::from(text)).into_response(),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn busy() -> Response {
    failure(StatusCode::SERVICE_UNAVAILABLE, "too many requests for whole histories; try again in a moment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whole_histories_are_made_in_turn_and_who_waits_too_long_is_told() {
        let meta = Meta {
            format: crate::history::FORMAT,
            run: "ab".to_owned(),
            name: String::new(),
            begun_ms: 0,
            images: false,
            steps: 1,
            batch: 1,
            about: String::new(),
        };
        let recorded = Recorded::new(SharedHistory::new(History::new(meta)), FilePath::new("nowhere"));
        let taken = recorded.turns.acquire_many(2).await.unwrap();
        assert_eq!(recorded.in_turn(|| 1).await, None);
        drop(taken);
        assert_eq!(recorded.in_turn(|| 1).await, Some(1));
    }

    #[test]
    fn a_place_survives_its_text_form() {
        let mark = Mark { changes: 1, samples: 2, rounds: 3, sampled_ms: 4, activity_ms: 5 };
        let place = Cursor { run: "ab".to_owned(), epoch: u64::MAX, mark, event: 6 };
        assert_eq!(Cursor::parse(&place.text()), Some(place));
        for wrong in ["", "ab.1.2.3.4.5.6", "ab.1.2.3.4.5.6.7.8", "ab.1.2.-3.4.5.6.7", "ab.1.2.x.4.5.6.7"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
