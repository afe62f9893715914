//! Checks of the path to the coordinator and of its identity.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_proto::control::{Hello, Probe, ProbeError};
use longhaul_proto::identity::Fingerprint;
use longhaul_proto::transport;
use quinn::Endpoint;
use tokio::net::lookup_host;

use super::findings;
use super::knock::{PATIENCE, knock};
use super::report::{Finding, Report};
use crate::agent::{first_that_answers, in_order};
use crate::cli::DoctorArgs;

/// Number of measured round trips: odd, for a median.
const ECHOES: usize = 9;

/// Examines the path until a check fails.
pub(super) async fn examine(args: &DoctorArgs, report: &mut Report<impl Write>) -> io::Result<()> {
    let addresses = match look_up(&args.coordinator).await {
        Ok((addresses, finding)) => {
            report.tell(finding)?;
            addresses
        }
        Err(finding) => return report.tell(finding),
    };
    let endpoint = match open(report)? {
        Ok(endpoint) => endpoint,
        Err(finding) => return report.tell(finding),
    };
    let address = match addresses.as_slice() {
        [one] => *one,
        several => first_that_answers(&endpoint, several).await.unwrap_or(several[0]),
    };
    let authority = match args.token.read() {
        Ok(None) => {
            report.tell(Finding::not_looked_at(
                "token",
                "with --token-file or --token the doctor compares it with the coordinator",
            ))?;
            None
        }
        Err(error) => {
            report.tell(Finding::fail("token", format!("{error:#}"), ""))?;
            None
        }
        Ok(Some(token)) => Some(token.authority),
    };
    if let Some(mut probe) = reach(&endpoint, address, authority, report).await? {
        report.tell(findings::versions(&Hello::ours(), probe.coordinator()))?;
        measure(&mut probe, report).await?;
        probe.finish().await;
    }
    Ok(())
}

/// Returns all addresses of a coordinator in the order of attempts.
async fn look_up(coordinator: &str) -> Result<(Vec<SocketAddr>, Finding), Finding> {
    let found = lookup_host(coordinator).await.map_err(|error| {
        let malformed = error.kind() == io::ErrorKind::InvalidInput;
        let remedy = if malformed {
            "write HOST:PORT, as `coordinator up` prints it"
        } else {
            "does this machine know the name? Try the IP address"
        };
        Finding::fail("coordinator", format!("{coordinator:?} does not resolve: {error}"), remedy)
    })?;
    let found = in_order(found);
    if found.is_empty() {
        return Err(Finding::fail("coordinator", format!("{coordinator:?} has no address"), ""));
    }
    let named: Vec<String> = found.iter().map(ToString::to_string).collect();
    let says = match named.as_slice() {
        [one] if one == coordinator => one.clone(),
        all => format!("{coordinator} is {}", all.join(", ")),
    };
    Ok((found, Finding::fine("coordinator", says)))
}

/// Opens a socket like a worker's and reports the buffers granted by the kernel.
fn open(report: &mut Report<impl Write>) -> io::Result<Result<Endpoint, Finding>> {
    let (socket, granted) = match longhaul_peer::bind(None) {
        Ok(bound) => bound,
        Err(error) => return Ok(Err(Finding::fail("buffers", format!("no UDP socket: {error}"), ""))),
    };
    report.tell(findings::buffers(granted))?;
    Ok(transport::endpoint(socket, None)
        .map_err(|error| Finding::fail("buffers", format!("the UDP socket cannot be used: {error}"), "")))
}

/// Connects to the coordinator. If its authority does not match the token, retries without the token, as another fault (such as the clock)
/// may be the cause.
async fn reach(
    endpoint: &Endpoint,
    address: SocketAddr,
    authority: Option<Fingerprint>,
    report: &mut Report<impl Write>,
) -> io::Result<Option<Probe>> {
    let mut dialled = Probe::dial(endpoint, address, authority).await;
    if let Err(error @ (ProbeError::WrongCoordinator | ProbeError::OutOfDate)) = &dialled {
        report.tell(findings::wrong_authority(error))?;
        dialled = Probe::dial(endpoint, address, None).await;
    } else if dialled.is_ok() && authority.is_some() {
        let says = "made by this coordinator; a join shows whether it is still valid";
        report.tell(Finding::fine("token", says))?;
    }
    match dialled {
        Ok(probe) => {
            report.tell(Finding::fine("udp", "a coordinator answers"))?;
            Ok(Some(probe))
        }
        Err(error) => {
            let knocked = match error {
                ProbeError::Silent => knock(address, PATIENCE).await.ok(),
                _ => None,
            };
            report.tell(findings::unreachable(address, &error, knocked))?;
            Ok(None)
        }
    }
}

async fn measure(probe: &mut Probe, report: &mut Report<impl Write>) -> io::Result<()> {
    let (round_trips, behind_ms) = match echoes(probe).await {
        Ok(measured) => measured,
        Err(error) => {
            let remedy = "the path loses too much, or the coordinator is overloaded: ask the doctor again";
            return report.tell(Finding::fail("round trip", error.to_string(), remedy));
        }
    };
    report.tell(findings::round_trip(&round_trips))?;
    report.tell(findings::clock(behind_ms))?;
    let outcome = probe.upload().await;
    report.tell(findings::upload(&outcome, round_trips[0]))
}

/// Returns round trips in ascending order, and the coordinator's clock minus this machine's, from the fastest round trip. The error is at most half
/// of that round trip.
async fn echoes(probe: &mut Probe) -> Result<([Duration; ECHOES], i64), ProbeError> {
    let mut measured = [(Duration::MAX, 0); ECHOES];
    for slot in &mut measured {
        let echo = probe.echo().await?;
        let halfway_ms = unix_ms() - (echo.round_trip / 2).as_millis() as i64;
        let theirs_ms = i64::try_from(echo.unix_ms).unwrap_or(i64::MAX);
        *slot = (echo.round_trip, theirs_ms.saturating_sub(halfway_ms));
    }
    measured.sort_unstable();
    Ok((measured.map(|(round_trip, _)| round_trip), measured[0].1))
}

#[allow(clippy::disallowed_methods, reason = "the clock itself is examined")]
fn unix_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
