//! `[checkpoint]`: checkpoints on disk and in an archive.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::check::positive;
use super::{ArchiveLocation, ConfigError, Retention};

/// `[checkpoint]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointConfig {
    /// Folder on each worker's machine, relative to the worker's working directory.
    pub dir: PathBuf,
    /// Rounds between checkpoints; 0: only at the end.
    pub every_rounds: u64,
    /// Checkpoints kept. A newer complete one removes older ones.
    pub keep: u32,
    /// Also keep, for good, checkpoints before rounds that are multiples of `every_rounds` × `keep_every`; 0: none.
    pub keep_every: u64,
    /// Additional archive: a shared folder, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`. Credentials come from the workers' environment.
    pub to: Option<ArchiveLocation>,
    /// S3 endpoint outside AWS: `http://HOST:PORT` or `https://HOST:PORT`.
    pub endpoint: Option<String>,
    /// Copy checkpoints to another worker where one worker alone holds its part of the model (`parallel.stages`, `parallel.tensor`).
    pub copies: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            dir: "checkpoints".into(),
            every_rounds: 20,
            keep: 2,
            keep_every: 0,
            to: None,
            endpoint: None,
            copies: true,
        }
    }
}

impl CheckpointConfig {
    /// Returns the retention of checkpoints, whatever their held-out loss.
    #[must_use]
    pub fn retention(&self) -> Retention {
        let for_good_every = self.every_rounds.saturating_mul(self.keep_every);
        Retention { for_good_every, ..Retention::from(self.keep) }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        positive("checkpoint.keep", self.keep)?;
        if self.keep_every > 0 && self.every_rounds == 0 {
            let reason = "of checkpoints there is only the last one, as checkpoint.every_rounds = 0; take away one of the two";
            return Err(ConfigError::value("checkpoint.keep_every", self.keep_every, reason));
        }
        self.check_folders()?;
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        if !is_endpoint(endpoint) {
            let reason = "must begin with http:// or https://, and name a host, without a password: credentials are the worker's environment's";
            return Err(ConfigError::value("checkpoint.endpoint", endpoint, reason));
        }
        if !matches!(self.to, Some(ArchiveLocation::S3(_))) {
            let reason = "is where s3:// is, and checkpoint.to is not there: take to = \"s3://BUCKET/PREFIX\", or leave it out";
            return Err(ConfigError::value("checkpoint.endpoint", endpoint, reason));
        }
        Ok(())
    }

    fn check_folders(&self) -> Result<(), ConfigError> {
        let dir = self.dir.display();
        if self.dir.as_os_str().is_empty() {
            let reason = "must name a folder on each worker's machine; leave it out for \"checkpoints\"";
            return Err(ConfigError::value("checkpoint.dir", dir, reason));
        }
        let archive = match &self.to {
            Some(ArchiveLocation::Folder(folder)) => Some(folder),
            _ => None,
        };
        let folders = [("checkpoint.dir", Some(&self.dir)), ("checkpoint.to", archive)];
        for (key, folder) in folders {
            if let Some(folder) = folder.filter(|folder| folder.starts_with("~")) {
                let reason = "no shell reads this, so ~ is nobody's home: write the whole path";
                return Err(ConfigError::value(key, folder.display(), reason));
            }
        }
        if archive == Some(&self.dir) {
            let reason = "is where each worker's own checkpoints are (checkpoint.dir): give the archive a folder of its own, or leave it out";
            return Err(ConfigError::value("checkpoint.to", dir, reason));
        }
        Ok(())
    }
}

/// Whether a text is an endpoint of object storage without secrets, as all participants see it.
pub(super) fn is_endpoint(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| {
        let host = text.strip_prefix(scheme);
        host.is_some_and(|host| {
            !host.is_empty()
                && !host.starts_with('/')
                && !host.contains(|c: char| c.is_whitespace() || c == '@')
        })
    })
}
