//! Small messages besides bulk.

use std::time::Duration;

use anyhow::Result;
use longhaul_proto::transport::bulk::CONTROL_PRIORITY;
use quinn::Connection;
use tokio::time::interval;

use crate::kit::clock::now;

const MESSAGE_BYTES: usize = 200;
/// Interval that does not load the link.
const EVERY: Duration = Duration::from_millis(25);

/// Sends a message every [`EVERY`] for `duration` and waits for its echo; returns the sorted waiting times.
pub async fn echo_times(from: &Connection, to: &Connection, duration: Duration) -> Result<Vec<Duration>> {
    let (mut send, mut receive) = from.open_bi().await?;
    send.set_priority(CONTROL_PRIORITY)?;
    let to = to.clone();
    let echo = tokio::spawn(async move {
        let (mut send, mut receive) = to.accept_bi().await?;
        send.set_priority(CONTROL_PRIORITY)?;
        let mut message = [0; MESSAGE_BYTES];
        while receive.read_exact(&mut message).await.is_ok() {
            send.write_all(&message).await?;
        }
        anyhow::Ok(())
    });
    let end = now() + duration;
    let mut times = Vec::new();
    let mut ticks = interval(EVERY);
    let mut message = [1; MESSAGE_BYTES];
    while now() < end {
        ticks.tick().await;
        let sent = now();
        send.write_all(&message).await?;
        receive.read_exact(&mut message).await?;
        times.push(now().duration_since(sent));
    }
    send.finish()?;
    echo.await??;
    times.sort_unstable();
    Ok(times)
}

/// Returns the value that the part `quantile` of the sorted `times` does not exceed, in units of `unit`.
pub fn quantile(times: &[Duration], quantile: f64, unit: Duration) -> f64 {
    let index = (times.len().saturating_sub(1) as f64 * quantile).round() as usize;
    times.get(index).map_or(f64::NAN, |time| time.as_secs_f64() / unit.as_secs_f64())
}
