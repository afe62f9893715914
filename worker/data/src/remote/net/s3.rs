//! Files in S3 and compatible object storage.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use glob::{MatchOptions, Pattern};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    ClientConfigKey, Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _, RetryConfig,
};

use super::{RemoteError, Version, causes};
use crate::bounds::FILES_MAX;
use crate::path_pattern;

/// Bytes of a file per request, held in memory: a tenth of a second of a 1 Gbit/s link.
const RANGE_BYTES: u64 = 8 << 20;
/// Timeout of a request: a range at 1 Mbit/s.
const REQUEST_MAX: &str = "70 seconds";
/// Timeout of a connection.
const CONNECT_MAX: &str = "10 seconds";
const METADATA_HOST: &str = "169.254.169.254";
/// As in the worker's file patterns.
const WITHIN_A_NAME: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// Opens a bucket with the credentials of the environment.
pub(super) fn open(bucket: &str, endpoint: Option<&str>) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_MAX)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_MAX)
        // The reader retries at its offset.
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() });
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    let store = builder.build().map_err(|error| RemoteError::NoClient(causes(&error)))?;
    Ok(Arc::new(store))
}

/// Returns the files matched by a key or a pattern, by name.
pub(super) async fn find(
    store: &dyn ObjectStore,
    key: &str,
    is_pattern: bool,
) -> Result<Vec<(String, Version)>, RemoteError> {
    if !is_pattern {
        let meta = store.head(&parse(key)?).await.map_err(failed)?;
        return Ok(vec![(key.to_owned(), version(&meta)?)]);
    }
    let pattern = Pattern::new(key).map_err(|error| RemoteError::Refused(path_pattern::told(&error)))?;
    // Only folders before the first special character narrow the listing.
    let plain = key.split(['*', '?', '[']).next().unwrap_or_default();
    let folder = plain.rsplit_once('/').map(|(folder, _)| parse(folder)).transpose()?;
    let (mut listed, mut found) = (store.list(folder.as_ref()), Vec::new());
    while let Some(meta) = listed.try_next().await.map_err(failed)? {
        if pattern.matches_with(meta.location.as_ref(), WITHIN_A_NAME) {
            found.push((meta.location.to_string(), version(&meta)?));
        }
        if found.len() > FILES_MAX {
            return Err(RemoteError::Refused(format!("more than {FILES_MAX} files")));
        }
    }
    found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    if found.is_empty() {
        return Err(RemoteError::Missing("the pattern matches none".to_owned()));
    }
    Ok(found)
}

/// Returns some bytes of a file from `offset` on, if the version is unchanged.
pub(super) async fn read(
    store: &dyn ObjectStore,
    key: &str,
    offset: u64,
    expected: &Version,
) -> Result<Bytes, RemoteError> {
    let end = expected.bytes.min(offset + RANGE_BYTES);
    let options = GetOptions { range: Some(GetRange::Bounded(offset..end)), ..GetOptions::default() };
    let answer = store.get_opts(&parse(key)?, options).await.map_err(failed)?;
    if version(&answer.meta)? != *expected {
        return Err(RemoteError::Changed);
    }
    // Bytes beyond the requested range are ignored.
    let (mut stream, mut bytes) = (answer.into_stream(), BytesMut::new());
    while let Some(more) = stream.try_next().await.map_err(failed)? {
        bytes.extend_from_slice(&more);
        if bytes.len() as u64 >= end - offset {
            break;
        }
    }
    Ok(bytes.freeze())
}

fn parse(key: &str) -> Result<Path, RemoteError> {
    Path::parse(key).map_err(|error| RemoteError::Refused(error.to_string()))
}

fn version(meta: &ObjectMeta) -> Result<Version, RemoteError> {
    // Listings give the time in milliseconds and responses in seconds: it counts only without an ETag.
    let modified = meta.e_tag.is_none().then(|| meta.last_modified.timestamp().to_string());
    Version::new(meta.size, meta.e_tag.clone(), modified)
}

fn failed(error: Error) -> RemoteError {
    let words = causes(&error);
    match error {
        Error::NotFound { .. } => RemoteError::Missing(words),
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => RemoteError::Denied(words),
        Error::Precondition { .. } => RemoteError::Changed,
        // Without credentials in the environment, the client asks for those of an EC2 instance at this address.
        Error::Generic { .. } if words.contains(METADATA_HOST) => {
            RemoteError::Denied("the environment has no credentials".to_owned())
        }
        Error::Generic { .. } => RemoteError::Unreachable(words),
        _ => RemoteError::Refused(words),
    }
}
