//! Detection of splits by file names, as in Hugging Face's `datasets`: a pattern that matches several splits trains on evaluation data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::records::is_source_code;

const TRAIN: [&str; 2] = ["train", "training"];
/// Names of validation and test splits.
const OTHERS: [&str; 12] = [
    "validation",
    "valid",
    "val",
    "dev",
    "test",
    "testing",
    "eval",
    "evaluation",
    "heldout",
    "holdout",
    "devtest",
    "development",
];
/// Extensions of documents, whose names are titles: `train.md` may be about trains.
const TITLED: [&str; 6] = ["md", "markdown", "mdx", "rst", "adoc", "tex"];
/// Suffixes of such a name: `trainset`; `test_images` is two words.
const SETS: [&str; 2] = ["sets", "set"];

/// Names of folders that hold the same classes in several versions or parts.
const ARRANGED: [&str; 18] = [
    "aug",
    "augmented",
    "batch",
    "cropped",
    "fold",
    "image",
    "images",
    "label",
    "labels",
    "mask",
    "masks",
    "orig",
    "original",
    "part",
    "processed",
    "raw",
    "resized",
    "split",
];

/// Whether a word is the name of a split.
fn is_split(word: &str) -> bool {
    is_train(word) || is_other(word)
}

fn is_train(word: &str) -> bool {
    is_among(word, &TRAIN)
}

fn is_other(word: &str) -> bool {
    is_among(word, &OTHERS)
}

fn is_among(word: &str, names: &[&str]) -> bool {
    let word = word.to_ascii_lowercase();
    let bare = SETS.iter().find_map(|set| word.strip_suffix(set)).unwrap_or(&word);
    names.contains(&bare)
}

/// Returns the words of a name, without its numbers.
fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty())
}

/// Returns the reason why these files belong to several splits; `None`: they do not. Plain texts do if they differ only in the name of a split and in
/// numbers; files of other formats, whose names are no titles, if some but not all are named after an evaluation split.
pub(super) fn several(files: &[PathBuf], are_texts: bool) -> Option<String> {
    if !are_texts {
        let is_evaluated = |path: &&PathBuf| {
            // The file's name, or else that of its folder.
            let mut names = path.components().rev().take(2).filter_map(|part| part.as_os_str().to_str());
            let named = names.find(|name| words(name).any(is_split));
            named.is_some_and(|name| words(name).any(is_other))
        };
        let (other, train) =
            (files.iter().find(is_evaluated)?, files.iter().find(|path| !is_evaluated(path))?);
        return Some(told(train, other));
    }
    let mut trained = BTreeMap::<Vec<String>, &Path>::new();
    let mut others = BTreeMap::<Vec<String>, &Path>::new();
    let is_title = |path: &Path| {
        path.extension().is_some_and(|end| TITLED.iter().any(|titled| end.eq_ignore_ascii_case(titled)))
    };
    for path in files.iter().filter(|path| !is_source_code(path) && !is_title(path)) {
        for (split, around) in splits_of(path) {
            if is_train(&split) { &mut trained } else { &mut others }.entry(around).or_insert(path);
        }
    }
    let (train, other) = trained.iter().find_map(|(around, train)| Some((train, others.get(around)?)))?;
    Some(told(train, other))
}

fn told(train: &Path, other: &Path) -> String {
    format!(
        "it matches {} and {}, which by their names are of different splits, and others evaluate with one of them: name each split by a pattern of its own, what is to be held out under data.validation",
        train.display(),
        other.display()
    )
}

/// Returns the names of splits among the words of a path, each with its context: all other words except numbers and hashes; for a folder those before it.
fn splits_of(path: &Path) -> Vec<(String, Vec<String>)> {
    const SEPARATORS: [char; 4] = ['-', '.', '_', ' '];
    let (mut words, mut places) = (Vec::new(), Vec::new());
    let text = path.to_string_lossy().to_lowercase();
    let mut parts = text.split('/').peekable();
    while let Some(part) = parts.next() {
        let is_folder = parts.peek().is_some();
        for word in part.split(SEPARATORS).filter(|word| !word.bytes().any(|byte| byte.is_ascii_digit())) {
            if is_split(word) {
                places.push((words.len(), is_folder && word == part));
            }
            words.push(word.to_owned());
        }
        words.push("/".to_owned());
    }
    let around = |(at, is_all): (usize, bool)| {
        let mut around = if is_all { words[..=at].to_vec() } else { words.clone() };
        (std::mem::take(&mut around[at]), around)
    };
    places.into_iter().map(around).collect()
}

/// Whether the classes of an image folder are splits that contain the classes: `train` and `val`, `training_set` and `test_set`, `seg_train` and `seg_test`.
pub(super) fn are_splits(names: &[String]) -> bool {
    let has = |name: &String, is_one: fn(&str) -> bool| words(name).any(is_one);
    names.len() > 1
        && names.iter().any(|name| has(name, is_train))
        && names.iter().all(|name| has(name, is_split))
}

/// Whether the classes of a folder of images are versions or parts of one set of classes: `original` and `augmented`, `fold1` and `fold2`, each with the same `folders`.
pub(super) fn are_arranged(names: &[String], folders: &[Vec<String>]) -> bool {
    let is_arranged = |name: &String| words(name).any(|word| is_among(word, &ARRANGED));
    let Some(first) = folders.first().filter(|first| first.len() > 1) else { return false };
    names.len() > 1 && names.iter().all(is_arranged) && folders.iter().all(|folder| folder == first)
}

/// Whether folders in a class are splits of it.
pub(super) fn are_splits_of_a_class(names: &[String]) -> bool {
    names.iter().any(|name| is_train(name)) && names.iter().any(|name| is_other(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several_of(names: &[&str]) -> Option<String> {
        several_as(names, true)
    }

    fn several_as(names: &[&str], are_texts: bool) -> Option<String> {
        several(&names.iter().map(PathBuf::from).collect::<Vec<_>>(), are_texts)
    }

    #[test]
    fn files_that_differ_in_the_name_of_a_split_are_of_several() {
        for names in [
            &[
                "d/train-00000-of-00002.parquet",
                "d/train-00001-of-00002.parquet",
                "d/test-00000-of-00001.parquet",
            ][..],
            &["train.jsonl", "valid.jsonl"],
            &["en_train.csv", "en_dev.csv"],
            &["train/a.txt", "test/b.txt"],
            &["/d/test/train/a.txt", "/d/test/val/c/b.txt"],
            &[
                "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",
                "data/validation-00000-of-00001-12ab.parquet",
            ],
            &["wiki.train.tokens", "wiki.valid.tokens"],
            &["TRAIN.txt", "Test.txt"],
            &["a/b.txt", "squad-training.json", "squad-eval.json"],
            &["shard_train_0.tar", "shard_val_12.tar"],
            &["train_2.txt", "train_3.txt", "evaluation_1.txt"],
        ] {
            let told = several_of(names).unwrap();
            assert!(told.contains("of different splits") && told.contains("data.validation"), "{told}");
        }
        for names in [
            &["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"][..],
            &["validation.jsonl", "test.jsonl"],
            &["train.py", "test.py"],
            &["docs/test.md", "docs/train.md"],
            &["train.txt", "testament.txt"],
            &["train_log.txt", "test_plan.txt"],
            &["trains/a.txt", "tests/a.txt"],
            &["test/train-0.txt", "test/train-1.txt"],
            &["test/a/train.txt", "test/b/train.txt"],
            &["a.txt", "b.txt"],
            &[],
        ] {
            assert_eq!(several_of(names), None, "{names:?}");
        }
    }

    /// The layout of The Pile, mC4 and others.
    #[test]
    fn of_other_files_than_texts_one_that_is_called_after_a_split_is_enough() {
        for names in [
            &["train/00.jsonl.zst", "val.jsonl.zst", "test.jsonl.zst"][..],
            &["c4-de-validation.tfrecord-00000-of-00001.json.gz", "c4-de.tfrecord-00000-of-00001.json.gz"],
            &["corpus-test.jsonl", "corpus.jsonl"],
            &["corpus.jsonl", "corpus_heldout.jsonl"],
            &["testset/a.csv", "trainset/a.csv"],
            &["default/partial-train/0000.parquet", "default/partial-test/0000.parquet"],
            &["c/train.clean.100/0000.parquet", "c/test.clean/0000.parquet"],
            &["en-train/0.parquet", "en-dev/0.parquet"],
            &["news.devtest.tsv", "news.train.tsv"],
            &["test/train.jsonl", "test/test.jsonl"],
            &["/d/my-test/a_train-0.parquet", "/d/my-test/a_test-0.parquet"],
        ] {
            assert!(several_as(names, false).is_some(), "{names:?}");
        }
        for names in [
            &["test-0.jsonl", "test-1.jsonl"][..],
            &["/d/test/a.jsonl", "/d/test/b.jsonl"],
            &["contest.jsonl", "latest.jsonl"],
            &["test/train-0.jsonl", "test/train-1.jsonl"],
            &["a.parquet", "b.parquet"],
        ] {
            assert_eq!(several_as(names, false), None, "{names:?}");
        }
    }

    #[test]
    fn classes_are_splits_where_all_of_them_are_called_so() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (of, is_one) in [
            (&["train", "val"][..], true),
            (&["Train", "Test", "valid"], true),
            (&["test_set", "training_set"], true),
            (&["seg_train", "seg_test"], true),
            (&["train2017", "val2017"], true),
            (&["testset", "trainset"], true),
            (&["train"], false),
            (&["test", "val"], false),
            (&["bus", "train"], false),
        ] {
            assert_eq!(are_splits(&names(of)), is_one, "{of:?}");
        }
    }

    #[test]
    fn classes_are_versions_or_parts_of_one_set_where_each_has_the_same_folders() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (two, other) = (names(&["cat", "dog"]), names(&["cat", "cow"]));
        for (of, folders, is_one) in [
            (&["augmented", "original"][..], [&two, &two], true),
            (&["fold1", "fold2"], [&two, &two], true),
            (&["raw_images", "resized_images"], [&two, &two], true),
            (&["Part 1", "Part 2"], [&two, &two], true),
            (&["augmented", "original"], [&two, &other], false),
            (&["augmented", "original"], [&names(&[]), &names(&[])], false),
            (&["indoor", "outdoor"], [&two, &two], false),
            (&["parted", "folded"], [&two, &two], false),
        ] {
            let folders = folders.map(Clone::clone);
            assert_eq!(are_arranged(&names(of), &folders), is_one, "{of:?} {folders:?}");
        }
    }
}
