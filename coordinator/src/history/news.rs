//! News for a reader that follows a history.

use serde::{Deserialize, Serialize};

use super::activity::Interval;
use super::note::History;
use super::points::{RoundPoint, Sample};
use super::thinned::Thinned;

/// Position of a reader that follows a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// How often points had been changed by then.
    pub changes: u64,
    /// The samples that were kept,
    pub samples: usize,
    /// the rounds,
    pub rounds: usize,
    /// when the newest sample was taken, kept or not, in Unix milliseconds,
    pub sampled_ms: u64,
    /// and the end of the newest interval of activity, likewise.
    pub activity_ms: u64,
}

/// News since a [`Mark`].
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The names of all sites, by place,
    pub sites: Vec<String>,
    /// and all ways.
    pub ways: Vec<(String, String)>,
    /// Samples that are kept,
    pub samples: Vec<Sample>,
    /// and rounds.
    pub rounds: Vec<RoundPoint>,
    /// Samples as they were taken: the newest of them is the end of every curve.
    pub recent: Vec<Sample>,
    /// Rounds that wait for others to be kept with, as one.
    pub open_round: Option<RoundPoint>,
    /// Activity of workers.
    pub activity: Vec<Interval>,
    /// All that there is now.
    pub mark: Mark,
}

/// Points that wait for others to be kept with, as one, and how many they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Open {
    /// Of samples.
    pub sample: Option<(Sample, u64)>,
    /// Of rounds.
    pub round: Option<(RoundPoint, u64)>,
}

impl History {
    /// All that there is now.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark {
            changes: self.changes(),
            samples: self.samples().kept().len(),
            rounds: self.rounds().kept().len(),
            sampled_ms: self.samples().newest().map_or(0, |sample| sample.at_ms),
            activity_ms: self.activity().intervals().back().map_or(0, |interval| interval.at_ms),
        }
    }

    /// Returns the news since a position; `None`: earlier news has been revised since.
    #[must_use]
    pub fn since(&self, mark: &Mark) -> Option<News> {
        let now = self.mark();
        if mark.changes != now.changes || mark.samples > now.samples || mark.rounds > now.rounds {
            return None;
        }
        Some(News {
            sites: self.sites().to_vec(),
            ways: self.ways().to_vec(),
            samples: self.samples().kept()[mark.samples..].to_vec(),
            rounds: self.rounds().kept()[mark.rounds..].to_vec(),
            recent: self.recent().iter().filter(|sample| sample.at_ms > mark.sampled_ms).cloned().collect(),
            open_round: waiting(self.rounds()),
            activity: self.activity().after(mark.activity_ms).cloned().collect(),
            mark: now,
        })
    }

    /// Points that wait for others.
    #[must_use]
    pub fn open(&self) -> Open {
        Open { sample: self.samples().open().cloned(), round: self.rounds().open().cloned() }
    }
}

/// Those that wait for others, as one.
pub(super) fn waiting(rounds: &Thinned<RoundPoint>) -> Option<RoundPoint> {
    rounds.open().map(|(round, _)| round.clone())
}
