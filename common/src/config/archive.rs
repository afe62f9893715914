//! Archive location and retention of checkpoints.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::BestCheckpoints;
use crate::id::Round;

/// A place that all workers of a run reach: a shared folder, or object storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ArchiveLocation {
    /// A folder.
    Folder(PathBuf),
    /// S3, or a compatible service.
    S3(Bucket),
    /// Google Cloud Storage.
    Gcs(Bucket),
}

/// A place in object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Name.
    pub name: String,
    /// Common prefix of all names in it, without slashes at either end; may be empty.
    pub prefix: String,
}

/// A text that is not an archive location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not a valid place for checkpoints: give a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, with a bucket's name of letters, digits, dots and hyphens"
)]
pub struct ParseArchiveLocationError(String);

impl FromStr for ArchiveLocation {
    type Err = ParseArchiveLocationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused =
            || ParseArchiveLocationError(if text.is_empty() { "nothing".into() } else { text.into() });
        match text.split_once("://") {
            Some(("s3", rest)) => Bucket::parse(rest).map(Self::S3),
            Some(("gs", rest)) => Bucket::parse(rest).map(Self::Gcs),
            Some(("file", folder)) if folder.starts_with('/') => Some(Self::Folder(folder.into())),
            Some(_) => None,
            None => (!text.is_empty()).then(|| Self::Folder(text.into())),
        }
        .ok_or_else(refused)
    }
}

impl Bucket {
    fn parse(text: &str) -> Option<Self> {
        let (name, prefix) = text.split_once('/').unwrap_or((text, ""));
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let prefix = prefix.trim_end_matches('/');
        let parts_are_fit = prefix.is_empty()
            || prefix.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        (!name.is_empty() && name.bytes().all(is_fit) && parts_are_fit)
            .then(|| Self { name: name.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        write!(f, "{}{slash}{}", self.name, self.prefix)
    }
}

impl fmt::Display for ArchiveLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::S3(bucket) => write!(f, "s3://{bucket}"),
            Self::Gcs(bucket) => write!(f, "gs://{bucket}"),
        }
    }
}

impl TryFrom<String> for ArchiveLocation {
    type Error = ParseArchiveLocationError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ArchiveLocation> for String {
    fn from(location: ArchiveLocation) -> Self {
        location.to_string()
    }
}

/// Retention of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Number of newest ones to keep, at least one.
    pub last: u32,
    /// Checkpoints before rounds that are multiples of this are kept permanently; 0: none.
    pub for_good_every: u64,
    /// Checkpoints kept for their held-out loss.
    pub best: BestCheckpoints,
    /// Those before rounds that are multiples of this wait for a verdict on their loss; 0: none do.
    pub judged_every: u64,
    /// All before this round stay; `None`: there is no such round.
    pub all_before: Option<Round>,
}

impl From<u32> for Retention {
    fn from(last: u32) -> Self {
        Self { last, for_good_every: 0, best: BestCheckpoints::default(), judged_every: 0, all_before: None }
    }
}

impl Retention {
    /// Whether a checkpoint is kept permanently.
    #[must_use]
    pub fn is_for_good(self, next_round: Round) -> bool {
        self.for_good_every != 0 && next_round.0.is_multiple_of(self.for_good_every)
    }

    /// Returns the checkpoints to remove, of those given newest first, now that the one before `written` is
    /// complete. Those of later rounds are damaged or from an abandoned past; as many of the newest of them
    /// are kept in addition.
    pub fn surplus(self, newest_first: &[Round], written: Round) -> impl Iterator<Item = Round> {
        let last = self.last.max(1) as usize;
        let (later, from_here) =
            newest_first.split_at(newest_first.iter().take_while(|round| **round > written).count());
        let surplus = later.iter().skip(last).chain(from_here.iter().skip(last));
        let unjudged = self.best.unjudged(newest_first, self.judged_every);
        let is_kept = move |round| {
            self.is_for_good(round)
                || self.best.has(round)
                || unjudged.contains(&round)
                || self.all_before.is_some_and(|first| round < first)
        };
        surplus.copied().filter(move |round| !is_kept(*round))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written_alike() {
        for text in ["s3://bucket", "s3://my.bucket-1/a/b", "gs://b/runs", "/mnt/shared", "relative/folder"] {
            assert_eq!(text.parse::<ArchiveLocation>().unwrap().to_string(), text);
        }
        let bucket = Bucket { name: "b".into(), prefix: "runs".into() };
        assert_eq!("s3://b/runs/".parse(), Ok(ArchiveLocation::S3(bucket)));
        assert_eq!("file:///a".parse(), Ok(ArchiveLocation::Folder("/a".into())));
        for wrong in
            ["", "s3://", "s3:///a", "s3://b/../a", "s3://b//c", "http://host/b", "file://host", "s3://b c"]
        {
            let error = wrong.parse::<ArchiveLocation>().unwrap_err().to_string();
            assert!(error.contains("give a folder, s3://"), "{error}");
        }
    }

    #[test]
    fn the_last_and_each_so_many_th_stay() {
        let rounds: Vec<Round> = (1..=10).rev().map(|n| Round(20 * n)).collect();
        let gone = |last, for_good_every, written| -> Vec<u64> {
            let retention = Retention { for_good_every, ..Retention::from(last) };
            retention.surplus(&rounds, Round(written)).map(|round| round.0).collect()
        };
        assert_eq!(gone(2, 0, 200), [160, 140, 120, 100, 80, 60, 40, 20]);
        assert_eq!(gone(2, 60, 200), [160, 140, 100, 80, 40, 20]);
        assert_eq!(gone(0, 0, 200).len(), 9, "one stays");
        // Back at round 100: two of the five later ones stay, and two of those up to here.
        assert_eq!(gone(2, 0, 100), [160, 140, 120, 60, 40, 20]);
    }
}
