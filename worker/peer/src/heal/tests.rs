use std::collections::BTreeSet;
use std::iter::from_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_member::{Reply, SyncEvent};
use longhaul_proto::identity::Authority;
use longhaul_proto::transport::bulk::{PullRequest, ReceiveLimits};
use tokio::net::UdpSocket;

use super::super::request::{
    Request, STATE_FRAME_VALUES, STATE_PIECE_VALUES, manifest_of, send_manifest, send_piece,
};
use super::*;
use crate::testing::{Worker, authority, endpoint, member};

/// No wait here takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Values in each vector of the states below: two pieces and a bit.
const VALUES: usize = 5 * STATE_FRAME_VALUES + 1000;
const SHAPE: Shape = Shape { buffers: 2, values: VALUES };

/// The moments depend on the round, not on the seed.
fn state(next_round: u64, seed: u32) -> HealedState {
    let buffer = |part: u32| (0..VALUES as u32).map(|index| (index * 7 + part) as f32).collect();
    let buffers = [seed, 1000 + next_round as u32].map(|part| Arc::new(buffer(part))).into();
    HealedState { next_round: Round(next_round), buffers, updates: 9 }
}

/// A worker that has these states, by round.
fn donor(authority: &(Authority, u64), number: u32, states: Vec<HealedState>) -> (Member, Arc<Network>) {
    let Worker { network, mut queue, member } = Worker::start(authority, number, ReceiveLimits::default());
    tokio::spawn(async move {
        while let Some(event) = queue.recv().await {
            let SyncEvent::ServeState { from, reply } = event else { continue };
            if let Some(state) = states.iter().find(|state| state.next_round >= from) {
                reply.give(state.clone());
            }
        }
    });
    (member, network)
}

/// Misbehaviour of a donor.
#[derive(Clone, Copy)]
enum Bad {
    /// It is connected, and sends nothing of the state.
    Stuck,
    /// It dies after its first piece has arrived: its second request stays unanswered, and a third one follows an answer.
    Dies,
    /// It sends other values than announced.
    Lies,
    /// It is stuck in its first piece, and refuses all others.
    Refuses,
}

fn piece_of(state: &HealedState, hash: Hash) -> &[f32] {
    let manifest = manifest_of(state);
    let mut vectors = manifest.buffers.iter().zip(&state.buffers);
    let piece = vectors.find_map(|(hashes, buffer)| {
        let index = hashes.iter().position(|of| *of == hash)?;
        buffer.chunks(STATE_PIECE_VALUES).nth(index)
    });
    piece.unwrap()
}

fn bad_donor(authority: &(Authority, u64), number: u32, state: HealedState, bad: Bad) -> Member {
    let (_, endpoint) = endpoint(authority, number);
    let member = member(number, endpoint.local_addr().unwrap());
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let Ok(connection) = incoming.await else { continue };
            let (mut given, mut unanswered) = (0, Vec::new());
            while let Ok((send, receive)) = connection.accept_bi().await {
                let PullRequest { request, reply } =
                    PullRequest::read(send, receive, &ReceiveLimits::default()).await.unwrap();
                match (postcard::from_bytes(&request).unwrap(), bad) {
                    (Request::State { .. }, _) => {
                        send_manifest(reply, WorkerId(number), &manifest_of(&state)).await.unwrap();
                    }
                    (Request::StatePiece(_), Bad::Stuck) => unanswered.push(reply),
                    (Request::StatePiece(_), Bad::Refuses) if unanswered.is_empty() => {
                        unanswered.push(reply);
                    }
                    (Request::StatePiece(_), Bad::Refuses) => reply.refuse(),
                    (Request::StatePiece(_), Bad::Dies) if given > 0 && unanswered.is_empty() => {
                        unanswered.push(reply);
                    }
                    (Request::StatePiece(_), Bad::Dies) if given > 0 => {
                        connection.close(0u32.into(), b"dead");
                    }
                    (Request::StatePiece(hash), _) => {
                        let off = if matches!(bad, Bad::Lies) { 1.0 } else { 0.0 };
                        let values: Vec<f32> =
                            piece_of(&state, hash).iter().map(|value| value + off).collect();
                        // The requester may have it from another donor.
                        let _ = send_piece(reply, WorkerId(number), &values).await;
                        given += 1;
                    }
                    (other, _) => panic!("{other:?}"),
                }
            }
        }
    });
    member
}

/// Returns another worker's state after healing from these.
async fn heal_from(authority: &(Authority, u64), donors: Vec<Member>) -> HealedState {
    let worker = Worker::start(authority, 1, ReceiveLimits::default());
    fetch_state(&worker.network, donors, 2, VALUES).await.unwrap()
}

#[track_caller]
fn assert_same(healed: &HealedState, state: &HealedState) {
    assert_eq!((healed.next_round, healed.updates), (state.next_round, state.updates));
    assert!(healed.buffers == state.buffers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_is_fetched_from_several_donors_whatever_becomes_of_some_of_them() {
    let authority = authority();
    let (honest, _) = donor(&authority, 9, vec![state(5, 0)]);
    let dying = bad_donor(&authority, 2, state(5, 0), Bad::Dies);
    let stuck = bad_donor(&authority, 3, state(5, 0), Bad::Stuck);
    let unreachable = member(4, UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap());
    assert_same(&heal_from(&authority, vec![honest.clone()]).await, &state(5, 0));
    assert_same(&heal_from(&authority, vec![stuck, honest.clone()]).await, &state(5, 0));
    let healed = heal_from(&authority, vec![honest, dying, unreachable]).await;
    assert_same(&healed, &state(5, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_donor_that_is_a_round_behind_waits_until_it_has_the_same_state() {
    let authority = authority();
    // Only this one sends anything.
    let stuck = bad_donor(&authority, 2, state(6, 0), Bad::Stuck);
    let (behind, _) = donor(&authority, 3, vec![state(5, 0), state(6, 0)]);
    let healed = heal_from(&authority, vec![stuck, behind]).await;
    assert_same(&healed, &state(6, 0));
}

/// A later round; and the same round with other values, as after repeated rounds.
#[tokio::test(flavor = "multi_thread")]
async fn donors_of_different_states_do_not_mix_them() {
    let authority = authority();
    let (first, _) = donor(&authority, 2, vec![state(5, 0)]);
    let (later, _) = donor(&authority, 3, vec![state(6, 0)]);
    let (other, _) = donor(&authority, 4, vec![state(5, 1)]);
    // The choice depends on the order of answers.
    let healed = heal_from(&authority, vec![first.clone(), later]).await;
    assert_same(&healed, &state(healed.next_round.0, 0));
    let healed = heal_from(&authority, vec![first, other]).await;
    assert_same(&healed, &state(5, u32::from(healed.buffers[0] != state(5, 0).buffers[0])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_donor_that_gives_another_state_than_it_announced_is_passed_over() {
    let authority = authority();
    let liar = bad_donor(&authority, 2, state(5, 0), Bad::Lies);
    let (honest, _) = donor(&authority, 3, vec![state(5, 0)]);
    assert_same(&heal_from(&authority, vec![liar.clone(), honest]).await, &state(5, 0));
    let worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let error = fetch_state(&worker.network, vec![liar], 2, VALUES).await.unwrap_err();
    assert!(error.to_string().contains("not the one that was announced"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn healing_fails_when_all_donors_have_failed() {
    let authority = authority();
    let dying = bad_donor(&authority, 2, state(5, 0), Bad::Dies);
    let worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let (mut before, mut failures, donors) = (None, Vec::new(), [dying]);
    let attempt = attempt(&worker.network, &donors, SHAPE, &mut before, &mut failures);
    let error = timeout(PATIENCE, attempt).await.expect("no donor is left to wait for").unwrap_err();
    assert!(error.to_string().contains("the state is incomplete"), "{error:#}");
    assert!(!failures.is_empty() && before.is_some_and(|transfer| transfer.arrived() == 1));
    let unreachable = member(4, UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap());
    let healing = fetch_state(&worker.network, vec![unreachable], 2, VALUES);
    let error = timeout(PATIENCE, healing).await.expect("nothing has come").unwrap_err();
    assert!(error.to_string().contains("no donor has a usable state"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_donor_that_has_failed_was_asked_for_is_asked_of_others() {
    let authority = authority();
    let refusing = bad_donor(&authority, 2, state(5, 0), Bad::Refuses);
    let worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let source = ask(&worker.network, &refusing, SHAPE, None).await.unwrap();
    let manifest = source.manifest.clone();
    let transfer = Mutex::new(Transfer::new(manifest.clone(), None));
    let all: BTreeSet<Hash> = manifest.buffers.into_iter().flatten().collect();
    let fetching = Arc::new(Fetching { transfer, whole: Notify::new() });
    let network = Arc::clone(&worker.network);
    let fetched = fetch_while_of_run(network, source, SHAPE, Arc::clone(&fetching)).await;
    assert!(fetched.is_err_and(|failure| failure.is_refusal));
    let left = |donor| from_fn(|| fetching.lock().take(WorkerId(donor), &all)).count();
    assert_eq!([3, 4].map(left), [6, 6], "two others may be asked for each piece");
}

/// Waits for a worker's next request for its state.
async fn asked(donor: &mut Worker) -> Reply<HealedState> {
    loop {
        if let SyncEvent::ServeState { reply, .. } = donor.queue.recv().await.unwrap() {
            return reply;
        }
    }
}

#[tokio::test]
async fn a_donor_may_answer_when_a_round_of_minutes_is_over() {
    let authority = authority();
    let mut donor = Worker::start(&authority, 2, ReceiveLimits::default());
    let joiner = Worker::start(&authority, 1, ReceiveLimits::default());
    let member = donor.member.clone();
    let training = async {
        let reply = asked(&mut donor).await;
        tokio::time::pause();
        sleep(Duration::from_secs(200)).await;
        tokio::time::resume();
        reply.give(state(5, 0));
    };
    let (source, ()) = tokio::join!(ask(&joiner.network, &member, SHAPE, None), training);
    assert_eq!(source.unwrap().manifest, manifest_of(&state(5, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_to_heal_anew_does_not_wait_for_a_donor_any_more_and_takes_no_place() {
    let authority = authority();
    let mut donor = Worker::start(&authority, 2, ReceiveLimits::default());
    let mut joiner = Worker::start(&authority, 1, ReceiveLimits::default());
    joiner.network.heal(1, vec![donor.member.clone()], 2, VALUES);
    let first = asked(&mut donor).await;
    joiner.network.heal(2, vec![donor.member.clone()], 2, VALUES);
    let given_up = async {
        while first.is_wanted() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, given_up).await.expect("the donor still waits for the end of its round");
    asked(&mut donor).await.give(state(5, 0));
    let Some(SyncEvent::Healed { attempt: 2, answer }) = joiner.queue.recv().await else {
        panic!("the first attempt goes on");
    };
    assert_same(&answer.unwrap(), &state(5, 0));
}

/// Values of a state that is fetched in no time.
const FEW: usize = 1000;

/// A worker that is in another round at every request.
fn donor_of_short_rounds(authority: &(Authority, u64), number: u32) -> Member {
    let mut donor = Worker::start(authority, number, ReceiveLimits::default());
    let member = donor.member.clone();
    tokio::spawn(async move {
        for round in 1.. {
            let buffers = [0.0, round as f32].map(|value| Arc::new(vec![value; FEW])).into();
            let state = HealedState { next_round: Round(round), buffers, updates: round };
            // The requester may have left.
            asked(&mut donor).await.give(state);
        }
    });
    member
}

#[tokio::test(flavor = "multi_thread")]
async fn joiners_that_a_donor_has_no_room_for_are_served_when_others_have_their_state() {
    let authority = authority();
    let donor = donor_of_short_rounds(&authority, 99);
    let mut joiners = JoinSet::new();
    for number in 1..=12 {
        let (worker, donors) =
            (Worker::start(&authority, number, ReceiveLimits::default()), vec![donor.clone()]);
        joiners.spawn(async move { fetch_state(&worker.network, donors, 2, FEW).await.unwrap().next_round });
    }
    let rounds = timeout(PATIENCE, joiners.join_all()).await.expect("copies outlive their transfers");
    let rounds: BTreeSet<Round> = rounds.into_iter().collect();
    assert_eq!(rounds.len(), 12, "each has its own state: {rounds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_asks_for_each_rounds_state_takes_one_place_of_those_for_joiners() {
    let authority = authority();
    let donor = donor_of_short_rounds(&authority, 9);
    let greedy = Worker::start(&authority, 1, ReceiveLimits::default());
    let mut connected = Vec::new();
    for _ in 0..10 {
        let shape = Shape { buffers: 2, values: FEW };
        connected.push(ask(&greedy.network, &donor, shape, None).await.unwrap());
    }
    let joiner = Worker::start(&authority, 2, ReceiveLimits::default());
    let healed = fetch_state(&joiner.network, vec![donor], 2, FEW).await.unwrap();
    assert_eq!(healed.next_round, Round(11));
    drop(connected);
}

/// A path that drops everything, once, after this many bytes of answers, until the client dials anew; with a count of its bytes of answers.
async fn way_that_goes_dark(to: SocketAddr, after_bytes: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let bind = || UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let (near, far) = (bind().await.unwrap(), bind().await.unwrap());
    let (address, carried) = (near.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&carried);
    tokio::spawn(async move {
        let (mut asks, mut answers) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let (mut asker, mut was_dark, mut is_dark) = (None, false, false);
        loop {
            tokio::select! {
                Ok((bytes, from)) = near.recv_from(&mut asks) => {
                    asker = Some(from);
                    // A long header: a handshake.
                    is_dark &= asks[0] & 0x80 == 0;
                    if !is_dark {
                        far.send_to(&asks[..bytes], to).await.unwrap();
                    }
                }
                Ok((bytes, _)) = far.recv_from(&mut answers) => {
                    is_dark |= !was_dark && counter.load(Ordering::Relaxed) >= after_bytes;
                    was_dark |= is_dark;
                    if let Some(asker) = asker && !is_dark {
                        counter.fetch_add(bytes, Ordering::Relaxed);
                        near.send_to(&answers[..bytes], asker).await.unwrap();
                    }
                }
            }
        }
    });
    (address, carried)
}

/// The donor is a round further at every request for its state.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_connection_a_joiner_goes_on_with_the_same_state_from_where_it_was() {
    let authority = authority();
    let mut donor = Worker::start(&authority, 2, ReceiveLimits::default());
    let member = donor.member.clone();
    let serving = tokio::spawn(async move {
        for round in 5.. {
            asked(&mut donor).await.give(state(round, 0));
        }
    });
    let whole = 2 * VALUES * size_of::<f32>();
    let (way, carried) = way_that_goes_dark(member.lan_address, whole * 3 / 4).await;
    let donors = vec![Member { lan_address: way, wan_address: way, ..member }];
    let healed = timeout(PATIENCE, heal_from(&authority, donors)).await.expect("it goes on");
    serving.abort();
    assert_same(&healed, &state(5, 0));
    // At most the two pieces in flight came twice.
    let carried = carried.load(Ordering::Relaxed);
    assert!((whole..whole * 8 / 5).contains(&carried), "{carried} of {whole}");
}
