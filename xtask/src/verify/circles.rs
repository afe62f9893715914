//! Modules of a crate that need each other in a circle, asserted on what they import from `crate::`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;

/// Where crates are.
const CRATES: [&str; 16] = [
    "common",
    "proto",
    "coordinator",
    "worker",
    "worker/checkpoint",
    "worker/collective",
    "worker/collective/nccl",
    "worker/data",
    "worker/engine",
    "worker/flight",
    "worker/launch",
    "worker/member",
    "worker/peer",
    "tests",
    "tests/emulator",
    "xtask",
];
/// Modules of tests, in which anything may be imported.
const OF_TESTS: [&str; 5] = ["tests", "scenarios", "simulation", "testing", "fuzz"];
/// Circles that are still there; none may grow, and one that is gone is struck out.
const KNOWN: [(&str, &[&str]); 1] = [("common", &["config", "model", "pipeline"])];

/// The modules at the top of a crate that have a folder, and which of all modules at its top each module needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    folders: BTreeSet<String>,
    of: BTreeMap<String, BTreeSet<String>>,
}

/// Checks all crates.
///
/// # Errors
/// Names the modules of each circle in which two folders are, and those that are gone.
pub fn check(checkout: &Checkout) -> Result<()> {
    let mut found = Vec::new();
    for name in CRATES {
        let needs = Needs::of(&checkout.root().join(name).join("src"))?;
        found.extend(needs.circles().into_iter().map(|circle| (name, circle)));
    }
    let is_known =
        |(name, circle): &(&str, Vec<String>)| KNOWN.iter().any(|(of, all)| of == name && circle == all);
    let mut wrong: Vec<String> = found
        .iter()
        .filter(|circle| !is_known(circle))
        .map(|(name, circle)| format!("{name}: {} need each other in a circle", circle.join(", ")))
        .collect();
    let is_gone =
        |(name, circle): &&(&str, &[&str])| !found.iter().any(|(of, all)| of == name && all == circle);
    wrong.extend(KNOWN.iter().filter(is_gone).map(|(name, circle)| {
        format!(
            "{name}: the circle of {} is gone: strike it out of xtask/src/verify/circles.rs",
            circle.join(", ")
        )
    }));
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

impl Needs {
    fn of(src: &Path) -> Result<Self> {
        let mut needs = Self::default();
        let entries = fs::read_dir(src).with_context(|| format!("list {}", src.display()))?;
        let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let name_of = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let names: BTreeSet<String> = paths.iter().map(|path| name_of(path)).collect();
        for path in &paths {
            if path.is_dir() {
                needs.folders.insert(name_of(path));
            }
            let mut imports = BTreeSet::new();
            collect(path, &mut imports)?;
            let own = name_of(path);
            imports.retain(|name| names.contains(name) && *name != own);
            needs.of.entry(own).or_default().extend(imports);
        }
        Ok(needs)
    }

    /// Modules that reach each other, where two of them are folders.
    fn circles(&self) -> Vec<Vec<String>> {
        let reached = |from: &str| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(name) = next.pop() {
                let needed = self.of.get(name).into_iter().flatten();
                next.extend(needed.filter(|name| seen.insert((*name).clone())).map(String::as_str));
            }
            seen
        };
        let reach: BTreeMap<&str, BTreeSet<String>> =
            self.of.keys().map(|name| (name.as_str(), reached(name))).collect();
        let mut circles = BTreeSet::new();
        for (name, all) in &reach {
            let others =
                all.iter().filter(|other| reach.get(other.as_str()).is_some_and(|back| back.contains(*name)));
            let circle: Vec<String> = others.cloned().collect();
            if circle.iter().filter(|name| self.folders.contains(*name)).count() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }
}

/// What a file, or all files of a folder, import from `crate::`, by the first name.
fn collect(path: &Path, imports: &mut BTreeSet<String>) -> Result<()> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    if OF_TESTS.contains(&&*name) {
        return Ok(());
    }
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("list {}", path.display()))? {
            collect(&entry?.path(), imports)?;
        }
        return Ok(());
    }
    if path.extension().is_some_and(|end| end == "rs") {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        imports.extend(imported(&text));
    }
    Ok(())
}

/// The first names behind `crate::` in code that is no test and no comment.
fn imported(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(group) => {
                let group = group.split(';').next().unwrap_or_default();
                names.extend(top_names(group));
            }
            None => names.extend(word(rest)),
        }
    }
    names
}

/// The first name of each path in a group, which may have groups within.
fn top_names(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut parts) = (0usize, 0, Vec::new());
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&group[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.into_iter().filter_map(word).collect()
}

fn word(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_read_from_code_alone() {
        let text = "//! crate::doc\nuse crate::{\n    a::{B, c}, d,\n};\nuse crate::e;\npub(crate) fn f() { crate::g::h() }\n#[cfg(test)]\nmod tests {\n    use crate::test;\n}\n";
        assert_eq!(imported(text), ["a", "d", "e", "g"].map(String::from).into());
    }

    #[test]
    fn a_circle_is_one_of_folders() {
        let needs = |folders: &[&str]| Needs {
            folders: folders.iter().map(|name| (*name).to_owned()).collect(),
            of: [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]
                .map(|(from, to)| (from.to_owned(), [to.to_owned()].into()))
                .into(),
        };
        assert_eq!(needs(&["a", "c", "d"]).circles(), [["a", "b", "c"].map(String::from).to_vec()]);
        assert_eq!(needs(&["a", "d"]).circles(), Vec::<Vec<String>>::new());
    }

    #[test]
    fn this_checkout_has_no_other_circles_than_are_known() {
        check(&Checkout::of_this_run()).unwrap();
    }
}
