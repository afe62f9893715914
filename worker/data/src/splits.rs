//! Files that are parts of different splits by their names, as Hugging Face's `datasets` tells them: a pattern that matches several trains on what others evaluate with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::records::is_source_code;

const TRAIN: [&str; 2] = ["train", "training"];
/// Of validation and of tests.
const OTHERS: [&str; 8] = ["validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"];

/// Whether a name is that of a split.
fn is_split(name: &str) -> bool {
    is_train(name) || OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

fn is_train(name: &str) -> bool {
    TRAIN.iter().any(|train| name.eq_ignore_ascii_case(train))
}

/// Why these files are of several splits; none: they are not. They are where they differ in the name of a split and in numbers alone.
pub(super) fn several(files: &[PathBuf]) -> Option<String> {
    let mut trained = BTreeMap::<Vec<String>, &Path>::new();
    let mut others = BTreeMap::<Vec<String>, &Path>::new();
    for path in files.iter().filter(|path| !is_source_code(path)) {
        for (split, around) in splits_of(path) {
            if is_train(&split) { &mut trained } else { &mut others }.entry(around).or_insert(path);
        }
    }
    let (train, other) = trained.iter().find_map(|(around, train)| Some((train, others.get(around)?)))?;
    Some(format!(
        "it matches {} and {}, which by their names are of different splits, and others evaluate with one of them: name each split by a pattern of its own, what is to be held out under data.validation",
        train.display(),
        other.display()
    ))
}

/// The names of splits among the words of a path, and what is around each: all other words that are no numbers and no hashes, and of a folder those before it.
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

/// Whether the classes of a folder of images are splits, of which each has classes in it.
pub(super) fn are_splits(names: &[String]) -> bool {
    names.len() > 1 && names.iter().any(|name| is_train(name)) && names.iter().all(|name| is_split(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several_of(names: &[&str]) -> Option<String> {
        several(&names.iter().map(PathBuf::from).collect::<Vec<_>>())
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

    #[test]
    fn classes_are_splits_where_all_of_them_are_called_so() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (of, is_one) in [
            (&["train", "val"][..], true),
            (&["Train", "Test", "valid"], true),
            (&["train"], false),
            (&["test", "val"], false),
            (&["bus", "train"], false),
        ] {
            assert_eq!(are_splits(&names(of)), is_one, "{of:?}");
        }
    }
}
