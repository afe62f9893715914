//! Tables whose valid files are listed in a log: Delta Lake, Hudi, Iceberg. Files with deleted or changed rows stay beside the others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Folders of logs of Delta Lake and Hudi, in the folder of the table.
const LOGS: [(&str, &str, &str); 2] = [
    (
        "_delta_log",
        "a table of Delta Lake",
        "pyarrow.parquet.write_table(deltalake.DeltaTable(DIR).to_pyarrow_table(), OUT)",
    ),
    (".hoodie", "a table of Hudi", "write what its reader gives as Parquet"),
];
/// Iceberg's folder of logs, beside the folder of data.
const ICEBERG: &str = "metadata";
const ICEBERG_END: &str = ".metadata.json";

/// Describes such a table that contains one of these files, with a remedy. Links are followed, and folders above the working directory count.
pub(super) fn table_of(files: &[PathBuf]) -> Option<String> {
    let parents: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
    let linked = files.iter().filter(|file| file.is_symlink()).filter_map(|file| file.canonicalize().ok());
    let linked = linked.filter_map(|file| file.parent().map(Path::to_owned));
    let places = parents.iter().filter_map(|folder| Path::new(".").join(folder).canonicalize().ok());
    let places: BTreeSet<PathBuf> = places.chain(linked).collect();
    let as_named = parents.into_iter().flat_map(Path::ancestors);
    let mut folders = as_named.chain(places.iter().flat_map(|folder| folder.ancestors()));
    let mut seen = BTreeSet::new();
    folders.find_map(|folder| {
        if !seen.insert(folder) {
            return None;
        }
        let log = LOGS.iter().find(|(log, ..)| folder.join(log).is_dir());
        let (name, remedy) = match log {
            Some((_, name, remedy)) => (*name, *remedy),
            None if is_iceberg(folder) => {
                ("a table of Iceberg", "pyiceberg's `table.scan().to_arrow()` gives what counts: write that as Parquet")
            }
            None => return None,
        };
        Some(format!(
            "{} is {name}, whose log says which of its files count; others have rows that were deleted or changed: {remedy}",
            folder.display()
        ))
    })
}

fn is_iceberg(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder.join(ICEBERG)) else { return false };
    folder.join("data").is_dir()
        && entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(ICEBERG_END))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_with_a_log_are_known_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let of = |name: &str| table_of(&[file(name)]);
        assert_eq!(of("plain/day=1/a.parquet"), None);
        file("plain/metadata/about.json");
        assert_eq!(of("plain/data/a.parquet"), None);
        file("delta/_delta_log/0.json");
        assert!(of("delta/day=1/a.parquet").unwrap().contains("a table of Delta Lake"));
        file("hudi/.hoodie/hoodie.properties");
        assert!(of("hudi/a.parquet").unwrap().contains("a table of Hudi"));
        file("iceberg/metadata/v1.metadata.json");
        assert!(of("iceberg/data/a.parquet").unwrap().contains("a table of Iceberg"));
        std::fs::create_dir(folder.path().join("links")).unwrap();
        for (name, to) in [("links/day", "delta/day=1"), ("links/a.parquet", "hudi/a.parquet")] {
            std::os::unix::fs::symlink(folder.path().join(to), folder.path().join(name)).unwrap();
        }
        assert!(of("links/day/a.parquet").unwrap().contains("a table of Delta Lake"));
        assert!(table_of(&[folder.path().join("links/a.parquet")]).unwrap().contains("a table of Hudi"));
    }
}
