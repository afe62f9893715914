//! Archive stub for builds without the feature `object-storage`: no archive can be opened.

use std::convert::Infallible;

use longhaul_common::config::{ArchiveLocation, Retention};
use longhaul_common::id::{Round, RunId};

use super::{ArchiveError, Archived, Content, Manifest, ModelPart, Verified};

/// Never constructed.
#[derive(Clone, Debug)]
pub struct Archive {
    never: Infallible,
}

/// Never constructed.
#[derive(Debug)]
pub struct Upload {
    never: Infallible,
}

#[allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "those of the archive that there is otherwise; only opening one is ever called"
)]
#[allow(clippy::unused_async, reason = "as above")]
impl Archive {
    /// Refuses.
    ///
    /// # Errors
    /// [`ArchiveError::NotBuilt`]
    pub fn open(location: &ArchiveLocation, _: Option<&str>) -> Result<Self, ArchiveError> {
        Err(ArchiveError::NotBuilt { place: location.to_string() })
    }

    /// Refuses.
    ///
    /// # Errors
    /// [`ArchiveError::NotBuilt`]
    pub fn create(location: &ArchiveLocation, endpoint: Option<&str>) -> Result<Self, ArchiveError> {
        Self::open(location, endpoint)
    }

    #[must_use]
    pub fn place(&self) -> &str {
        match self.never {}
    }

    #[must_use]
    pub fn name_of(&self, _: Archived) -> String {
        match self.never {}
    }

    pub async fn list(&self, _: Option<RunId>) -> Result<Vec<Archived>, ArchiveError> {
        match self.never {}
    }

    pub async fn manifest(&self, _: Archived) -> Result<Manifest, ArchiveError> {
        match self.never {}
    }

    pub async fn read(&self, _: ModelPart, _: &Content, _: u64) -> Result<Vec<u8>, ArchiveError> {
        match self.never {}
    }

    pub async fn verify(&self, _: Archived) -> Result<Verified, ArchiveError> {
        match self.never {}
    }

    pub async fn prune(&self, _: ModelPart, _: Retention, _: Round) -> Result<usize, ArchiveError> {
        match self.never {}
    }

    #[must_use]
    pub fn upload(&self, _: ModelPart, _: u32) -> Upload {
        match self.never {}
    }
}

#[allow(missing_docs, clippy::missing_errors_doc, reason = "as for the archive")]
#[allow(clippy::unused_async, reason = "as above")]
impl Upload {
    pub async fn values(&mut self, _: &[f32]) -> Result<Content, ArchiveError> {
        match self.never {}
    }

    pub async fn bytes(&mut self, _: &[u8]) -> Result<Content, ArchiveError> {
        match self.never {}
    }

    pub async fn finish(self, _: &Manifest) -> Result<Archived, ArchiveError> {
        match self.never {}
    }

    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        match self.never {}
    }
}
