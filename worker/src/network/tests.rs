use std::net::UdpSocket;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_common::config::{Differences, FRAGMENTS_MAX, ValueFormat};
use longhaul_common::id::Generation;
use longhaul_common::pipeline::{Pipeline, PipelineSchedule, Task, Work};
use longhaul_proto::frame::{Frame, FrameKind};
use longhaul_proto::identity::{Authority, WorkerKey, data_server};
use longhaul_proto::round::{FrameKind as RoundFrameKind, ROUNDS_AHEAD_MAX};
use tch::Tensor;
use tokio::time::Instant;

use super::peer::{PEER_QUEUE_FRAMES, queue_bytes};
use super::*;
use longhaul_engine::testing as pipeline_tests;
use longhaul_engine::{EngineError, Gift, Pipe};

const MIB: usize = 1 << 20;

pub(super) fn authority() -> (Authority, u64) {
    #[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (Authority::create(RunId([3; 16]), now).unwrap(), now)
}

pub(super) fn endpoint((authority, now): &(Authority, u64), number: u32) -> (Identity, Endpoint) {
    let key = WorkerKey::generate().unwrap();
    let certificate = authority.issue_worker(&key.request().unwrap(), WorkerId(number), *now).unwrap();
    let identity = Identity::new(certificate, authority.certificate().clone(), key.to_pkcs8()).unwrap();
    let (socket, _) = transport::bind_udp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let endpoint = transport::endpoint(socket, Some(data_server(&identity).unwrap())).unwrap();
    (identity, endpoint)
}

/// A worker's network at a site of its own, and where others reach it.
pub(super) struct Worker {
    pub network: Arc<Network>,
    pub queue: mpsc::Receiver<SyncEvent>,
    pub member: Member,
}

impl Worker {
    pub fn start(authority: &(Authority, u64), number: u32, limits: ReceiveLimits) -> Self {
        Self::start_at(authority, number, SiteId(number), limits)
    }

    pub fn start_at(authority: &(Authority, u64), number: u32, site: SiteId, limits: ReceiveLimits) -> Self {
        let (identity, endpoint) = endpoint(authority, number);
        let member = Member { site, ..member(number, endpoint.local_addr().unwrap()) };
        let (sender, queue) = mpsc::channel(256);
        let progress = Arc::new(Progress::default());
        let network = Network::start(endpoint, &identity, member.site, sender, progress, limits).unwrap();
        Self { network, queue, member }
    }

    fn peer(&self, worker: u32) -> Arc<Peer> {
        Arc::clone(&self.network.lock().peers[&WorkerId(worker)])
    }
}

pub(super) fn member(number: u32, address: SocketAddr) -> Member {
    let (worker, site) = (WorkerId(number), SiteId(number));
    Member { worker, site, lan_address: address, wan_address: address, upload_weight: 1 }
}

fn frame(round: u64) -> Frame {
    let meta = FrameMeta {
        kind: FrameKind::Contribution,
        generation: Generation(1),
        round: Round(round),
        fragment: FragmentId(0),
        sender: WorkerId(1),
        weight: 1,
        part: 1,
    };
    Frame::new(meta, vec![round as u8; MIB].into()).unwrap()
}

/// Of a frame that worker 1 sends.
fn header(kind: RoundFrameKind, round: u64, fragment: u32) -> FrameHeader {
    let (round, fragment) = (Round(round), FragmentId(fragment));
    FrameHeader { kind, generation: Generation(1), round, fragment, weight: 1, site: SiteId(1) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_occupies_the_receivers_memory_until_the_synchroniser_has_dealt_with_it() {
    let authority = authority();
    let sender = Worker::start(&authority, 1, ReceiveLimits::default());
    let limits = ReceiveLimits { bytes_max: 3 * MIB / 2, ..ReceiveLimits::default() };
    let mut receiver = Worker::start(&authority, 2, limits);
    sender.network.set_members(&[receiver.member.clone()], 0);
    let connection = sender.peer(2).connection(&sender.network).await.unwrap();
    // Both fit a stream's window: when they are sent, the receiver's transport has all of them.
    for round in 0..2 {
        connection.send(&frame(round)).await.unwrap();
    }
    let first = receiver.queue.recv().await.unwrap();
    assert!(matches!(&first, SyncEvent::Frame { frame, .. } if frame.header.round == Round(0)));
    // What the peer asks for meanwhile is heard: only the second frame is not.
    for _ in 0..20 {
        let asking = sender.network.fetch_result(WorkerId(2), Round(0), FragmentId(0));
        let answering = async {
            match receiver.queue.recv().await.unwrap() {
                SyncEvent::ServeResult { reply, .. } => reply.give(None),
                _ => panic!("the second frame was taken, for which there is no memory"),
            }
        };
        assert!(tokio::join!(asking, answering).0.is_err());
    }
    drop(first);
    let second = receiver.queue.recv().await.unwrap();
    assert!(matches!(&second, SyncEvent::Frame { frame, .. } if frame.header.round == Round(1)));
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What comes of showing a sign, however busy this machine is.
async fn shown(from: &Worker, to: u32, incarnation: u64) -> Shown {
    loop {
        match from.network.show_sign(WorkerId(to), incarnation).await {
            // Whoever makes the connection is to have a turn.
            Shown::Unconnected | Shown::Unanswered => tokio::time::sleep(LOOK_AGAIN).await,
            shown => return shown,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_speaks_for_a_site_is_shown_signs_of_life_by_its_workers_alone() {
    let (authority, limits) = (authority(), ReceiveLimits::default());
    let start = |number, site| Worker::start_at(&authority, number, SiteId(site), limits);
    let workers = [start(1, 7), start(2, 7), start(3, 7), start(4, 8)];
    let members = workers.each_ref().map(|worker| worker.member.clone());
    workers.iter().for_each(|worker| worker.network.set_members(&members, 0));
    let speakers = workers.each_ref().map(|worker| worker.network.speaker());
    assert_eq!(speakers, [None, Some(WorkerId(1)), Some(WorkerId(1)), None]);

    let [speaker, second, third, elsewhere] = &workers;
    assert_eq!(second.network.show_sign(WorkerId(1), 20).await, Shown::Unconnected);
    assert_eq!(shown(second, 1, 20).await, Shown::Refused, "it does not speak with the coordinator");
    // Something comes from there between any two looks.
    let heard = AtomicU64::new(0);
    let ear = move || (heard.fetch_add(1, Ordering::Relaxed), Duration::ZERO);
    let later = Instant::now() + Duration::from_secs(3600);
    speaker.network.open_signs(ear, later);
    assert_eq!(shown(second, 1, 20).await, Shown::Refused, "nobody knows whether it is heard");
    for _ in 0..2 {
        assert!(speaker.network.take_signs(Instant::now(), later).is_empty());
    }
    for _ in 0..2 {
        assert!(matches!(shown(second, 1, 20).await, Shown::Taken { .. }));
    }
    assert!(matches!(shown(third, 1, 30).await, Shown::Taken { .. }));
    assert_eq!(shown(elsewhere, 1, 40).await, Shown::Refused);
    assert_eq!(shown(second, 3, 20).await, Shown::Refused);
    assert!(speaker.network.has_signs());
    // However long that took: how old signs may be is told elsewhere.
    let told = speaker.network.take_signs(later - Duration::from_secs(3600), later);
    let told: Vec<_> = told.iter().map(|sign| (sign.worker, sign.incarnation)).collect();
    assert_eq!(told, [(WorkerId(2), 20), (WorkerId(3), 30)]);
    speaker.network.close_signs();
    assert_eq!(shown(second, 1, 20).await, Shown::Refused);
}

#[tokio::test]
async fn what_waits_for_a_peer_that_takes_nothing_is_bounded_in_bytes() {
    let worker = Worker::start(&authority(), 1, ReceiveLimits::default());
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let model_bytes = 20 * MIB;
    worker.network.set_members(&[member(2, silent.local_addr().unwrap())], model_bytes);
    let body = Bytes::from(vec![0; MIB]);
    let bound = queue_bytes(model_bytes);
    for round in 0..2 * bound / MIB {
        let header = header(RoundFrameKind::Contribution, round as u64, 0);
        worker.network.send(WorkerId(2), header, body.clone(), None);
    }
    let queued = worker.network.progress.heartbeat().wan_sent_bytes;
    assert_eq!(bound, 80 * MIB);
    assert_eq!(queued, 79 * (MIB + FRAME_HEADER_BYTES) as u64);
}

/// Nobody sends a frame again that was dropped, so there is room for all that others can have for a peer that is as far behind as may be.
#[tokio::test]
async fn all_frames_of_the_rounds_that_a_peer_may_be_behind_wait_for_it() {
    let worker = Worker::start(&authority(), 1, ReceiveLimits::default());
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    worker.network.set_members(&[member(2, silent.local_addr().unwrap())], 0);
    for round in 0..=ROUNDS_AHEAD_MAX {
        for fragment in 0..FRAGMENTS_MAX {
            for kind in [RoundFrameKind::Contribution, RoundFrameKind::Result] {
                let header = header(kind, round, fragment);
                worker.network.send(WorkerId(2), header, Bytes::new(), None);
            }
        }
    }
    let queued = worker.network.progress.heartbeat().wan_sent_bytes;
    assert_eq!(queued, (PEER_QUEUE_FRAMES * FRAME_HEADER_BYTES) as u64);
}

/// A lost connection costs the fragments that were on their way, and none that had arrived.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_lost_connection_contributions_go_on_from_the_fragment_that_is_missing() {
    const FRAGMENTS: u32 = 12;
    const TAKEN: usize = 4;
    // More than the window of a stream: what the receiver has not begun to read, its transport cannot have acknowledged to the end.
    const BYTES: usize = 3 * MIB;
    let authority = authority();
    let sender = Worker::start(&authority, 1, ReceiveLimits::default());
    // Memory for four: the others wait at the sender while the connection is lost.
    let limits = ReceiveLimits { bytes_max: TAKEN * BYTES + BYTES / 2, ..ReceiveLimits::default() };
    let mut receiver = Worker::start(&authority, 2, limits);
    sender.network.set_members(&[receiver.member.clone()], 16 * MIB);
    for fragment in 0..FRAGMENTS {
        let header = header(RoundFrameKind::Contribution, 3, fragment);
        sender.network.send(WorkerId(2), header, vec![fragment as u8; BYTES].into(), None);
    }
    let mut arrived = BTreeMap::new();
    let mut take = async || {
        let SyncEvent::Frame { frame, memory } = receiver.queue.recv().await.unwrap() else {
            panic!("only frames were sent");
        };
        let fragment = frame.header.fragment;
        assert_eq!(frame.body.len(), BYTES);
        assert!(frame.body.iter().all(|byte| u32::from(*byte) == fragment.0));
        *arrived.entry(fragment).or_insert(0) += 1;
        (arrived.len(), arrived.values().filter(|&&times| times > 1).count(), memory)
    };
    let mut held = Vec::new();
    for _ in 0..TAKEN {
        held.push(take().await.2);
    }
    let connection = sender.peer(2).connection(&sender.network).await.unwrap();
    connection.connection().close(0u32.into(), b"lost");
    drop(held);
    loop {
        let (different, twice, _) = take().await;
        // One that had arrived, and whose acknowledgement was lost, may come again.
        assert!(twice <= TAKEN, "{twice} of {FRAGMENTS} came again");
        if different == FRAGMENTS as usize {
            break;
        }
    }
}

/// Networks of the ranks of a replica, each at a site of its own, and how they talk.
pub(super) fn replica(pipeline: &Pipeline, formats: BoundaryFormats) -> (Vec<Worker>, Vec<NetworkPipe>) {
    let session = Generation(4);
    let authority = authority();
    let ranks: Vec<Worker> = (1..=pipeline.ranks)
        .map(|number| Worker::start(&authority, number, ReceiveLimits::default()))
        .collect();
    let members: Vec<Member> = ranks.iter().map(|rank| rank.member.clone()).collect();
    let workers: Vec<WorkerId> = members.iter().map(|member| member.worker).collect();
    let pipe = |(rank, worker): (u32, &Worker)| {
        worker.network.set_members(&members, 0);
        worker.network.join_replica(Some(Replica { session, workers: workers.clone() }));
        let network = Arc::clone(&worker.network);
        NetworkPipe::new(network, pipeline.clone(), rank, session, workers.clone(), WorkerId(1), formats)
            .unwrap()
    };
    let pipes = (0..).zip(&ranks).map(pipe).collect();
    (ranks, pipes)
}

/// What one engine with the whole model comes to, and what three ranks with parts of it do.
async fn trained_whole_and_in_parts(formats: BoundaryFormats) -> (Vec<Worker>, [pipeline_tests::Trained; 2]) {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 3, 1);
    let (ranks, pipes) = replica(&pipeline, formats);
    let spawned = tokio::task::spawn_blocking(move || {
        let spec = longhaul_common::model::tiny::tiny_llama();
        let whole = pipeline_tests::trained(pipeline_tests::whole(&spec, 0.0));
        let pipes = pipes.into_iter().map(|pipe| Box::new(pipe) as Box<dyn Pipe>).collect();
        [whole, pipeline_tests::trained_through(pipes, &spec, &pipeline_tests::train_config(0.0), &pipeline)]
    });
    (ranks, spawned.await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_on_several_machines_make_the_same_bits_as_the_whole_model() {
    let (ranks, [whole, in_parts]) = trained_whole_and_in_parts(BoundaryFormats::EXACT).await;
    assert!(whole == in_parts);
    assert!(ranks.iter().all(|rank| rank.network.progress.heartbeat().wan_sent_bytes > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_talk_in_eight_bits_train_as_well() {
    let int8 = ValueFormat::Int8;
    let formats = BoundaryFormats::of(int8);
    let (_ranks, [(_, whole, _), (_, in_parts, _)]) = trained_whole_and_in_parts(formats).await;
    assert!(whole != in_parts && (in_parts / whole - 1.0).abs() < 0.02, "{in_parts} for {whole}");
}

/// Three quarters of what goes back: the tiny model's boundary has 512 values.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_that_hand_some_values_of_gradients_back_train_nearly_as_well() {
    let formats = BoundaryFormats { gradient_keep: 384, ..BoundaryFormats::of(ValueFormat::Int8) };
    let (_ranks, [(_, whole, _), (_, in_parts, _)]) = trained_whole_and_in_parts(formats).await;
    assert!(whole != in_parts && (in_parts / whole - 1.0).abs() < 0.1, "{in_parts} for {whole}");
}

/// A quarter of the values of one gradient, sixty-four times. The largest quarter alone would point elsewhere (a cosine of 0.7), however often it comes.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_gradient_other_values_are_drawn_each_time_and_their_mean_is_right() {
    const TIMES: i64 = 64;
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let formats = BoundaryFormats { gradient_keep: 1024, ..BoundaryFormats::EXACT };
    let (_ranks, mut pipes) = replica(&pipeline, formats);
    let sending = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(5 * 4096, (tch::Kind::Float, tch::Device::Cpu)).sin().view([5, 64, 64]);
        let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
        let mut sum = values.zeros_like();
        for time in 0..TIMES {
            let task = Task { work: Work::Backward, chunk: 0, micro_batch: 0 };
            [&mut *first, second].into_iter().for_each(|pipe| pipe.begin());
            second.send(task, &values).unwrap();
            let got = first.receive(task, &[5, 64, 64]).unwrap();
            let sent = got.count_nonzero(0).sum(tch::Kind::Int64).int64_value(&[]);
            assert!((5 * 1023..=5 * 1024).contains(&sent), "{sent} values at time {time}");
            sum += got;
        }
        let cosine = sum.view([-1]).dot(&values.view([-1])) / (sum.norm() * values.norm());
        let length =
            f64::try_from(sum.view([-1]).dot(&values.view([-1])) / values.square().sum(tch::Kind::Float))
                .unwrap();
        (f64::try_from(cosine).unwrap(), length / TIMES as f64)
    });
    let (cosine, length) = sending.await.unwrap();
    assert!(cosine > 0.95 && (length - 1.0).abs() < 0.02, "{cosine}, {length}");
}

/// Activations of sequences that come again, hardly changed: four bits of what has changed are finer than eight of what they are.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_sequence_that_comes_again_what_has_changed_is_sent() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let differences = Differences { values: ValueFormat::Int4, memory_mib: 64 };
    let formats =
        BoundaryFormats { differences: Some(differences), ..BoundaryFormats::of(ValueFormat::Int8) };
    let (ranks, mut pipes) = replica(&pipeline, formats);
    let network = Arc::clone(&ranks[0].network);
    let sending = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(600_000, (tch::Kind::Float, tch::Device::Cpu)).sin().view([2, 300, 1000]);
        let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
        let (mut errors, mut bytes) = (Vec::new(), Vec::new());
        let task = Task { work: Work::Forward, chunk: 0, micro_batch: 0 };
        // Other sequences in between; the two of the first epoch in another order; and an evaluation, which has no names.
        for (epoch, names) in [vec![1, 2], vec![3, 4], vec![2, 1], Vec::new()].into_iter().enumerate() {
            let values = match epoch {
                2 => values.flip([0]) + 0.01 * values.cos(),
                _ => values.copy(),
            };
            let before = network.progress.heartbeat().wan_sent_bytes;
            for pipe in [&mut *first, second] {
                pipe.begin();
                if !names.is_empty() {
                    pipe.name(vec![names.clone()]);
                }
            }
            first.send(task, &values).unwrap();
            let got = second.receive(task, &[2, 300, 1000]).unwrap();
            errors.push(f64::try_from((got - values).abs().max()).unwrap());
            bytes.push(network.progress.heartbeat().wan_sent_bytes - before);
        }
        (errors, bytes)
    });
    let (errors, bytes) = sending.await.unwrap();
    // Half a level: of what reaches to one in 127 levels, and of what reaches to 0.014 in seven.
    assert!(errors[0] > 1e-3 && errors[0] <= 0.5 / 127.0 + 1e-3, "{errors:?}");
    assert!(errors[2] > 0.0 && errors[2] <= 0.5 * 0.015 / 7.0 + 1e-4, "{errors:?}");
    assert_eq!(errors[3], errors[0]);
    assert!(bytes[2] < bytes[0] * 6 / 10, "{bytes:?}");
}

/// Two chunks a rank, so that each rank hands on and takes, with memory for six sequences of each: micro-batches of two sequences come in any order, are forgotten and come again. What is
/// sent whole is exact, and of a difference the error is small; where both sides did not remember the same, it would be as large as the values.
#[tokio::test(flavor = "multi_thread")]
async fn both_ranks_remember_and_forget_the_same() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::Interleaved, 2, 2);
    let differences = Differences { values: ValueFormat::Int4, memory_mib: 3 };
    let formats = BoundaryFormats { differences: Some(differences), ..BoundaryFormats::EXACT };
    let (_ranks, mut pipes) = replica(&pipeline, formats);
    let sending = tokio::task::spawn_blocking(move || {
        let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
        let of_sequence = |name: u64, step: u64| {
            let base = Tensor::arange(65_536, (tch::Kind::Float, tch::Device::Cpu)).view([1, 256, 256]);
            (base + name as f64).sin() + 0.001 * step as f64
        };
        let mut errors = Vec::new();
        for step in 0..12_u64 {
            let names: Vec<Vec<u64>> =
                (0..2).map(|micro| vec![(step * 3 + micro) % 5, (step + micro) % 3 + 5]).collect();
            for pipe in [&mut *first, second] {
                pipe.begin();
                pipe.name(names.clone());
            }
            // From the first rank's chunks to the second one's, and from the second one's first chunk back to the first one's second.
            for (micro_batch, names) in (0..).zip(&names) {
                let values = Tensor::cat(&[of_sequence(names[0], step), of_sequence(names[1], step)], 0);
                let task = |chunk| Task { work: Work::Forward, chunk, micro_batch };
                for (from_first, sent, taken) in [(true, 0, 0), (false, 0, 1), (true, 1, 1)] {
                    let (from, to) =
                        if from_first { (&mut *first, &mut *second) } else { (&mut *second, &mut *first) };
                    from.send(task(sent), &values).unwrap();
                    let got = to.receive(task(taken), &[2, 256, 256]).unwrap();
                    errors.push(f64::try_from((got - &values).abs().max()).unwrap());
                }
            }
        }
        errors
    });
    let errors = sending.await.unwrap();
    let exact = errors.iter().filter(|&&error| error == 0.0).count();
    assert!(exact > 6 && exact + 6 < errors.len(), "{exact} of {} were sent whole", errors.len());
    assert!(errors.iter().all(|&error| error < 2e-3), "{errors:?}");
}

/// 8.125 bits in place of 32, and headers.
#[tokio::test(flavor = "multi_thread")]
async fn activations_in_eight_bits_are_a_quarter_of_the_bytes() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let sent = async |activations: ValueFormat| {
        let formats = BoundaryFormats { activations, ..BoundaryFormats::EXACT };
        let (ranks, mut pipes) = replica(&pipeline, formats);
        let task = Task { work: Work::Forward, chunk: 0, micro_batch: 0 };
        let sending = tokio::task::spawn_blocking(move || {
            let values =
                Tensor::arange(600_000, (tch::Kind::Float, tch::Device::Cpu)).sin().view([2, 300, 1000]);
            let [first, second] = pipes.as_mut_slice() else { panic!("two ranks") };
            first.begin();
            first.send(task, &values).unwrap();
            second.begin();
            let got = second.receive(task, &[2, 300, 1000]).unwrap();
            f64::try_from((got - values).abs().max()).unwrap()
        });
        let error = sending.await.unwrap();
        (error, ranks[0].network.progress.heartbeat().wan_sent_bytes as f64)
    };
    let ((exact, whole), (rounded, quarter)) = (sent(ValueFormat::F32).await, sent(ValueFormat::Int8).await);
    assert_eq!(exact, 0.0);
    assert!(rounded > 0.0 && rounded <= 0.5 / 127.0 + 1e-3, "{rounded}");
    assert!(quarter / whole < 0.256, "{quarter} of {whole}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tensor_of_several_frames_arrives_and_who_waits_is_told_when_the_replica_changes() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let (ranks, pipes) = replica(&pipeline, BoundaryFormats::EXACT);
    let [mut first, mut second] = <[NetworkPipe; 2]>::try_from(pipes).ok().unwrap();
    let network = Arc::clone(&ranks[1].network);
    let waiting = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(600_000, (tch::Kind::Float, tch::Device::Cpu)).view([600, 1000]);
        first.begin();
        first.give(1, Gift::Values, &values).unwrap();
        second.begin();
        assert_eq!(second.take(0, Gift::Values, &[600, 1000]).unwrap(), values);
        network.join_replica(None);
        assert!(matches!(second.take(0, Gift::Values, &[600, 1000]), Err(EngineError::Interrupted(_))));
        assert!(matches!(second.total(1.0), Err(EngineError::Interrupted(_))));
    });
    waiting.await.unwrap();
}

/// Ranks are told of a generation one after the other, and what their transport has acknowledged is not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn who_hears_of_a_replica_late_has_what_was_sent_before() {
    let pipeline = pipeline_tests::pipeline(PipelineSchedule::OneForwardOneBackward, 2, 1);
    let (ranks, pipes) = replica(&pipeline, BoundaryFormats::EXACT);
    let [mut first, mut second] = <[NetworkPipe; 2]>::try_from(pipes).ok().unwrap();
    let late = Arc::clone(&ranks[1].network);
    let workers = ranks.iter().map(|rank| rank.member.worker).collect();
    late.join_replica(None);
    let waiting = tokio::task::spawn_blocking(move || {
        let values = Tensor::arange(1000, (tch::Kind::Float, tch::Device::Cpu));
        first.begin();
        first.give(1, Gift::Values, &values).unwrap();
        while late.progress.heartbeat().wan_received_bytes == 0 {
            std::thread::yield_now();
        }
        late.join_replica(Some(Replica { session: Generation(4), workers }));
        second.begin();
        assert_eq!(second.take(0, Gift::Values, &[1000]).unwrap(), values);
    });
    timeout(Duration::from_secs(60), waiting).await.expect("the letter is lost").unwrap();
}
