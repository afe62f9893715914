//! Inspection of a run's sources without preparing them.

use std::path::{Path, PathBuf};

use longhaul_common::config::{DataConfig, DataFormat};

use super::bad_budget::BadBudget;
use super::cache::Cache;
use super::dataset::check_separator;
use super::files::files_of;
use super::folder::check_classes;
use super::origin::Origin;
use super::passed::PassedOver;
use super::piece::{BadRecords, EXAMPLES_MAX, check_class};
use super::prepared::Maker;
use super::recipe::PIECE_BYTES;
use super::records::{self, Record, Records, check_unknown};
use super::{DataError, Dataset, Recipe, Tokenizer, Work, built};

/// The content of a run's sources.
#[derive(Debug)]
pub struct Looked {
    /// Files to be read.
    pub files: Vec<SourceFile>,
    /// Files left out, by source.
    pub passed: Vec<(String, PassedOver)>,
    sources: Vec<LookedSource>,
    cache: Cache,
}

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path, or its URL without secrets.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Whether its prepared data is in the cache.
    pub is_prepared: bool,
}

/// Defects of a run's sources, as far as read.
#[derive(Debug, Default)]
pub struct Defects {
    /// Reasons for refusing sources: the first of each, with those found at the starts of files before all others.
    pub refused: Vec<DataError>,
    /// Unprepared files not read to their end, of sources without a reason for refusal.
    pub unread: u64,
}

/// A source, with its files as far as known.
#[derive(Debug)]
struct LookedSource {
    recipe: Recipe,
    bad_records_max: u64,
    /// Files, with the bad records of prepared ones.
    files: Vec<(Origin, Option<BadRecords>)>,
}

/// A file being checked for defects.
struct Reading {
    records: Box<dyn Records>,
    bad: BadRecords,
    /// Bytes of its good records.
    taken: u64,
}

impl Dataset {
    /// Lists the files of a run's sources, and whether they are prepared. Neither prepares nor reads any file.
    ///
    /// # Errors
    /// [`DataError`] names the file and the remedy.
    pub fn look(config: &DataConfig, tokenizer: &Tokenizer, cache: &Path) -> Result<Looked, DataError> {
        built::check(config)?;
        check_separator(config, tokenizer)?;
        let (cache, work) = (Cache::open(cache, None)?, Work::default());
        let maker = Maker { cache: &cache, tokenizer, work: &work, piece_bytes: PIECE_BYTES };
        let (mut files, mut passed, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for source in config.training().iter().chain(&config.validation) {
            let recipe = maker.recipe(source, config)?;
            let found = files_of(source, config.strict_files, &cache)?;
            if found.passed.count() > 0 {
                passed.push((source.to_string(), found.passed));
            }
            let mut its_files = Vec::with_capacity(found.files.len());
            for file in found.files {
                let (bytes, list) = (file.bytes()?, maker.find(&file, &recipe)?);
                files.push(SourceFile { path: file.path().to_owned(), bytes, is_prepared: list.is_some() });
                its_files.push((file, list.map(|list| list.bad)));
            }
            sources.push(LookedSource { recipe, bad_records_max: config.bad_records_max, files: its_files });
        }
        Ok(Looked { files, passed, sources, cache })
    }
}

impl Looked {
    /// Bytes of decompressed content read from all files together: a second or two. Later defects are left to the preparation.
    pub const BYTES_MAX: u64 = 1 << 28;

    /// Returns the defects of unprepared files: in their first bytes, and in up to [`Self::BYTES_MAX`] of the records of local ones, source by source.
    /// Finds bad records, files to refuse as a whole, classes out of range, and a wrong number of classes in a folder of images. Tokenises and decodes
    /// nothing.
    #[must_use]
    pub fn defects(&self) -> Defects {
        self.defects_within(Self::BYTES_MAX)
    }

    /// The same with another limit in bytes.
    pub(super) fn defects_within(&self, mut left: u64) -> Defects {
        let (mut defects, mut sound) = (Defects::default(), Vec::new());
        // The preparation also checks the start of each file first.
        for source in &self.sources {
            match source.check_beginnings(&self.cache) {
                Ok(()) => sound.push(source),
                Err(error) => defects.refused.push(error),
            }
        }
        for source in sound {
            match source.read(&mut left, &self.cache) {
                Ok(unread) => defects.unread += unread,
                Err(error) => defects.refused.push(error),
            }
        }
        defects
    }
}

impl LookedSource {
    fn check_beginnings(&self, cache: &Cache) -> Result<(), DataError> {
        let unprepared = self.files.iter().filter(|(_, known)| known.is_none());
        unprepared.map(|(file, _)| file).try_for_each(|file| check_unknown(file, &self.recipe, cache))
    }

    /// Reads its files while bytes are left, and returns the number not read to their end.
    ///
    /// # Errors
    /// The error with which the preparation would end.
    fn read(&self, left: &mut u64, cache: &Cache) -> Result<u64, DataError> {
        let (budget, mut unread) = (BadBudget::new(self.bad_records_max), 0);
        for (place, (file, known)) in self.files.iter().enumerate() {
            match known {
                Some(known) => budget.has_all(place, known)?,
                None => {
                    let (bad, is_read) = self.read_file(file, left, cache)?;
                    budget.has(place, &bad)?;
                    unread += u64::from(!is_read);
                }
            }
        }
        Ok(unread)
    }

    /// Returns the bad records of a file, and whether it was read to its end. Skips remote files, which would have to be fetched, and folders of images, which
    /// would have to be decoded.
    fn read_file(
        &self,
        file: &Origin,
        left: &mut u64,
        cache: &Cache,
    ) -> Result<(BadRecords, bool), DataError> {
        if self.recipe.format == DataFormat::Images {
            check_classes(file.path(), self.recipe.classes())?;
            return Ok((BadRecords::default(), false));
        }
        if *left == 0 || !file.is_here() {
            return Ok((BadRecords::default(), false));
        }
        let records = records::open(file, &self.recipe, cache)?;
        let mut reading = Reading { records, bad: BadRecords::default(), taken: 0 };
        let is_read = reading.go_on(*left, self);
        *left = left.saturating_sub(reading.content_bytes());
        Ok((reading.bad, is_read?))
    }
}

impl Reading {
    /// Reads up to `bytes` bytes, until enough defects are found. Returns whether the file ended.
    fn go_on(&mut self, bytes: u64, source: &LookedSource) -> Result<bool, DataError> {
        while self.content_bytes() < bytes && !self.has_enough(source.bad_records_max) {
            match self.records.next_record()? {
                Some(Record::Bad { reason, count }) => self.bad.note(reason, count),
                Some(record) => {
                    check_class(&record, source.recipe.image.as_ref())?;
                    self.taken += record.bytes();
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Returns the bytes of content read; for a table, whose reader decompresses parts of it, those of its texts, if more.
    fn content_bytes(&self) -> u64 {
        self.records.content_bytes().max(self.taken)
    }

    fn has_enough(&self, bad_records_max: u64) -> bool {
        self.bad.count > bad_records_max && self.bad.examples.len() == EXAMPLES_MAX
    }
}
