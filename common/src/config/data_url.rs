//! Location of remote data.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A file on a server, or files in object storage.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DataUrl {
    /// A file: `http://` or `https://`, a host, and the rest.
    Web(String),
    /// S3 or a compatible service.
    S3 {
        /// Bucket.
        bucket: String,
        /// Name of a file, or a pattern for several.
        key: String,
    },
}

/// A text that is not a URL of data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a URL of data: {1}")]
pub struct ParseDataUrlError(String, &'static str);

impl DataUrl {
    /// Returns the URL without secrets such as signatures, for display and records.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Web(url) => url.split('?').next().unwrap_or_default().to_owned(),
            Self::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
        }
    }

    /// Whether it may match several files.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        matches!(self, Self::S3 { key, .. } if key.contains(['*', '?', '[']))
    }

    /// Returns the whole URL, as configured.
    fn whole(&self) -> String {
        match self {
            Self::Web(url) => url.clone(),
            Self::S3 { .. } => self.shown(),
        }
    }

    fn web(text: &str) -> Result<Self, &'static str> {
        let (_, rest) = text.split_once("://").unwrap_or_default();
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        if host.contains('@') {
            return Err("a name or password in it would be seen by all who see the run; take it out");
        }
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("it has white space in it: write %20 for a space");
        }
        if text.contains('#') {
            return Err("what follows a # is never sent to a server: write %23 for the character");
        }
        if host.is_empty() || host.starts_with(':') {
            Err("it names no host")
        } else {
            Ok(Self::Web(text.to_owned()))
        }
    }

    fn s3(rest: &str) -> Result<Self, &'static str> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let (bucket, key) = rest
            .split_once('/')
            .ok_or("after the bucket a file or a pattern is wanted, as in s3://BUCKET/texts/*.jsonl")?;
        if bucket.is_empty() || !bucket.bytes().all(is_fit) {
            return Err("a bucket's name has letters, digits, dots and hyphens");
        }
        if key.is_empty() || key.ends_with('/') {
            return Err("after the bucket a file or a pattern is wanted, as in s3://BUCKET/texts/*.jsonl");
        }
        if key.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
            return Err("a part of its path is empty, or `.` or `..`");
        }
        Ok(Self::S3 { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl FromStr for DataUrl {
    type Err = ParseDataUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = match text.split_once("://") {
            Some(("http" | "https", _)) => Self::web(text),
            Some(("s3", rest)) => Self::s3(rest),
            _ => Err("it begins with https://, http:// or s3://; a file on each worker's machine is a path"),
        };
        url.map_err(|reason| ParseDataUrlError(without_secrets(text), reason))
    }
}

/// Removes the parts of a text's URLs before an `@`, which may contain a password, and after a `?`, which may
/// be a signature.
pub(super) fn without_secrets(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "\"'`,}]".contains(c)).unwrap_or(part.len());
        let (url, rest) = part.split_at(end);
        let (url, is_cut) = url.split_once('?').map_or((url, false), |(url, _)| (url, true));
        let (before, url) = url.rsplit_once('@').map_or(("", url), |(_, url)| ("…@", url));
        shown += &format!("://{before}{url}{}{rest}", if is_cut { "?…" } else { "" });
    }
    shown
}

impl TryFrom<String> for DataUrl {
    type Error = ParseDataUrlError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DataUrl> for String {
    fn from(url: DataUrl) -> Self {
        url.whole()
    }
}

impl fmt::Display for DataUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}

/// Debug output equals the display form, which has no signatures.
impl fmt::Debug for DataUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_a_url_is_kept_and_not_shown() {
        let text = "https://a.example/b/c.jsonl.zst?X-Amz-Signature=secret";
        let url: DataUrl = text.parse().unwrap();
        assert_eq!(String::from(url.clone()), text);
        assert_eq!(
            (url.to_string(), format!("{url:?}")),
            (text[..31].to_owned(), format!("{:?}", &text[..31]))
        );
        let message = "https://me:secret@a.example/b".parse::<DataUrl>().unwrap_err().to_string();
        assert!(!message.contains("secret") && message.contains("take it out"), "{message}");
    }

    #[test]
    fn no_message_shows_what_opens_a_url() {
        let text = "{ url = \"https://me:pass@word@host/a?X-Amz-Signature=secret\", weight = 'x' }, s3://b/c";
        assert_eq!(without_secrets(text), "{ url = \"https://…@host/a?…\", weight = 'x' }, s3://b/c");
        for line in [
            "sources = [{ url = \"https://me:secret@h/x\" }]",
            "sources = [{ url = \"https://h/x?sig=secret\", weight = \"3\" }]",
            "sources = [{ path = \"https://me:secret@h/a?sig=secret\" }]",
            "path = \"https://me:secret@h/a?sig=secret\"",
            "sources = [{ url = \"s3://b/c\", endpoint = \"https://k:secret@minio\" }]",
        ] {
            let text = format!(
                "[run]\nname = \"r\"\nworkers = 1\nsteps = 1\n[model]\nkind = \"gpt2\"\nlayers = 1\nwidth = 8\nheads = 1\n\
                 context = 8\n[data]\nsequence_length = 8\n{line}\n"
            );
            let message = crate::config::RunConfig::parse(&text).unwrap_err().to_string();
            assert!(!message.contains("secret") && message.len() > 20, "{message}");
        }
    }

    #[test]
    fn a_star_is_a_pattern_in_object_storage_alone() {
        for (text, is_pattern) in [
            ("s3://bucket/texts/*.parquet", true),
            ("s3://bucket/texts/a.parquet", false),
            ("http://localhost:80/*.parquet?all", false),
        ] {
            assert_eq!(text.parse::<DataUrl>().unwrap().is_pattern(), is_pattern, "{text}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused_with_what_would_be() {
        for (text, words) in [
            ("a.txt", "begins with https://"),
            ("ftp://a/b", "begins with https://"),
            ("https://", "names no host"),
            ("https:///a", "names no host"),
            ("https://:80/a", "names no host"),
            ("https://a/b c", "%20"),
            ("https://a/b#c", "%23"),
            ("s3://bucket", "s3://BUCKET/texts/*.jsonl"),
            ("s3://bucket/a/", "a file or a pattern is wanted"),
            ("s3://b ucket/a", "letters, digits"),
            ("s3://bucket/a//b", "is empty"),
            ("s3://bucket/../b", "or `..`"),
        ] {
            let message = text.parse::<DataUrl>().unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }
}
