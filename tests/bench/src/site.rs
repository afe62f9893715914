//! Reduction in a site of two over loopback, in a ring over TCP and as frames over QUIC, alternating.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_collective::{Collective, Reduction, RingCollective};
use longhaul_common::id::{FragmentId, Generation, Round, RunId, WorkerId};
use longhaul_proto::frame::{Frame, FrameKind, FrameMeta};
use longhaul_proto::identity::{Identity, PeerName, data_client, data_server};
use longhaul_proto::transport;
use longhaul_proto::transport::bulk::{BulkReceiver, BulkSender, ReceiveLimits, ReceivedFrame};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::kit::args::Quick;
use crate::kit::clock::{process_s, seconds_of};
use crate::kit::recorder::Recorder;
use crate::kit::ring::{LIMIT, identities, starts};
use crate::kit::stats::{in_turns, median};

/// A GPT of 6 layers and width 384, in 40 fragments.
const VALUES: usize = 40 << 18;
const FRAGMENT: usize = 1 << 18;
const RUN: RunId = RunId([0xbf; 16]);

/// Two methods of reduction in a site of two
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    quick: Quick,
}

/// Measures both methods in alternation.
pub fn run(args: &Args) -> Result<()> {
    let identities = identities(RUN, 2)?;
    let mut ring = Ring::join(&identities)?;
    let mut frames = Frames::connect(&identities)?;
    let ways = ["ring", "direct"];
    // The first of each fills buffers and page tables.
    let measured = in_turns(&ways, -1..args.quick.choose(3, 12), |way, _| {
        let cpu = process_s();
        let seconds = seconds_of(|| if *way == "ring" { ring.reduce() } else { frames.reduce() })?;
        Ok((seconds, process_s() - cpu))
    })?;
    let recorder = Recorder::new("site").with("members", 2);
    for (way, measured) in ways.iter().zip(measured) {
        let (seconds, cpu): (Vec<_>, Vec<_>) = measured.into_iter().unzip();
        // Each member sends half of its vector to the other.
        let sent = (VALUES * size_of::<f32>()) as f64 / 1e9;
        recorder.print(way, "seconds", median(&seconds), "s");
        recorder.print(way, "cpu_all_members", median(&cpu) / sent, "s/GB sent");
    }
    Ok(())
}

/// Both members of a ring, with their vectors.
struct Ring(Vec<(RingCollective, Vec<f32>)>);

impl Ring {
    fn join(identities: &[Identity]) -> Result<Self> {
        let starts = starts(identities, 1)?;
        let members = thread::scope(|scope| {
            let join = |(setup, listener)| {
                scope.spawn(move || Ok((RingCollective::join(&setup, &listener)?, vec![1.0; VALUES])))
            };
            let threads: Vec<_> = starts.into_iter().map(join).collect();
            threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
        })?;
        Ok(Self(members))
    }

    fn reduce(&mut self) -> Result<()> {
        let ranges = [0..VALUES / 2, VALUES / 2..VALUES];
        thread::scope(|scope| {
            let reduce = |(member, values): &mut (RingCollective, Vec<f32>)| {
                member.reduce_scatter(values, &ranges, Reduction::Mean { samples: 8 })?;
                anyhow::Ok(member.exchange([0; 16], LIMIT).map(|_| ())?)
            };
            let threads: Vec<_> =
                self.0.iter_mut().map(|member| scope.spawn(move || reduce(member))).collect();
            threads.into_iter().try_for_each(joined)
        })
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow::anyhow!("a member panicked"))?
}

/// Both members, connected by the transport, with their vectors.
struct Frames {
    runtime: Runtime,
    members: [(WorkerId, BulkSender, mpsc::Receiver<ReceivedFrame>); 2],
    values: Vec<f32>,
    mean: Vec<f32>,
}

impl Frames {
    fn connect(identities: &[Identity]) -> Result<Self> {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        let _inside = runtime.enter();
        let endpoint = |identity: &Identity| {
            let (socket, _) = transport::bind_udp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            anyhow::Ok(transport::endpoint(socket, Some(data_server(identity)?))?)
        };
        let endpoints = [endpoint(&identities[0])?, endpoint(&identities[1])?];
        let connect = |from: usize| {
            let (to, endpoint) = (1 - from, endpoints[from].clone());
            let client = transport::within_site(transport::client_config(data_client(&identities[from])?));
            let (receiver, frames) = BulkReceiver::new(ReceiveLimits::default(), |_| true);
            let (address, accepting) = (endpoints[to].local_addr()?, endpoints[to].clone());
            let name = PeerName::Worker(identities[to].worker()).in_run(RUN);
            let (dialled, accepted) = runtime.block_on(async {
                let connecting = endpoint.connect_with(client, address, &name);
                let accept = async { anyhow::Ok(accepting.accept().await.context("nobody")?.await?) };
                tokio::try_join!(async { anyhow::Ok(connecting?.await?) }, accept)
            })?;
            runtime.spawn(async move { receiver.serve(&accepted).await });
            anyhow::Ok((identities[from].worker(), BulkSender::new(dialled), frames))
        };
        let members = [connect(0)?, connect(1)?];
        drop(_inside);
        Ok(Self { runtime, members, values: vec![1.0; VALUES], mean: vec![0.0; VALUES / 2] })
    }

    /// Each sends half of its vector, like the synchroniser, and averages the received half with its own.
    fn reduce(&mut self) -> Result<()> {
        let Self { runtime, members, values, mean } = self;
        runtime.block_on(async {
            let mut sending = JoinSet::new();
            for (worker, sender, _) in &*members {
                for (fragment, slice) in values[..VALUES / 2].chunks(FRAGMENT).enumerate() {
                    let body: Bytes = slice.iter().flat_map(|value| value.to_le_bytes()).collect();
                    let meta = FrameMeta {
                        kind: FrameKind::Local,
                        generation: Generation(1),
                        round: Round(0),
                        fragment: FragmentId(u32::try_from(fragment)?),
                        sender: *worker,
                        weight: 8,
                        part: 0,
                    };
                    let sender = sender.clone();
                    sending.spawn(async move { anyhow::Ok(sender.send(&Frame::new(meta, body)?).await?) });
                }
            }
            for (_, _, frames) in members {
                for _ in 0..VALUES / 2 / FRAGMENT {
                    let received = frames.recv().await.context("the connection ended")?;
                    let body = received.frame().body();
                    let start = received.frame().meta().fragment.0 as usize * FRAGMENT;
                    let own = &values[start..start + FRAGMENT];
                    let mean = &mut mean[start..start + FRAGMENT];
                    mean.iter_mut().zip(own).for_each(|(mean, own)| *mean = 0.5 * own);
                    let theirs = body.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
                    mean.iter_mut().zip(theirs).for_each(|(mean, value)| *mean += 0.5 * value);
                }
            }
            while let Some(sent) = sending.join_next().await {
                sent??;
            }
            Ok(())
        })
    }
}
