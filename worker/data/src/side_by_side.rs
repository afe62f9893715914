//! Parallel preparation of a run's files.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use longhaul_common::config::{DataConfig, DataFormat, DataSource};
use rayon::prelude::*;

use super::bad_budget::BadBudget;
use super::cache::read_document;
use super::files::{Found, files_of};
use super::filling::{Begun, Preparing};
use super::folder::{
    FolderImage, check_classes as check_class_count, class_names, identity, seen_of, state_of,
};
use super::lease::Lease;
use super::origin::Origin;
use super::passed::PassedOver;
use super::pipeline::{Makers, with_makers};
use super::prepared::{Maker, PieceList, Prepared, WantedFile, list_name};
use super::recipe::NARROW_VOCABULARY_MAX;
use super::records::check_unknown;
use super::source::Source;
use super::source_size::SourceSize;
use super::stamp::Stamp;
use super::{DataError, Recipe};

/// Files read in parallel: enough to keep the disk busy during hashing; each has a piece of up to some 20 MB in memory.
const READERS_MAX: usize = 8;

/// A source to prepare.
pub(super) struct Plan<'a> {
    source: &'a DataSource,
    recipe: Recipe,
    bad: BadBudget,
    /// Files, with their bytes.
    files: Vec<(Origin, u64)>,
    /// The images of a folder of images.
    images: Option<Vec<FolderImage>>,
    identity: Option<[u8; 32]>,
    /// Files left out.
    passed: PassedOver,
}

/// The time of decoding a folder of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Before use.
    First,
    /// During use.
    Meanwhile,
}

/// Refuses two-byte tokens of a vocabulary that needs more: ids from 65,536 on were truncated.
fn check_width(file: &Origin, vocabulary: u32) -> Result<(), DataError> {
    if vocabulary <= NARROW_VOCABULARY_MAX {
        return Ok(());
    }
    let what = format!(
        "read as tokens of two bytes, and the tokenizer has {vocabulary}, of which these cannot name those from {NARROW_VOCABULARY_MAX} on: write them in four bytes and say format = \"tokens-u32\", or name the tokenizer that they are of"
    );
    Err(DataError::OtherContent { path: file.path().to_owned(), what })
}

/// Refuses files that are both trained on and held out. Training sources come first.
///
/// # Errors
/// Names the file and both sources.
pub(super) fn check_held_out(plans: &[Plan<'_>], training: usize) -> Result<(), DataError> {
    let place = |file: &Origin| file.path().canonicalize().unwrap_or_else(|_| file.path().to_owned());
    let (training, held_out) = plans.split_at(training.min(plans.len()));
    if plans.len() < 2 {
        return Ok(());
    }
    let mut trained = HashMap::new();
    for plan in training {
        for (file, _) in &plan.files {
            if let Some(other) = trained.insert(place(file), plan.source) {
                let path = file.path().display();
                tracing::warn!(%path, source = %plan.source, %other, "a file is in two sources, and trained on in both");
            }
        }
    }
    for plan in held_out {
        for (file, _) in &plan.files {
            if let Some(source) = trained.get(&place(file)) {
                return Err(DataError::Pattern {
                    pattern: plan.source.to_string(),
                    reason: format!(
                        "it holds out {}, which the source {source} trains on: leave it out of one of the two, or hold a part out with data.validation_share",
                        file.path().display()
                    ),
                });
            }
        }
    }
    Ok(())
}

/// Logs held-out files whose content equals that of a training file.
pub(super) fn tell_held_out(training: &[Arc<Source>], held_out: &[Arc<Source>]) {
    let trained: HashMap<_, _> =
        training.iter().flat_map(|source| source.contents()).map(|(path, became)| (became, path)).collect();
    for (path, became) in held_out.iter().flat_map(|source| source.contents()) {
        if let Some(other) = trained.get(&became) {
            let (path, other) = (path.display(), other.display());
            tracing::warn!(%path, %other, "a file is held out, and trained on under another name");
        }
    }
}

impl<'a> Plan<'a> {
    /// Lists the files of a source.
    pub(super) fn new(
        source: &'a DataSource,
        config: &DataConfig,
        maker: &Maker<'_>,
    ) -> Result<Self, DataError> {
        let (recipe, bad) = (maker.recipe(source, config)?, BadBudget::new(config.bad_records_max));
        let Found { files, images, passed } = files_of(source, config.strict_files, maker.cache)?;
        if passed.count() > 0 {
            tracing::info!(%source, %passed, "some files are left out");
        }
        if let (DataFormat::TokensU16, Some(file)) = (recipe.format, files.first()) {
            check_width(file, recipe.vocabulary)?;
        }
        files.par_iter().try_for_each(|file| check_unknown(file, &recipe, maker.cache))?;
        let bytes_of_folder = images.as_deref().map(|images| state_of(images).bytes);
        let with_bytes = |file: Origin| {
            let bytes = bytes_of_folder.map_or_else(|| file.bytes(), Ok)?;
            Ok((file, bytes))
        };
        let files = files.into_iter().map(with_bytes).collect::<Result<_, DataError>>()?;
        let identity = images.as_deref().map(identity);
        Ok(Self { source, recipe, bad, files, images, identity, passed })
    }

    /// Opens a folder of images for decoding during use; `None`: it is prepared already, or no such folder.
    fn begin(
        &mut self,
        when: When,
        maker: Maker<'_>,
        lease: &Arc<Lease>,
    ) -> Result<Option<Preparing>, DataError> {
        let (When::Meanwhile, Some(images)) = (when, &self.images) else { return Ok(None) };
        let Some((origin, _)) = self.files.first() else { return Ok(None) };
        check_class_count(origin.path(), self.recipe.classes())?;
        // A folder that is probably prepared is checked before the run: hashing is cheaper than decoding, and takes no room.
        if let Some(stamp) = Stamp::likely(origin.path(), &seen_of(images), maker.cache)? {
            let list = maker.cache.list(&list_name(&stamp.hash, origin, &self.recipe));
            if read_document::<PieceList>(&list)?.is_some() {
                return Ok(None);
            }
        }
        let images = self.images.take().unwrap_or_default();
        let (origin, recipe, bad_records_max) = (origin.clone(), self.recipe.clone(), self.bad.max());
        let begun = Begun { origin, images, recipe, bad_records_max };
        Preparing::begin(begun, maker.cache, lease).map(Some)
    }

    /// Checks that a prepared folder is the listed one.
    fn check(&self, source: &Source) -> Result<(), DataError> {
        let (Some(images), Some((origin, _))) = (&self.images, self.files.first()) else { return Ok(()) };
        let is_same = source.items() == images.len() as u64 && origin.state()? == [state_of(images)];
        if is_same { Ok(()) } else { Err(DataError::Changed { path: origin.path().to_owned() }) }
    }

    fn wanted(&self) -> impl Iterator<Item = WantedFile<'_>> {
        let Self { recipe, bad, .. } = self;
        let files = self.files.iter().enumerate();
        files.map(move |(place, (file, bytes))| WantedFile { file, bytes: *bytes, recipe, bad, place })
    }
}

/// Checks that classes have equal names in all folders of images: a class is the index of its name.
///
/// # Errors
/// Names the first two that differ.
pub(super) fn check_classes(plans: &[Plan<'_>]) -> Result<(), DataError> {
    let of_images = plans.iter().filter(|plan| plan.recipe.format == DataFormat::Images);
    let mut folders = of_images.flat_map(|plan| &plan.files).map(|(file, _)| file.path());
    let Some(first) = folders.next() else { return Ok(()) };
    let classes = class_names(first)?;
    for folder in folders {
        let others = class_names(folder)?;
        if let Some((own, other)) = classes.iter().zip(&others).find(|(own, other)| own != other) {
            let reason = format!(
                "it has a class {other} where {} has {own}: a class is the place of its folder among the names of all, so each source has the same names",
                first.display()
            );
            return Err(DataError::Folder { path: folder.to_owned(), reason });
        }
    }
    Ok(())
}

/// Prepares the unprepared sources.
///
/// # Errors
/// The error of the first file in order that failed, even if another failed earlier.
pub(super) fn prepare(
    mut plans: Vec<Plan<'_>>,
    when: When,
    maker: Maker<'_>,
    lease: &Arc<Lease>,
) -> Result<Vec<Source>, DataError> {
    let begin = |plan: &mut Plan<'_>| plan.begin(when, maker, lease);
    let coming: Vec<Option<Preparing>> = plans.iter_mut().map(begin).collect::<Result<_, _>>()?;
    // Removes leftovers of dead processes, except those that this one has resumed.
    maker.cache.sweep()?;
    let first = plans.iter().zip(&coming).filter(|(_, coming)| coming.is_none());
    let wanted: Vec<WantedFile<'_>> = first.flat_map(|(plan, _)| plan.wanted()).collect();
    let mut prepared = prepare_files(&wanted, maker, lease)?.into_iter();
    let sources = plans.iter().zip(coming).map(|(plan, coming)| {
        let (recipe, lease) = (plan.recipe.clone(), Arc::clone(lease));
        let Some(coming) = coming else {
            let files = prepared.by_ref().take(plan.files.len()).collect();
            let source = Source::new(plan.source, recipe, maker, files, lease)
                .called(plan.identity)
                .beside(plan.passed.clone());
            plan.check(&source)?;
            tell(plan.source, &source.size());
            return Ok(source);
        };
        let unlisted = |(file, bytes): &(Origin, u64)| Prepared::unlisted(file, *bytes, &recipe);
        let files = plan.files.iter().map(unlisted).collect();
        let source = Source::coming(plan.source, recipe, maker, files, lease, coming);
        Ok(source.called(plan.identity).beside(plan.passed.clone()))
    });
    sources.collect()
}

/// Logs peculiarities of an accepted source.
fn tell(source: &DataSource, size: &SourceSize) {
    let SourceSize { empty_classes: empty, unknown, marks, same, notes, conversations, .. } = size;
    if same.count() > 0 {
        tracing::warn!(%source, %same, "a source has duplicate files");
    }
    if empty.count() > 0 {
        tracing::warn!(%source, %empty, "a source has no sample of some classes");
    }
    if unknown.are_many() {
        tracing::warn!(%source, %unknown, "the tokenizer lacks tokens for much of a source");
    } else if unknown.count() > 0 {
        tracing::info!(%source, %unknown, "the tokenizer lacks tokens for some of a source");
    }
    if !notes.are_none() {
        tracing::info!(%source, %notes, "a source has peculiarities, and is used unchanged");
    }
    if conversations.are_of_texts() {
        tracing::info!(%source, texts = %conversations, "a source has labelled texts");
    } else if !conversations.are_zero() {
        tracing::info!(%source, %conversations, "a source has conversations");
    }
    if marks.count() > 0 {
        tracing::info!(%source, %marks, "a source has byte order marks within its text");
    }
}

fn prepare_files(
    wanted: &[WantedFile<'_>],
    maker: Maker<'_>,
    lease: &Lease,
) -> Result<Vec<Prepared>, DataError> {
    wanted.iter().for_each(|wanted| maker.work.expects(wanted.bytes));
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    results.lock().unwrap_or_else(PoisonError::into_inner).resize_with(wanted.len(), || None);
    with_makers(maker, lease, |makers| {
        thread::scope(|scope| {
            for _ in 0..READERS_MAX.min(wanted.len()) {
                scope.spawn(|| prepare_each(wanted, maker, makers, &next, &results));
            }
        });
    });
    let (mut prepared, mut is_stopped) = (Vec::with_capacity(wanted.len()), false);
    for result in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
        match result {
            Some(Ok(file)) => prepared.push(file),
            // It ended because another one failed, or on a stop.
            None | Some(Err(DataError::Stopped)) => is_stopped = true,
            Some(Err(error)) => return Err(error),
        }
    }
    if is_stopped { Err(DataError::Stopped) } else { Ok(prepared) }
}

/// Prepares files in order, skipping those taken by other threads.
fn prepare_each<'a>(
    wanted: &[WantedFile<'a>],
    maker: Maker<'a>,
    makers: &Makers<'a>,
    next: &AtomicUsize,
    results: &Mutex<Vec<Option<Result<Prepared, DataError>>>>,
) {
    while let Some((index, file)) = {
        let index = next.fetch_add(1, Ordering::Relaxed);
        wanted.get(index).map(|file| (index, file))
    } {
        let result = maker.prepare(file, makers);
        if result.is_err() {
            makers.fail();
        }
        results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
    }
}
