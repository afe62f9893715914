//! A look at a run's sources, of which nothing is prepared.

use std::path::{Path, PathBuf};

use longhaul_common::config::{DataConfig, DataFormat};

use super::bad_budget::BadBudget;
use super::cache::Cache;
use super::dataset::check_separator;
use super::files::files_of;
use super::origin::Origin;
use super::passed::PassedOver;
use super::piece::{BadRecords, EXAMPLES_MAX};
use super::prepared::Maker;
use super::recipe::PIECE_BYTES;
use super::records::{self, Record, check_unknown};
use super::{DataError, Dataset, Recipe, Tokenizer, Work, built};

/// Bytes of a source that are read for its defects: a second or two. A preparation finds those further on.
const READ_BYTES_MAX: u64 = 1 << 28;

/// What a run's sources have.
#[derive(Debug, Default)]
pub struct Looked {
    /// Files that are read.
    pub files: Vec<SourceFile>,
    /// By source, what else is there.
    pub passed: Vec<(String, PassedOver)>,
    /// Why a source would be refused, as far as it was read.
    pub refused: Option<DataError>,
}

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Where it is: its path, or its URL without what only opens it.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Whether what it becomes is in the cache.
    pub is_prepared: bool,
}

impl Dataset {
    /// The files of a run's sources, whether they are prepared, and what would refuse those that are not. Nothing is prepared.
    ///
    /// # Errors
    /// [`DataError`] names the file and what to do.
    pub fn look(config: &DataConfig, tokenizer: &Tokenizer, cache: &Path) -> Result<Looked, DataError> {
        built::check(config)?;
        check_separator(config, tokenizer)?;
        let (cache, work) = (Cache::open(cache, None)?, Work::default());
        let maker = Maker { cache: &cache, tokenizer, work: &work, piece_bytes: PIECE_BYTES };
        let mut looked = Looked::default();
        for source in config.training().iter().chain(&config.validation) {
            let recipe = Recipe::new(source, config, &maker);
            let found = files_of(source, config.strict_files, &cache)?;
            if found.passed.count() > 0 {
                looked.passed.push((source.to_string(), found.passed));
            }
            let mut defects = Defects::new(config.bad_records_max);
            for (place, file) in found.files.into_iter().enumerate() {
                check_unknown(&file, &recipe, &cache)?;
                let bytes = file.bytes()?;
                let list = maker.find(&file, &recipe)?;
                let is_prepared = list.is_some();
                looked.files.push(SourceFile { path: file.path().to_owned(), bytes, is_prepared });
                if looked.refused.is_none() {
                    let sound = match list {
                        Some(list) => defects.bad.has_all(place, &list.bad),
                        None => defects.read(place, &file, &recipe, &cache),
                    };
                    looked.refused = sound.err();
                }
            }
        }
        Ok(looked)
    }
}

/// Records of a source's files that cannot be read.
struct Defects {
    bad: BadBudget,
    /// Bytes that may still be read.
    left: u64,
}

impl Defects {
    fn new(bad_records_max: u64) -> Self {
        Self { bad: BadBudget::new(bad_records_max), left: READ_BYTES_MAX }
    }

    /// Reads a file that is not prepared, the source's so many-th. Files elsewhere would have to be fetched, and images of folders decoded: these are passed over.
    ///
    /// # Errors
    /// That with which a preparation would end.
    fn read(&mut self, place: usize, file: &Origin, recipe: &Recipe, cache: &Cache) -> Result<(), DataError> {
        if self.left == 0 || !matches!(file, Origin::Local(_)) || recipe.format == DataFormat::Images {
            return Ok(());
        }
        let (mut records, mut bad) = (records::open(file, recipe, cache)?, BadRecords::default());
        let is_enough = |bad: &BadRecords| bad.count > self.bad.max() && bad.examples.len() == EXAMPLES_MAX;
        while records.read_bytes() < self.left && !is_enough(&bad) {
            match records.next_record()? {
                Some(Record::Bad { reason, count }) => bad.note(reason, count),
                Some(_) => {}
                None => break,
            }
        }
        self.left = self.left.saturating_sub(records.read_bytes());
        self.bad.has(place, &bad)
    }
}
