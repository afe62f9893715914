//! Members without state, and donors.

use longhaul_proto::control::message::NOT_COMPARED;

use super::*;

/// A member of a dense run in round 2, and a joiner with the state before round 2 that takes part from round 3.
fn dense_with_joiner() -> (Rig, longhaul_proto::control::message::GenerationStart) {
    // Numbers with which the first one owns the only fragment, so that it continues without the joiner.
    let number = (2..20).find(|&number| {
        let mut rig = Rig::new([1, number], DENSE);
        let start = rig.begin(2, &[0, 1], 3, &[0], None);
        rig.workers[0].owns_everything_in(&start)
    });
    let mut rig = Rig::new([1, number.unwrap()], DENSE);
    rig.workers[0].prepare();
    let start = rig.begin(1, &[0], 0, &[], None);
    rig.workers[0].hear(ToWorker::Begin(Arc::new(start.clone())));
    rig.workers[0].entry();
    for round in 0..2 {
        rig.workers[0].begin(round);
        dense_round(&mut rig, round);
    }
    rig.workers[0].begin(2);
    let buffers = [1.0, 2.0, 3.0].map(|value| Arc::new(vec![value; VALUES])).into();
    let state = HealedState { next_round: Round(2), buffers, updates: 2 };
    rig.workers[1].handle(SyncEvent::Healed { attempt: 0, answer: Ok(state) });
    let settled = rig.workers[0].settle(2);
    let answers = [(rig.workers[0].member.worker, settled)].into();
    let layout = rig.layout();
    let settled = longhaul_proto::round::settle(&start.membership, layout, rig.schedule(), &answers).unwrap();
    let start = rig.begin(2, &[0, 1], 3, &[0], Some(settled.settlement));
    rig.workers[0].hear(ToWorker::Begin(Arc::new(start.clone())));
    (rig, start)
}

fn dense_round(rig: &mut Rig, round: u64) {
    rig.workers[0].send(round, vec![round as f32; VALUES]);
    rig.pump(|workers| workers[0].running().member.open_round() > Round(round));
    let _ = rig.workers[0].device.try_recv().unwrap();
    rig.workers[0].applied(round, Some(vec![round as f32; VALUES]));
}

#[test]
fn a_dense_joiner_replays_what_it_missed_and_says_which_rounds_went_on_without_it() {
    let (mut rig, start) = dense_with_joiner();
    dense_round(&mut rig, 2);
    rig.workers[0].begin(3);
    dense_round(&mut rig, 3);
    // Only now does the joiner receive the generation.
    rig.pump(|workers| workers[1].running().member.frames_held() == 2);
    rig.workers[1].hear(ToWorker::Begin(Arc::new(start)));
    let enter = rig.enter(1, 4);
    let Load::All(state) = &enter.load else { panic!("{:?}", enter.load) };
    assert_eq!((state.parameters[0], state.second_moments[0], state.updates), (1.0, 3.0, 2));
    assert_eq!(enter.replay, [(Round(2), vec![2.0; VALUES]), (Round(3), vec![3.0; VALUES])]);
    let reports = rig.workers[1].round_reports();
    let [report] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!((report.round, report.skipped.as_slice()), (Round(2), [].as_slice()));
    assert_eq!(report.state_hash, NOT_COMPARED, "where the replay leads is not known yet");

    let replayed = vec![0.5; VALUES];
    rig.workers[1].applied(3, Some(replayed.clone()));
    let reports = rig.workers[1].round_reports();
    let [report] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!((report.round, report.skipped.as_slice()), (Round(3), [Round(3)].as_slice()));
    assert_eq!((report.state_hash, report.sites.as_slice()), (hash_of(&replayed), [SiteId(0)].as_slice()));
}

/// Returns a worker's load from a checkpoint written by worker 7, without its own private state.
fn load_from_anothers_checkpoint(sync: &str, private: PrivateState) -> (Load, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::new([1, 2], sync);
    let worker = &mut rig.workers[0];
    worker.sync.checkpoints.folder = folder.path().to_owned();
    let spec = longhaul_common::model::tiny::tiny_gpt2();
    let parameters = vec![0.25; spec.parameter_count() as usize];
    let state_hash = hash_of(&parameters);
    let model = ModelState {
        spec,
        parameters: parameters.as_slice().into(),
        companions: Default::default(),
        shared: Default::default(),
    };
    let (next_round, generation) = (Round(5), Generation(1));
    let data =
        CheckpointData { next_round, next_step: 5, generation, state_hash, model: Some(model), private };
    CheckpointStore::new(folder.path(), worker.sync.run, WorkerId(7), 1).write(&data).unwrap();
    let offer = CheckpointOffer { next_round, state_hash, private: false, rank: 0, parts: 1, generation };
    worker.hear(ToWorker::Prepare(Start::Checkpoint(offer)));
    let Stage::Running(running) = &mut worker.sync.stage else { panic!("not prepared") };
    assert!(running.codec.compressor.memories().is_empty() && running.contributions.carry.is_none());
    (running.device.load.take().unwrap(), parameters)
}

fn moments_of_worker_7() -> Saved {
    let count = longhaul_common::model::tiny::tiny_gpt2().parameter_count() as usize;
    let vector = |value: f32| vec![value; count];
    Saved {
        state: DeviceState {
            parameters: vector(0.25),
            first_moments: vector(2.0),
            second_moments: vector(3.0),
            updates: 5,
            ..DeviceState::default()
        },
        kept: UnsentUpdates {
            memories: [(FragmentId(0), ErrorFeedback { residual: vec![1.0; 96], velocity: Vec::new() })]
                .into(),
            owner_residuals: [(FragmentId(0), vec![2.0; 96])].into(),
            carry: Some(vector(9.0)),
            ..UnsentUpdates::default()
        },
        trained: Vec::new(),
    }
}

#[test]
fn a_dense_worker_without_a_state_of_its_own_takes_the_moments_that_all_workers_share() {
    let saved = moments_of_worker_7();
    let (load, _) = load_from_anothers_checkpoint(DENSE, saved.clone().into_private());
    let Load::Private { state, trained, .. } = load else { panic!("{load:?}") };
    assert_eq!((state, trained), (saved.state, saved.trained));
}

#[test]
fn moments_that_are_another_workers_alone_or_nowhere_start_from_zero() {
    for (sync, private) in [(SPARSE, moments_of_worker_7().into_private()), (DENSE, PrivateState::default())]
    {
        let (load, parameters) = load_from_anothers_checkpoint(sync, private);
        let Load::Parameters(loaded) = load else { panic!("{load:?}") };
        assert_eq!(loaded, parameters);
    }
}

#[test]
fn a_dense_donor_that_has_not_begun_serves_what_it_holds() {
    let (mut rig, _) = dense_with_joiner();
    let (reply, answer) = crate::testing::reply();
    rig.workers[1].handle(SyncEvent::ServeState { from: Round(0), reply });
    let state = answer.try_recv().unwrap();
    assert_eq!((state.next_round, state.updates), (Round(2), 2));
    assert_eq!(state.buffers.iter().map(|buffer| buffer[0]).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
}

#[test]
fn a_donor_that_is_behind_serves_when_it_is_there() {
    let mut rig = training(SPARSE);
    let ask = |rig: &mut Rig, from| {
        let (reply, answer) = crate::testing::reply();
        rig.workers[0].handle(SyncEvent::ServeState { from: Round(from), reply });
        answer
    };
    let (now, next) = (ask(&mut rig, 0), ask(&mut rig, 1));
    assert_eq!(now.try_recv().unwrap().next_round, Round(0));
    assert!(next.try_recv().is_err());
    rig.workers.iter_mut().for_each(|worker| worker.contribute(0));
    (0..2).for_each(|at| rig.apply(at, 0));
    let state = next.try_recv().unwrap();
    assert_eq!(
        (state.next_round, &state.buffers[0]),
        (Round(1), rig.workers[1].running().replica.parameters())
    );
}

/// A claim to such a state would make joiners ask all members for it.
#[test]
fn a_donor_refuses_to_wait_for_a_round_that_is_far_off() {
    let mut rig = training(SPARSE);
    let asked: Vec<_> = [2, u64::MAX]
        .into_iter()
        .map(|from| {
            let (reply, answer) = crate::testing::reply();
            rig.workers[0].handle(SyncEvent::ServeState { from: Round(from), reply });
            answer
        })
        .collect();
    let refused = Err(std::sync::mpsc::TryRecvError::Disconnected);
    assert!(asked.into_iter().all(|answer| answer.try_recv().map(|_| ()) == refused));
}

/// The device has the state, and receives one request at a time.
#[test]
fn a_dense_donor_that_is_behind_asks_its_device_again_when_it_is_there() {
    let mut rig = training_of([1, 2], DENSE);
    let exports = |rig: &mut Rig| {
        let told = std::iter::from_fn(|| rig.workers[0].device.try_recv().ok());
        told.filter(|message| matches!(message, ToDevice::Export)).count()
    };
    let export = |rig: &mut Rig, round| {
        let state = DeviceState { parameters: vec![round as f32; VALUES], ..DeviceState::default() };
        rig.workers[0].handle(SyncEvent::Device(FromDevice::State { next_round: Round(round), state }));
    };
    let (reply, now) = crate::testing::reply();
    rig.workers[0].handle(SyncEvent::ServeState { from: Round(0), reply });
    let (reply, next) = crate::testing::reply();
    rig.workers[0].handle(SyncEvent::ServeState { from: Round(1), reply });
    assert_eq!(exports(&mut rig), 1);
    export(&mut rig, 0);
    assert_eq!(now.try_recv().unwrap().next_round, Round(0));
    assert!(next.try_recv().is_err());
    rig.workers.iter_mut().for_each(|worker| worker.send(0, vec![1.0; VALUES]));
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(0)));
    assert_eq!(exports(&mut rig), 0);
    rig.workers[0].applied(0, Some(vec![1.0; VALUES]));
    assert_eq!(exports(&mut rig), 1);
    export(&mut rig, 1);
    assert_eq!(next.try_recv().unwrap().buffers[0], Arc::new(vec![1.0; VALUES]));
}

#[test]
fn a_member_that_is_told_to_heal_while_it_trains_joins_anew() {
    let mut rig = training(SPARSE);
    rig.workers[0].hear(ToWorker::Heal { donors: Vec::new() });
    assert!(rig.workers[0].sync.outcome.is_some());
}

#[test]
fn a_state_that_comes_after_the_generation_began_changes_nothing() {
    let mut rig = training(SPARSE);
    let state = HealedState { next_round: Round(9), buffers: vec![Arc::new(vec![1.0; VALUES])], updates: 0 };
    rig.workers[0].handle(SyncEvent::Healed { attempt: 1, answer: Ok(state) });
    assert_eq!(rig.workers[0].running().generation, Generation(1));
    assert_eq!(rig.workers[0].running().replica.next_round(), Round(0));
}

#[test]
fn a_begin_that_is_told_again_does_not_open_a_gate_that_is_being_settled() {
    let mut rig = training(SPARSE);
    rig.workers.iter_mut().for_each(|worker| worker.contribute(0));
    (0..2).for_each(|at| rig.apply(at, 0));
    rig.workers[0].settle(2);
    let again = rig.begin(1, &[0, 1], 0, &[], None);
    rig.workers[0].hear(ToWorker::Begin(Arc::new(again)));
    assert!(!rig.workers[0].barrier.is_open());
}

/// It takes a result within the following round only, and the others have completed that one before it was let in.
#[test]
fn a_device_that_has_a_result_to_take_begins_a_round_that_is_over_and_jumps_then() {
    let overlapped = &format!("{DENSE}\noverlap = 1");
    // Numbers with which the first one owns the only fragment, so that it continues without the other.
    let number = (2..20).find(|&number| {
        let mut rig = Rig::new([1, number], overlapped);
        let start = rig.begin(1, &[0, 1], 0, &[], None);
        rig.workers[0].owns_everything_in(&start)
    });
    let mut rig = training_of([1, number.unwrap()], overlapped);
    rig.workers[1].send(0, vec![0.0; VALUES]);
    for round in 0..3 {
        dense_round(&mut rig, round);
        rig.workers[0].begin(round + 1);
        rig.pump(|workers| workers[1].running().member.open_round() > Round(round));
    }
    assert_eq!(rig.workers[1].running().member.open_round(), Round(3));
    rig.workers[1].begin(1);
    let Ok(ToDevice::Apply { round: Round(0), .. }) = rig.workers[1].device.try_recv() else {
        panic!("there is nothing to apply")
    };
    rig.workers[1].applied(0, Some(vec![0.0; VALUES]));
    rig.workers[1].send(1, vec![0.0; VALUES]);
    let enter = rig.enter(1, 3);
    assert_eq!(enter.replay, [1.0, 2.0].map(|mean| (Round(mean as u64), vec![mean; VALUES])));
}
