//! Chrome's trace event format, as JSON for Perfetto.
//!
//! "Trace Event Format", Google, 2016: complete events (`X`), pairs of asynchronous ones (`b`, `e`), instants (`i`) and metadata (`M`). Times are in
//! microseconds.

use std::io::{self, Write};

use longhaul_member::activity::{Shape, Track};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Record, Recording};

/// The process of a trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Who {
    /// Worker number: in a trace of several, each is a process.
    pub process: u64,
    /// Displayed name.
    pub name: String,
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    #[serde(rename = "cat", skip_serializing_if = "Option::is_none")]
    category: Option<&'a str>,
    #[serde(rename = "ph")]
    phase: &'a str,
    #[serde(rename = "pid")]
    process: u64,
    #[serde(rename = "tid")]
    track: u32,
    #[serde(rename = "ts", skip_serializing_if = "Option::is_none")]
    at_us: Option<u64>,
    #[serde(rename = "dur", skip_serializing_if = "Option::is_none")]
    took_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    /// Scope of an instant: its track alone.
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    scope: Option<&'a str>,
    args: Value,
}

/// Writes a trace with the reason `why`.
///
/// # Errors
/// Those of the writer.
pub(crate) fn write(to: &mut impl Write, recording: &Recording, who: &Who, why: &str) -> io::Result<()> {
    let about = json!({
        "worker": who.name,
        "release": env!("CARGO_PKG_VERSION"),
        "why": why,
        "records_forgotten": recording.forgotten,
    });
    write!(to, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
    let mut is_first = true;
    let mut put = |event: Event<'_>| {
        to.write_all(if is_first { b"\n" } else { b",\n" })?;
        is_first = false;
        serde_json::to_writer(&mut *to, &event).map_err(io::Error::from)
    };
    let name = |name, track, value: &str| Event {
        name,
        category: None,
        phase: "M",
        process: who.process,
        track,
        at_us: None,
        took_us: None,
        id: None,
        scope: None,
        args: json!({ "name": value }),
    };
    put(name("process_name", 0, &who.name))?;
    for track in Track::ALL {
        put(name("thread_name", track as u32, track.name()))?;
    }
    for (id, record) in recording.records.iter().enumerate() {
        for event in events(recording, record, id, who.process) {
            put(event)?;
        }
    }
    to.write_all(b"\n]}\n")
}

fn events(
    recording: &Recording,
    record: &Record,
    id: usize,
    process: u64,
) -> impl Iterator<Item = Event<'static>> {
    let Record { what, began_us, took_us } = record;
    let goes_on = took_us.is_none();
    let took_us = took_us.unwrap_or_else(|| recording.now_us.saturating_sub(*began_us));
    let began_us = recording.began_unix_us.saturating_add(*began_us);
    let mut args = what.arguments();
    if goes_on {
        args["unfinished"] = true.into();
    }
    let event = |phase, at_us, args| Event {
        name: what.name(),
        category: Some(what.track().name()),
        phase,
        process,
        track: what.track() as u32,
        at_us: Some(at_us),
        took_us: None,
        id: None,
        scope: None,
        args,
    };
    let (one, other) = match what.shape() {
        Shape::Slice => (Event { took_us: Some(took_us), ..event("X", began_us, args) }, None),
        Shape::Instant => (Event { scope: Some("t"), ..event("i", began_us, args) }, None),
        Shape::Overlapping => (
            Event { id: Some(id), ..event("b", began_us, args) },
            Some(Event { id: Some(id), ..event("e", began_us + took_us, json!({})) }),
        ),
    };
    std::iter::once(one).chain(other)
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::{FragmentId, Round, WorkerId};
    use longhaul_proto::frame::FrameKind;

    use super::super::Activity;
    use super::*;

    fn recording() -> Recording {
        let record = |what, began_us, took_us| Record { what, began_us, took_us };
        let (round, fragment) = (Round(7), FragmentId(2));
        let (kind, bytes) = (FrameKind::Result, 900);
        Recording {
            records: vec![
                record(Activity::Compute { round: Round(0), step: 3 }, 10, Some(40)),
                record(Activity::Send { to: WorkerId(5), kind, round, fragment, bytes }, 20, Some(25)),
                record(Activity::Receive { from: WorkerId(5), kind, round, fragment, bytes }, 60, Some(0)),
                record(Activity::WaitForResult { round }, 70, None),
            ],
            now_us: 100,
            began_unix_us: 1_000_000,
            forgotten: 12,
        }
    }

    fn written() -> Value {
        let (mut bytes, who) = (Vec::new(), Who { process: 4, name: "w4 at \"home\"".into() });
        write(&mut bytes, &recording(), &who, "a test").unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn slices_pairs_and_moments_are_where_they_happened() {
        let trace = written();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
        assert_eq!(of("M").len(), 1 + Track::ALL.len());
        assert_eq!(of("M")[0]["args"]["name"], "w4 at \"home\"");
        let [compute, wait] = of("X")[..] else { panic!("{events:?}") };
        assert_eq!(
            (&compute["ts"], &compute["dur"], &compute["args"]["step"]),
            (&json!(1_000_010), &json!(40), &json!(3))
        );
        // It is in progress, as in a hanging worker.
        assert_eq!((&wait["dur"], &wait["args"]["unfinished"]), (&json!(30), &json!(true)));
        let ([begin], [end]) = (&of("b")[..], &of("e")[..]) else { panic!("{events:?}") };
        assert_eq!((&begin["id"], &begin["cat"], &begin["name"]), (&end["id"], &end["cat"], &end["name"]));
        assert_eq!((&begin["ts"], &end["ts"]), (&json!(1_000_020), &json!(1_000_045)));
        assert_eq!(
            begin["args"],
            json!({ "worker": "w5", "frame": "result", "round": 7, "fragment": 2, "bytes": 900 })
        );
        assert_eq!((&of("i")[0]["s"], &of("i")[0]["ts"]), (&json!("t"), &json!(1_000_060)));
        assert!(events.iter().all(|event| event["pid"] == 4 && event["tid"].is_u64()));
    }

    #[test]
    fn a_trace_says_why_it_is_there_and_what_it_lacks() {
        let about = &written()["otherData"];
        assert_eq!((&about["why"], &about["records_forgotten"]), (&json!("a test"), &json!(12)));
    }
}
