//! Files on web servers (RFC 9110).

use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, LAST_MODIFIED, RANGE,
};
use reqwest::{Client, Response, StatusCode};

use super::{RemoteError, Version};

/// Returns the current version by requesting the first byte. Servers may respond differently to HEAD and GET, and a signature may cover only one of them.
pub(super) async fn look(client: &Client, address: &str) -> Result<Version, RemoteError> {
    match ask(client, address, Some("bytes=0-0".to_owned()), 0).await {
        // An empty file has none.
        Err(RemoteError::Changed) => version(&ask(client, address, None, 0).await?),
        answer => version(&answer?),
    }
}

/// Opens a file from `offset` on if the version is unchanged, and returns the bytes to skip.
pub(super) async fn open(
    client: &Client,
    address: &str,
    offset: u64,
    expected: &Version,
) -> Result<(Response, u64), RemoteError> {
    let range = (offset > 0).then(|| format!("bytes={offset}-"));
    let answer = ask(client, address, range, offset).await?;
    if version(&answer)? != *expected {
        return Err(RemoteError::Changed);
    }
    // A server without support for ranges starts from the beginning.
    let leave_out = if answer.status() == StatusCode::PARTIAL_CONTENT { 0 } else { offset };
    Ok((answer, leave_out))
}

/// Requests a range of a file that begins at `first`, or all of it.
async fn ask(
    client: &Client,
    address: &str,
    wanted: Option<String>,
    first: u64,
) -> Result<Response, RemoteError> {
    // Compressed responses would not match the lengths in ranges.
    let mut request = client.get(address).header(ACCEPT_ENCODING, "identity");
    if let Some(wanted) = wanted {
        request = request.header(RANGE, wanted);
    }
    let answer = request.send().await.map_err(RemoteError::of_web)?;
    let status = answer.status();
    let begins_there = range(&answer).is_some_and(|(begins, _)| begins == first);
    match status {
        StatusCode::OK => Ok(answer),
        StatusCode::PARTIAL_CONTENT if begins_there => Ok(answer),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RemoteError::Denied(status.to_string())),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(RemoteError::Missing(status.to_string())),
        // The file has become shorter.
        StatusCode::RANGE_NOT_SATISFIABLE => Err(RemoteError::Changed),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            Err(RemoteError::Busy(status.to_string()))
        }
        status if status.is_server_error() => Err(RemoteError::Busy(status.to_string())),
        status => Err(RemoteError::Refused(status.to_string())),
    }
}

fn version(answer: &Response) -> Result<Version, RemoteError> {
    let length = text(answer, CONTENT_LENGTH).and_then(|length| length.parse().ok());
    let whole = range(answer).map_or(length, |(_, whole)| Some(whole));
    Version::new(whole.ok_or(RemoteError::NoLength)?, text(answer, ETAG), text(answer, LAST_MODIFIED))
}

/// Returns the start of a partial response, and the length of the whole.
fn range(answer: &Response) -> Option<(u64, u64)> {
    let range = text(answer, CONTENT_RANGE)?;
    let (places, whole) = range.strip_prefix("bytes ")?.split_once('/')?;
    Some((places.split_once('-')?.0.parse().ok()?, whole.parse().ok()?))
}

fn text(answer: &Response, name: HeaderName) -> Option<String> {
    answer.headers().get(name)?.to_str().ok().map(str::to_owned)
}
