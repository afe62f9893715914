//! Verdicts on the measurements of the path to the coordinator.

use std::net::SocketAddr;
use std::time::Duration;

use longhaul_common::units::Bytes;
use longhaul_proto::control::{Hello, PROBE_BYTES_MAX, PROBE_DIAL_MAX, ProbeError, Upload};
use longhaul_proto::identity::{CLOCK_SKEW_S, WORKER_CERTIFICATE_S};
use longhaul_proto::transport::{SOCKET_BUFFER_BYTES, SocketBuffers};

use super::knock::Knock;
use super::report::Finding;

/// In milliseconds. NTP keeps clocks within a second.
const CLOCK_WARN_MS: i64 = 60_000;
/// A longer round trip indicates a fault or overfull queues, not distance.
const ROUND_TRIP_WARN: Duration = Duration::from_millis(500);
/// In bits per second: a compressed update of a small model, some megabytes, then takes seconds.
const UPLOAD_WARN_BITS_PER_S: f64 = 10e6;
/// An upload of fewer round trips has not left the start-up of congestion control, so the link may be faster.
const START_UP_ROUND_TRIPS: u32 = 10;

const SAME_RELEASE: &str = "install the same release on both machines";
const CHECK_ADDRESS: &str = "`coordinator up` prints the address to use: HOST:PORT";

pub(super) fn buffers(granted: SocketBuffers) -> Finding {
    let says = format!(
        "{} to receive, {} to send",
        Bytes(granted.receive_bytes as u64),
        Bytes(granted.send_bytes as u64)
    );
    if granted.are_full() {
        return Finding::fine("buffers", says);
    }
    let says =
        format!("{says}; fast links lose packets with less than {}", Bytes(SOCKET_BUFFER_BYTES as u64));
    let sysctl = format!(
        "sudo sysctl -w net.core.rmem_max={SOCKET_BUFFER_BYTES} net.core.wmem_max={SOCKET_BUFFER_BYTES}"
    );
    Finding::warn("buffers", says, sysctl)
}

/// No coordinator answered. `knock`: the result of a probe without QUIC, if the handshake got no answer.
pub(super) fn unreachable(address: SocketAddr, error: &ProbeError, knock: Option<Knock>) -> Finding {
    let (ip, port) = (address.ip(), address.port());
    match (error, knock) {
        (ProbeError::Silent, Some(Knock::Closed)) => Finding::fail(
            "udp",
            format!("{ip} is there, but nothing listens on its UDP port {port}"),
            "start `coordinator up` there, or correct the port: it prints the one to use",
        ),
        (ProbeError::Silent, Some(Knock::Answer)) => Finding::fail(
            "udp",
            format!("something answers on UDP port {port} of {ip}, but it is not a coordinator"),
            CHECK_ADDRESS,
        ),
        (ProbeError::Silent, Some(Knock::AnswerToPieces)) => Finding::fail(
            "udp",
            format!(
                "{ip} answers, but packets of 1200 bytes do not get there in one piece, which QUIC needs (RFC 9000)"
            ),
            "raise the MTU of the tunnel or link that is in between: 1228 bytes for IPv4, 1280 for IPv6 (`tracepath` finds it)",
        ),
        (ProbeError::Silent, _) => Finding::fail(
            "udp",
            format!("no answer over UDP from {address} within {} s", PROBE_DIAL_MAX.as_secs()),
            format!(
                "is `coordinator up` running there? If it is, let UDP port {port} through the firewalls and security groups of both sides"
            ),
        ),
        (ProbeError::NotACoordinator { .. }, _) => Finding::fail("udp", error.to_string(), CHECK_ADDRESS),
        (ProbeError::Version { .. }, _) => Finding::fail("versions", error.to_string(), SAME_RELEASE),
        (ProbeError::Busy, _) => Finding::warn("udp", error.to_string(), "ask the doctor again in a minute"),
        _ => Finding::fail("udp", error.to_string(), CHECK_ADDRESS),
    }
}

/// The coordinator answered, but is not the token's.
pub(super) fn wrong_authority(error: &ProbeError) -> Finding {
    let remedy = match error {
        ProbeError::OutOfDate => "compare the clocks of both machines",
        _ => "`coordinator token create` on the coordinator's machine prints one of its own",
    };
    Finding::fail("token", error.to_string(), remedy)
}

pub(super) fn versions(ours: &Hello, theirs: &Hello) -> Finding {
    if ours == theirs {
        return Finding::fine("versions", format!("{ours} on both sides"));
    }
    // Incompatible protocols fail earlier.
    Finding::warn("versions", format!("this is {ours}, the coordinator is {theirs}"), SAME_RELEASE)
}

/// `sorted`: at least one round trip.
pub(super) fn round_trip(sorted: &[Duration]) -> Finding {
    let (least, median) = (sorted[0], sorted[sorted.len() / 2]);
    let says = format!("{}, at least {} (median and minimum of {})", ms(median), ms(least), sorted.len());
    if median > ROUND_TRIP_WARN {
        return Finding::warn("round trip", says, "is something else filling the link?");
    }
    Finding::fine("round trip", says)
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// `behind_ms`: the coordinator's clock minus this machine's.
pub(super) fn clock(behind_ms: i64) -> Finding {
    let seconds = behind_ms.unsigned_abs() as f64 / 1e3;
    let side = if behind_ms >= 0 { "behind" } else { "ahead of" };
    let says = format!("{seconds:.1} s {side} the coordinator's");
    let remedy =
        "certificates live in calendar time: `sudo timedatectl set-ntp true` on the machine that is wrong";
    // Beyond these limits, a new certificate is not yet valid or has expired.
    let valid_ms = -(WORKER_CERTIFICATE_S as i64) * 1000..CLOCK_SKEW_S as i64 * 1000;
    if !valid_ms.contains(&behind_ms) {
        Finding::fail("clock", says, remedy)
    } else if behind_ms.abs() > CLOCK_WARN_MS {
        Finding::warn("clock", says, remedy)
    } else {
        Finding::fine("clock", says)
    }
}

pub(super) fn upload(outcome: &Result<Upload, ProbeError>, round_trip: Duration) -> Finding {
    let again = "ask the doctor again in a minute";
    let upload = match outcome {
        Ok(upload) => upload,
        Err(ProbeError::Busy) => {
            return Finding::not_looked_at("upload", format!("others measure theirs at the moment: {again}"));
        }
        Err(error) => return Finding::fail("upload", format!("the connection broke: {error}"), again),
    };
    if upload.bytes == 0 {
        let remedy = "do full-sized packets (1200 bytes) get through? Look at tunnels and their MTU";
        return Finding::fail("upload", "small packets arrive, but nothing of an upload", remedy);
    }
    let bits_per_s = upload.bytes as f64 * 8.0 / upload.span.as_secs_f64().max(1e-6);
    let in_start_up = upload.bytes == PROBE_BYTES_MAX && upload.span < START_UP_ROUND_TRIPS * round_trip;
    let at_least = if in_start_up { "at least " } else { "" };
    let says = format!(
        "{at_least}{:.1} Mbit/s ({} in {:.2} s)",
        bits_per_s / 1e6,
        Bytes(upload.bytes),
        upload.span.as_secs_f64()
    );
    if bits_per_s < UPLOAD_WARN_BITS_PER_S && !in_start_up {
        let remedy = "rounds wait for this machine's updates: synchronise less often (`sync.every`), or send less (`sync.bits_max` of preset `auto`, `sync.keep` of others)";
        return Finding::warn("upload", says, remedy);
    }
    Finding::fine("upload", says)
}

#[cfg(test)]
mod tests {
    use super::super::report::Verdict;
    use super::*;

    const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7700);

    #[test]
    fn every_way_of_not_reaching_a_coordinator_has_words_of_its_own() {
        let silent = |knock| unreachable(ADDRESS, &ProbeError::Silent, knock);
        let other = ProbeError::NotACoordinator { reason: "no such protocol".to_owned() };
        let cases = [
            (silent(None), "no answer over UDP"),
            (silent(Some(Knock::Silence)), "no answer over UDP"),
            (silent(Some(Knock::Closed)), "nothing listens on its UDP port 7700"),
            (silent(Some(Knock::Answer)), "something answers on UDP port 7700"),
            (silent(Some(Knock::AnswerToPieces)), "packets of 1200 bytes do not get there"),
            (unreachable(ADDRESS, &other, None), "what answers is not a coordinator"),
        ];
        for (finding, words) in cases {
            assert_eq!(finding.verdict, Verdict::Fail);
            assert!(finding.says.contains(words) && !finding.remedy.is_empty(), "{finding:?}");
        }
        assert_eq!(unreachable(ADDRESS, &ProbeError::Busy, None).verdict, Verdict::Warn);
    }

    #[test]
    fn another_version_is_named_on_both_sides_with_the_remedy() {
        let hello = |protocol, software: &str| Hello { protocol, software: software.to_owned() };
        let (ours, theirs) = (hello(1, "0.1.0"), hello(2, "0.9.3"));
        let error = ProbeError::Version { ours: ours.clone(), theirs };
        let finding = unreachable(ADDRESS, &error, None);
        assert_eq!((finding.check, finding.verdict), ("versions", Verdict::Fail));
        assert!(finding.says.contains("0.1.0 (protocol 1)") && finding.says.contains("0.9.3 (protocol 2)"));
        assert!(finding.remedy.contains("the same release"));
        assert_eq!(versions(&ours, &ours).verdict, Verdict::Fine);
        assert_eq!(versions(&ours, &hello(1, "0.1.1")).verdict, Verdict::Warn);
    }

    #[test]
    fn small_buffers_come_with_the_line_that_raises_them() {
        let granted = |receive_bytes| SocketBuffers { receive_bytes, send_bytes: SOCKET_BUFFER_BYTES };
        assert_eq!(buffers(granted(SOCKET_BUFFER_BYTES)).verdict, Verdict::Fine);
        let small = buffers(granted(212_992));
        assert_eq!(small.verdict, Verdict::Warn);
        assert_eq!(small.remedy, "sudo sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304");
    }

    #[test]
    fn a_clock_is_judged_by_what_certificates_bear() {
        let hour = 3_600_000;
        for (behind_ms, verdict) in [
            (0, Verdict::Fine),
            (-60_000, Verdict::Fine),
            (60_001, Verdict::Warn),
            (-60_001, Verdict::Warn),
            (hour - 1, Verdict::Warn),
            (hour, Verdict::Fail),
            (-24 * hour, Verdict::Warn),
            (-24 * hour - 1, Verdict::Fail),
            (i64::MIN, Verdict::Fail),
        ] {
            assert_eq!(clock(behind_ms).verdict, verdict, "{behind_ms}");
        }
        assert!(clock(2300).says.contains("2.3 s behind") && clock(-2300).says.contains("2.3 s ahead of"));
    }

    #[test]
    fn round_trips_are_told_by_median_and_minimum() {
        let times = [10, 20, 90].map(Duration::from_millis);
        assert_eq!(round_trip(&times).says, "20.0 ms, at least 10.0 ms (median and minimum of 3)");
        assert_eq!(round_trip(&[Duration::from_secs(1)]).verdict, Verdict::Warn);
    }

    #[test]
    fn an_upload_is_a_rate_and_a_lower_bound_while_it_starts_up() {
        let judge = |bytes, span_ms, round_trip_ms| {
            let uploaded = Upload { bytes, span: Duration::from_millis(span_ms) };
            upload(&Ok(uploaded), Duration::from_millis(round_trip_ms))
        };
        // 3 s at 1 Mbit/s.
        let slow = judge(375_000, 3000, 50);
        assert_eq!((slow.verdict, &slow.says[..]), (Verdict::Warn, "1.0 Mbit/s (375.0 kB in 3.00 s)"));
        let quick = judge(PROBE_BYTES_MAX, 250, 80);
        assert_eq!(
            (quick.verdict, &quick.says[..]),
            (Verdict::Fine, "at least 67.1 Mbit/s (2.10 MB in 0.25 s)")
        );
        assert!(!judge(PROBE_BYTES_MAX, 250, 1).says.contains("at least"));
        assert_eq!(judge(0, 0, 10).verdict, Verdict::Fail);
        assert_eq!(upload(&Err(ProbeError::Busy), Duration::ZERO).verdict, Verdict::NotLookedAt);
        assert_eq!(upload(&Err(ProbeError::NoReply), Duration::ZERO).verdict, Verdict::Fail);
    }
}
