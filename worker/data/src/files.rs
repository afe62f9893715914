//! Discovery of a source's files.

use std::path::{Path, PathBuf};

use longhaul_common::config::{DataFormat, DataLabels, DataPlace, DataSource, DataUrl};
use walkdir::WalkDir;

use super::bounds::FILES_MAX;
use super::brackets::{check_path, literally, of_a_shell};
use super::cache::Cache;
use super::folder::FolderImage;
use super::origin::Origin;
use super::passed::{self, PassedOver, Reason};
use super::path_pattern::{self, PathPattern};
use super::records::{by_name, is_packed_by_name, is_packed_nothing};
use super::remote::RemoteFile;
use super::searched::searched;
use super::table_logs::table_of;
use super::{
    DataError, built, copies, folder, leftover, own, saved_sets, sets, several_kinds, splits, token_index,
};

/// Upper bound in bytes of a compressed file checked for empty content: gzip stores a name, and tools concatenate members. Longer ones are checked when read.
const PACKED_NOTHING_BYTES_MAX: u64 = 1 << 12;

/// The files at a source's place.
pub(super) struct Found {
    /// In the order of their names.
    pub(super) files: Vec<Origin>,
    /// The images of a folder of images.
    pub(super) images: Option<Vec<FolderImage>>,
    pub(super) passed: PassedOver,
}

impl Found {
    /// Leaves out empty files. If all files are empty, the reader reports it.
    fn pass_over_empty(&mut self, format: DataFormat) {
        if self.files.len() < 2 {
            return;
        }
        let reasons: Vec<Option<Reason>> = self.files.iter().map(|file| why_empty(file, format)).collect();
        if reasons.iter().all(Option::is_some) {
            return;
        }
        for (file, reason) in std::mem::take(&mut self.files).into_iter().zip(reasons) {
            match reason {
                Some(reason) => self.passed.add(reason, file.path()),
                None => self.files.push(file),
            }
        }
    }
}

/// Returns the reason why a file is empty; `None`: it has content, as far as known without reading much of it.
fn why_empty(file: &Origin, format: DataFormat) -> Option<Reason> {
    let (bytes, is_packed) = (file.bytes().ok()?, is_packed_by_name(file.path()));
    match file {
        // A folder of texts may have empty files, but a compressed empty text has bytes.
        _ if bytes == 0 && format == DataFormat::Text && !is_packed => Some(Reason::EmptyText),
        _ if bytes == 0 => Some(Reason::Empty),
        Origin::Local(path) if is_packed && bytes <= PACKED_NOTHING_BYTES_MAX => {
            is_packed_nothing(path, format).then_some(Reason::EmptyPacked)
        }
        _ => None,
    }
}

/// Returns the files of a source. In a strict configuration, possibly missing files are an error.
pub(super) fn files_of(source: &DataSource, is_strict: bool, cache: &Cache) -> Result<Found, DataError> {
    let all = |files| Found { files, images: None, passed: PassedOver::default() };
    let mut found = match source.place() {
        DataPlace::Path(path) => {
            if !source.format().is_of_images() || source.format() == DataFormat::Webdataset {
                check_path(path)?;
            }
            check_kind(path, source.format())?;
            check_rows(path, source.format())?;
            let files = labelled(vec![Origin::Local(path.to_owned())], source, cache)?;
            if source.format() == DataFormat::Images {
                let (images, passed) = folder::listing(path)?;
                Found { files, images: Some(images), passed }
            } else {
                all(files)
            }
        }
        DataPlace::Url(url) => {
            let files = remote(url, source, cache)?;
            check_names(source, files.iter().map(Origin::path))?;
            all(labelled(files, source, cache)?)
        }
        DataPlace::Glob(pattern) => {
            let (paths, passed) = matches_of(pattern)?;
            if source.format() == DataFormat::Parquet
                && let Some(reason) = table_of(&paths)
            {
                return Err(DataError::Pattern { pattern: source.to_string(), reason });
            }
            check_names(source, paths.iter().map(PathBuf::as_path))?;
            if let Some(reason) = copies::told(&paths) {
                return Err(DataError::Pattern { pattern: source.to_string(), reason });
            }
            if is_strict && let Some(reason) = splits::several(&paths, source.format() == DataFormat::Text) {
                let reason = format!("{reason}; or, if it is meant so, strict_files = false");
                return Err(DataError::Pattern { pattern: source.to_string(), reason });
            }
            Found { passed, ..all(paths.into_iter().map(Origin::Local).collect()) }
        }
    };
    found.pass_over_empty(source.format());
    check_indexes(&found.files, source)?;
    let lost = found.passed.lost();
    if is_strict && lost.count() > 0 {
        return Err(DataError::PassedOver { name: source.to_string(), lost });
    }
    if found.files.is_empty() {
        return Err(DataError::Pattern {
            pattern: source.to_string(),
            reason: nothing_found(source, &found.passed),
        });
    }
    Ok(found)
}

/// Refuses a file that is named alone and has rows that do not count, as files beside it say.
fn check_rows(path: &Path, format: DataFormat) -> Result<(), DataError> {
    let of_table = || table_of(&[path.to_owned()]).filter(|_| format == DataFormat::Parquet);
    match saved_sets::selection_of(path).or_else(of_table) {
        Some(reason) => Err(DataError::Folder { path: path.to_owned(), reason }),
        None => Ok(()),
    }
}

/// Refuses local files of tokens that an index beside them contradicts, prepared or not: the index may be newer. Remote files are taken as they are.
fn check_indexes(files: &[Origin], source: &DataSource) -> Result<(), DataError> {
    let (format, is_said) = (source.format(), source.format.is_some());
    if !format.is_of_tokens() {
        return Ok(());
    }
    files.iter().try_for_each(|file| match file {
        Origin::Local(path) => token_index::check(path, format, is_said),
        Origin::Remote(_) | Origin::Labelled { .. } => Ok(()),
    })
}

/// Refuses files named as another format than the pattern, which determines the format of all of them.
fn check_names<'p>(
    source: &DataSource,
    mut paths: impl Iterator<Item = &'p Path> + Clone,
) -> Result<(), DataError> {
    if source.format.is_some() {
        return Ok(());
    }
    if let Some(reason) = several_kinds::told(paths.clone()) {
        return Err(DataError::Pattern { pattern: source.to_string(), reason });
    }
    let format = source.format();
    let Some(other) = paths.find(|path| DataFormat::of(path) != format) else { return Ok(()) };
    let reason = format!(
        "it matches {}, whose name is that of {}, and itself it ends as that of {}, which all its files would be read as: say with format what they are, or name each kind by a pattern of its own",
        other.display(),
        name_of(DataFormat::of(other)),
        name_of(format)
    );
    Err(DataError::Pattern { pattern: source.to_string(), reason })
}

/// Returns the name of a format as written in a configuration.
pub(super) fn name_of(format: DataFormat) -> String {
    serde_json::to_string(&format).unwrap_or_default()
}

/// Returns the message for a pattern without matches, with the content of its folder.
fn nothing_found(source: &DataSource, passed: &PassedOver) -> String {
    let mut reason = "it matches no file".to_owned();
    if let DataPlace::Glob(pattern) = source.place()
        && let Ok(pattern) = PathPattern::new(pattern)
    {
        reason = format!("{reason}: {}", searched(&pattern.root, pattern.below.as_str()));
    }
    if let DataPlace::Glob(pattern) = source.place()
        && let Some(words) = literally(pattern).or_else(|| of_a_shell(pattern).map(str::to_owned))
    {
        reason = format!("{reason}; {words}");
    }
    if passed.count() > 0 { format!("{reason}; {passed}") } else { reason }
}

/// Returns the files that a pattern matches, by name, and the matches left out.
fn matches_of(pattern: &str) -> Result<(Vec<PathBuf>, PassedOver), DataError> {
    let refused = |reason: String| DataError::Pattern { pattern: pattern.to_owned(), reason };
    let pattern = PathPattern::new(pattern).map_err(|error| refused(path_pattern::told(&error)))?;
    let (mut files, mut passed) = (Vec::new(), PassedOver::default());
    let mut walk = WalkDir::new(&pattern.root).follow_links(true).min_depth(1).into_iter();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                let path = error.path().unwrap_or(&pattern.root);
                match passed::reason_of(&error) {
                    // A link to a folder may lead to files.
                    Some(Reason::DanglingLink)
                        if pattern.matches(path) || path.extension().is_none() && pattern.leads_to(path) =>
                    {
                        passed.add(Reason::DanglingLink, path)
                    }
                    Some(reason @ (Reason::Unreadable | Reason::Circle))
                        if pattern.matches(path) || pattern.leads_to(path) =>
                    {
                        passed.add(reason, path)
                    }
                    _ => {}
                }
                continue;
            }
        };
        let (path, kind) = (entry.path(), entry.file_type());
        let found = pattern.matches(path);
        if kind.is_dir() {
            let is_within = pattern.leads_to(path);
            if is_within && passed::is_folder_above(&entry, &pattern.root) {
                passed.add(Reason::FolderAbove, path);
                walk.skip_current_dir();
                continue;
            }
            if is_within && own::is_kept(path, true) {
                passed.add(Reason::Own, path);
                walk.skip_current_dir();
                continue;
            }
            if is_within && leftover::is_folder(path, pattern.below.as_str()) {
                passed.add(Reason::Leftover, path);
                walk.skip_current_dir();
                continue;
            }
            if found && !is_within {
                passed.add(if own::is_folder(path) { Reason::Own } else { Reason::Folder }, path);
            } else if !is_within && pattern.would_lead_to(path) {
                passed.add(Reason::Hidden, path);
            }
            if !is_within {
                walk.skip_current_dir();
            }
        } else if found && own::is_kept(path, false) {
            passed.add(Reason::Own, path);
        } else if found
            && (leftover::is_mark(path)
                || leftover::is_cache(path) && !pattern.below.as_str().contains(leftover::CACHE))
        {
            passed.add(Reason::Leftover, path);
        } else if kind.is_file() && found {
            built::check_name(path)?;
            files.push(pattern.shown(path));
        } else if found {
            passed.add(Reason::NoFile, path);
        } else if pattern.would_match(path) {
            passed.add(Reason::Hidden, path);
        }
        if files.len() > FILES_MAX {
            return Err(refused(format!(
                "it matches more than {FILES_MAX} files: put several into one, or divide them among sources"
            )));
        }
    }
    files.sort_unstable();
    let missing =
        sets::missing(&files, |path| pattern.matches(path)).map_err(|wrong| refused(wrong.told()))?;
    missing.iter().for_each(|path| passed.add(Reason::MissingPart, path));
    let missing = saved_sets::missing(&files, |path| pattern.matches(path)).map_err(refused)?;
    missing.iter().for_each(|path| passed.add(Reason::MissingPart, path));
    let skipped = sets::skipped(&files, |path| pattern.matches(path));
    skipped.iter().for_each(|path| passed.add(Reason::Gap, path));
    Ok((files, passed))
}

/// Adds the labels of each file, if the source has any.
fn labelled(files: Vec<Origin>, source: &DataSource, cache: &Cache) -> Result<Vec<Origin>, DataError> {
    let labels = match &source.labels {
        None => return Ok(files),
        Some(DataLabels::Path(path)) => vec![Origin::Local(path.clone())],
        Some(DataLabels::Url(url)) => remote(url, source, cache)?,
    };
    let pair = |(images, labels)| Origin::Labelled { images: Box::new(images), labels: Box::new(labels) };
    Ok(files.into_iter().zip(labels).map(pair).collect())
}

fn remote(url: &DataUrl, source: &DataSource, cache: &Cache) -> Result<Vec<Origin>, DataError> {
    let files = RemoteFile::find(url, source.endpoint.as_deref(), cache)?;
    Ok(files.into_iter().map(Origin::Remote).collect())
}

/// Checks that image sources, and no others, are folders; a missing path is reported when it is opened.
fn check_kind(path: &Path, format: DataFormat) -> Result<(), DataError> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let known = by_name(path).filter(|_| metadata.is_dir()).map(|known| format!("it is {known}"));
    let reason = match (metadata.is_dir(), format == DataFormat::Images) {
        (false, _) if !metadata.is_file() => {
            "it is neither a file nor a folder (a pipe, a socket or a device): write its content into a file"
        }
        (true, false) => {
            "it is a folder: take a glob for the files in it, as \"FOLDER/*.txt\", or, of images, format = \"images\""
        }
        (false, true) => {
            "it is no folder, and format = \"images\" is of one with a folder for each class: leave the format out, or name the folder"
        }
        _ => return Ok(()),
    };
    let reason = known.unwrap_or_else(|| reason.to_owned());
    Err(DataError::Folder { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs::{create_dir_all, write};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a folder with these files, and returns the matches of a pattern below it and those left out.
    fn found(files: &[&str], pattern: &str) -> Result<(Vec<String>, String), String> {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            let path = folder.path().join(name);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, "text").unwrap();
        }
        symlink(folder.path().join("nowhere"), folder.path().join("gone.txt")).unwrap();
        symlink(folder.path(), folder.path().join("circle")).unwrap();
        let whole = format!("{}/{pattern}", folder.path().display());
        let (paths, passed) = matches_of(&whole).map_err(|error| error.to_string())?;
        let below = |path: PathBuf| path.strip_prefix(folder.path()).unwrap().to_string_lossy().into_owned();
        let passed = passed.to_string().replace(&format!("{}/", folder.path().display()), "");
        Ok((paths.into_iter().map(below).collect(), passed))
    }

    #[test]
    fn a_pattern_takes_what_shells_and_python_take_and_counts_what_it_leaves() {
        let files = [
            "a.txt",
            "b.txt",
            ".c.txt",
            "d.csv",
            "sub/e.txt",
            "sub/.git/f.txt",
            "sub/deep/g.txt",
            "s[1]/h.txt",
        ];
        for (pattern, taken, passed) in [
            (
                "*.txt",
                vec!["a.txt", "b.txt"],
                "2 passed over: 1 link that leads nowhere (gone.txt); 1 hidden (.c.txt)",
            ),
            ("a.txt", vec!["a.txt"], "0 passed over"),
            ("[ab].txt", vec!["a.txt", "b.txt"], "0 passed over"),
            (".*.txt", vec![".c.txt"], "0 passed over"),
            (
                "sub/*",
                vec!["sub/e.txt"],
                "1 passed over: 1 folder (`**` in a pattern takes what is in it) (sub/deep)",
            ),
            ("s*/*.txt", vec!["s[1]/h.txt", "sub/e.txt"], "0 passed over"),
            ("s[[]1[]]/*", vec!["s[1]/h.txt"], "0 passed over"),
            ("sub/**/*.txt", vec!["sub/deep/g.txt", "sub/e.txt"], "1 passed over: 1 hidden (sub/.git)"),
            ("sub/**", vec!["sub/deep/g.txt", "sub/e.txt"], "1 passed over: 1 hidden (sub/.git)"),
            ("sub/**/.git/*", vec!["sub/.git/f.txt"], "0 passed over"),
            ("*/f.txt", vec![], "1 passed over: 1 link to a folder that it is in (circle)"),
            ("none*", vec![], "0 passed over"),
            ("nowhere/*", vec![], "0 passed over"),
        ] {
            let (found, left) = found(&files, pattern).unwrap();
            assert_eq!(
                (found.iter().map(String::as_str).collect(), left.as_str()),
                (taken, passed),
                "{pattern}"
            );
        }
        let message = found(&files, "a[").unwrap_err();
        assert!(message.contains("a[") && message.contains("is written `[[]`"), "{message}");
    }

    /// `--data` puts a folder before patterns, whose name may have special characters.
    #[test]
    fn where_nothing_matches_the_folder_and_what_is_in_it_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("b[1]");
        create_dir_all(place.join("sub")).unwrap();
        write(place.join("a.txt"), "text").unwrap();
        let cache = Cache::open(&folder.path().join("cache"), None).unwrap();
        let shown = place.display();
        for (pattern, words) in [
            (
                "*.jsonl",
                format!(
                    "it matches no file: `*.jsonl` was looked for in {shown}, which has a.txt, sub/; relative"
                ),
            ),
            (
                "sub/*/*.txt",
                format!("`*/*.txt` was looked for in {shown}/sub, which is empty; relative patterns"),
            ),
            ("no/*.txt", format!("in {shown}/no, which is not there; {shown} has a.txt, sub/; relative")),
            ("s*", format!("in {shown}, which has a.txt, sub/; 1 passed over: 1 folder")),
        ] {
            let escaped = format!("{}/b[[]1[]]/{pattern}", folder.path().display());
            let source = DataSource { glob: Some(escaped), ..DataSource::default() };
            let refused = files_of(&source, false, &cache).map(|found| found.files.len()).unwrap_err();
            let message = refused.to_string();
            assert!(message.contains(&words) && message.contains("`--data` names"), "{message}");
        }
    }

    #[test]
    fn names_that_are_no_utf8_are_taken_as_any_others() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path().join("ok.txt"), "text").unwrap();
        write(folder.path().join(OsStr::from_bytes(b"caf\xe9.txt")), "text").unwrap();
        let (paths, passed) = matches_of(&format!("{}/*.txt", folder.path().display())).unwrap();
        assert_eq!((paths.len(), passed.count()), (2, 0));
    }
}
