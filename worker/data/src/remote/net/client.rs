//! The HTTP client of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use longhaul_common::config::DataUrl;
use object_store::ObjectStore;
use reqwest::redirect::Policy;
use tokio::runtime::{Builder, Runtime};

use super::back_off::LOOKS_MAX;
use super::{Attempts, RemoteError, Version, s3, web};

/// Timeout of a connection attempt; it is retried.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Silence after which a server counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Redirects followed: from a name to the storage of a file, and some more.
const REDIRECTS_MAX: usize = 5;

/// A bucket's name and endpoint.
type Bucket = (String, Option<String>);

/// The client of the process, which reuses connections.
pub(in crate::remote) struct Client {
    runtime: Runtime,
    pub(super) web: reqwest::Client,
    stores: Mutex<HashMap<Bucket, Arc<dyn ObjectStore>>>,
}

impl Client {
    /// Returns the client of the process.
    pub(in crate::remote) fn get() -> Result<&'static Self, RemoteError> {
        static CLIENT: OnceLock<Result<Client, String>> = OnceLock::new();
        let client = CLIENT.get_or_init(|| Self::new().map_err(|error| format!("{error:#}")));
        client.as_ref().map_err(|reason| RemoteError::NoClient(reason.clone()))
    }

    fn new() -> anyhow::Result<Self> {
        // It may be installed already; every crate uses ring.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let web = reqwest::Client::builder()
            .connect_timeout(CONNECT_MAX)
            .read_timeout(SILENCE_MAX)
            // A URL with credentials must not leak to another host.
            .referer(false)
            .redirect(Policy::custom(|attempt| {
                let was_secure = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
                if attempt.previous().len() > REDIRECTS_MAX {
                    attempt.error("it redirects too often")
                } else if was_secure && attempt.url().scheme() != "https" {
                    attempt.error("it redirects from https to an unencrypted connection")
                } else {
                    attempt.follow()
                }
            }))
            .build()?;
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("remote data").enable_all().build()?;
        Ok(Self { runtime, web, stores: Mutex::default() })
    }

    /// Waits for a response. Only on a thread that may block.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    /// Waits before the next attempt at an offset; fails after the last.
    pub(super) fn pause(
        &self,
        attempts: &mut Attempts,
        offset: u64,
        error: RemoteError,
        shown: &str,
    ) -> Result<(), RemoteError> {
        let Some(pause) = attempts.next_pause(offset) else { return Err(error) };
        tracing::debug!(url = shown, offset, %error, "trying again");
        // The sleep must be created inside the runtime.
        self.wait(async { tokio::time::sleep(pause).await });
        Ok(())
    }

    /// Returns the object storage of a bucket and endpoint.
    pub(super) fn store(
        &self,
        bucket: &str,
        endpoint: Option<&str>,
    ) -> Result<Arc<dyn ObjectStore>, RemoteError> {
        let key = (bucket.to_owned(), endpoint.map(str::to_owned));
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&key) {
            return Ok(Arc::clone(store));
        }
        let store = s3::open(bucket, endpoint)?;
        stores.insert(key, Arc::clone(&store));
        Ok(store)
    }

    /// Returns the files at a URL, with their names in object storage.
    pub(in crate::remote) fn find(
        &self,
        url: &DataUrl,
        endpoint: Option<&str>,
    ) -> Result<Vec<(String, Version)>, RemoteError> {
        let mut attempts = Attempts::new(LOOKS_MAX);
        loop {
            let found = match url {
                DataUrl::Web(address) => {
                    self.wait(web::look(&self.web, address)).map(|version| vec![(String::new(), version)])
                }
                DataUrl::S3 { bucket, key } => {
                    let store = self.store(bucket, endpoint)?;
                    self.wait(s3::find(&*store, key, url.is_pattern()))
                }
            };
            match found {
                Err(error) if error.is_passing() => self.pause(&mut attempts, 0, error, &url.shown())?,
                found => return found,
            }
        }
    }
}
