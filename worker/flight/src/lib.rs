//! This process's activities of the last minutes, in bounded memory, for the analysis of failures.
//!
//! An activity begins with [`Recorder::begin`], and ends when the returned guard is dropped. Nothing is written before a request ([`FlightLog`]).
#![forbid(unsafe_code)]

#[cfg(feature = "otel")]
mod export;
mod log;
mod progress;
mod trace;
mod waits;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use longhaul_member::activity::Activity;

#[cfg(feature = "otel")]
pub use self::export::Export;
pub use self::log::FlightLog;
pub use self::progress::{Awaited, Coding, InStep, Progress, Tokens};

/// Records kept: twenty minutes at a hundred a second, a minute or two of the fastest small model; eight megabytes. Then the oldest is dropped.
const RECORDS_KEPT: usize = 1 << 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    what: Activity,
    /// Microseconds since the recorder began.
    began_us: u64,
    /// `None`: in progress.
    took_us: Option<u64>,
}

/// Recent activities of all threads.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    /// Unix time of that moment, in microseconds: traces of several workers align as well as their clocks do.
    began_unix_us: u64,
    state: Mutex<State>,
    /// Receiver of finished activities.
    #[cfg(feature = "otel")]
    export: Mutex<Option<Export>>,
}

#[derive(Debug, Default)]
struct State {
    /// In order of their end.
    done: VecDeque<Record>,
    /// Activities in progress, and their starts in microseconds.
    open: BTreeMap<u64, (Activity, u64)>,
    next: u64,
    /// Dropped records.
    forgotten: u64,
}

/// A recorder's content at one time.
struct Recording {
    /// Finished ones in order of their end, then those in progress.
    records: Vec<Record>,
    now_us: u64,
    began_unix_us: u64,
    forgotten: u64,
}

impl Default for Recorder {
    #[allow(clippy::disallowed_methods, reason = "times the activities of the process")]
    fn default() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            began: Instant::now(),
            began_unix_us: u64::try_from(unix.as_micros()).unwrap_or(u64::MAX),
            state: Mutex::default(),
            #[cfg(feature = "otel")]
            export: Mutex::default(),
        }
    }
}

impl Recorder {
    /// Begins an activity, which ends when the returned guard is dropped.
    #[must_use = "the activity ends when this is dropped"]
    pub fn begin(self: &Arc<Self>, what: Activity) -> Doing {
        let now_us = self.now_us();
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.open.insert(id, (what, now_us));
        Doing { recorder: Arc::clone(self), id }
    }

    /// Records an instant.
    pub fn note(&self, what: Activity) {
        let began_us = self.now_us();
        self.keep(self.lock(), Record { what, began_us, took_us: Some(0) });
    }

    fn end(&self, id: u64) {
        let now_us = self.now_us();
        let mut state = self.lock();
        if let Some((what, began_us)) = state.open.remove(&id) {
            self.keep(state, Record { what, began_us, took_us: Some(now_us.saturating_sub(began_us)) });
        }
    }

    fn keep(&self, mut state: MutexGuard<'_, State>, record: Record) {
        state.keep(record);
        drop(state);
        #[cfg(feature = "otel")]
        if let Some(export) = &*self.export.lock().unwrap_or_else(PoisonError::into_inner) {
            export.put(self.began_unix_us, &record);
        }
    }

    /// Exports activities that end from now on.
    #[cfg(feature = "otel")]
    pub fn export(&self, export: Export) {
        *self.export.lock().unwrap_or_else(PoisonError::into_inner) = Some(export);
    }

    fn recording(&self) -> Recording {
        let now_us = self.now_us();
        let state = self.lock();
        let open = state.open.values().map(|&(what, began_us)| Record { what, began_us, took_us: None });
        Recording {
            records: state.done.iter().copied().chain(open).collect(),
            now_us,
            began_unix_us: self.began_unix_us,
            forgotten: state.forgotten,
        }
    }

    #[allow(clippy::disallowed_methods, reason = "times the activities of the process")]
    fn now_us(&self) -> u64 {
        let since = Instant::now().saturating_duration_since(self.began);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, record: Record) {
        if self.done.len() == RECORDS_KEPT {
            self.done.pop_front();
            self.forgotten += 1;
        }
        self.done.push_back(record);
    }
}

/// An activity in progress until dropped.
#[derive(Debug)]
pub struct Doing {
    recorder: Arc<Recorder>,
    id: u64,
}

impl Drop for Doing {
    fn drop(&mut self) {
        self.recorder.end(self.id);
    }
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::Round;

    use super::*;

    #[test]
    fn the_oldest_records_go_where_there_are_too_many() {
        let recorder = Recorder::default();
        for step in 0..RECORDS_KEPT as u64 + 3 {
            recorder.note(Activity::Compute { round: Round(0), step });
        }
        let recording = recorder.recording();
        assert_eq!((recording.records.len(), recording.forgotten), (RECORDS_KEPT, 3));
        assert_eq!(recording.records[0].what, Activity::Compute { round: Round(0), step: 3 });
        assert!(size_of::<Record>() * RECORDS_KEPT <= 8 << 20, "{}", size_of::<Record>());
    }

    #[test]
    fn what_goes_on_is_told_as_well_and_what_ended_last_is_last() {
        let recorder = Arc::new(Recorder::default());
        let outer = recorder.begin(Activity::Compute { round: Round(0), step: 1 });
        let inner = recorder.begin(Activity::WaitForOthers);
        let told = |recorder: &Recorder| -> Vec<_> {
            recorder
                .recording()
                .records
                .iter()
                .map(|record| (record.what, record.took_us.is_some()))
                .collect()
        };
        assert_eq!(
            told(&recorder),
            [(Activity::Compute { round: Round(0), step: 1 }, false), (Activity::WaitForOthers, false)]
        );
        drop(inner);
        drop(outer);
        assert_eq!(
            told(&recorder),
            [(Activity::WaitForOthers, true), (Activity::Compute { round: Round(0), step: 1 }, true)]
        );
        let recording = recorder.recording();
        let [inner, outer] = recording.records[..] else { panic!("{}", recording.records.len()) };
        assert!(outer.began_us <= inner.began_us && outer.took_us >= inner.took_us);
    }
}
