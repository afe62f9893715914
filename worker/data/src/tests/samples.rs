//! The samples and their order.

use std::collections::HashMap;

use super::*;
use crate::masking::MaskVisit;
use crate::sample::SampleShape;
use crate::{HostBatch, Values};

/// Returns the data, and its folder.
fn dataset(text: &str, sequence_length: u32, validation_share: f64) -> Result<(Folder, Dataset), DataError> {
    let folder = Folder::new();
    folder.write("text.txt", text);
    let data = folder.open(&format!(
        "path = \"text.txt\"\nsequence_length = {sequence_length}\nvalidation_share = {validation_share}"
    ))?;
    Ok((folder, data))
}

fn rows(batch: &HostBatch) -> Vec<u32> {
    let Values::Tokens(tokens) = batch.micro_batches(1000).next().unwrap().values() else {
        panic!("images have no tokens")
    };
    tokens.iter().map(|token| *token as u32).collect()
}

#[test]
fn an_epoch_holds_each_sample_once() {
    let (_folder, data) = dataset(&alphabet(101), 10, 0.0).unwrap();
    assert_eq!(data.samples(), 10);
    for epoch in 0..3 {
        let all = data.batch(epoch * 10..(epoch + 1) * 10, 7).unwrap();
        assert_eq!((all.sequences(), all.tokens()), (10, 100));
        let mut ordered: Vec<HostBatch> =
            (0..10).map(|at| data.batch([epoch * 10 + at], 7).unwrap()).collect();
        ordered.sort_by_key(|batch| format!("{batch:?}"));
        ordered.dedup();
        assert_eq!(ordered.len(), 10);
    }
}

#[test]
fn tokens_are_what_their_bytes_say_however_many_those_are() {
    let wanted = [0_u32, 1, 258, 65_535];
    for token_bytes in [2, 3, 4] {
        let stored: Vec<u8> =
            wanted.iter().flat_map(|token| token.to_le_bytes()[..token_bytes].to_vec()).collect();
        let mut batch = HostBatch::new(wanted.len() - 1);
        SampleShape::Tokens(3).push(&stored, token_bytes, MaskVisit::HeldOut { sample: 0 }, &mut batch);
        assert_eq!(rows(&batch), wanted, "{token_bytes} bytes");
    }
    let mut batch = HostBatch::new(0);
    SampleShape::Tokens(0).push(&[1, 2, 3, 4], 4, MaskVisit::HeldOut { sample: 0 }, &mut batch);
    assert_eq!(rows(&batch), [0x0403_0201]);
}

/// A batch large enough for libtorch to fill it with several threads.
#[test]
fn a_large_batch_has_all_tokens_in_order() {
    let text = alphabet(60_000);
    let (_folder, data) = dataset(&text, 59_999, 0.0).unwrap();
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    assert_eq!(rows(&data.batch([0], 7).unwrap()), tokens);
}

#[test]
fn the_end_of_the_text_is_held_out() {
    let (_folder, data) = dataset(&(alphabet(80) + &"0123456789".repeat(2)), 5, 0.2).unwrap();
    assert_eq!(data.samples(), 15);
    let training = data.batch(0..15, 1).unwrap();
    let digit = |token: u32| (48..58).contains(&token);
    assert!(rows(&training).into_iter().all(|token| !digit(token)));
    let held_out = held_out(&data, 4, 2);
    assert_eq!(held_out.iter().map(HostBatch::sequences).collect::<Vec<_>>(), [2, 1]);
    assert!(held_out.iter().flat_map(rows).all(digit));
    assert_eq!(rows(&held_out[0])[..6], [48, 49, 50, 51, 52, 53]);
}

#[test]
fn the_hash_tells_texts_cuts_and_weights_apart() {
    let hash = |text: &str, length, share| dataset(text, length, share).unwrap().1.data_hash();
    let base = hash(&alphabet(200), 10, 0.1);
    assert_eq!(base, hash(&alphabet(200), 10, 0.1));
    let others =
        [hash(&alphabet(199), 10, 0.1), hash(&alphabet(200), 11, 0.1), hash(&alphabet(200), 10, 0.2)];
    assert!(!others.contains(&base));

    let folder = Folder::new();
    folder.write("a.txt", alphabet(100));
    folder.write("b.txt", alphabet(90));
    let weighted = |a: f64| {
        let sources =
            format!("sources = [{{ path = \"a.txt\", weight = {a} }}, {{ path = \"b.txt\", weight = 1.0 }}]");
        folder.open(&format!("{sources}\nsequence_length = 10")).unwrap().data_hash()
    };
    assert_eq!(weighted(2.0), weighted(2.0));
    assert_ne!(weighted(2.0), weighted(3.0));
}

#[test]
fn an_empty_a_short_and_a_missing_text_are_refused_with_a_remedy() {
    let empty = dataset("", 10, 0.05).unwrap_err().to_string();
    assert!(empty.contains("text.txt has nothing to train on: its file is empty (0 bytes)"), "{empty}");
    let short = dataset(&alphabet(11), 10, 0.5).unwrap_err().to_string();
    assert!(short.contains("has 11 tokens, of which 6 are for training"), "{short}");
    let folder = Folder::new();
    let gone = folder.open("path = \"gone.txt\"\nsequence_length = 1").unwrap_err().to_string();
    assert!(gone.starts_with("open ") && gone.contains("gone.txt") && gone.contains("--data"), "{gone}");
    let none =
        folder.open("sources = [{ glob = \"*.jsonl\" }]\nsequence_length = 1").unwrap_err().to_string();
    assert!(none.contains("*.jsonl: it matches no file"), "{none}");
}

/// Samples of two sources, distinguished by case.
#[test]
fn without_weights_an_epoch_has_each_sample_of_each_source_once() {
    let folder = Folder::new();
    folder.write("lower.txt", alphabet(31));
    folder.write("upper.txt", alphabet(71).to_uppercase());
    let sources = "sources = [{ path = \"lower.txt\" }, { path = \"upper.txt\" }]";
    let data = folder.open(&format!("{sources}\nsequence_length = 10\nvalidation_share = 0.0")).unwrap();
    assert_eq!(data.samples(), 10);
    for epoch in 0..3 {
        let mut seen = HashMap::<Vec<u32>, u32>::new();
        for position in epoch * 10..(epoch + 1) * 10 {
            *seen.entry(rows(&data.batch([position], 3).unwrap())).or_default() += 1;
        }
        assert_eq!((seen.len(), seen.values().max()), (10, Some(&1)));
        assert_eq!(seen.keys().filter(|sample| sample[0] >= u32::from(b'a')).count(), 3);
    }
}

#[test]
fn weights_say_how_often_a_source_comes_and_each_has_epochs_of_its_own() {
    let folder = Folder::new();
    folder.write("lower.txt", alphabet(31));
    folder.write("upper.txt", alphabet(71).to_uppercase());
    let sources = "sources = [{ path = \"lower.txt\", weight = 3 }, { path = \"upper.txt\", weight = 1 }]";
    let data = folder.open(&format!("{sources}\nsequence_length = 10\nvalidation_share = 0.0")).unwrap();
    let mut lower = Vec::new();
    for position in 0..40 {
        let sample = rows(&data.batch([position], 3).unwrap());
        if sample[0] >= u32::from(b'a') {
            lower.push(sample);
        }
    }
    assert_eq!(lower.len(), 30);
    for epoch in lower.chunks_mut(3) {
        epoch.sort();
        assert!(epoch.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

#[test]
fn a_weighted_source_without_a_sample_is_refused_and_one_without_a_weight_is_left_out() {
    let folder = Folder::new();
    folder.write("long.txt", alphabet(100));
    folder.write("short.txt", "short");
    let open = |long: &str, short: &str| {
        let sources =
            format!("sources = [{{ path = \"long.txt\"{long} }}, {{ path = \"short.txt\"{short} }}]");
        folder.open(&format!("{sources}\nsequence_length = 10"))
    };
    assert_eq!(open("", "").unwrap().samples(), 9);
    let message = open(", weight = 1", ", weight = 1").unwrap_err().to_string();
    assert!(message.contains("short.txt has 5 tokens"), "{message}");
}

#[test]
fn sources_of_their_own_are_held_out_instead_of_a_share() {
    let folder = Folder::new();
    folder.write("text.txt", alphabet(101));
    folder.write("held.txt", "0123456789".repeat(3));
    let data = folder
        .open("sources = [{ path = \"text.txt\" }]\nvalidation = [{ path = \"held.txt\" }]\nsequence_length = 10")
        .unwrap();
    assert_eq!(data.samples(), 10);
    let held_out = held_out(&data, 9, 1);
    assert_eq!(held_out.len(), 2);
    assert!(held_out.iter().flat_map(rows).all(|token| (48..58).contains(&token)));
    let shares: Vec<Option<f64>> = data.sources().iter().map(|source| source.share).collect();
    assert_eq!(shares, [Some(1.0), None]);
    let (trained, evaluated) = (data.data_hash(), data.held_out_hash());
    // Other text of the same length is other data.
    folder.write("held.txt", "9876543210".repeat(3));
    let other = folder
        .open("sources = [{ path = \"text.txt\" }]\nvalidation = [{ path = \"held.txt\" }]\nsequence_length = 10")
        .unwrap();
    assert!(other.data_hash() == trained && other.held_out_hash() != evaluated);
}

#[test]
fn files_of_a_pattern_follow_each_other_by_name_and_samples_cross_from_one_to_the_next() {
    let folder = Folder::new();
    for (name, text) in [("b.txt", "defghij"), ("a.txt", "abc"), ("c.txt", ""), ("d.txt", "klmnopqrstuv")] {
        folder.write(name, text);
    }
    let data = folder
        .open("sources = [{ glob = \"*.txt\" }]\nsequence_length = 20\nvalidation_share = 0.0")
        .unwrap();
    assert_eq!(text(&data), "abc\ndefghij\nklmnopqrstuv\n");
    let first = "abc\ndefghij\nklmnopqrs".bytes().map(u32::from);
    assert_eq!(rows(&data.batch([0], 1).unwrap()), first.collect::<Vec<_>>());
}
