//! Held-out images of archives and of IDX files, in any order.

use super::*;
use crate::Values;

/// Returns an archive of images of these classes.
fn archive(classes: &[u32]) -> Vec<u8> {
    let image = fixture("folder/square/04.png");
    let files: Vec<(String, Vec<u8>)> = classes
        .iter()
        .enumerate()
        .flat_map(|(at, class)| {
            [(format!("{at:06}.png"), image.clone()), (format!("{at:06}.cls"), class.to_string().into())]
        })
        .collect();
    tar(&files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect::<Vec<_>>())
}

/// Returns IDX files of images of these classes.
fn idx(classes: &[u32]) -> [Vec<u8>; 2] {
    let count = (classes.len() as u32).to_be_bytes();
    let images =
        [&[0, 0, 8, 3][..], &count, &[0, 0, 0, 4, 0, 0, 0, 4], &vec![7; 16 * classes.len()]].concat();
    let labels = classes.iter().map(|class| *class as u8).collect::<Vec<_>>();
    [images, [&[0, 0, 8, 1][..], &count, &labels].concat()]
}

/// Returns the training and held-out images of each class, and the report.
fn sides(folder: &Folder, sources: &str, count: u32, share: f64) -> ([Vec<u64>; 2], String) {
    let lines = format!(
        "image = {{ channels = 1, height = 4, width = 4, classes = {count} }}\nvalidation_share = {share}\n{sources}"
    );
    let data = open(folder.path(), &lines).unwrap();
    let mut sides = [vec![0; count as usize], vec![0; count as usize]];
    for (_, _, class) in samples(&data, 0..data.samples()) {
        sides[0][class as usize] += 1;
    }
    for batch in data.validation(1000, 64) {
        let batch = batch.unwrap();
        for image in batch.micro_batches(1) {
            let Values::Images(bytes) = image.values() else { panic!("images have no tokens") };
            sides[1][usize::from(bytes[bytes.len() - 2])] += 1;
        }
    }
    (sides, data.class_gaps().to_string())
}

#[test]
fn no_class_is_held_out_as_a_whole_however_an_archive_or_an_idx_file_is_ordered() {
    let each = |classes: u32, of: u32| (0..classes).flat_map(move |class| vec![class; of as usize]);
    let turns = |classes: u32, all: u32| (0..all).map(move |at| at % classes);
    let orders: [(&str, u32, f64, Vec<u32>); 10] = [
        ("class by class", 4, 0.05, each(4, 40).collect()),
        ("backwards", 4, 0.05, each(4, 40).collect::<Vec<_>>().into_iter().rev().collect()),
        ("many small classes", 10, 0.1, each(10, 10).collect()),
        ("two classes", 2, 0.2, each(2, 25).collect()),
        ("in turns", 5, 0.2, turns(5, 100).collect()),
        ("in turns of the share", 10, 0.1, turns(10, 200).collect()),
        ("half", 3, 0.5, each(3, 12).collect()),
        ("a large class first", 2, 0.1, [vec![0; 150], vec![1; 30]].concat()),
        ("a large class last", 2, 0.1, [vec![0; 30], vec![1; 150]].concat()),
        ("in batches", 5, 0.1, (0..200).map(|at| at / 10 % 5).collect()),
    ];
    for (order, count, share, classes) in orders {
        let folder = Folder::new();
        folder.write("a.tar", archive(&classes));
        let [images, labels] = idx(&classes);
        folder.write("a-idx3-ubyte", images);
        folder.write("a-idx1-ubyte", labels);
        for source in ["{ path = \"a.tar\" }", "{ path = \"a-idx3-ubyte\", labels = \"a-idx1-ubyte\" }"] {
            let ([trained, held_out], told) = sides(&folder, &format!("sources = [{source}]"), count, share);
            let wanted = (classes.len() as f64 * share) as u64;
            assert_eq!(held_out.iter().sum::<u64>(), wanted, "{order}");
            for class in 0..count {
                let all = classes.iter().filter(|of| **of == class).count() as u64;
                let (trained, held_out) = (trained[class as usize], held_out[class as usize]);
                assert_eq!(trained + held_out, all, "{order}, class {class}");
                assert!(trained > 0 && held_out > 0, "{order}, class {class}: {trained} and {held_out}");
            }
            assert_eq!(told, "", "{order}");
        }
    }
}

#[test]
fn classes_on_one_side_alone_are_told() {
    let folder = Folder::new();
    folder.write("few.tar", archive(&[0, 0, 1, 1, 2, 2]));
    folder.write("all.tar", archive(&[0, 1, 2, 0, 1, 2]));
    folder.write("two.tar", archive(&[0, 1, 0, 1]));
    folder.write("last.tar", archive(&[2, 2]));
    for (lines, words) in [
        (
            "sources = [{ path = \"all.tar\" }]\nvalidation = [{ path = \"two.tar\" }]",
            "no sample of class 2 is held out",
        ),
        (
            "sources = [{ path = \"two.tar\" }]\nvalidation = [{ path = \"all.tar\" }]",
            "warning: all samples of class 2 are held out, and none is trained on",
        ),
        (
            "sources = [{ path = \"two.tar\" }]\nvalidation = [{ path = \"last.tar\" }]",
            "and none is trained on: give it more, or name held-out data under data.validation; no sample of classes 0, 1 is held out",
        ),
        (
            "sources = [{ path = \"two.tar\" }, { path = \"last.tar\" }]\nvalidation = [{ path = \"all.tar\" }]",
            "",
        ),
        ("sources = [{ path = \"all.tar\" }]\nvalidation_share = 0.0", ""),
        (
            "sources = [{ path = \"few.tar\" }]\nvalidation_share = 0.2",
            "is held out, so that the accuracy says nothing of it",
        ),
    ] {
        let lines = format!("image = {{ channels = 1, height = 4, width = 4, classes = 3 }}\n{lines}");
        let data = open(folder.path(), &lines).unwrap();
        let told = data.class_gaps().to_string();
        assert!(told.contains(words) && told.is_empty() == words.is_empty(), "{lines}: {told}");
    }
}

#[test]
fn held_out_images_are_part_of_the_data_s_name() {
    let folder = Folder::new();
    folder.write("a.tar", archive(&[0, 0, 1, 1]));
    let hash = |share: f64| {
        let lines = format!("{SMALL}\nvalidation_share = {share}\nsources = [{{ path = \"a.tar\" }}]");
        let data = open(folder.path(), &lines).unwrap();
        (data.data_hash(), data.samples())
    };
    let (none, half) = (hash(0.0), hash(0.5));
    assert!(none.0 != half.0 && (none.1, half.1) == (4, 2));
    // Not the last two.
    let lines = format!("{SMALL}\nvalidation_share = 0.5\nsources = [{{ path = \"a.tar\" }}]");
    let mut classes: Vec<u32> =
        images(&open(folder.path(), &lines).unwrap()).into_iter().map(|(_, class)| class).collect();
    classes.sort_unstable();
    assert_eq!(classes, [0, 1]);
}

/// Supplies no block.
#[derive(Debug)]
struct Nobody;

impl crate::Supply for Nobody {
    fn expect(&self, _: crate::BlockName) -> bool {
        true
    }

    fn bring(&self, _: crate::BlockName) -> Result<(), DataError> {
        Err(DataError::Stopped)
    }
}

#[test]
fn who_has_no_files_holds_out_the_same_images() {
    let folder = Folder::new();
    folder.write("a.tar", archive(&[0, 0, 0, 0, 1, 1, 1, 1]));
    let lines = format!("{SMALL}\nvalidation_share = 0.25\nsources = [{{ path = \"a.tar\" }}]");
    let data = open(folder.path(), &lines).unwrap();
    let elsewhere = |catalogue: &crate::Catalogue| {
        let place = Folder::new();
        let config = config(&lines);
        let stock =
            crate::BlockStore::open(&config, catalogue, &Tokenizer::Bytes, (place.path(), None)).unwrap();
        let supply: std::sync::Arc<dyn crate::Supply> = std::sync::Arc::new(Nobody);
        Dataset::elsewhere(&config, &Tokenizer::Bytes, catalogue, &stock, &supply)
    };
    let catalogue = data.catalogue(&Tokenizer::Bytes);
    assert_eq!(catalogue.sources[0].held_out, [3, 4]);
    let other = elsewhere(&catalogue).unwrap();
    assert_eq!((other.data_hash(), other.samples()), (data.data_hash(), 6));
    let places = |data: &Dataset| (0..12).map(|position| data.visit(position, 5).sample).collect::<Vec<_>>();
    assert_eq!(places(&other), places(&data));
    for (held_out, words) in
        [(vec![3, 9], "images that it does not have"), (vec![3, 0], "images that it does not")]
    {
        let mut wrong = catalogue.clone();
        wrong.sources[0].held_out = held_out;
        assert!(elsewhere(&wrong).unwrap_err().to_string().contains(words));
    }
}
