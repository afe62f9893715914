//! All-reduce within a site over the loopback, TLS and all, beside the machine's plain copy, as JSON lines:
//! `cargo run --release -p longhaul-bench --bin bench-collective [-- --quick]`.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a benchmark reads the clock and prints")]

use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use longhaul_bench::figures::{self, is_given, median_and_least, print_with};
use longhaul_collective::{Collective, Reduction, RingCollective, RingMember, RingSetup, SiteTls, Stop};
use longhaul_common::id::{RunId, WorkerId};
use longhaul_proto::identity::{Authority, WorkerKey};
use serde_json::{Map, Value, json};

/// A GPT of 6 layers and width 384.
const VALUES: usize = 10_900_000;
const RUN: RunId = RunId([0xbe; 16]);
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> anyhow::Result<()> {
    let quick = is_given("--quick");
    let repeats = if quick { 3 } else { 20 };
    let bytes = (VALUES * size_of::<f32>()) as f64;
    let copy = copy_seconds(repeats);
    print("copy", 1, copy, Map::new());
    for size in [2, 4] {
        let cpu_before = cpu_seconds();
        let measured = all_reduce_seconds(size, repeats)?;
        let cpu = (cpu_seconds() - cpu_before) / (repeats + 1) as f64;
        // What one member sends, and as much comes in.
        let sent = bytes * 2.0 * (size - 1) as f64 / size as f64;
        let more = figures::more([
            ("times_a_copy", json!(measured.0 / copy.0)),
            ("link_gb_per_s", json!(sent / measured.0 / 1e9)),
            // Of sender and receiver together; unlike the rates, hardly disturbed by what else the machine does.
            ("cpu_s_per_gb", json!(cpu / (sent * size as f64) * 1e9)),
        ]);
        print("all_reduce", size, measured, more);
    }
    Ok(())
}

/// The rate is the vector's bytes over seconds.
fn print(case: &str, members: usize, (median, least): (f64, f64), more: Map<String, Value>) {
    let gb = (VALUES * size_of::<f32>()) as f64 / 1e9;
    let mut more = more;
    let own = [
        ("members", json!(members)),
        ("values", json!(VALUES)),
        ("best", json!(gb / least)),
        ("seconds", json!(median)),
    ];
    more.extend(figures::more(own));
    print_with("collective", case, "vector_gb_per_s", (gb / median, "GB/s"), more);
}

/// Of all threads of this process so far.
fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn copy_seconds(repeats: usize) -> (f64, f64) {
    let (from, mut to) = (vec![1f32; VALUES], vec![0f32; VALUES]);
    median_and_least((0..repeats).map(|_| {
        let begun = Instant::now();
        std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
        begun.elapsed().as_secs_f64()
    }))
}

fn all_reduce_seconds(size: usize, repeats: usize) -> anyhow::Result<(f64, f64)> {
    let seats = seats(size)?;
    thread::scope(|scope| {
        let members: Vec<_> = seats
            .into_iter()
            .map(|(setup, listener)| {
                scope.spawn(move || {
                    let mut member = RingCollective::join(&setup, &listener)?;
                    let mut values = vec![1.0; VALUES];
                    let mut seconds = Vec::new();
                    // The first fills buffers and page tables.
                    for repeat in 0..=repeats {
                        member.barrier()?;
                        let begun = Instant::now();
                        member.all_reduce(&mut values, Reduction::Mean { samples: 8 })?;
                        if repeat > 0 {
                            seconds.push(begun.elapsed().as_secs_f64());
                        }
                    }
                    anyhow::Ok(median_and_least(seconds))
                })
            })
            .collect();
        let mut slowest = (0.0, 0.0);
        for member in members {
            let measured = member.join().map_err(|_| anyhow::anyhow!("a member panicked"))??;
            slowest = (f64::max(slowest.0, measured.0), f64::max(slowest.1, measured.1));
        }
        Ok(slowest)
    })
}

fn seats(size: usize) -> anyhow::Result<Vec<(RingSetup, TcpListener)>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let authority = Authority::create(RUN, now)?;
    let mut listeners = Vec::new();
    let mut members = Vec::new();
    for rank in 0..size {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let worker = WorkerId(u32::try_from(rank)?);
        members.push(RingMember { worker, address: listener.local_addr()? });
        listeners.push(listener);
    }
    let seat = |(rank, listener): (usize, TcpListener)| {
        let key = WorkerKey::generate()?;
        let members = members.clone();
        let certificate = authority.issue_worker(&key.request()?, members[rank].worker, now)?;
        let tls = SiteTls::new(RUN, certificate, authority.certificate(), &key.to_pkcs8())
            .context("configure TLS")?;
        anyhow::Ok((
            RingSetup {
                members,
                rank,
                session: 0,
                tls,
                call_max: LIMIT,
                join_max: LIMIT,
                stop: Stop::default(),
            },
            listener,
        ))
    };
    listeners.into_iter().enumerate().map(seat).collect()
}
