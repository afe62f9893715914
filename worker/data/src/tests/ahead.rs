//! Batches read before they are needed.

use std::sync::Arc;

use super::*;
use crate::{HostBatch, ReadAhead, ReadRequest};

const LINES: &str = "path = \"text.txt\"\nsequence_length = 9\nvalidation_share = 0.0";
const SEED: u64 = 5;

fn wanted(positions: &[u64]) -> ReadRequest {
    ReadRequest { positions: positions.to_vec(), micro_batch: 2 }
}

/// Returns data with 111 samples.
fn data(folder: &Folder) -> Arc<Dataset> {
    folder.write("text.txt", alphabet(1000));
    Arc::new(folder.open(LINES).unwrap())
}

/// Makes the micro-batches of each step.
fn started(data: &Arc<Dataset>) -> ReadAhead<(HostBatch, usize)> {
    ReadAhead::start(Arc::clone(data), SEED, |batch, size| (batch, size)).unwrap()
}

#[test]
fn batches_come_as_the_data_has_them_and_are_made_into_what_is_wanted_in_micro_batches_of_the_size() {
    let folder = Folder::new();
    let data = data(&folder);
    let ahead = started(&data);
    let steps: Vec<Vec<u64>> = (0..60).map(|step| (step * 5..step * 5 + 5).collect()).collect();
    for at in 0..steps.len() {
        let batch = ahead.take(steps[at..].iter().map(|step| wanted(step))).unwrap();
        let read = data.batch(steps[at].iter().copied(), SEED).unwrap();
        assert_eq!(batch, (read, 2));
    }
}

#[test]
fn a_step_that_comes_otherwise_than_was_said_is_read_as_it_comes() {
    let folder = Folder::new();
    let data = data(&folder);
    let ahead = started(&data);
    let mut at = 0;
    for turn in 0..200_u64 {
        // Another share, a skipped round, a repeated one, a step without samples, another number of samples.
        at = match turn % 7 {
            3 => at + 11,
            5 => at - 4,
            _ => at + 3,
        };
        let samples = [3, 3, 3, 0, 3, 1, 3][turn as usize % 7];
        let next: Vec<u64> = (at..at + samples).collect();
        let guess = (1..5).map(|ahead| wanted(&[at + 3 * ahead, at + 3 * ahead + 1, at + 3 * ahead + 2]));
        let batch = ahead.take(std::iter::once(wanted(&next)).chain(guess)).unwrap();
        assert_eq!(batch.0, data.batch(next, SEED).unwrap(), "turn {turn}");
    }
}

#[test]
fn data_that_cannot_be_read_is_an_error_of_the_batch_that_it_belongs_to() {
    let folder = Folder::new();
    folder.write("a.txt", alphabet(400));
    folder.write("b.txt", "b".repeat(400));
    let lines =
        "sources = [{ path = \"a.txt\" }, { path = \"b.txt\" }]\nsequence_length = 9\nvalidation_share = 0.0";
    let data = Arc::new(folder.open(lines).unwrap());
    let is_of = |position: u64, name: &str| data.sample(position, SEED).unwrap().source.ends_with(name);
    let sound: Vec<u64> = (0..80).filter(|&position| is_of(position, "a.txt")).take(2).collect();
    let spoilt = (0..80).find(|&position| is_of(position, "b.txt")).unwrap();
    let data = Arc::new(folder.open(lines).unwrap());
    let shard = folder.shards().into_iter().find(|shard| std::fs::read(shard).unwrap().ends_with(b"b\0b\0"));
    std::fs::remove_file(shard.unwrap()).unwrap();
    folder.write("b.txt", "another text");
    let ahead = started(&data);
    let steps = [wanted(&sound[..1]), wanted(&[spoilt]), wanted(&sound[1..])];
    assert_eq!(ahead.take(steps.clone()).unwrap().0, data.batch([sound[0]], SEED).unwrap());
    let message = ahead.take(steps[1..].to_vec()).unwrap_err().to_string();
    assert!(message.contains("b.txt was changed"), "{message}");
    assert_eq!(ahead.take(steps[2..].to_vec()).unwrap().0, data.batch([sound[1]], SEED).unwrap());
}

#[test]
fn it_ends_with_its_owner_whatever_it_does() {
    let folder = Folder::new();
    let data = data(&folder);
    for _ in 0..50 {
        let ahead = started(&data);
        ahead.take((0..40).map(|step| wanted(&[step, step + 1]))).unwrap();
        drop(ahead);
        // The threads also held a reference.
        assert_eq!(Arc::strong_count(&data), 1);
    }
}
