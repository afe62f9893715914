//! Workers that send wrong data, none, or too much.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_common::id::{FragmentId, Round};
use longhaul_data::{LentBlock, NotTheBlock};
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::transport::bulk::PullRequest;

use super::super::super::request::{FILE_FRAME_BYTES, Request, meta};
use super::*;

/// Misbehaviour of a worker asked for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bad {
    /// One bit differs.
    Flips,
    /// It is too short.
    Short,
    /// Endless frames of maximum length.
    Endless,
    /// Endless frames of a byte; for blocks, empty ones.
    Crumbs,
    /// Two empty frames, and then the requested data.
    Signs,
    /// The head of another shard.
    OtherHead,
    /// It refuses.
    Refuses,
    /// The connection ends within an answer.
    HangsUp,
    /// Frames of another kind.
    OtherKind,
}

/// Starts such a worker, with a count of its requests.
fn bad_holder(
    authority: &(Authority, u64),
    number: u32,
    text: &Text,
    bad: Bad,
) -> (Member, Arc<AtomicUsize>) {
    let (_, endpoint) = endpoint(authority, number);
    let (member, provider) = (member(number, endpoint.local_addr().unwrap()), Arc::clone(&text.provider));
    let asked = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let Ok(connection) = incoming.await else { continue };
            let (provider, counting) = (Arc::clone(&provider), Arc::clone(&counting));
            tokio::spawn(async move {
                while let Ok((send, receive)) = connection.accept_bi().await {
                    let pull = PullRequest::read(send, receive, &ReceiveLimits::default()).await.unwrap();
                    counting.fetch_add(1, Ordering::Relaxed);
                    if bad == Bad::HangsUp {
                        connection.close(0u32.into(), b"gone");
                    }
                    // The receiver hangs up after wrong data.
                    let _ = answer_badly(pull, number, &provider, bad).await;
                }
            });
        }
    });
    (member, asked)
}

async fn answer_badly(
    pull: PullRequest,
    number: u32,
    provider: &BlockProvider,
    bad: Bad,
) -> anyhow::Result<()> {
    let PullRequest { request, mut reply } = pull;
    let kind = if bad == Bad::OtherKind { FrameKind::Result } else { FrameKind::State };
    let frame = |index, body: Vec<u8>| {
        Frame::new(meta(kind, WorkerId(number), Round(0), FragmentId(index), 0), body.into()).unwrap()
    };
    let mut lent = match postcard::from_bytes(&request)? {
        Request::Block { shard, block, .. } => provider.block(BlockName { shard, block })?.unwrap(),
        Request::Catalogue => LentBlock { head: Vec::new(), bytes: provider.catalogue.to_vec() },
        other => panic!("{other:?}"),
    };
    match bad {
        Bad::Refuses => {
            reply.refuse();
            return Ok(());
        }
        Bad::Flips => *lent.bytes.last_mut().unwrap() ^= 4,
        Bad::Short => lent.bytes.truncate(lent.bytes.len() / 2),
        Bad::OtherHead => lent.head.iter_mut().for_each(|byte| *byte ^= 1),
        Bad::Endless | Bad::Crumbs => {
            let is_long = bad == Bad::Endless;
            let bytes = match (is_long, lent.head.is_empty()) {
                (true, true) => FILE_FRAME_BYTES + 1,
                (true, false) => 16 << 20,
                (false, is_catalogue) => is_catalogue.into(),
            };
            if is_long && !lent.head.is_empty() {
                reply.send(&frame(0, lent.head)).await?;
            }
            loop {
                reply.send(&frame(1, vec![0; bytes])).await?;
            }
        }
        Bad::Signs => {
            for _ in 0..2 {
                reply.send(&frame(0, Vec::new())).await?;
            }
        }
        Bad::HangsUp | Bad::OtherKind => {}
    }
    if !lent.head.is_empty() {
        reply.send(&frame(0, lent.head)).await?;
    }
    reply.send(&frame(1, lent.bytes)).await?;
    Ok(reply.finish().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_sends_something_else_is_found_out_and_asked_last_from_then_on() {
    let (authority, text) = (authority(), Text::new());
    let honest = holder(&authority, 9, &text);
    let lies = [Bad::Flips, Bad::Short, Bad::Endless, Bad::Crumbs, Bad::OtherHead];
    let all = [&lies[..], &[Bad::Refuses, Bad::HangsUp, Bad::OtherKind]].concat();
    let bad: Vec<_> =
        (10..).zip(&all).map(|(number, bad)| bad_holder(&authority, number, &text, *bad)).collect();
    let remote = Remote::new(&authority, 1, SiteId(1), &text);
    let mut members: Vec<Member> = bad.iter().map(|(member, _)| member.clone()).collect();
    members.push(honest.member.clone());
    remote.told(text.holders(&members, from_ref(&remote.worker.member)));
    // All are unknown yet, so they are asked in order, each once.
    timeout(PATIENCE, remote.waiting(text.blocks()[0])).await.unwrap().unwrap().unwrap();
    let asked = |at: usize| bad[at].1.load(Ordering::Relaxed);
    for (at, bad) in all.iter().enumerate() {
        assert_eq!(asked(at), 1, "{bad:?}");
    }
    remote.fetch(&text).await;
    for (at, bad) in lies.iter().enumerate() {
        assert_eq!(asked(at), 1, "{bad:?} is asked before honest workers");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_what_there_is_is_believed_only_if_that_is_what_the_run_has_and_not_waited_for_without_end()
{
    let (authority, text) = (authority(), Text::new());
    let honest = holder(&authority, 9, &text);
    let all = [Bad::Flips, Bad::Short, Bad::Endless, Bad::Crumbs, Bad::Refuses, Bad::HangsUp, Bad::OtherKind];
    let bad: Vec<_> =
        (10..).zip(all).map(|(number, bad)| bad_holder(&authority, number, &text, bad)).collect();
    let worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let mut members: Vec<Member> = bad.iter().map(|(member, _)| member.clone()).collect();
    members.push(honest.member.clone());
    worker.network.note_data_holders(&text.holders(&members, &[]));
    let searching = Arc::clone(&worker.network);
    let found = timeout(PATIENCE, spawn_blocking(move || searching.find_data(&[]))).await;
    assert_eq!(found.unwrap().unwrap().unwrap().catalogue.to_bytes().unwrap(), *text.provider.catalogue);
    for ((_, asked), bad) in bad.iter().zip(all) {
        assert_eq!(asked.load(Ordering::Relaxed), 1, "{bad:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_reached_keeps_nobody_from_asking_others() {
    let (authority, text) = (authority(), Text::new());
    let honest = holder(&authority, 9, &text);
    // It has a port without a listener.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = member(8, silent.local_addr().unwrap());
    let remote = Remote::new(&authority, 1, SiteId(1), &text);
    remote.told(text.holders(&[silent.clone(), honest.member.clone()], from_ref(&remote.worker.member)));
    remote.fetch(&text).await;
    let round_trips = remote.supplier.donors().round_trips();
    assert_eq!(round_trips[&silent.worker], Duration::MAX);
    assert!(round_trips[&honest.member.worker] < Duration::MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_fetches_a_block_says_so_until_it_gives_it_and_who_does_not_gives_it_at_once() {
    let (authority, text) = (authority(), Text::new());
    let (keeper, _) = bad_holder(&authority, 9, &text, Bad::Signs);
    let remote = Remote::new(&authority, 1, SiteId(1), &text);
    let name = text.blocks()[0];
    let connection = Donors::default().connection(&remote.worker.network, &keeper).await.unwrap();
    let ask = async |is_to_fetch| {
        let answer = fetch_block(&connection, &remote.supplier.stock, name, is_to_fetch);
        timeout(PATIENCE, answer).await.unwrap()
    };
    assert!(ask(true).await.unwrap().bytes == text.provider.block(name).unwrap().unwrap().bytes);
    let refused = ask(false).await.unwrap_err();
    assert_eq!(refused.downcast_ref(), Some(&NotTheBlock::Head), "{refused:#}");
}
