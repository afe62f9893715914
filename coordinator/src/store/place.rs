//! How messages call where the state is.

/// A name for people, and what to give another run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As it stands in a sentence: `the state directory /srv/run`.
    pub name: String,
    /// What another run is to be given: `another --state-dir`.
    pub another: &'static str,
}
