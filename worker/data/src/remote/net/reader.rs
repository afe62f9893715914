//! Sequential reader of a remote file that survives lost connections.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use longhaul_common::config::DataUrl;
use reqwest::Response;
use tokio::time::Instant;

use super::back_off::{Pace, READS_MAX};
use super::{Attempts, Client, RemoteError, RemoteFile, s3, web};

/// Buffers one chunk: a few packets of a web server, or a range of object storage.
pub(crate) struct RemoteReader {
    client: &'static Client,
    file: RemoteFile,
    /// Offset of the next bytes.
    offset: u64,
    buffer: Bytes,
    /// A response in progress, and the bytes of it to skip.
    answer: Option<(Response, u64)>,
    attempts: Attempts,
    pace: Pace,
}

impl RemoteReader {
    pub(crate) fn new(file: &RemoteFile) -> Result<Self, RemoteError> {
        Ok(Self {
            client: Client::get()?,
            file: file.clone(),
            offset: 0,
            buffer: Bytes::new(),
            answer: None,
            attempts: Attempts::new(READS_MAX),
            pace: Pace::default(),
        })
    }

    /// Returns the next bytes; empty at the end.
    fn next_bytes(&mut self) -> Result<Bytes, RemoteError> {
        while self.offset < self.file.version.bytes {
            let asked = Instant::now();
            match self.client.wait(self.ask()) {
                Ok(bytes) => {
                    self.offset += bytes.len() as u64;
                    let is_slow = self.pace.is_too_slow(self.offset, asked.elapsed());
                    if is_slow && self.offset < self.file.version.bytes {
                        self.answer = None;
                        let (error, shown) = (RemoteError::Slow(self.offset), self.file.url.shown());
                        self.client.pause(&mut self.attempts, self.offset, error, &shown)?;
                    }
                    return Ok(bytes);
                }
                Err(error) if error.is_passing() => {
                    self.answer = None;
                    let shown = self.file.url.shown();
                    self.client.pause(&mut self.attempts, self.offset, error, &shown)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Bytes::new())
    }
}

impl RemoteReader {
    /// Returns at least one byte from the offset on.
    async fn ask(&mut self) -> Result<Bytes, RemoteError> {
        let RemoteFile { url, endpoint, version, .. } = &self.file;
        let bytes = match url {
            DataUrl::S3 { bucket, key } => {
                let store = self.client.store(bucket, endpoint.as_deref())?;
                s3::read(&*store, key, self.offset, version).await?
            }
            DataUrl::Web(address) => {
                if self.answer.is_none() {
                    self.answer = Some(web::open(&self.client.web, address, self.offset, version).await?);
                }
                more_of(&mut self.answer).await.map_err(|_| RemoteError::Cut(self.offset))?
            }
        };
        // Bytes after the end belong to another version.
        let left = usize::try_from(version.bytes - self.offset).unwrap_or(usize::MAX);
        if bytes.is_empty() {
            Err(RemoteError::Cut(self.offset))
        } else {
            Ok(bytes.slice(..left.min(bytes.len())))
        }
    }
}

impl Read for RemoteReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            self.buffer = self.next_bytes().map_err(io::Error::other)?;
        }
        let read = buffer.len().min(self.buffer.len());
        self.buffer.copy_to_slice(&mut buffer[..read]);
        Ok(read)
    }
}

/// Returns the next bytes of a response; empty at its end.
async fn more_of(answer: &mut Option<(Response, u64)>) -> reqwest::Result<Bytes> {
    let Some((answer, leave_out)) = answer else { return Ok(Bytes::new()) };
    while let Some(mut bytes) = answer.chunk().await? {
        let left_out = (*leave_out).min(bytes.len() as u64);
        bytes.advance(left_out as usize);
        *leave_out -= left_out;
        if !bytes.is_empty() {
            return Ok(bytes);
        }
    }
    Ok(Bytes::new())
}
