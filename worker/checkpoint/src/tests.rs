use std::fs;
use std::path::{Path, PathBuf};

use longhaul_common::id::{Generation, RunId};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::*;
use longhaul_common::model::draw_parameters;
use longhaul_common::model::tiny::{tiny_gpt2, tiny_llama};

/// A tokenizer with fewer words than the models here.
const WORDS: &str = r#"{"version":"1.0","added_tokens":[],"normalizer":null,"post_processor":null,"decoder":null,
    "truncation":null,"padding":null,"pre_tokenizer":{"type":"Whitespace"},
    "model":{"type":"WordLevel","vocab":{"[unk]":0,"one":1},"unk_token":"[unk]"}}"#;

const RUN: RunId = RunId([7; 16]);

fn store(dir: &Path, worker: u32) -> CheckpointStore {
    CheckpointStore::new(dir, RUN, WorkerId(worker), 2)
}

fn data(round: u64, seed: u64) -> CheckpointData {
    let parameters: Arc<[f32]> = draw_parameters(&tiny_gpt2(), seed).into();
    let moments: Arc<[f32]> = parameters.iter().map(|value| value * 0.5).collect();
    CheckpointData {
        next_round: Round(round),
        next_step: round * 5,
        generation: Generation(1),
        state_hash: [seed as u8; 32],
        private: PrivateState {
            vectors: [("local".to_owned(), Arc::clone(&parameters)), ("first_moment".to_owned(), moments)]
                .into(),
            counters: [("updates".to_owned(), round * 5)].into(),
        },
        model: Some(ModelState {
            spec: tiny_gpt2(),
            parameters,
            companions: Companions::of_tokenizer(Some(b"{}".as_slice().into())),
            shared: [("b".to_owned(), vec![1.0, 2.0].into())].into(),
        }),
    }
}

fn without_model(data: CheckpointData) -> CheckpointData {
    CheckpointData { model: None, ..data }
}

fn rounds(store: &CheckpointStore) -> Vec<u64> {
    store.list().unwrap().iter().map(|listed| listed.next_round.0).collect()
}

/// Returns everything in the store's folder, hidden entries included.
fn entries(path: &Path) -> Vec<String> {
    let folder = path.parent().unwrap();
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn what_was_written_is_listed_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 3);
    assert_eq!(store.list().unwrap(), []);
    let written = data(120, 1);
    let path = store.write(&written).unwrap();
    assert!(path.ends_with("07070707070707070707070707070707/round-000120"), "{path:?}");
    let listed = store.list().unwrap();
    assert_eq!(
        listed,
        [Listed {
            path,
            next_round: Round(120),
            next_step: 600,
            generation: Generation(1),
            state_hash: [1; 32],
            model: true,
            private: true
        }]
    );
    let model = store.load_model(Round(120), &tiny_gpt2()).unwrap();
    let of = written.model.unwrap();
    assert_eq!((model.parameters.as_slice(), model.shared), (&of.parameters[..], of.shared));
    assert_eq!((model.next_step, model.state_hash), (600, [1; 32]));
    assert_eq!(
        store.load_private(Round(120)).unwrap(),
        LoadedPrivate { state_hash: [1; 32], state: written.private }
    );
}

#[test]
fn weights_are_written_by_name_as_hugging_face_lays_them_out() {
    for spec in [tiny_gpt2(), tiny_llama()] {
        let dir = tempfile::tempdir().unwrap();
        let mut data = data(1, 1);
        let flat: Arc<[f32]> = draw_parameters(&spec, 4).into();
        data.model = Some(ModelState {
            spec: spec.clone(),
            parameters: Arc::clone(&flat),
            companions: Companions::default(),
            shared: Default::default(),
        });
        let path = store(dir.path(), 0).write(&data).unwrap();
        let bytes = fs::read(path.join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut start = 0;
        for parameter in spec.parameters() {
            let tensor = file.tensor(&parameter.name).unwrap();
            assert_eq!(tensor.shape().iter().map(|&n| n as u64).collect::<Vec<_>>(), parameter.shape);
            let values = &flat[start..start + parameter.count() as usize];
            assert!(tensor.data().chunks(4).zip(values).all(|(word, value)| word == value.to_le_bytes()));
            start += values.len();
        }
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions();
        assert_eq!(mode("model.safetensors"), mode("config.json"));
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["vocab_size"], 64);
        assert_eq!(store(dir.path(), 0).load_model(Round(1), &spec).unwrap().parameters, flat[..]);
    }
}

#[test]
fn a_crash_while_writing_leaves_the_checkpoint_before_intact() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 3);
    let path = store.write(&data(20, 1)).unwrap();
    // Complete, and the process dies before the rename.
    drop(store.stage(&data(40, 2)).unwrap());
    // Dies within a file.
    let partial = path.parent().unwrap().join(".round-000060.w3.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("model.safetensors"), "half").unwrap();
    assert_eq!(rounds(&store), [20]);
    store.load_model(Round(20), &tiny_gpt2()).unwrap();
    // The next attempts clear the debris.
    store.write(&data(40, 2)).unwrap();
    store.write(&data(60, 3)).unwrap();
    assert_eq!(rounds(&store), [60, 40]);
    assert_eq!(entries(&path), ["round-000040", "round-000060"]);
}

#[test]
fn any_damage_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 3);
    let before = store.write(&data(20, 1)).unwrap();
    let path = store.write(&data(40, 2)).unwrap();
    let mut files: Vec<PathBuf> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    assert_eq!(files.len(), 7);
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for trial in 0..100 {
        let file = &files[rng.random_range(0..files.len())];
        let whole = fs::read(file).unwrap();
        let mut bytes = whole.clone();
        match trial % 4 {
            0 | 1 => bytes[rng.random_range(0..whole.len())] ^= 1 << rng.random_range(0..8),
            2 => bytes.truncate(rng.random_range(0..whole.len())),
            _ => bytes.push(b'\n'),
        }
        fs::write(file, &bytes).unwrap();
        assert_eq!(rounds(&store), [20], "trial {trial}, {file:?}");
        fs::write(file, &whole).unwrap();
    }
    assert_eq!(rounds(&store), [40, 20]);

    let model = path.join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    bytes.truncate(1000);
    fs::write(&model, bytes).unwrap();
    let message = store.load_model(Round(40), &tiny_gpt2()).unwrap_err().to_string();
    assert!(message.contains("round-000040/model.safetensors is damaged: 1000 of "), "{message}");
    assert!(message.ends_with(&format!("before it is {}", before.display())), "{message}");
    fs::remove_file(&model).unwrap();
    let message = store.load_model(Round(40), &tiny_gpt2()).unwrap_err().to_string();
    assert!(message.contains("is damaged: it is missing"), "{message}");
}

#[test]
fn opening_a_damaged_checkpoint_names_the_one_before_it_if_that_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = CheckpointStore::new(dir.path(), RUN, WorkerId(3), 4);
    let [oldest, before, newest] = [20, 40, 60].map(|round| {
        let mut data = data(round, round);
        data.model.as_mut().unwrap().companions = Companions::of_tokenizer(Some(WORDS.as_bytes().into()));
        store.write(&data).unwrap()
    });
    assert_eq!(open_model(&newest, None).unwrap().path, newest);
    let refusal = || open_model(&newest, None).unwrap_err().to_string();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let whole = fs::read(newest.join(name)).unwrap();
        fs::remove_file(newest.join(name)).unwrap();
        let words = format!(
            "{name} is damaged: it is missing; the newest whole checkpoint before it is {}",
            before.display()
        );
        assert!(refusal().ends_with(&words), "{}", refusal());
        fs::write(newest.join(name), whole).unwrap();
    }
    fs::remove_file(newest.join("config.json")).unwrap();
    fs::write(before.join("config.json"), "{}").unwrap();
    assert!(refusal().ends_with(&format!("before it is {}", oldest.display())), "{}", refusal());
    fs::remove_dir_all(&oldest).unwrap();
    assert!(refusal().ends_with("there is no whole checkpoint before it"), "{}", refusal());
}

/// A run that continues from the previous checkpoint reaches the same round with the same state.
#[test]
fn a_damaged_model_is_replaced_when_the_same_state_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 3);
    let path = store.write(&data(20, 1)).unwrap();
    let model = path.join("model.safetensors");
    let whole = fs::read(&model).unwrap();
    fs::write(&model, &whole[..whole.len() / 2]).unwrap();
    assert!(rounds(&store).is_empty());
    assert_eq!(store.write(&data(20, 1)).unwrap(), path);
    assert_eq!(rounds(&store), [20]);
    assert_eq!(fs::read(&model).unwrap(), whole);
}

#[test]
fn workers_that_share_a_folder_complete_one_checkpoint_in_any_order() {
    for writer in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        for worker in 0..3 {
            let mut data = data(20, 1);
            data.private.counters.insert("worker".to_owned(), worker.into());
            let data = if worker == writer { data } else { without_model(data) };
            store(dir.path(), worker).write(&data).unwrap();
        }
        for worker in 0..3 {
            let store = store(dir.path(), worker);
            let listed = store.list().unwrap();
            assert_eq!((listed.len(), listed[0].model, listed[0].private), (1, true, true));
            assert_eq!(store.load_private(Round(20)).unwrap().state.counters["worker"], u64::from(worker));
            store.load_model(Round(20), &tiny_gpt2()).unwrap();
            assert_eq!(entries(&listed[0].path), ["round-000020"]);
        }
        let stranger = store(dir.path(), 9).list().unwrap();
        assert_eq!((stranger[0].model, stranger[0].private), (true, false));
    }
}

/// Its first writer died, and the run went on without it; or it returns to it from an older copy.
#[test]
fn a_state_that_is_written_again_is_of_the_latest_generation_that_had_it() {
    for (with_model, generations) in [(true, [3, 4]), (false, [3, 4]), (true, [4, 3]), (false, [4, 3])] {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = generations
            .map(|generation| CheckpointData { generation: Generation(generation), ..data(20, 1) });
        let second = if with_model { second } else { without_model(second) };
        store(dir.path(), 1).write(&first).unwrap();
        store(dir.path(), 2).write(&second).unwrap();
        for worker in [1, 2] {
            let listed = store(dir.path(), worker).list().unwrap();
            let expected = (Generation(4), true, true);
            assert_eq!((listed[0].generation, listed[0].model, listed[0].private), expected);
            assert_eq!(entries(&listed[0].path), ["round-000020"]);
        }
    }
}

/// The model's writer comes after writers of private states alone, and in an earlier generation than one of them.
#[test]
fn a_model_that_comes_after_private_states_is_of_their_generation_if_that_is_later() {
    let dir = tempfile::tempdir().unwrap();
    let of = |generation| CheckpointData { generation: Generation(generation), ..data(20, 1) };
    store(dir.path(), 1).write(&without_model(of(4))).unwrap();
    store(dir.path(), 2).write(&of(3)).unwrap();
    let listed = store(dir.path(), 1).list().unwrap();
    assert_eq!((listed[0].generation, listed[0].model), (Generation(4), true));
}

#[test]
fn workers_that_write_at_once_complete_one_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (dir, barrier) = (dir.path(), &barrier);
            scope.spawn(move || {
                for round in [20, 40, 60] {
                    barrier.wait();
                    store(dir, worker).write(&data(round, round)).unwrap();
                }
            });
        }
    });
    for worker in 0..4 {
        let listed = store(dir.path(), worker).list().unwrap();
        assert_eq!(
            listed.iter().map(|l| (l.next_round.0, l.model, l.private)).collect::<Vec<_>>(),
            [(60, true, true), (40, true, true)]
        );
    }
}

#[test]
fn a_checkpoint_of_a_past_that_was_cut_off_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path(), 1).write(&data(20, 1)).unwrap();
    store(dir.path(), 0).write(&data(20, 2)).unwrap();
    let listed = store(dir.path(), 1).list().unwrap();
    assert_eq!((listed.len(), listed[0].state_hash, listed[0].private), (1, [2; 32], false));
}

#[test]
fn what_was_just_written_stays_whatever_claims_to_be_of_later_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 1);
    for round in [100, 120] {
        let path = store.write(&data(round, round)).unwrap();
        fs::write(path.join("model.safetensors"), "damaged").unwrap();
    }
    for (round, whole) in [(20, &[20][..]), (40, &[40, 20]), (60, &[60, 40])] {
        store.write(&data(round, round)).unwrap();
        assert_eq!(rounds(&store), whole);
    }
}

#[test]
fn pruning_keeps_the_newest_and_never_removes_the_last_model() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 1);
    store.write(&data(20, 1)).unwrap();
    store.write(&data(40, 2)).unwrap();
    store.write(&data(60, 3)).unwrap();
    assert_eq!(rounds(&store), [60, 40]);
    for round in [80, 100, 120] {
        store.write(&without_model(data(round, round))).unwrap();
    }
    assert_eq!(rounds(&store), [120, 100, 60]);
}

#[test]
fn runs_do_not_see_each_others_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let path = store(dir.path(), 1).write(&data(20, 1)).unwrap();
    let other = CheckpointStore::new(dir.path(), RunId([8; 16]), WorkerId(1), 2);
    assert_eq!(other.list().unwrap(), []);
    // Not even when copied.
    fs::create_dir(dir.path().join(RunId([8; 16]).to_string())).unwrap();
    fs::rename(&path, dir.path().join(RunId([8; 16]).to_string()).join("round-000020")).unwrap();
    assert_eq!(other.list().unwrap(), []);
    let message = other.load_model(Round(20), &tiny_gpt2()).unwrap_err().to_string();
    assert!(message.contains("it is of run 0707"), "{message}");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    // A file in place of the folder stops root too.
    fs::write(dir.path().join(RUN.to_string()), "").unwrap();
    let message = store(dir.path(), 1).write(&data(20, 1)).unwrap_err().to_string();
    assert!(message.contains("round-000020"), "{message}");
    let full = CheckpointError::Io {
        operation: "write",
        path: "model.safetensors".into(),
        source: std::io::ErrorKind::StorageFull.into(),
    };
    assert!(full.to_string().contains("free some space") && full.to_string().contains("training goes on"));
}

#[test]
fn another_models_checkpoint_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path(), 1);
    store.write(&data(20, 1)).unwrap();
    let message = store.load_model(Round(20), &tiny_llama()).unwrap_err().to_string();
    assert!(message.contains("holds another model: model.embed_tokens.weight is missing"), "{message}");
}

#[test]
fn a_fork_has_the_model_its_average_and_moments_under_another_run() {
    use longhaul_proto::checkpoint::folder;
    let dir = tempfile::tempdir().unwrap();
    let mut written = data(40, 1);
    let vector = |value: f32| -> Arc<[f32]> { vec![value; 3].into() };
    for (name, value) in [(PARAMETERS, 1.0), (FIRST_MOMENTS, 2.0), (SECOND_MOMENTS, 3.0), ("residual.0", 4.0)]
    {
        written.private.vectors.insert(name.to_owned(), vector(value));
    }
    let shared = [(AVERAGE.to_owned(), vector(5.0)), ("outer_momentum".to_owned(), vector(6.0))];
    written.model.as_mut().unwrap().shared = shared.into();
    store(dir.path(), 3).write(&written).unwrap();

    let point = ForkPoint { run: RunId([8; 16]), next_round: Round(2), next_step: 10 };
    let found = folder::find(dir.path()).unwrap();
    assert!(fork(&found, dir.path(), point).unwrap());
    let forked = CheckpointStore::new(dir.path(), point.run, WorkerId(3), 2);
    let listed = forked.list().unwrap();
    assert_eq!(
        (listed[0].next_round, listed[0].next_step, listed[0].generation),
        (Round(2), 10, Generation(0))
    );
    assert!(listed[0].model && !listed[0].private, "no worker takes the moments for its own");
    let model = forked.load_model(Round(2), &tiny_gpt2()).unwrap();
    assert_eq!(model.parameters, written.model.unwrap().parameters.to_vec());
    assert_eq!(model.shared, [(AVERAGE.to_owned(), vector(5.0))].into());
    let moments = forked.load_anothers(Round(2)).unwrap().unwrap().state;
    assert_eq!(moments.vectors.keys().collect::<Vec<_>>(), [FIRST_MOMENTS, PARAMETERS, SECOND_MOMENTS]);
    assert_eq!(moments.counters, [(UPDATES.to_owned(), 200), (STEPS.to_owned(), 0)].into());

    // A fork of the fork, before any worker has begun it.
    let again = ForkPoint { run: RunId([7; 16]), ..point };
    let of_fork: Vec<_> =
        folder::find(dir.path()).unwrap().into_iter().filter(|of| of.run == point.run).collect();
    assert!(fork(&of_fork, dir.path(), again).unwrap());
    let forked = CheckpointStore::new(dir.path(), again.run, WorkerId(3), 2);
    assert_eq!(forked.load_anothers(Round(2)).unwrap().unwrap().state, moments);

    let path = found[0].path.join(folder::MODEL);
    fs::write(&path, "damage").unwrap();
    let other = ForkPoint { run: RunId([9; 16]), ..point };
    let error = fork(&found, dir.path(), other).unwrap_err().to_string();
    assert!(error.contains("is damaged: model.safetensors"), "{error}");
    assert!(!dir.path().join(other.run.to_string()).exists());
}
