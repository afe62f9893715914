//! Location of image labels in a separate file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{DataUrl, ParseDataUrlError};

/// A label file, local or remote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DataLabels {
    /// On each worker's machine.
    Path(PathBuf),
    /// Remote.
    Url(DataUrl),
}

impl DataLabels {
    /// Returns the same with relative paths starting at `place`.
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
            // It was parsed from text.
            DataLabels::Path(path) => path.to_string_lossy().into_owned(),
            DataLabels::Url(url) => url.into(),
        }
    }
}
