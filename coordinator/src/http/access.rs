//! Access control.
//!
//! There are two bearer tokens: one that reads, and one that reads and writes. On loopback no token is needed for
//! reading.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use longhaul_common::host::is_this_machine;

use super::Api;
use super::calls::failure;
use crate::slowdown::Slowdown;

/// The API's bearer tokens. They are never written to a log.
#[derive(Clone)]
pub struct ApiTokens {
    /// Token for calls with effects; also permits reading.
    pub write: Arc<str>,
    /// Token for reading.
    pub read: Arc<str>,
}

impl std::fmt::Debug for ApiTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiTokens").finish_non_exhaustive()
    }
}

/// Permissions of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// It sent no token.
    Nobody,
    /// It showed something, and nothing that is known.
    Unknown,
    Read,
    Write,
}

/// Admits callers by a loopback address, and no page under another name.
pub async fn locals(request: Request, next: Next) -> Response {
    if is_local(request.headers()) {
        return next.run(request).await;
    }
    failure(StatusCode::FORBIDDEN, "this server listens on loopback: use a loopback address")
}

/// Lets everybody read on loopback, and holders of either token elsewhere.
pub async fn readers(State(api): State<Api>, request: Request, next: Next) -> Response {
    if api.loopback && !is_local(request.headers()) {
        return failure(StatusCode::FORBIDDEN, "this API listens on loopback: use a loopback address");
    }
    let scope = api.tokens.scope_of(request.headers());
    if api.loopback || matches!(scope, Scope::Read | Scope::Write) {
        return next.run(request).await;
    }
    let hint = "this API does not listen on loopback, so it needs `Authorization: Bearer` and the contents of api-read-token or \
                api-token in the coordinator's state directory";
    turn_away(&api.slowdown, scope, hint).await
}

/// Lets holders of the token that writes change something.
pub async fn writers(State(api): State<Api>, request: Request, next: Next) -> Response {
    match api.tokens.scope_of(request.headers()) {
        Scope::Write => next.run(request).await,
        Scope::Read => failure(
            StatusCode::FORBIDDEN,
            "this token reads, and this call changes something: it needs the contents of api-token in the coordinator's state \
             directory",
        ),
        scope => {
            let hint = "this call needs `Authorization: Bearer` and the contents of api-token in the coordinator's state directory \
                        (`coordinator … --state-dir` reads it)";
            turn_away(&api.slowdown, scope, hint).await
        }
    }
}

/// Delays the answer to a wrong token, so that guessing is slow. A missing token is answered at once.
async fn turn_away(slowdown: &Slowdown, scope: Scope, hint: &str) -> Response {
    if scope == Scope::Unknown && slowdown.wait().await.is_err() {
        let text = "too many wrong tokens; try again in a minute";
        let mut answer = failure(StatusCode::TOO_MANY_REQUESTS, text);
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("60"));
        return answer;
    }
    failure(StatusCode::UNAUTHORIZED, hint)
}

impl ApiTokens {
    fn scope_of(&self, headers: &HeaderMap) -> Scope {
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(shown) = shown.and_then(|value| value.strip_prefix("Bearer ")) else { return Scope::Nobody };
        // All are hashed first, so that the comparison takes as long wherever they differ.
        let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let shown = digest(shown);
        match (shown.as_ref() == digest(&self.write).as_ref(), shown.as_ref() == digest(&self.read).as_ref())
        {
            (true, _) => Scope::Write,
            (false, true) => Scope::Read,
            (false, false) => Scope::Unknown,
        }
    }
}

/// A web page whose name was pointed at loopback (DNS rebinding) sends its own name as host.
fn is_local(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return true };
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    is_this_machine(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope_of(shown: &str) -> Scope {
        let tokens = ApiTokens { write: "all".into(), read: "look".into() };
        let headers = [(AUTHORIZATION, HeaderValue::from_str(shown).unwrap())];
        tokens.scope_of(&headers.into_iter().collect())
    }

    #[test]
    fn each_token_opens_what_it_is_for() {
        assert_eq!(scope_of("Bearer all"), Scope::Write);
        assert_eq!(scope_of("Bearer look"), Scope::Read);
        assert_eq!(scope_of("Bearer "), Scope::Unknown);
        assert_eq!(scope_of("Bearer al"), Scope::Unknown);
        assert_eq!(scope_of("Basic all"), Scope::Nobody);
    }

    #[test]
    fn tokens_are_not_in_what_is_printed_of_them() {
        let tokens = ApiTokens { write: "secret-1".into(), read: "secret-2".into() };
        assert!(!format!("{tokens:?}").contains("secret"));
    }
}
