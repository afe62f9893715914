//! How messages call where the state is.

use std::path::Path;

/// Name of a place, and the option for another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreName {
    /// As it stands in a sentence: `the state directory /srv/run`.
    pub name: String,
    /// The option for another run: `another --state-dir`.
    pub another: &'static str,
}

impl StoreName {
    /// A state directory.
    #[must_use]
    pub fn of_folder(folder: &Path) -> Self {
        Self { name: format!("the state directory {}", folder.display()), another: "another --state-dir" }
    }
}
