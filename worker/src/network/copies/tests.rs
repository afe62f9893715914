use std::sync::Arc;

use longhaul_common::id::{Round, RunId, WorkerId};
use longhaul_proto::control::message::HeldPart;

use super::super::tests::{Worker, authority};
use super::*;
use crate::checkpoint::{CheckpointData, ModelState, PrivateState};
use crate::models::draw_parameters;
use crate::models::tests::tiny_gpt2;
use crate::sync::hash_of;

/// That of `authority`.
const RUN: RunId = RunId([3; 16]);
const NEXT: Round = Round(4);

/// A checkpoint of the second of two parts, as worker 2 writes it.
struct Machine {
    _folder: tempfile::TempDir,
    root: CheckpointStore,
}

impl Machine {
    fn new(worker: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = CheckpointStore::new(folder.path(), RUN, WorkerId(worker), 2);
        Self { _folder: folder, root }
    }

    fn part(&self) -> CheckpointStore {
        self.root.clone().of_part(1, 2)
    }
}

fn second_part() -> ModelSpec {
    let whole = tiny_gpt2();
    whole.part(std::iter::once(2..whole.head() + 1).collect())
}

fn write(machine: &Machine) -> HeldPart {
    let spec = second_part();
    let parameters: Arc<[f32]> = draw_parameters(&spec, 1).into();
    let state_hash = hash_of(&parameters);
    let vectors = [("first_moments".to_owned(), Arc::clone(&parameters))].into();
    let data = CheckpointData {
        next_round: NEXT,
        next_step: 8,
        state_hash,
        model: Some(ModelState { spec, parameters, tokenizer: None, shared: Default::default() }),
        private: PrivateState { vectors, counters: Default::default() },
    };
    machine.part().write(&data).unwrap();
    let offer = CheckpointOffer { next_round: NEXT, state_hash, private: false, rank: 1, parts: 2 };
    HeldPart { offer, holders: Vec::new() }
}

/// Worker 1 fetches the part that worker 2 has; what it is told of it.
async fn fetched(
    taker: &Machine,
    part: &HeldPart,
    shared: Option<&Machine>,
    wanted: ModelSpec,
) -> Result<(), String> {
    let authority = authority();
    let mut worker = Worker::start(&authority, 1, ReceiveLimits::default());
    let holder = Worker::start(&authority, 2, ReceiveLimits::default());
    if let Some(machine) = shared {
        holder.network.share_checkpoints(machine.root.clone());
    }
    let part = HeldPart { holders: vec![holder.member.clone()], ..part.clone() };
    worker.network.fetch_parts(7, taker.root.clone(), vec![part], wanted);
    match worker.queue.recv().await.unwrap() {
        SyncEvent::CopiesHere { attempt: 7, answer } => answer.map(|_| ()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_goes_from_disk_to_disk_with_the_private_state_of_who_wrote_it() {
    let (holder, taker) = (Machine::new(2), Machine::new(1));
    let part = write(&holder);
    fetched(&taker, &part, Some(&holder), second_part()).await.unwrap();
    let (sent, here) = (holder.part(), taker.part());
    assert!(here.holds(NEXT, part.offer.state_hash));
    assert_eq!(
        here.load_model(NEXT, &second_part()).unwrap(),
        sent.load_model(NEXT, &second_part()).unwrap()
    );
    let private = here.load_anothers(NEXT).unwrap().unwrap();
    assert_eq!(private, sent.load_private(NEXT).unwrap());
    assert!(!here.list().unwrap()[0].private, "it is not the taker's own");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_here_of_a_file_is_gone_on_with_unless_it_is_of_another_one() {
    let holder = Machine::new(2);
    let part = write(&holder);
    let whole = std::fs::read(holder.part().path_of(NEXT, CheckpointFile::Model)).unwrap();
    for begun in [whole[..100].to_vec(), vec![7; whole.len()], vec![7; whole.len() + 1]] {
        let taker = Machine::new(1);
        let incoming = taker.part().receive(NEXT).unwrap();
        std::fs::write(incoming.path_of(CheckpointFile::Model), begun).unwrap();
        fetched(&taker, &part, Some(&holder), second_part()).await.unwrap();
        assert_eq!(std::fs::read(taker.part().path_of(NEXT, CheckpointFile::Model)).unwrap(), whole);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_without_a_block_of_what_is_wanted_is_not_fetched() {
    let (holder, taker) = (Machine::new(2), Machine::new(1));
    let part = write(&holder);
    let first = tiny_gpt2().part(std::iter::once(0..2).collect());
    fetched(&taker, &part, Some(&holder), first).await.unwrap();
    assert!(taker.part().list().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_nothing_to_share_gives_nothing_and_what_was_wanted_is_named() {
    let (holder, taker) = (Machine::new(2), Machine::new(1));
    let part = write(&holder);
    let reason = fetched(&taker, &part, None, second_part()).await.unwrap_err();
    assert!(reason.starts_with("nobody gave part 2 of 2 of the checkpoint before r4: w2: "), "{reason}");
    let mut other = part.clone();
    other.offer.state_hash = [9; 32];
    fetched(&taker, &other, Some(&holder), second_part()).await.unwrap_err();
    assert!(taker.part().list().unwrap().is_empty());
}
