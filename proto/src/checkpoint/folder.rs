//! A checkpoint in its own folder: its files and their records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_common::id::{Generation, Round, RunId, WorkerId};
use longhaul_common::model::ModelSpec;
use serde::{Deserialize, Serialize};

use super::{parse_folder_name, parse_part_name, sealed};

/// Manifest of the checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// Parameters.
pub const MODEL: &str = "model.safetensors";
/// Adapters beside a pretrained model, under PEFT's name.
pub const ADAPTER: &str = "adapter_model.safetensors";
/// Trained parameters of a pretrained model, where the others are frozen.
pub const TRAINED: &str = "trained.safetensors";

/// Maximum bytes of a manifest or record, which is a few lines long.
pub const DOCUMENT_BYTES_MAX: u64 = 1 << 20;

/// `manifest.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Run, in hexadecimal.
    pub run: String,
    /// First round not contained.
    pub next_round: Round,
    /// First step not contained.
    pub next_step: u64,
    /// Generation that wrote it; 0 in manifests of older releases.
    #[serde(default)]
    pub generation: Generation,
    /// Hash of the synchronised state, in hexadecimal.
    pub state_hash: String,
    /// Version of the worker that wrote it.
    pub software: String,
    /// Blocks of the model that it covers, as starts and ends of chunks; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<(u32, u32)>>,
    /// Size of the tensor group and rank in it, from 0; `None`: each layer is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<(u32, u32)>,
    /// Files of the model; empty if only private states are present.
    pub files: BTreeMap<String, FileRecord>,
}

/// `private-w7.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateRecord {
    /// Owner of the state.
    pub worker: WorkerId,
    /// First round not contained.
    pub next_round: Round,
    /// Hash of the matching synchronised state, in hexadecimal.
    pub state_hash: String,
    /// Numbers by name.
    pub counters: BTreeMap<String, u64>,
    /// Files of the state.
    pub files: BTreeMap<String, FileRecord>,
}

/// Expected length and hash of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Length.
    pub bytes: u64,
    /// BLAKE3, in hexadecimal.
    pub blake3: String,
}

impl Manifest {
    /// Returns the part of the model that it covers; `None`: no possible part.
    #[must_use]
    pub fn part_of(&self, model: &ModelSpec) -> Option<ModelSpec> {
        super::part_of(model, self.chunks.as_deref(), self.share)
    }
}

impl FileRecord {
    /// Reads a file and returns its record.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let mut file = std::fs::File::open(path)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&mut file)?;
        Ok(Self { bytes: hasher.count(), blake3: hasher.finalize().to_hex().to_string() })
    }

    /// Describes how a found file differs, if it does.
    #[must_use]
    pub fn difference(&self, found: &Self) -> Option<String> {
        if self.bytes != found.bytes {
            return Some(format!("{} of {} bytes", found.bytes, self.bytes));
        }
        (self.blake3 != found.blake3).then(|| "its hash is not the recorded one".to_owned())
    }
}

/// Returns the name of a worker's private record.
#[must_use]
pub fn private_record_name(worker: WorkerId) -> String {
    format!("private-{worker}.json")
}

/// Returns the worker whose record has this name.
#[must_use]
pub fn private_record_of(name: &str) -> Option<WorkerId> {
    let number = name.strip_prefix("private-w")?.strip_suffix(".json")?;
    let worker = WorkerId(number.parse().ok()?);
    (private_record_name(worker) == name).then_some(worker)
}

/// A folder with a checkpoint's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Run by its path.
    pub run: RunId,
    /// Part of the model, from 0.
    pub rank: u32,
    /// Number of parts.
    pub parts: u32,
    /// First round not contained, by its name.
    pub next_round: Round,
    /// Path.
    pub path: PathBuf,
}

/// Lists the checkpoints in a folder of runs (a `checkpoint.dir`) by run and part, newest first.
///
/// # Errors
/// The folder cannot be read.
pub fn find(dir: &Path) -> std::io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for (name, run_folder) in folders(dir)? {
        let Ok(run) = name.parse::<RunId>() else { continue };
        let mut add = |(rank, parts), name: &str, path: PathBuf| {
            found.extend(parse_folder_name(name).map(|next_round| Found {
                run,
                rank,
                parts,
                next_round,
                path,
            }));
        };
        for (name, folder) in folders(&run_folder)? {
            match parse_part_name(&name) {
                None => add((0, 1), &name, folder),
                Some(part) => {
                    folders(&folder)?.into_iter().for_each(|(name, path)| add(part, &name, path));
                }
            }
        }
    }
    found.sort_by_key(|of| (of.run, std::cmp::Reverse(of.next_round), of.parts, of.rank));
    Ok(found)
}

impl Found {
    /// Reads the manifest and checks its run and round.
    ///
    /// # Errors
    /// The reason, for display.
    pub fn manifest(&self) -> Result<Manifest, String> {
        let manifest: Manifest = read_document(&self.path.join(MANIFEST))?;
        if manifest.run != self.run.to_string() || manifest.next_round != self.next_round {
            return Err(format!("{MANIFEST} is of run {} and {}", manifest.run, manifest.next_round));
        }
        Ok(manifest)
    }

    /// Reads all files that its documents name; returns the damaged ones, with reasons.
    #[must_use]
    pub fn damaged(&self) -> Vec<String> {
        let manifest = match self.manifest() {
            Ok(manifest) => manifest,
            Err(reason) => return vec![reason],
        };
        let mut damaged = self.differing(&manifest.files);
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut workers: Vec<WorkerId> = names.filter_map(|name| private_record_of(&name)).collect();
        workers.sort_unstable();
        for worker in workers {
            match read_document::<PrivateRecord>(&self.path.join(private_record_name(worker))) {
                Ok(record) => damaged.extend(self.differing(&record.files)),
                Err(reason) => damaged.push(reason),
            }
        }
        damaged
    }

    fn differing(&self, files: &BTreeMap<String, FileRecord>) -> Vec<String> {
        let difference = |(name, record): (&String, &FileRecord)| {
            let found = match FileRecord::of(&self.path.join(name)) {
                Ok(found) => record.difference(&found),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    Some("it is missing".to_owned())
                }
                Err(error) => Some(format!("it cannot be read: {error}")),
            };
            found.map(|reason| format!("{name}: {reason}"))
        };
        files.iter().filter_map(difference).collect()
    }
}

fn read_document<T: Serialize + serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let failed = |error: std::io::Error| format!("{name} cannot be read: {error}");
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > DOCUMENT_BYTES_MAX {
        return Err(format!("{name} has {bytes} bytes"));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    sealed::from_bytes(&bytes).map_err(|error| format!("{name}: {error}"))
}

/// Lists the folders in a folder by name, without hidden ones.
fn folders(dir: &Path) -> std::io::Result<Vec<(String, PathBuf)>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && !name.starts_with('.')
            && entry.path().is_dir()
        {
            folders.push((name, entry.path()));
        }
    }
    Ok(folders)
}
