//! Several files of a run's sources are prepared at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use longhaul_common::config::{DataConfig, DataFormat, DataSource};

use super::bad_budget::BadBudget;
use super::folder::class_names;
use super::lease::Lease;
use super::origin::Origin;
use super::pipeline::{Makers, with_makers};
use super::prepared::{Maker, Prepared};
use super::source::{Source, files_of};
use super::{DataError, Recipe};

/// Files that are read at a time: enough that the disk has something to write while others are hashed, and each has a piece of up to some 20 MB in memory.
const READERS_MAX: usize = 8;

/// A source that is to be prepared.
pub(super) struct Plan<'a> {
    source: &'a DataSource,
    recipe: Recipe,
    bad: BadBudget,
    /// With their bytes.
    files: Vec<(Origin, u64)>,
}

/// One of its files.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) file: &'a Origin,
    pub(super) bytes: u64,
    pub(super) recipe: &'a Recipe,
    pub(super) bad: &'a BadBudget,
    /// Among the source's files.
    pub(super) place: usize,
}

impl<'a> Plan<'a> {
    /// Looks which files there are.
    pub(super) fn new(
        source: &'a DataSource,
        config: &DataConfig,
        maker: &Maker<'_>,
    ) -> Result<Self, DataError> {
        let with_bytes = |file: Origin| file.bytes().map(|bytes| (file, bytes));
        let files = files_of(source, maker.cache)?.into_iter().map(with_bytes).collect::<Result<_, _>>()?;
        let bad = BadBudget::new(config.bad_records_max);
        Ok(Self { source, recipe: Recipe::new(source, config, maker), bad, files })
    }

    fn wanted(&self) -> impl Iterator<Item = Wanted<'_>> {
        let Self { recipe, bad, .. } = self;
        let files = self.files.iter().enumerate();
        files.map(move |(place, (file, bytes))| Wanted { file, bytes: *bytes, recipe, bad, place })
    }
}

/// Whether classes are called the same in all folders of images: a class is the place of its name among all.
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

/// Prepares what is not prepared.
///
/// # Errors
/// That of the first file that has one, though others may have failed before.
pub(super) fn prepare(
    plans: Vec<Plan<'_>>,
    maker: Maker<'_>,
    lease: &Arc<Lease>,
) -> Result<Vec<Source>, DataError> {
    let wanted: Vec<Wanted<'_>> = plans.iter().flat_map(Plan::wanted).collect();
    let mut prepared = prepare_files(&wanted, maker, lease)?.into_iter();
    let sources = plans.iter().map(|plan| {
        let files = prepared.by_ref().take(plan.files.len()).collect();
        Source::new(plan.source, plan.recipe.clone(), maker, files, Arc::clone(lease))
    });
    Ok(sources.collect())
}

fn prepare_files(wanted: &[Wanted<'_>], maker: Maker<'_>, lease: &Lease) -> Result<Vec<Prepared>, DataError> {
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
            // It was given up because another one failed, or a stop was asked for.
            None | Some(Err(DataError::Stopped)) => is_stopped = true,
            Some(Err(error)) => return Err(error),
        }
    }
    if is_stopped { Err(DataError::Stopped) } else { Ok(prepared) }
}

/// Takes one file after the other that nobody has taken.
fn prepare_each<'a>(
    wanted: &[Wanted<'a>],
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
