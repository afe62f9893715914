use std::path::Path;

use longhaul_common::config::BestCheckpoints;
use longhaul_common::id::{Generation, Round};
use longhaul_common::model::draw_parameters;
use longhaul_common::model::tiny::tiny_gpt2;
use longhaul_proto::little_endian::of_f32;
use longhaul_run_toml::{Gpt2, RunToml};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::recut;

const RUN: RunId = RunId([5; 16]);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn archive(folder: &Path, more: &str, runtime: &Runtime) -> RunArchive {
    let run = RunToml::new("archived")
        .workers(2)
        .steps(100)
        .gpt2(Gpt2 { layers: 1, width: 16, heads: 2, context: 16 })
        .batch(8)
        .set("checkpoint.to", folder)
        .lines("checkpoint", more);
    let config = RunConfig::parse(&run.to_string()).unwrap();
    RunArchive::of(Arc::new(config), RUN, Unusable::default(), runtime.handle().clone()).unwrap()
}

fn hash_of(values: &[f32]) -> [u8; 32] {
    *blake3::hash(of_f32(values)).as_bytes()
}

/// A part's data, with moments of twice the parameters.
fn data(spec: &ModelSpec, round: u64) -> CheckpointData {
    let parameters: Arc<[f32]> = draw_parameters(spec, round).into();
    let moments: Arc<[f32]> = parameters.iter().map(|value| 2.0 * value).collect();
    let vectors = [("parameters".to_owned(), Arc::clone(&parameters)), ("first_moments".to_owned(), moments)];
    CheckpointData {
        next_round: Round(round),
        next_step: round,
        generation: Generation(1),
        state_hash: hash_of(&parameters),
        model: Some(ModelState {
            spec: spec.clone(),
            shared: [("outer_momentum".to_owned(), parameters.iter().map(|value| 3.0 * value).collect())]
                .into(),
            parameters,
            companions: Companions::of_tokenizer(Some(b"{}".as_slice().into())),
        }),
        private: PrivateState { vectors: vectors.into(), counters: [("updates".to_owned(), round)].into() },
    }
}

fn cut(bounds: &[u32]) -> Vec<ModelSpec> {
    let spec = tiny_gpt2();
    bounds.windows(2).map(|pair| spec.part(std::iter::once(pair[0]..pair[1]).collect())).collect()
}

fn offers(archive: &RunArchive, runtime: &Runtime) -> Vec<CheckpointOffer> {
    runtime.block_on(archive.offers()).unwrap()
}

#[test]
fn a_checkpoint_comes_back_from_the_archive_as_it_was_written() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let archive = archive(&folder.path().join("archive"), "", &runtime);
    assert_eq!(offers(&archive, &runtime), []);
    let written = data(&tiny_gpt2(), 20);
    let path = archive.write((0, 1), WorkerId(3), &written).unwrap();
    assert!(path.ends_with("part-1-of-1/round-000020.json"), "{path}");
    let offers = offers(&archive, &runtime);
    let offer = CheckpointOffer {
        next_round: Round(20),
        state_hash: written.state_hash,
        private: false,
        rank: 0,
        parts: 1,
        generation: Generation(1),
    };
    assert_eq!(offers, std::slice::from_ref(&offer));

    let root = CheckpointStore::new(&folder.path().join("disk"), RUN, WorkerId(8), 2);
    assert_eq!(archive.fetch(&offer, &tiny_gpt2(), &root).unwrap(), Some(WorkerId(3)));
    assert!(root.holds(Round(20), offer.state_hash));
    let model = root.load_model(Round(20), &tiny_gpt2()).unwrap();
    let of = written.model.unwrap();
    assert_eq!((&*model.parameters, model.shared), (&*of.parameters, of.shared));
    // The private state remains its writer's.
    assert!(root.load_private(Round(20)).is_err());
    assert_eq!(root.load_anothers(Round(20)).unwrap().unwrap().state, written.private);
}

#[test]
fn a_model_that_was_archived_in_parts_goes_on_in_other_parts() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let archive = archive(&folder.path().join("archive"), "", &runtime);
    let end = tiny_gpt2().head() + 1;
    for (rank, spec) in (0..).zip(cut(&[0, 1, end])) {
        archive.write((rank, 2), WorkerId(rank), &data(&spec, 20)).unwrap();
    }
    let root = CheckpointStore::new(&folder.path().join("disk"), RUN, WorkerId(8), 2);
    for wanted in [tiny_gpt2()].into_iter().chain(cut(&[0, 2, end])) {
        let offers = offers(&archive, &runtime);
        assert_eq!(offers.len(), 2);
        for offer in &offers {
            archive.fetch(offer, &wanted, &root).unwrap();
        }
        let here: Vec<CheckpointStore> = root
            .all_parts()
            .map(|(_, store)| store)
            .filter(|store| offers.iter().any(|offer| store.holds(Round(20), offer.state_hash)))
            .collect();
        let recut = recut(&here, Round(20), &wanted, hash_of).unwrap();
        assert_eq!(recut.parameters, draw_parameters(&wanted, 20));
        let twice: Vec<f32> = recut.parameters.iter().map(|value| 2.0 * value).collect();
        assert_eq!(recut.private.unwrap().vectors["first_moments"].as_ref(), twice);
    }
    // The second part has nothing of the first block.
    let other = CheckpointStore::new(&folder.path().join("other"), RUN, WorkerId(8), 2);
    let second = offers(&archive, &runtime).into_iter().find(|offer| offer.rank == 1).unwrap();
    assert_eq!(archive.fetch(&second, &cut(&[0, 1])[0], &other).unwrap(), None);
    assert_eq!(other.of_part(1, 2).list().unwrap(), []);
}

#[test]
fn what_is_damaged_is_named_and_not_offered_again() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let place = folder.path().join("archive");
    let archive = archive(&place, "", &runtime);
    for round in [20, 40] {
        archive.write((0, 1), WorkerId(3), &data(&tiny_gpt2(), round)).unwrap();
    }
    let all = offers(&archive, &runtime);
    assert_eq!(all.iter().map(|offer| offer.next_round.0).collect::<Vec<_>>(), [40, 20]);
    let pieces = place.join(RUN.to_string()).join("part-1-of-1/pieces");
    let parameters = data(&tiny_gpt2(), 40).model.unwrap().parameters;
    let bytes: Vec<u8> = parameters.iter().flat_map(|value| value.to_le_bytes()).collect();
    let name = blake3::hash(&bytes).to_hex().to_string();
    std::fs::write(pieces.join(&name), vec![0; bytes.len()]).unwrap();

    let root = CheckpointStore::new(&folder.path().join("disk"), RUN, WorkerId(8), 2);
    let error = format!("{:#}", archive.fetch(&all[0], &tiny_gpt2(), &root).unwrap_err());
    assert!(
        error.contains("round-000040") && error.contains(&name) && error.contains("is damaged"),
        "{error}"
    );
    assert_eq!(root.list().unwrap(), []);
    let left = offers(&archive, &runtime);
    assert_eq!(left, all[1..]);
    archive.fetch(&left[0], &tiny_gpt2(), &root).unwrap();
}

#[test]
fn a_private_run_archives_what_all_have_and_nothing_else() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let place = folder.path().join("archive");
    let config = "[secure_aggregation]\nrange = 64.0\n[sync]\npreset = \"dense\"\nnorm_limit = 0\n";
    let archive = archive(&place, config, &runtime);
    let written = data(&tiny_gpt2(), 20);
    archive.write((0, 1), WorkerId(3), &written).unwrap();
    let files = std::fs::read_dir(place.join(RUN.to_string()).join("part-1-of-1/pieces")).unwrap();
    assert_eq!(files.count(), 3, "the tokenizer, the parameters and the outer momentum");
    let root = CheckpointStore::new(&folder.path().join("disk"), RUN, WorkerId(8), 2);
    let offer = &offers(&archive, &runtime)[0];
    assert_eq!(archive.fetch(offer, &tiny_gpt2(), &root).unwrap(), None);
    assert!(root.holds(Round(20), written.state_hash));
}

#[test]
fn the_last_and_each_so_many_th_stay_on_the_disk_and_in_the_archive() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let archive =
        archive(&folder.path().join("archive"), "every_rounds = 20\nkeep = 2\nkeep_every = 3", &runtime);
    let retention = archive.config.checkpoint.retention();
    let store = CheckpointStore::new(&folder.path().join("disk"), RUN, WorkerId(3), retention);
    for round in 1..=8 {
        let data = data(&tiny_gpt2(), 20 * round);
        store.write(&data).unwrap();
        archive.write((0, 1), WorkerId(3), &data).unwrap();
    }
    let on_disk: Vec<u64> = store.list().unwrap().iter().map(|listed| listed.next_round.0).collect();
    let archived: Vec<u64> = offers(&archive, &runtime).iter().map(|offer| offer.next_round.0).collect();
    assert_eq!((&*on_disk, &*archived), (&[160, 140, 120, 60][..], &[160, 140, 120, 60][..]));
}

/// The link was too slow for that of round 40, which is the best by now.
#[test]
fn the_former_best_stays_in_the_archive_until_a_newer_one_is_there() {
    let (folder, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let config = "every_rounds = 20\nkeep = 1\n[data]\nvalidation_share = 0.1\n[train]\nevaluate_every_rounds = 20\n[evaluate]\nkeep_best = true";
    let mut archive = archive(&folder.path().join("archive"), config, &runtime);
    let mut best = KnownBest::default();
    for (round, of, archived) in [
        (20, 20, &[20][..]),
        (60, 40, &[60, 20]),
        (80, 40, &[80, 20]),
        (100, 100, &[100, 20]),
        (120, 100, &[120, 100]),
    ] {
        let rounds = [Some(Round(of)); 2];
        archive.write((0, 1), WorkerId(3), &data(&tiny_gpt2(), round)).unwrap();
        best.hear(BestCheckpoints { rounds, judged: Round(round) });
        archive = archive.keeping(best.clone());
        let offers: Vec<u64> = offers(&archive, &runtime).iter().map(|offer| offer.next_round.0).collect();
        assert_eq!(offers, archived);
    }
}
