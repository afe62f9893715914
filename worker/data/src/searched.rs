//! The folder in which a pattern found no file.

use std::path::Path;

/// Names that are told.
const NAMED_MAX: usize = 5;

/// The pattern, its folder, and the first names there, or in the nearest folder above it that is there.
pub(super) fn searched(folder: &Path, below: &str) -> String {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let shown = folder.display();
    let there = match names_in(&folder) {
        Ok(names) => return format!("`{below}` was looked for in {shown}, which {}", has(&names)),
        Err(_) if folder.is_file() => "is no folder".to_owned(),
        Err(_) if !folder.exists() => "is not there".to_owned(),
        Err(error) => format!("cannot be read ({error})"),
    };
    let above = folder.ancestors().skip(1).find_map(|above| Some((above, names_in(above).ok()?)));
    let above = above.map(|(above, names)| format!("; {} {}", above.display(), has(&names)));
    format!("`{below}` was looked for in {shown}, which {there}{}", above.unwrap_or_default())
}

/// The names of what is in a folder, in order; of folders with a stroke behind them.
fn names_in(folder: &Path) -> std::io::Result<Vec<String>> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry?;
        let stroke = if entry.path().is_dir() { "/" } else { "" };
        Ok::<_, std::io::Error>(format!("{}{stroke}", entry.file_name().to_string_lossy()))
    };
    let mut names = std::fs::read_dir(folder)?.map(name).collect::<std::io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

fn has(names: &[String]) -> String {
    let first = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        _ if names.is_empty() => "is empty".to_owned(),
        0 => format!("has {first}"),
        more => format!("has {first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_and_its_first_names_are_told_or_those_of_the_nearest_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path();
        std::fs::create_dir_all(place.join("full/sub")).unwrap();
        std::fs::create_dir(place.join("empty")).unwrap();
        for name in ["b.txt", "a.txt", "c", "d", "e.csv", ".f"] {
            std::fs::write(place.join("full").join(name), "text").unwrap();
        }
        let shown = place.display();
        for (name, below, expected) in [
            (
                "full",
                "*.jsonl",
                format!(
                    "`*.jsonl` was looked for in {shown}/full, which has .f, a.txt, b.txt, c, d and 2 more"
                ),
            ),
            ("full/sub", "**", format!("`**` was looked for in {shown}/full/sub, which is empty")),
            (
                "none/at/all",
                "?",
                format!("in {shown}/none/at/all, which is not there; {shown} has empty/, full/"),
            ),
            ("full/c", "*", format!("in {shown}/full/c, which is no folder; {shown}/full has .f, a.txt")),
        ] {
            let told = searched(&place.join(name), below);
            assert!(told.contains(&expected), "{told}");
        }
        std::fs::remove_file(place.join("full/e.csv")).unwrap();
        std::fs::remove_file(place.join("full/.f")).unwrap();
        assert!(searched(&place.join("full"), "*").ends_with("which has a.txt, b.txt, c, d, sub/"));
    }
}
