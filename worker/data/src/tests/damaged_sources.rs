//! Files that contradict their names: readers refuse them or read their content, with little memory.

use std::process::Command;

use longhaul_common::config::DataSource;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::cache::files;
use crate::origin::Origin;
use crate::records;

/// Damaged copies of each file.
const COPIES: u64 = 400;
/// Limit of mapped memory in KiB: libtorch takes most of it, and readers of files of some KiB must not need the rest.
const MEMORY_MAX_KIB: u64 = 4 << 20;

/// Random values for lengths in a file.
const LENGTHS: [u64; 6] = [0, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 40, u64::MAX];

#[test]
fn damaged_and_truncated_files_of_each_format_are_refused_or_read_in_little_memory() {
    let test = concat!(module_path!(), "::with_little_memory");
    let (_, test) = test.split_once("::").unwrap();
    let command = format!("ulimit -v {MEMORY_MAX_KIB}; exec \"$0\" --exact {test} --ignored --nocapture");
    let output =
        Command::new("sh").arg("-c").arg(command).arg(std::env::current_exe().unwrap()).output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    let end: Vec<&str> = told.lines().rev().take(20).collect();
    assert!(output.status.success() && told.contains("1 passed"), "{}: {end:#?}", output.status);
}

/// Meaningful only with a memory limit.
#[test]
#[ignore = "runs in a process of its own"]
fn with_little_memory() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data");
    let (folder, mut random) = (Folder::new(), ChaCha8Rng::seed_from_u64(3));
    let mut read = 0;
    let mut files = files(&fixtures).unwrap();
    files.sort();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for copy in 0..COPIES {
            folder.write(name, damaged(&whole, copy, &mut random));
            read += u32::from(read_all(&folder, name).is_ok());
        }
    }
    assert!(read > 0, "the damage is such that nothing can be read");
}

/// Returns a file with changed bytes, an early end, or a repeated part.
fn damaged(whole: &[u8], copy: u64, random: &mut ChaCha8Rng) -> Vec<u8> {
    let (mut bytes, len) = (whole.to_vec(), whole.len());
    match copy % 4 {
        0 => bytes.truncate(random.random_range(0..len)),
        1 => (0..random.random_range(1..9))
            .for_each(|_| bytes[random.random_range(0..len)] ^= 1 << random.random_range(0..8)),
        2 => {
            let length = LENGTHS[random.random_range(0..LENGTHS.len())].to_le_bytes();
            let width = [2, 4, 8][random.random_range(0..3)];
            // Most lengths are at the ends of a file.
            let place = random.random_range(0..len - 8);
            let place = if random.random_bool(0.5) { place } else { place % 300 };
            let place = if random.random_bool(0.5) { place } else { len - 8 - place };
            bytes[place..place + width].copy_from_slice(&length[..width]);
        }
        _ => {
            let (from, to) = (random.random_range(0..len), random.random_range(0..len));
            let part = whole[from..len.min(from + 64)].to_vec();
            bytes.splice(to..to, part);
        }
    }
    bytes
}

fn read_all(folder: &Folder, name: &str) -> Result<(), DataError> {
    let cache = Cache::open(&folder.path().join("cache"), None)?;
    let (tokenizer, work) = (Tokenizer::Bytes, Work::default());
    let maker = Maker { cache: &cache, tokenizer: &tokenizer, work: &work, piece_bytes: 1000 };
    let path = folder.path().join(name);
    let mut source = DataSource::file(path.clone());
    source.column =
        source.format().is_table().then(|| "body".to_owned()).map(longhaul_common::config::Column::Name);
    let recipe = maker.recipe(&source, &config("path = \"a\"\nsequence_length = 8")).unwrap();
    let mut records = records::open(&Origin::Local(path), &recipe, &cache)?;
    while records.next_record()?.is_some() {}
    Ok(())
}
