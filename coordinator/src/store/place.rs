//! How messages call where the state is.

use std::path::Path;

/// A name for people, and what to give another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As it stands in a sentence: `the state directory /srv/run`.
    pub name: String,
    /// What another run is to be given: `another --state-dir`.
    pub another: &'static str,
}

impl Place {
    /// A state directory.
    #[must_use]
    pub fn of_folder(folder: &Path) -> Self {
        Self { name: format!("the state directory {}", folder.display()), another: "another --state-dir" }
    }
}
