//! Who may call.

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::Api;
use super::calls::failure;

/// Lets everybody read on loopback, and holders of the token elsewhere.
pub async fn readers(State(api): State<Api>, request: Request, next: Next) -> Response {
    if api.loopback && !is_local(request.headers()) {
        return failure(
            StatusCode::FORBIDDEN,
            "this API listens on loopback: ask for it by a loopback address",
        );
    }
    if api.loopback || shows(request.headers(), &api.token) {
        return next.run(request).await;
    }
    let hint = "this API does not listen on loopback, so it needs `Authorization: Bearer` and the contents of api-token in \
                the coordinator's state directory";
    failure(StatusCode::UNAUTHORIZED, hint)
}

/// Lets holders of the token change something.
pub async fn writers(State(api): State<Api>, request: Request, next: Next) -> Response {
    if shows(request.headers(), &api.token) {
        return next.run(request).await;
    }
    let hint = "this call needs `Authorization: Bearer` and the contents of api-token in the coordinator's state directory \
                (`coordinator … --state-dir` reads it)";
    failure(StatusCode::UNAUTHORIZED, hint)
}

fn shows(headers: &HeaderMap, token: &str) -> bool {
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    // Both are hashed first, so that the comparison takes as long wherever they differ.
    let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest(shown).as_ref() == digest(token).as_ref()
}

/// A web page whose name was pointed at loopback (DNS rebinding) asks for its own name.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return true };
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
