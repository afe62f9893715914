//! Opens the storage that a configuration names.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use longhaul_common::config::ArchiveLocation;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{ClientConfigKey, ObjectStore, Result, RetryConfig};

use super::Archive;
use crate::checkpoint::archive::ArchiveError;

/// Timeout of a request: four concurrent pieces of maximum size at 4 Mbit/s.
const REQUEST_MAX: &str = "70 seconds";
/// Timeout of a connection.
const CONNECT_MAX: &str = "10 seconds";
/// Retries of a request.
const RETRIES_MAX: usize = 6;
/// Total time of the retries. The next checkpoint makes up for a failed one.
const RETRY_MAX: Duration = Duration::from_secs(180);

impl Archive {
    /// Opens a configured archive. A folder must exist.
    ///
    /// # Errors
    /// [`ArchiveError::Storage`]: something is missing. No network request is made yet.
    pub fn open(
        location: &ArchiveLocation,
        endpoint: Option<&str>,
    ) -> std::result::Result<Self, ArchiveError> {
        let (storage, prefix) = match location {
            ArchiveLocation::Folder(folder) => (of_folder(folder), ""),
            ArchiveLocation::S3(bucket) => (of_s3(&bucket.name, endpoint), bucket.prefix.as_str()),
            ArchiveLocation::Gcs(bucket) => (of_gcs(&bucket.name), bucket.prefix.as_str()),
        };
        let storage = storage.map_err(ArchiveError::storage("open the archive", location))?;
        Ok(Self::on(storage, prefix, location.to_string()))
    }

    /// Opens a configured archive; creates a missing folder.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn create(
        location: &ArchiveLocation,
        endpoint: Option<&str>,
    ) -> std::result::Result<Self, ArchiveError> {
        if let ArchiveLocation::Folder(folder) = location {
            let failed = |source: std::io::Error| object_store::Error::Generic {
                store: "folder",
                source: source.into(),
            };
            std::fs::create_dir_all(folder)
                .map_err(|error| ArchiveError::storage("create folder", location)(failed(error)))?;
        }
        Self::open(location, endpoint)
    }
}

fn of_folder(folder: &FilePath) -> Result<Arc<dyn ObjectStore>> {
    Ok(Arc::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true)))
}

fn of_s3(bucket: &str, endpoint: Option<&str>) -> Result<Arc<dyn ObjectStore>> {
    choose_tls();
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), REQUEST_MAX)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_MAX)
        .with_retry(retries());
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    Ok(Arc::new(builder.build()?))
}

fn of_gcs(bucket: &str) -> Result<Arc<dyn ObjectStore>> {
    choose_tls();
    let builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(bucket)
        .with_config(GoogleConfigKey::Client(ClientConfigKey::Timeout), REQUEST_MAX)
        .with_config(GoogleConfigKey::Client(ClientConfigKey::ConnectTimeout), CONNECT_MAX)
        .with_retry(retries());
    Ok(Arc::new(builder.build()?))
}

fn retries() -> RetryConfig {
    RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRY_MAX, ..RetryConfig::default() }
}

/// Sets ring as the process's TLS provider, which the client of object storage uses.
fn choose_tls() {
    // Another call may have set it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
