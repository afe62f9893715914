//! Probes, the coordinator's side.

use std::time::{Duration, SystemTime};

use quinn::{Connection, VarInt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::acceptor::Applicant;
use super::probe::{PROBE_BYTES_MAX, PROBE_REQUESTS_MAX, PROBE_STREAMS, PROBE_UPLOAD_MAX};
use super::{
    ControlReceiver, ControlSender, FromDesk, ProbeReply, ProbeRequest, STRANGER_WINDOW_BYTES,
    ServeEnrolError, ToDesk,
};

/// Serves a probe's first request and the following ones until the peer ends the stream.
pub(super) async fn serve_probe(
    applicant: &Applicant,
    first: ProbeRequest,
    sender: &ControlSender<FromDesk>,
    receiver: &mut ControlReceiver<ToDesk>,
) -> Result<(), ServeEnrolError> {
    let mut request = first;
    // Kept to the end, as the remains of an upload stay in memory until then.
    let mut place = None;
    for _ in 0..PROBE_REQUESTS_MAX {
        let reply = match request {
            ProbeRequest::Echo => ProbeReply::Echo { unix_ms: unix_ms() },
            ProbeRequest::Upload => upload(applicant, &mut place).await?,
        };
        // An error means that the peer has closed, which `receive` reports.
        let _ = sender.send(&FromDesk::Probe(reply));
        request = match receiver.receive().await? {
            None => return Ok(()),
            Some(ToDesk::Probe(request)) => request,
            Some(ToDesk::Enrol(_)) => return Err(ServeEnrolError::Excess),
        };
    }
    Err(ServeEnrolError::Excess)
}

async fn upload(
    applicant: &Applicant,
    place: &mut Option<OwnedSemaphorePermit>,
) -> Result<ProbeReply, ServeEnrolError> {
    if place.is_some() {
        return Err(ServeEnrolError::Excess);
    }
    let Ok(free) = applicant.uploads.clone().try_acquire_owned() else {
        return Ok(ProbeReply::Busy);
    };
    *place = Some(free);
    let mut tally = Tally::default();
    let deadline = Instant::now() + PROBE_UPLOAD_MAX;
    open_window(&applicant.connection, PROBE_STREAMS);
    let taken = timeout_at(deadline, take_in(&applicant.connection, &mut tally)).await;
    open_window(&applicant.connection, 0);
    // A timeout is a result too.
    taken.unwrap_or(Ok(()))?;
    Ok(ProbeReply::Uploaded { bytes: tally.bytes, span_us: tally.span.as_micros() as u64 })
}

/// Permits this many unidirectional streams, each with a full window, besides the control stream.
fn open_window(connection: &Connection, streams: u32) {
    connection.set_receive_window(VarInt::from_u32((streams + 1) * STRANGER_WINDOW_BYTES));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(streams));
}

async fn take_in(connection: &Connection, tally: &mut Tally) -> Result<(), ServeEnrolError> {
    for _ in 0..PROBE_STREAMS {
        let mut stream = connection.accept_uni().await?;
        while let Some(chunk) = stream.read_chunk(usize::MAX, false).await? {
            tally.count(chunk.bytes.len(), Instant::now());
            if tally.bytes > PROBE_BYTES_MAX {
                return Err(ServeEnrolError::Excess);
            }
        }
    }
    Ok(())
}

/// Bytes received, and their times.
#[derive(Default)]
struct Tally {
    bytes: u64,
    begun: Option<Instant>,
    span: Duration,
}

impl Tally {
    fn count(&mut self, bytes: usize, now: Instant) {
        self.bytes += bytes as u64;
        self.span = now - *self.begun.get_or_insert(now);
    }
}

#[allow(clippy::disallowed_methods, reason = "the visitor asks for the time, and nothing is decided by it")]
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
