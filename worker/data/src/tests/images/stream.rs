//! The order of images, and their augmentation.

use longhaul_common::sampler::seed_at;
use std::collections::HashSet;

use super::*;
use crate::{HostBatch, ReadAhead, ReadRequest};

const AUGMENTED: &str = "image = { height = 16, width = 20, classes = 3, shift = 2, flip = true }";

#[test]
fn images_are_decoded_once_and_shared_by_runs_that_augment_otherwise() {
    let cache = Folder::new();
    let (first, second) = (Work::default(), Work::default());
    let plain = open_at(&fixtures(), &cache, &format!("{RGB}\n{FOLDER}"), &first).unwrap();
    let augmented = open_at(&fixtures(), &cache, &format!("{AUGMENTED}\n{FOLDER}"), &second).unwrap();
    assert!(first.done().made > 2);
    assert_eq!((second.done().made, second.done().found_bytes), (0, first.done().bytes));
    assert_ne!(plain.data_hash(), augmented.data_hash());
    // Each epoch has another image of the same class; a repeated request gives the same one.
    let seen = samples(&augmented, 0..20 * augmented.samples());
    let first: HashSet<_> =
        seen.iter().filter(|(index, ..)| *index == 0).map(|(_, pixels, _)| pixels).collect();
    assert!(first.len() > 10, "{}", first.len());
    assert_eq!(seen, samples(&augmented, 0..20 * augmented.samples()));
    let classes =
        |data| samples(data, 0..40).into_iter().map(|(index, _, class)| (index, class)).collect::<Vec<_>>();
    assert_eq!(classes(&augmented), classes(&plain));
}

#[test]
fn whoever_trains_on_a_position_sees_the_same_in_whichever_batch() {
    let cache = Folder::new();
    let lines = format!("{AUGMENTED}\n{FOLDER}");
    let data = open_at(&fixtures(), &cache, &lines, &Work::default()).unwrap();
    let whole = data.batch(0..24, 7).unwrap();
    let mut parts = HostBatch::of_images(3 * 16 * 20);
    for position in 0..24 {
        let Content::Image { mut pixels, class } = data.sample(position, 7).unwrap().content else {
            panic!("images have no tokens")
        };
        pixels.extend((class as u16).to_le_bytes());
        parts.push_image(&pixels);
    }
    let parts = parts.seeded((0..24).map(|position| seed_at(7, position)).collect());
    assert!(whole == parts);
    assert!(whole != data.batch(0..24, 8).unwrap());
    // Read ahead as well.
    let data = std::sync::Arc::new(data);
    let ahead = ReadAhead::start(std::sync::Arc::clone(&data), 7, |batch, _| batch).unwrap();
    let step = |at: u64| ReadRequest { positions: (4 * at..4 * at + 4).collect(), micro_batch: 3 };
    for at in 0..6 {
        let batch = ahead.take((at..6).map(step)).unwrap();
        assert!(batch == data.batch(4 * at..4 * at + 4, 7).unwrap(), "step {at}");
        let sizes: Vec<_> = batch.micro_batches(3).map(|micro| (micro.sequences(), micro.width())).collect();
        assert_eq!(sizes, [(3, 962), (1, 962)]);
    }
}

#[test]
fn an_epoch_has_each_image_once_and_what_is_held_out_is_whole_images_as_they_are() {
    let lines = format!("{AUGMENTED}\nvalidation_share = 0.3\n{SHARDS}");
    let data = open(&fixtures(), &lines).unwrap();
    assert_eq!(data.samples(), 9);
    for epoch in 0..3 {
        let of = samples(&data, 9 * epoch..9 * (epoch + 1));
        assert_eq!(of.iter().map(|(index, ..)| *index).collect::<HashSet<_>>(), (0..9).collect());
    }
    let plain = images(&open(&fixtures(), &format!("{RGB}\n{SHARDS}")).unwrap());
    let mut expected = HostBatch::of_images(3 * 16 * 20);
    for (pixels, class) in &plain[9..] {
        expected.push_image(&[pixels.as_slice(), &(*class as u16).to_le_bytes()].concat());
    }
    let held_out = held_out(&data, 9, 3);
    assert!(held_out == [expected]);
    assert_eq!((held_out[0].sequences(), held_out[0].tokens()), (3, 3));
    let message =
        open(&fixtures(), &format!("{RGB}\nvalidation_share = 0.5\nsources = [{{ path = \"one.tar\" }}]"));
    assert!(message.unwrap_err().to_string().contains("one.tar"));
}

#[test]
fn of_a_folder_as_much_of_each_class_is_held_out() {
    let folder = Folder::new();
    for (class, count) in [("a", 20), ("b", 7), ("c", 100)] {
        std::fs::create_dir(folder.path().join(class)).unwrap();
        (0..count).for_each(|at| folder.write(&format!("{class}/{at}.png"), fixture("folder/square/04.png")));
    }
    let lines = "image = { height = 4, width = 4, classes = 3 }\nvalidation_share = 0.3\n\
                 sources = [{ path = \".\", format = \"images\" }]";
    let data = open(folder.path(), lines).unwrap();
    let mut kept = [0; 3];
    samples(&data, 0..data.samples()).iter().for_each(|(_, _, class)| kept[*class as usize] += 1);
    assert_eq!((kept, data.samples()), ([14, 5, 70], 89));
}

#[test]
fn sources_are_mixed_by_weight_and_others_are_held_out() {
    let lines = format!(
        "{RGB}\nsources = [{{ glob = \"shard-*.tar\", weight = 3 }}, {{ path = \"folder\", format = \"images\", weight = 1 }}]\n\
         validation = [{{ path = \"plain.tar\" }}]"
    );
    let data = open(&fixtures(), &lines).unwrap();
    let from_folder =
        (0..40).filter(|position| data.sample(*position, 1).unwrap().source.ends_with("folder")).count();
    assert_eq!(from_folder, 10);
    assert_eq!(held_out(&data, 4, 4).iter().map(HostBatch::sequences).sum::<usize>(), 9);
    let shares: Vec<_> = data.sources().iter().map(|source| source.share).collect();
    let [Some(first), Some(second), None] = shares[..] else { panic!("{shares:?}") };
    // Weights are kept as integers.
    assert!((first - 0.75).abs() < 1e-9 && (second - 0.25).abs() < 1e-9, "{shares:?}");
}
