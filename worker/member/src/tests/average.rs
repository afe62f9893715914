//! The moving average of the weights: over rounds, from a donor, and from a checkpoint.

use super::*;
use crate::saved::shared_of;

const DECAY: f64 = 0.9;

fn averaging(mut rig: Rig) -> Rig {
    for worker in &mut rig.workers {
        Arc::make_mut(&mut worker.sync.config).train.ema_decay = Some(DECAY);
    }
    rig
}

fn average(worker: &Worker) -> Arc<Vec<f32>> {
    Arc::clone(worker.running().replica.average().unwrap().values())
}

/// Two rounds of fifteen steps.
#[test]
fn members_average_their_rounds_alike_and_a_donor_gives_its_average_on() {
    let mut rig = averaging(Rig::new([1, 2], SPARSE)).training();
    let parameters = |rig: &Rig| rig.workers[0].running().replica.parameters().clone();
    let mut expected: Vec<f64> = parameters(&rig).iter().map(|&value| f64::from(value)).collect();
    for round in 0..2 {
        rig.workers.iter_mut().for_each(|worker| worker.contribute(round));
        (0..2).for_each(|at| rig.apply(at, round));
        rig.workers.iter_mut().for_each(|worker| worker.begin(round + 1));
        for (expected, value) in expected.iter_mut().zip(&*parameters(&rig)) {
            (0..15).for_each(|_| *expected = DECAY * *expected + (1.0 - DECAY) * f64::from(*value));
        }
    }
    let own = average(&rig.workers[0]);
    assert_eq!(own, average(&rig.workers[1]));
    assert_ne!(own, parameters(&rig));
    for (value, expected) in own.iter().zip(&expected) {
        assert!((f64::from(*value) - expected).abs() < 1e-5, "{value} for {expected}");
    }

    let (reply, answer) = crate::testing::reply();
    rig.workers[0].handle(SyncEvent::ServeState { from: Round(0), reply });
    let state = answer.try_recv().unwrap();
    assert_eq!((state.buffers.len(), state.buffers.last()), (2, Some(&own)));
    let mut joining = averaging(Rig::new([1, 2], SPARSE));
    joining.workers[1].handle(SyncEvent::Healed { attempt: 0, answer: Ok(state) });
    assert_eq!(average(&joining.workers[1]), own);
}

#[test]
fn members_with_gradients_average_the_devices_parameters_and_hand_them_on() {
    let mut rig = averaging(Rig::new([1, 2], DENSE)).training();
    let start = rig.workers[0].running().replica.parameters()[0];
    rig.workers.iter_mut().for_each(|worker| worker.send(0, vec![1.0; VALUES]));
    rig.pump(|workers| workers.iter().all(|worker| worker.running().member.open_round() > Round(0)));
    rig.workers[0].applied(0, Some(vec![4.0; VALUES]));
    let own = average(&rig.workers[0]);
    assert!((own[0] - (0.9 * start + 0.4)).abs() < 1e-6, "{} from {start}", own[0]);

    let (reply, answer) = crate::testing::reply();
    rig.workers[0].handle(SyncEvent::ServeState { from: Round(1), reply });
    let state = DeviceState { parameters: vec![4.0; VALUES], ..DeviceState::default() };
    rig.workers[0].handle(SyncEvent::Device(FromDevice::State { next_round: Round(1), state }));
    let state = answer.try_recv().unwrap();
    assert_eq!((state.buffers.len(), state.buffers.last()), (4, Some(&own)));
}

#[test]
fn a_checkpoint_has_the_average_and_without_one_it_begins_with_the_parameters() {
    let spec = longhaul_common::model::tiny::tiny_gpt2();
    let parameters = vec![0.25; spec.parameter_count() as usize];
    let saved = vec![0.75; parameters.len()];
    for (shared, expected) in [(saved.as_slice(), 0.75), (&[], 0.25)] {
        let folder = tempfile::tempdir().unwrap();
        let mut rig = averaging(Rig::new([1, 2], DENSE));
        let worker = &mut rig.workers[0];
        worker.sync.checkpoints.folder = folder.path().to_owned();
        let state_hash = hash_of(&parameters);
        let model = ModelState {
            spec: spec.clone(),
            parameters: parameters.as_slice().into(),
            companions: Default::default(),
            shared: shared_of(&[], &[], shared),
        };
        let (next_round, generation) = (Round(5), Generation(1));
        let private = PrivateState::default();
        let data =
            CheckpointData { next_round, next_step: 5, generation, state_hash, model: Some(model), private };
        CheckpointStore::new(folder.path(), worker.sync.run, WorkerId(7), 1).write(&data).unwrap();
        let offer = CheckpointOffer { next_round, state_hash, private: false, rank: 0, parts: 1, generation };
        worker.hear(ToWorker::Prepare(Start::Checkpoint(offer)));
        assert_eq!(average(worker)[0], expected);
    }
}
