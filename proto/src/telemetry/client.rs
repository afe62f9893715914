//! HTTP client of the exporters, with the TLS of the rest of the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use longhaul_common::host::is_this_machine;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, ResponseBodyTooLarge};
use tokio::runtime::{Builder, Runtime};

/// Timeout of a request: ten seconds, by the specification of OTLP exporters.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Maximum bytes of a response, which reports refused spans with reasons.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Warns once per process of unencrypted export.
static IN_THE_CLEAR: Once = Once::new();

/// Client of the exporters, which call it on own threads that may block.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    /// Their threads belong to no runtime.
    own: Arc<Mutex<Own>>,
    /// Whether the last attempt found the collector unreachable.
    is_down: Arc<AtomicBool>,
}

/// A runtime that can be dropped with the last exporter anywhere, also in a task of another runtime.
#[derive(Debug)]
struct Own(Option<Runtime>);

impl Own {
    fn wait_for<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        self.0.as_ref().map(|runtime| runtime.block_on(what))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    /// # Errors
    /// Errors of the system or of TLS.
    pub(super) fn new() -> Result<Self, HttpError> {
        // Another part of the program may have set the same already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(REQUEST_MAX).build()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { http, own: Arc::new(Mutex::new(Own(Some(runtime)))), is_down: Arc::default() })
    }

    /// Logs the first failure and the recovery.
    fn note(&self, failure: Option<&str>) {
        let was_down = self.is_down.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(error) if !was_down => tracing::warn!(
                error,
                "telemetry cannot be exported; the run continues without it, and export is retried (OTEL_EXPORTER_OTLP_ENDPOINT)"
            ),
            None if was_down => tracing::info!("telemetry is exported again"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        if is_in_the_clear(&request) {
            IN_THE_CLEAR.call_once(|| {
                tracing::warn!(
                    "worker names, losses and spans travel to the collector unencrypted: \
                     on a network that others use, write https:// in OTEL_EXPORTER_OTLP_ENDPOINT"
                );
            });
        }
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = own.wait_for(send(&self.http, request)).ok_or("the client is gone")?;
        match &sent {
            Ok(answer) if answer.status().is_success() => self.note(None),
            Ok(answer) => self.note(Some(&format!("the collector answers {}", answer.status()))),
            Err(error) => self.note(Some(&chain(&**error))),
        }
        sent
    }
}

/// Whether the network path can read the request.
fn is_in_the_clear<T>(request: &Request<T>) -> bool {
    let to = request.uri();
    to.scheme_str() == Some("http") && !to.host().is_some_and(is_this_machine)
}

async fn send(http: &reqwest::Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let mut answer = http.execute(request.try_into()?).await?;
    let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        if body.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(Box::new(ResponseBodyTooLarge::new()));
        }
        body.extend_from_slice(&part);
    }
    let mut response = Response::builder().status(status).body(Bytes::from(body))?;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Formats an error with its causes: the outermost one only reports a failed request.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |all, cause| format!("{all}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_can_listen_to_http_that_leaves_the_machine() {
        for (url, is) in [
            ("http://collector.example.org:4318/v1/traces", true),
            ("http://10.0.0.7:4318", true),
            ("https://collector.example.org/v1/traces", false),
            ("http://localhost:4318/v1/traces", false),
            ("http://127.0.0.1:4318", false),
            ("http://[::1]:4318", false),
        ] {
            assert_eq!(is_in_the_clear(&Request::get(url).body(()).unwrap()), is, "{url}");
        }
    }
}
