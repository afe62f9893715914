use std::sync::Arc;

use longhaul_checkpoint::{CheckpointData, ModelState, PrivateState};
use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::draw_parameters;
use longhaul_common::model::tiny::tiny_gpt2;
use longhaul_member::hash_of;
use longhaul_proto::control::message::HeldPart;

use super::*;
use crate::testing::{Worker, authority};

/// Run of `authority`.
const RUN: RunId = RunId([3; 16]);
const NEXT: Round = Round(4);

/// A checkpoint of the second of two parts, as written by worker 2.
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
        generation: Generation(1),
        state_hash,
        model: Some(ModelState {
            spec,
            parameters,
            companions: Default::default(),
            shared: Default::default(),
        }),
        private: PrivateState { vectors, counters: Default::default() },
    };
    machine.part().write(&data).unwrap();
    let offer = CheckpointOffer {
        next_round: NEXT,
        state_hash,
        private: false,
        rank: 1,
        parts: 2,
        generation: Generation(1),
    };
    HeldPart { offer, holders: Vec::new() }
}

/// Fetches worker 2's part as worker 1, which has this description of it.
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
        holder.network.share_checkpoints(machine.root.clone(), tiny_gpt2());
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
    assert!(!here.list().unwrap()[0].private, "the state is not the taker's own");
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
    assert!(
        reason.starts_with("no holder delivered part 2 of 2 of the checkpoint before r4: w2: "),
        "{reason}"
    );
    let mut other = part.clone();
    other.offer.state_hash = [9; 32];
    fetched(&taker, &other, Some(&holder), second_part()).await.unwrap_err();
    assert!(taker.part().list().unwrap().is_empty());
}

/// An announced file is refused before any of it is requested.
#[test]
fn a_file_that_is_longer_than_a_checkpoint_of_the_model_can_have_is_refused() {
    let holder = Machine::new(2);
    let part = write(&holder);
    let files = holder.part().files_to_copy(NEXT, part.offer.state_hash).unwrap();
    check_lengths(&files, &second_part()).unwrap();
    let whole = 4 * tiny_gpt2().parameter_count();
    for (at, file) in files.iter().enumerate() {
        let most = file.file.bytes_max(&second_part());
        let mut longer = files.clone();
        longer[at].bytes = most;
        check_lengths(&longer, &second_part()).unwrap();
        longer[at].bytes = most + 1;
        let reason = check_lengths(&longer, &second_part()).unwrap_err().to_string();
        assert!(reason.contains(&file.name()) && reason.contains("is not to be trusted"), "{reason}");
    }
    let model = CheckpointFile::Model.bytes_max(&second_part());
    assert!((whole..2 * whole + (1 << 16)).contains(&model), "{model} of {whole}");
}

/// A worker without a part knows the run's model all the same.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_fetched_from_who_announces_more_than_the_model_has() {
    let (holder, taker) = (Machine::new(2), Machine::new(1));
    let part = write(&holder);
    let smaller =
        ModelSpec { layers: 1, width: 4, feed_forward_width: 2, vocabulary: 2, context: 1, ..tiny_gpt2() };
    let model = holder.part().path_of(NEXT, CheckpointFile::Model);
    assert!(std::fs::metadata(model).unwrap().len() > CheckpointFile::Model.bytes_max(&smaller));
    let reason = fetched(&taker, &part, Some(&holder), smaller).await.unwrap_err();
    assert!(reason.contains("model.safetensors has"), "{reason}");
    let incoming = taker.part().receive(NEXT).unwrap();
    assert!(
        !incoming.path_of(CheckpointFile::Manifest).exists()
            && !incoming.path_of(CheckpointFile::Model).exists()
    );
}
