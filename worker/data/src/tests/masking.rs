//! Masks: how many, which, and when they are others.

use longhaul_common::config::{MaskToken, MaskingConfig};

use super::*;
use crate::masking::{MaskVisit, Masked, Masker};
use crate::{Content, LABEL_BIT, Values};

/// `[data]` of a text with bytes as tokens, and a mask token beside them.
const LINES: &str =
    "path = \"a.txt\"\nsequence_length = 32\nvalidation_share = 0.25\nmasking = { token = 256 }";

fn dataset(lines: &str) -> (Folder, Dataset) {
    let folder = Folder::new();
    folder.write("a.txt", alphabet(4096));
    let data = folder.open(lines).unwrap();
    (folder, data)
}

fn words(batch: &HostBatch) -> Vec<i64> {
    let Values::Masked(words) = batch.micro_batches(1000).next().unwrap().values() else {
        panic!("not masked")
    };
    words.to_vec()
}

/// A tokenizer of 3 special tokens, [MASK] among them, and `words` others.
fn of_words(words: usize, mask: &str) -> Tokenizer {
    let special = ["[CLS]", "[SEP]", mask];
    let added = special.iter().zip(0..).map(|(content, id)| {
        serde_json::json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true })
    });
    let vocabulary: serde_json::Map<_, _> = special
        .iter()
        .map(|name| (*name).to_owned())
        .chain((0..words).map(|word| format!("w{word}")))
        .zip(0..)
        .map(|(word, id)| (word, id.into()))
        .collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(), "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "w0" }
    });
    Tokenizer::of_json(serde_json::to_vec(&json).unwrap(), Path::new("tokenizer.json")).unwrap()
}

fn masker(masking: MaskingConfig, tokenizer: &Tokenizer) -> Masker {
    let mut config = config(LINES);
    config.masking = Some(masking);
    Masker::of(&config, tokenizer).unwrap().unwrap()
}

/// Counts of a kind are binomial at most: five standard deviations.
fn assert_share(found: usize, all: usize, share: f64) {
    let (expected, deviation) = (all as f64 * share, (all as f64 * share * (1.0 - share)).sqrt());
    assert!((found as f64 - expected).abs() <= 5.0 * deviation, "{found} of {all}, expected {expected}");
}

#[test]
fn shares_are_those_of_the_configuration_and_special_tokens_are_left_alone() {
    const MASK: u32 = 2;
    let (words, samples, length) = (40_usize, 400_u64, 50);
    let tokenizer = of_words(words, "[MASK]");
    // [CLS] and [SEP] around, and a mask in the text.
    let mut tokens: Vec<u32> = (0..length).map(|at| 3 + (at * at % words) as u32).collect();
    tokens.insert(0, 0);
    tokens.push(1);
    tokens.insert(7, MASK);
    for (share, masked, random) in [(0.15, 0.8, 0.1), (0.4, 0.0, 1.0), (0.02, 1.0, 0.0), (1.0, 0.5, 0.5)] {
        let masker = masker(MaskingConfig { share, masked, random, token: None }, &tokenizer);
        let (mut predicted, mut kinds, mut by_place) = (0_usize, [0; 3], vec![0; tokens.len()]);
        let mut drawn = vec![0; words + 3];
        for sample in 0..samples {
            let visit = MaskVisit::Trained { seed: 1, sample, epoch: 0 };
            let before = predicted;
            for (at, Masked { input, label }) in masker.draw(&tokens, visit).enumerate() {
                let Some(label) = label else {
                    assert_eq!(input, tokens[at]);
                    continue;
                };
                assert!(label == tokens[at] && label > MASK, "a special token is predicted");
                assert!(input >= MASK, "a special token is drawn");
                by_place[at] += 1;
                predicted += 1;
                kinds[if input == MASK { 0 } else { 1 + usize::from(input == label) }] += 1;
                drawn[input as usize] += 1;
            }
            // Up or down, and no further.
            let exact = share * length as f64;
            assert!(
                (predicted - before).abs_diff(exact as usize) <= 1,
                "{sample}: {} of {exact}",
                predicted - before
            );
        }
        assert_share(predicted, samples as usize * length, share);
        for (at, count) in by_place.iter().enumerate().filter(|(at, _)| tokens[*at] > MASK) {
            assert_share(*count, samples as usize, share);
            assert!(*count > 0 || share < 0.1, "place {at}");
        }
        // A random token is the old one once in as many as there are.
        let same = random / words as f64;
        let kept = 1.0 - masked - random;
        assert_share(kinds[0], predicted, masked);
        assert_share(kinds[1], predicted, random - same);
        assert_share(kinds[2], predicted, kept + same);
        assert!(random < 1.0 || drawn[3..].iter().all(|count| *count > 0), "{drawn:?}");
    }
}

#[test]
fn masks_follow_seed_sample_and_visit_and_nothing_else() {
    let ((_here, data), (_there, other)) = (dataset(LINES), dataset(LINES));
    assert_eq!(data.data_hash(), other.data_hash());
    let samples = data.samples();
    assert_eq!(samples, 4096 * 3 / 4 / 32);
    // A sample of the first epoch, and the same one in the second.
    let again =
        (samples..2 * samples).find(|at| data.visit(*at, 5).sample == data.visit(3, 5).sample).unwrap();
    let of = |data: &Dataset, position, seed| words(&data.batch([position], seed).unwrap());
    let first = of(&data, 3, 5);
    // Whatever was read before, in whatever batch: as after a resume, on any worker.
    let together = words(&other.batch([9, 3, again], 5).unwrap());
    assert_eq!(together[32..64], first);
    assert_eq!(together[64..], of(&data, again, 5));
    assert_ne!(first, of(&data, again, 5), "masks are drawn anew");
    let Content::Masked { inputs, predicted } = data.sample(3, 5).unwrap().content else {
        panic!("not masked")
    };
    assert_eq!(inputs, first.iter().map(|word| *word as u32).collect::<Vec<_>>());
    assert_eq!(predicted, first.iter().filter(|word| **word >> LABEL_BIT > 0).count());
    let restored = |words: &[i64]| -> Vec<i64> {
        let token = |word: &i64| if word >> LABEL_BIT > 0 { (word >> LABEL_BIT) - 1 } else { *word };
        words.iter().map(token).collect()
    };
    assert_eq!(restored(&first), restored(&of(&data, again, 5)));
    let with_seed = (0..samples).find(|at| data.visit(*at, 6).sample == data.visit(3, 5).sample).unwrap();
    assert_ne!(first, of(&data, with_seed, 6), "another seed has other masks");
    let looked_at: Vec<Vec<i64>> = held_out(&data, 4, 4).iter().map(words).collect();
    assert_eq!(looked_at, held_out(&other, 4, 4).iter().map(words).collect::<Vec<_>>());
    assert_eq!(looked_at.concat().len(), 16 * 32);
}

#[test]
fn samples_are_t_tokens_each_once_and_the_loss_counts_predictions() {
    let (_folder, data) = dataset(&LINES.replace("0.25", "0.0"));
    assert_eq!(data.samples(), 4096 / 32);
    let batch = data.batch(0..data.samples(), 1).unwrap();
    assert_eq!((batch.sequences(), batch.tokens()), (128, 4096));
    let predicted = words(&batch).iter().filter(|word| **word >> LABEL_BIT > 0).count();
    assert_eq!(batch.losses(), predicted);
    assert!(predicted.abs_diff(614) < 40, "{predicted}");
    let micro: usize = batch.micro_batches(3).map(|micro| micro.losses()).sum();
    assert_eq!(micro, predicted);
    let mut masks: Vec<i64> = words(&batch).into_iter().filter(|word| word & 0xffff_ffff == 256).collect();
    assert_share(masks.len(), predicted, 0.8);
    masks.dedup();
    assert!(masks.len() > 26);
    let (_folder, other) = dataset(&LINES.replace("0.25", "0.0").replace("256", "257"));
    assert_ne!(data.data_hash(), other.data_hash());
}

#[test]
fn a_tokenizer_without_a_mask_is_refused_with_the_remedy() {
    let text = |name: &str| Some(MaskToken::Text(name.to_owned()));
    for (tokenizer, token, words) in [
        (Tokenizer::Bytes, None, "there is no mask token: set data.tokenizer to a tokenizer.json"),
        (Tokenizer::Bytes, text("[MASK]"), "data.masking.token = [MASK]: with tokenizer = \"bytes\""),
        (
            of_words(5, "[X]"),
            None,
            "has neither [MASK] nor <mask>, and its special tokens are [CLS], [SEP], [X]: add one",
        ),
        (of_words(5, "[X]"), text("<m>"), "data.masking.token = <m>: the tokenizer has no such token"),
        (
            of_words(5, "[X]"),
            Some(MaskToken::Number(8)),
            "data.masking.token = 8: the tokenizer has 8 tokens",
        ),
    ] {
        let message = tokenizer.mask_token(token.as_ref()).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
    for (mask, token) in
        [("[MASK]", None), ("<mask>", None), ("[X]", text("[X]")), ("[X]", Some(MaskToken::Number(2)))]
    {
        assert_eq!(of_words(5, mask).mask_token(token.as_ref()).unwrap(), 2);
    }
}
