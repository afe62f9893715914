//! All-reduce within a site over loopback, including TLS, compared with a plain copy.

use std::net::TcpListener;
use std::thread;

use anyhow::{Context, Result};
use longhaul_collective::{Collective, Reduction, RingCollective, RingSetup};
use longhaul_common::id::RunId;

use crate::kit::args::Quick;
use crate::kit::clock::{process_s, seconds_of};
use crate::kit::recorder::Recorder;
use crate::kit::ring::{identities, starts};
use crate::kit::stats::Spread;

/// A GPT of 6 layers and width 384.
const VALUES: usize = 10_900_000;
const BYTES: f64 = (VALUES * size_of::<f32>()) as f64;
const RUN: RunId = RunId([0xbe; 16]);

/// Reduction among the members of a site, compared with a plain copy
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Measures the copy, and rings of two and of four.
pub fn run(args: &Args) -> Result<()> {
    let repeats = args.quick.choose(3, 20);
    let copy = copy_seconds(repeats)?;
    print(recorder(1, copy), "copy", copy);
    for size in [2, 4] {
        let cpu_before = process_s();
        let measured = all_reduce_seconds(size, repeats)?;
        let cpu = (process_s() - cpu_before) / (repeats + 1) as f64;
        // Bytes sent by one member, equal to those received.
        let sent = BYTES * 2.0 * f64::from(size - 1) / f64::from(size);
        let recorder = recorder(size, measured)
            .with("times_a_copy", measured.median / copy.median)
            .with("link_gb_per_s", sent / measured.median / 1e9)
            // Of sender and receiver together; unlike the rates, hardly disturbed by other load.
            .with("cpu_s_per_gb", cpu / (sent * f64::from(size)) * 1e9);
        print(recorder, "all_reduce", measured);
    }
    Ok(())
}

fn recorder(members: u32, seconds: Spread) -> Recorder {
    let recorder = Recorder::new("collective").with("members", members).with("values", VALUES);
    recorder.with("best", BYTES / 1e9 / seconds.least).with("seconds", seconds.median)
}

/// The rate is the vector's bytes over seconds.
fn print(recorder: Recorder, case: &str, seconds: Spread) {
    recorder.print(case, "vector_gb_per_s", BYTES / 1e9 / seconds.median, "GB/s");
}

fn copy_seconds(repeats: usize) -> Result<Spread> {
    let (from, mut to) = (vec![1f32; VALUES], vec![0f32; VALUES]);
    let copy = |_| {
        seconds_of(|| {
            std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
            Ok(())
        })
    };
    let seconds = (0..repeats).map(copy).collect::<Result<Vec<_>>>()?;
    Spread::of(&seconds).context("nothing was repeated")
}

/// Returns the time of the slowest member.
fn all_reduce_seconds(size: u32, repeats: usize) -> Result<Spread> {
    let starts = starts(&identities(RUN, size)?, 0)?;
    thread::scope(|scope| {
        let start = |start| scope.spawn(move || member(start, repeats));
        let members: Vec<_> = starts.into_iter().map(start).collect();
        let mut slowest = Spread { least: 0.0, median: 0.0, most: 0.0 };
        for member in members {
            let Spread { least, median, most } =
                member.join().map_err(|_| anyhow::anyhow!("a member panicked"))??;
            slowest.least = slowest.least.max(least);
            slowest.median = slowest.median.max(median);
            slowest.most = slowest.most.max(most);
        }
        Ok(slowest)
    })
}

fn member((setup, listener): (RingSetup, TcpListener), repeats: usize) -> Result<Spread> {
    let mut member = RingCollective::join(&setup, &listener)?;
    let mut values = vec![1.0; VALUES];
    let mut seconds = Vec::new();
    // The first one fills buffers and page tables.
    for repeat in 0..=repeats {
        member.barrier()?;
        let took =
            seconds_of(|| Ok(member.all_reduce(&mut values, Reduction::Mean { samples: 8 }).map(drop)?))?;
        if repeat > 0 {
            seconds.push(took);
        }
    }
    Spread::of(&seconds).context("nothing was repeated")
}
