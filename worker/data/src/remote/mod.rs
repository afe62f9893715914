//! Files on servers and in object storage.

mod error;
#[cfg(feature = "parquet")]
mod fetch;
#[cfg(feature = "remote-data")]
mod net;
#[cfg(not(feature = "remote-data"))]
#[path = "no_net.rs"]
mod net;

use std::path::PathBuf;

use longhaul_common::config::DataUrl;
use serde::{Deserialize, Serialize};

pub use self::error::RemoteError;
#[cfg(feature = "parquet")]
pub(super) use self::fetch::Fetched;
use self::net::Client;
pub(super) use self::net::RemoteReader;
use super::DataError;
use super::cache::{Cache, document, open_to_touch, read_document, touch_open};
use super::partial::keep_stamp;

/// A remote file, as last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    url: DataUrl,
    endpoint: Option<String>,
    /// Its URL without secrets.
    pub(super) shown: PathBuf,
    /// The stamp of all files found with it.
    pub(super) found: String,
    pub(super) version: Version,
}

/// Attributes that change with a file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) bytes: u64,
    etag: Option<String>,
    modified: Option<String>,
}

/// The files found at a URL, for later use while it is unreachable.
#[derive(Serialize, Deserialize)]
struct Known {
    files: Vec<(String, Version)>,
}

impl RemoteFile {
    /// Returns the files at a URL, by name. Without a network, returns the files found last.
    pub(super) fn find(url: &DataUrl, endpoint: Option<&str>, cache: &Cache) -> Result<Vec<Self>, DataError> {
        let failed = |source| DataError::Remote { url: url.shown(), source };
        let client = Client::get().map_err(failed)?;
        if url.shown().starts_with("http://") {
            tracing::warn!(
                url = url.shown(),
                "this connection is not encrypted: anyone on its path can read and change the data; use https"
            );
        }
        // The query of a URL may also select the content.
        let (shown, of, whole) = (url.shown(), endpoint.unwrap_or_default(), String::from(url.clone()));
        let name = &blake3::hash(format!("{of} {whole}").as_bytes()).to_hex()[..32];
        let place = cache.stamp(name);
        let stamp = open_to_touch(&place)?;
        let known = read_document::<Known>(&place)?;
        let all = |files: Vec<(String, Version)>| {
            files.into_iter().map(|file| Self::new(url, endpoint, name, file)).collect()
        };
        let files = match client.find(url, endpoint) {
            Err(error) if error.is_passing() => {
                let Some(known) = known else { return Err(failed(error)) };
                tracing::warn!(url = shown, %error, "cannot be reached: the data prepared earlier is used");
                return Ok(all(known.files));
            }
            files => files.map_err(failed)?,
        };
        match (stamp, known) {
            (Some(stamp), Some(known)) if known.files == files => touch_open(&stamp, &place)?,
            _ => keep_stamp(&place, &document(&Known { files: files.clone() }, &place)?, cache)?,
        }
        Ok(all(files))
    }

    /// Creates a file with its key in object storage; empty for a web server.
    fn new(url: &DataUrl, endpoint: Option<&str>, found: &str, (key, version): (String, Version)) -> Self {
        let url = match url {
            DataUrl::Web(_) => url.clone(),
            DataUrl::S3 { bucket, .. } => DataUrl::S3 { bucket: bucket.clone(), key },
        };
        let shown = url.shown().into();
        Self { url, endpoint: endpoint.map(str::to_owned), shown, found: found.to_owned(), version }
    }

    /// Returns the identity of its content: its place and version. Without an ETag, the query of a URL may also select the content.
    pub(super) fn hash(&self) -> blake3::Hash {
        let Version { bytes, etag, modified } = &self.version;
        let place = match etag {
            Some(_) => self.url.shown(),
            None => String::from(self.url.clone()),
        };
        let mut hasher = blake3::Hasher::new();
        let parts = [Some(&place), self.endpoint.as_ref(), etag.as_ref(), modified.as_ref()];
        for part in parts {
            let part = part.map_or("", String::as_str);
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(&bytes.to_le_bytes());
        hasher.finalize()
    }
}
