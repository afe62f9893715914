//! Handlers of the routes.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use longhaul_proto::identity::TokenId;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Api, metrics};
use crate::inbox::{ApiCall, Input};

/// A join token's life if none is asked for, in seconds.
pub const TOKEN_LIFE_S: u64 = 24 * 3600;
/// The longest life of a join token, in seconds: a year.
pub const TOKEN_LIFE_S_MAX: u64 = 366 * 24 * 3600;

/// Body of `POST /api/v1/tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Seconds; null: a day.
    #[serde(default)]
    pub life_s: Option<u64>,
    /// Workers that may enrol; null: any number.
    #[serde(default)]
    pub uses: Option<u32>,
}

pub async fn metrics(State(api): State<Api>) -> Response {
    let status = api.status.borrow().clone();
    match metrics::encode(&status) {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

pub async fn ready(State(api): State<Api>) -> Response {
    // The owner of the run holds the other end.
    match api.status.has_changed() {
        Ok(_) => "ready\n".into_response(),
        Err(_) => failure(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is stopping"),
    }
}

pub async fn stop(State(api): State<Api>) -> Response {
    match ask(&api, ApiCall::Stop).await {
        Ok(()) => empty(),
        Err(failed) => failed,
    }
}

pub async fn create_token(State(api): State<Api>, body: Bytes) -> Response {
    let request = if body.is_empty() { Ok(TokenRequest::default()) } else { serde_json::from_slice(&body) };
    let TokenRequest { life_s, uses } = match request {
        Ok(request) => request,
        Err(error) => {
            return failure(StatusCode::BAD_REQUEST, &format!("invalid request: {error}"));
        }
    };
    let life_s = life_s.unwrap_or(TOKEN_LIFE_S);
    if life_s == 0 || life_s > TOKEN_LIFE_S_MAX || uses == Some(0) {
        let text = format!("life_s must lie between 1 and {TOKEN_LIFE_S_MAX}, and uses must be at least 1");
        return failure(StatusCode::BAD_REQUEST, &text);
    }
    match ask(&api, |reply| ApiCall::CreateToken { life_s, uses, reply }).await {
        Ok(Ok(token)) => (StatusCode::CREATED, Json(token)).into_response(),
        Ok(Err(reason)) => failure(StatusCode::CONFLICT, &reason),
        Err(failed) => failed,
    }
}

pub async fn list_tokens(State(api): State<Api>) -> Response {
    match ask(&api, ApiCall::ListTokens).await {
        Ok(tokens) => Json(tokens).into_response(),
        Err(failed) => failed,
    }
}

pub async fn revoke_token(State(api): State<Api>, Path(id): Path<String>) -> Response {
    let Some(id) = parse_id(&id) else {
        return failure(StatusCode::BAD_REQUEST, "a token's id is 16 hexadecimal digits");
    };
    match ask(&api, |reply| ApiCall::RevokeToken(id, reply)).await {
        Ok(true) => empty(),
        Ok(false) => failure(StatusCode::NOT_FOUND, "no such token"),
        Err(failed) => failed,
    }
}

pub async fn not_found() -> Response {
    failure(StatusCode::NOT_FOUND, "not found; GET /api/v1/status returns the state of the run")
}

pub(super) async fn ask<T>(
    api: &Api,
    call: impl FnOnce(oneshot::Sender<T>) -> ApiCall,
) -> Result<T, Response> {
    let (reply, answer) = oneshot::channel();
    let stopping = || failure(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is stopping");
    api.inputs.send(Input::Call(call(reply))).await.map_err(|_| stopping())?;
    answer.await.map_err(|_| stopping())
}

fn parse_id(text: &str) -> Option<TokenId> {
    let valid = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(text, 16).ok().filter(|_| valid).map(|number| TokenId(number.to_be_bytes()))
}

pub(super) fn empty() -> Response {
    Json(serde_json::json!({})).into_response()
}

/// An error as all calls answer it.
pub fn failure(code: StatusCode, text: &str) -> Response {
    (code, Json(serde_json::json!({ "error": text }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_id_survives_its_text_form() {
        let id = TokenId([0, 1, 2, 3, 4, 5, 6, 0xff]);
        assert_eq!(parse_id(&id.to_string()), Some(id));
        assert_eq!(parse_id("+00102030405060f"), None);
        assert_eq!(parse_id("12"), None);
    }
}
