//! Frames on a stream: a length, then as many bytes.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

/// Time allowed for any frame from its first byte to its last, besides the allowance of
/// [`FRAME_RATE_BYTES_PER_S_MIN`]: enough for several retransmissions on a long link.
pub const FRAME_GRACE: Duration = Duration::from_secs(15);

/// Minimum rate of a frame, in bytes per second: 32 KiB, a small part of any usable link, as bulk data shares
/// it.
pub const FRAME_RATE_BYTES_PER_S_MIN: u64 = 32 << 10;

/// Step of memory allocation, as bytes arrive. A claimed length costs the sender nothing, so it must cost the
/// reader nothing.
const READ_STEP_BYTES: usize = 16 << 10;

/// A frame's length: u32, little-endian.
pub(super) const LENGTH_BYTES: usize = 4;

/// Reasons why no next frame exists.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The claimed length exceeds the limit of its type.
    #[error("a frame of {bytes} bytes exceeds the limit of {bytes_max}")]
    TooLong {
        /// Claimed length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The frame was not completed in time.
    #[error("a frame was not completed in time")]
    Stalled,
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    CutOff,
    /// The stream failed.
    #[error("the stream failed: {0}")]
    Stream(#[from] io::Error),
}

/// Splits a stream into frames.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    source: R,
    bytes_max: usize,
    buffer: BytesMut,
    /// Start time of the frame at the buffer's start.
    begun: Option<Instant>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Creates a reader of frames of at most `bytes_max` bytes.
    pub(super) fn new(source: R, bytes_max: usize) -> Self {
        Self { source, bytes_max, buffer: BytesMut::new(), begun: None }
    }

    /// Returns the next frame; `None`: the stream ended between frames. Cancel-safe: it can be dropped at any
    /// await without losing a byte.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            let length = self.length()?;
            if let Some(length) = length
                && self.buffer.len() >= LENGTH_BYTES + length
            {
                self.buffer.advance(LENGTH_BYTES);
                self.begun = None;
                return Ok(Some(self.buffer.split_to(length).freeze()));
            }
            if self.read(length.unwrap_or(0)).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(FrameError::CutOff) };
            }
        }
    }

    /// Returns the length of the frame at the buffer's start, if known and allowed.
    fn length(&self) -> Result<Option<usize>, FrameError> {
        let Some(head) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(*head) as usize;
        if bytes > self.bytes_max {
            return Err(FrameError::TooLong { bytes, bytes_max: self.bytes_max });
        }
        Ok(Some(bytes))
    }

    /// Reads some bytes: without a timeout between frames, otherwise within the time allowed for this length.
    async fn read(&mut self, length: usize) -> Result<usize, FrameError> {
        self.buffer.reserve(READ_STEP_BYTES);
        if self.buffer.is_empty() {
            return Ok(self.source.read_buf(&mut self.buffer).await?);
        }
        let begun = *self.begun.get_or_insert_with(Instant::now);
        let deadline = begun + FRAME_GRACE + Duration::from_secs(length as u64 / FRAME_RATE_BYTES_PER_S_MIN);
        let read = timeout_at(deadline, self.source.read_buf(&mut self.buffer)).await;
        Ok(read.map_err(|_| FrameError::Stalled)??)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    fn framed(body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32).to_le_bytes()[..], body].concat()
    }

    #[tokio::test]
    async fn frames_come_out_as_they_went_in() {
        let bytes = [framed(b"one"), framed(b""), framed(&[7; 100_000])].concat();
        let mut reader = FrameReader::new(&*bytes, 100_000);
        for expected in [b"one".to_vec(), vec![], vec![7; 100_000]] {
            assert_eq!(reader.next().await.unwrap().unwrap(), expected);
        }
        assert!(reader.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_claimed_length_takes_no_memory() {
        let mut reader = FrameReader::new(&[0xff; 4][..], 1 << 20);
        assert!(matches!(reader.next().await, Err(FrameError::TooLong { bytes: 0xffff_ffff, .. })));
        assert!(reader.buffer.capacity() <= 2 * READ_STEP_BYTES);
        // Allowed but only claimed: memory follows the received bytes.
        let mut reader = FrameReader::new(&[0, 0, 16, 0][..], 1 << 20);
        assert!(matches!(reader.next().await, Err(FrameError::CutOff)));
        assert!(reader.buffer.capacity() <= 2 * READ_STEP_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_trickles_in_is_given_up_and_silence_between_frames_is_not() {
        let (mut theirs, ours) = duplex(64);
        let mut reader = FrameReader::new(ours, 1 << 20);
        let start = Instant::now();
        let trickle = async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            for byte in framed(&[0; 64]) {
                theirs.write_all(&[byte]).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let stalled = tokio::select! {
            next = reader.next() => next,
            () = trickle => panic!("the reader waited for the whole trickle"),
        };
        assert!(matches!(stalled, Err(FrameError::Stalled)));
        assert_eq!(start.elapsed(), Duration::from_secs(3600) + FRAME_GRACE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_frame_has_the_time_that_its_length_takes() {
        let (mut theirs, ours) = duplex(64);
        let mut reader = FrameReader::new(ours, 1 << 20);
        let bytes = framed(&[1; 1 << 20]);
        let trickle = async {
            for part in bytes.chunks(FRAME_RATE_BYTES_PER_S_MIN as usize) {
                theirs.write_all(part).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            theirs
        };
        let (frame, _theirs) = tokio::join!(reader.next(), trickle);
        assert_eq!(frame.unwrap().unwrap().len(), 1 << 20);
    }

    #[tokio::test]
    async fn a_reader_that_is_dropped_while_waiting_loses_nothing() {
        let (mut theirs, ours) = duplex(64);
        let mut reader = FrameReader::new(ours, 100);
        for byte in framed(b"message") {
            {
                let mut next = std::pin::pin!(reader.next());
                assert!(still_waits(next.as_mut()).await);
            }
            theirs.write_all(&[byte]).await.unwrap();
        }
        assert_eq!(reader.next().await.unwrap().unwrap(), &b"message"[..]);
    }

    /// Polls once; returns whether the future is pending.
    async fn still_waits<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
        std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending()))
            .await
    }

    proptest! {
        #[test]
        fn random_bytes_end_in_an_error_or_in_frames(bytes: Vec<u8>) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let mut reader = FrameReader::new(&*bytes, 64);
            let mut taken = 0;
            while let Ok(Some(frame)) = runtime.block_on(reader.next()) {
                taken += frame.len() + LENGTH_BYTES;
            }
            prop_assert!(taken <= bytes.len());
        }
    }
}
