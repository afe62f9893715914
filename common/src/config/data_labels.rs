//! Where the classes of images are that are in a file of their own.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{DataUrl, ParseDataUrlError};

/// A file on each worker's machine, or elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DataLabels {
    /// On each worker's machine.
    Path(PathBuf),
    /// Elsewhere.
    Url(DataUrl),
}

impl DataLabels {
    /// The same where relative paths count from `place`.
    pub(super) fn found_at(&self, place: &Path) -> Self {
        match self {
            Self::Path(path) => Self::Path(place.join(path)),
            Self::Url(url) => Self::Url(url.clone()),
        }
    }
}

impl TryFrom<String> for DataLabels {
    type Error = ParseDataUrlError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.contains("://") { text.parse().map(Self::Url) } else { Ok(Self::Path(text.into())) }
    }
}

impl From<DataLabels> for String {
    fn from(labels: DataLabels) -> Self {
        match labels {
            // It was read as text.
            DataLabels::Path(path) => path.to_string_lossy().into_owned(),
            DataLabels::Url(url) => url.into(),
        }
    }
}
