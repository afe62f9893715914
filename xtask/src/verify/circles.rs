//! Circular dependencies between a crate's top-level modules, found in the paths in their code that start at
//! the crate's root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::checkout::Checkout;

/// Where crates are.
const CRATES: [&str; 21] = [
    "common",
    "proto",
    "coordinator",
    "coordinator/plan",
    "coordinator/run",
    "coordinator/sim",
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
    "tests/bench",
    "tests/emulator",
    "tests/run-toml",
    "xtask",
];
/// Test modules, which may import anything.
const OF_TESTS: [&str; 4] = ["tests", "scenarios", "testing", "fuzz"];
/// The top-level modules of a crate that have a folder, and the top-level modules that each of them uses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Needs {
    folders: BTreeSet<String>,
    of: BTreeMap<String, BTreeSet<String>>,
}

/// Checks all crates.
///
/// # Errors
/// Names the modules of each circle with two folders.
pub fn check(checkout: &Checkout) -> Result<()> {
    let mut wrong = Vec::new();
    for name in CRATES {
        let needs = Needs::of(&checkout.root().join(name).join("src"))?;
        let told = |circle: Vec<String>| format!("{name}: {} need each other in a circle", circle.join(", "));
        wrong.extend(needs.circles().into_iter().map(told));
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

impl Needs {
    fn of(src: &Path) -> Result<Self> {
        let mut needs = Self::default();
        let entries = fs::read_dir(src).with_context(|| format!("list {}", src.display()))?;
        let paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        let name_of = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let names: BTreeSet<String> = paths.iter().map(|path| name_of(path)).collect();
        let root = fs::read_to_string(src.join("lib.rs")).unwrap_or_default();
        let exported = exported(&root);
        for path in &paths {
            // A module with a folder of tests only counts as a file.
            if path.is_dir() && !has_tests_alone(path)? {
                needs.folders.insert(name_of(path));
            }
            let mut imports = BTreeSet::new();
            collect(path, 1, &mut imports)?;
            let own = name_of(path);
            let module =
                |name: String| if names.contains(&name) { Some(name) } else { exported.get(&name).cloned() };
            let imports = imports.into_iter().filter_map(module).filter(|name| *name != own);
            needs.of.entry(own.clone()).or_default().extend(imports);
        }
        needs.of.retain(|name, _| name != "lib" && name != "main");
        Ok(needs)
    }

    /// Returns the circles that contain at least two folders.
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

fn has_tests_alone(folder: &Path) -> Result<bool> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let names = entries.map(|entry| Ok(entry?.path().file_stem().unwrap_or_default().to_owned()));
    let names: Vec<_> = names.collect::<Result<_>>()?;
    Ok(names.iter().all(|name| OF_TESTS.iter().any(|of_tests| name == of_tests)))
}

/// Collects the top-level names that a file or all files of a folder use. `depth` is the number of modules
/// above the file.
fn collect(path: &Path, depth: usize, imports: &mut BTreeSet<String>) -> Result<()> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    if OF_TESTS.contains(&&*name) {
        return Ok(());
    }
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("list {}", path.display()))? {
            let path = entry?.path();
            let is_itself = path.file_name().is_some_and(|name| name == "mod.rs");
            collect(&path, if is_itself { depth } else { depth + 1 }, imports)?;
        }
        return Ok(());
    }
    if path.extension().is_some_and(|end| end == "rs") {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        imports.extend(imported(&text, depth));
    }
    Ok(())
}

/// Returns the code without tests and comments.
fn code_of(text: &str) -> String {
    let end =
        text.match_indices("#[cfg(test)]\n").map(|(at, _)| at).find(|at| is_module_of_tests(&text[*at..]));
    let lines = text[..end.unwrap_or(text.len())].lines();
    lines.filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Whether the test module of a file follows after some attributes.
fn is_module_of_tests(text: &str) -> bool {
    text.lines().find(|line| !line.starts_with("#[")).is_some_and(|line| line.starts_with("mod tests {"))
}

/// Returns the first names after `crate::`, or after as many `super::` as lead from a module of this depth to
/// the top.
fn imported(text: &str, depth: usize) -> BTreeSet<String> {
    let code = code_of(text);
    let (mut names, mut rest) = (BTreeSet::new(), code.as_str());
    while let Some((at, is_crate)) = next_root(rest) {
        rest = &rest[at..];
        let mut ups = 0;
        while let Some(after) = rest.strip_prefix("super::") {
            (ups, rest) = (ups + 1, after);
        }
        rest = rest.strip_prefix("crate::").unwrap_or(rest);
        if is_crate || ups == depth {
            match rest.strip_prefix('{') {
                Some(group) => names.extend(top_names(group.split(';').next().unwrap_or_default())),
                None => names.extend(word(rest)),
            }
        }
    }
    names
}

/// Returns the start of the next path from the root or a parent module, and whether it is from the root.
fn next_root(code: &str) -> Option<(usize, bool)> {
    let starts = |at: &usize| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    let next = |root: &str| code.match_indices(root).map(|(at, _)| at).find(starts);
    let found = [next("crate::").map(|at| (at, true)), next("super::").map(|at| (at, false))];
    found.into_iter().flatten().min()
}

/// Returns the re-exports of a crate's root, with their modules by name.
fn exported(root: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for rest in code_of(root).split("use ").skip(1) {
        let path = rest.split(';').next().unwrap_or_default();
        let path = path.strip_prefix("self::").unwrap_or(path);
        let Some(module) = word(path) else { continue };
        let last = path.rsplit("::").next().unwrap_or_default();
        let group = path.split_once('{').map(|(_, group)| group);
        let all = group.map_or_else(|| word(last).into_iter().collect(), top_names);
        names.extend(all.into_iter().map(|name| (name, module.clone())));
    }
    names
}

/// Returns the first name of each path in a group, which may contain groups.
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
    fn imports_are_read_from_code_alone_and_from_above() {
        let text = "//! crate::doc\nuse crate::{\n    a::{B, c}, d,\n};\nuse crate::e;\npub(crate) fn f() { crate::g::h() }\nuse super::i;\nuse super::super::{j, k::L};\n#[cfg(test)]\n#[cfg(feature = \"x\")]\nmod tests {\n    use crate::test;\n}\n";
        let names = |depth| imported(text, depth).into_iter().collect::<Vec<_>>().concat();
        assert_eq!(["adegi", "adegjk", "adeg"].map(str::to_owned), [1, 2, 3].map(names));
    }

    #[test]
    fn what_the_root_gives_out_is_of_its_module() {
        let root = "mod a;\npub use a::{B, c::D};\npub use self::e::F;\nuse g::h::I;\n";
        let found = exported(root);
        let of = |name: &str| found.get(name).map(String::as_str);
        assert_eq!(["B", "F", "I", "J"].map(of), [Some("a"), Some("e"), Some("g"), None]);
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
    fn this_checkout_has_no_circles() {
        check(&Checkout::of_this_run()).unwrap();
    }
}
