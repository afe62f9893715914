//! The machine's requirements for the tarball's programs and libraries, read from their headers.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, SectionTable};
use object::{Endianness, ReadCache, ReadRef};

use crate::dist::sums;

/// Libraries missing from the tarball, with the newest versions of their symbols that it requires.
#[derive(Debug, Default)]
pub struct Requirements {
    /// By library name: the newest of each family of versions, such as `GLIBC_2.34`.
    libraries: BTreeMap<String, Vec<String>>,
}

/// Requirements of one file.
#[derive(Debug, Default)]
struct Needs {
    libraries: BTreeSet<String>,
    /// Library and version.
    versions: BTreeSet<(String, String)>,
}

impl Requirements {
    /// Returns the requirements of all files below a folder.
    ///
    /// # Errors
    /// Returns an error if a program or a library cannot be read.
    pub fn of(root: &Path) -> Result<Self> {
        let mut needs = Needs::default();
        let mut there = BTreeSet::new();
        for path in sums::files_below(root)? {
            if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
                there.insert(name.to_owned());
            }
            read(&root.join(&path), &mut needs)
                .with_context(|| format!("read the header of {}", path.display()))?;
        }
        Ok(Self::from_needs(&needs, &there))
    }

    fn from_needs(needs: &Needs, there: &BTreeSet<String>) -> Self {
        let mut libraries: BTreeMap<String, Vec<String>> =
            needs.libraries.difference(there).map(|name| (name.clone(), Vec::new())).collect();
        for (library, version) in &needs.versions {
            let Some(newest) = libraries.get_mut(library) else { continue };
            match newest.iter_mut().find(|other| family(other) == family(version)) {
                Some(other) if order(other, version) == Ordering::Less => other.clone_from(version),
                Some(_) => {}
                None => newest.push(version.clone()),
            }
        }
        Self { libraries }
    }

    /// Returns the library names with the newest versions required.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.libraries.iter().map(|(name, versions)| (name.as_str(), versions.as_slice()))
    }

    /// Returns the newest required version of the C library, as `(2, 34)`.
    pub fn glibc(&self) -> Option<(u32, u32)> {
        let versions = self.libraries.values().flatten();
        let of_glibc = versions.filter_map(|version| version.strip_prefix("GLIBC_")?.split_once('.'));
        of_glibc.filter_map(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))).max()
    }

    /// Formats a table for the page.
    pub fn table(&self) -> String {
        let mut text = String::from("| library | with |\n| --- | --- |\n");
        for (name, versions) in self.iter() {
            writeln!(text, "| `{name}` | {} |", versions.join(", ")).expect("a String takes every text");
        }
        text
    }
}

/// Returns `GLIBC` for `GLIBC_2.34`.
fn family(version: &str) -> &str {
    version.rsplit_once('_').map_or(version, |(family, _)| family)
}

/// Orders by the numbers after the family's name.
fn order(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u32> {
        let (_, numbers) = version.rsplit_once('_').unwrap_or(("", version));
        numbers.split('.').filter_map(|number| number.parse().ok()).collect()
    };
    numbers(one).cmp(&numbers(other))
}

/// Adds the requirements of a file, if the loader reads it.
fn read(path: &Path, needs: &mut Needs) -> Result<()> {
    let file = ReadCache::new(File::open(path).context("open it")?);
    // The loader reads no other files.
    if !(&file).read_bytes_at(0, 4).is_ok_and(|magic| magic == object::elf::ELFMAG) {
        return Ok(());
    }
    let header = FileHeader64::<Endianness>::parse(&file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &file)?;
    read_libraries(&sections, endian, &file, needs)?;
    read_versions(&sections, endian, &file, needs)
}

type Sections<'data, R> = SectionTable<'data, FileHeader64<Endianness>, R>;

fn read_libraries<'data, R: ReadRef<'data>>(
    sections: &Sections<'data, R>,
    endian: Endianness,
    file: R,
    needs: &mut Needs,
) -> Result<()> {
    let Some((entries, strings)) = sections.dynamic(endian, file)? else { return Ok(()) };
    let strings = sections.strings(endian, file, strings)?;
    for entry in entries.iter().filter(|entry| entry.d_tag(endian) == DT_NEEDED) {
        needs.libraries.insert(text(entry.string(endian, strings)?));
    }
    Ok(())
}

fn read_versions<'data, R: ReadRef<'data>>(
    sections: &Sections<'data, R>,
    endian: Endianness,
    file: R,
    needs: &mut Needs,
) -> Result<()> {
    let Some((mut libraries, strings)) = sections.gnu_verneed(endian, file)? else { return Ok(()) };
    let strings = sections.strings(endian, file, strings)?;
    while let Some((library, mut versions)) = libraries.next()? {
        let library = text(library.file(endian, strings)?);
        while let Some(version) = versions.next()? {
            needs.versions.insert((library.clone(), text(version.name(endian, strings)?)));
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_each_family_is_what_is_wanted() {
        let pairs = [
            ("libc.so.6", "GLIBC_2.9"),
            ("libc.so.6", "GLIBC_2.34"),
            ("libc.so.6", "GLIBC_2.2.5"),
            ("libstdc++.so.6", "GLIBCXX_3.4.29"),
            ("libstdc++.so.6", "CXXABI_1.3.13"),
            ("libgomp.so.1", "OMP_1.0"),
        ];
        let needs = Needs {
            libraries: pairs.iter().map(|(library, _)| (*library).to_owned()).collect(),
            versions: pairs
                .iter()
                .map(|(library, version)| ((*library).to_owned(), (*version).to_owned()))
                .collect(),
        };
        // It is in the tarball.
        let there = BTreeSet::from(["libgomp.so.1".to_owned()]);
        let table = Requirements::from_needs(&needs, &there).table();
        let rows = "| `libc.so.6` | GLIBC_2.34 |\n| `libstdc++.so.6` | CXXABI_1.3.13, GLIBCXX_3.4.29 |\n";
        assert!(table.ends_with(rows), "{table}");
    }

    #[test]
    fn this_very_program_needs_the_c_library_and_a_text_needs_nothing() {
        let mut needs = Needs::default();
        read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")), &mut needs).unwrap();
        assert!(needs.libraries.is_empty());
        read(&std::env::current_exe().unwrap(), &mut needs).unwrap();
        assert!(needs.libraries.contains("libc.so.6"), "{needs:?}");
        assert!(
            needs
                .versions
                .iter()
                .any(|(library, version)| library == "libc.so.6" && family(version) == "GLIBC")
        );
    }
}
