//! Consistency of the book: every page is in its table of contents, and all links resolve.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use longhaul_tests::tools::skipped;

use super::root;

/// Folders of the checkout whose files pages mention.
const FOLDERS: [&str; 9] =
    ["docs/", "examples/", "deploy/", "common/", "proto/", "coordinator/", "worker/", "tests/", "fuzz/"];

fn book() -> PathBuf {
    root().join("docs/book/src")
}

/// Returns name and text of each page, including the table of contents.
fn pages() -> Vec<(String, String)> {
    let names = files_of("", "md");
    names.into_iter().map(|name| (name.clone(), fs::read_to_string(book().join(name)).unwrap())).collect()
}

/// Returns the files of a folder of the book.
fn files_of(folder: &str, end: &str) -> Vec<String> {
    let files = fs::read_dir(book().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == end));
    files.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// Returns the targets of links and pictures of a page, outside code.
fn links(page: &str) -> Vec<String> {
    let prose: String = page.split("```").step_by(2).collect();
    let targets = prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    targets.filter(|target| !target.contains("://")).collect()
}

/// Returns mdBook's anchors of a page's headings: only letters, digits, `-` and `_` remain, and spaces become
/// hyphens.
fn anchors(page: &str) -> BTreeSet<String> {
    let prose: String = page.split("```").step_by(2).collect();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let contents = links(&fs::read_to_string(book().join("SUMMARY.md")).unwrap());
    let listed: BTreeSet<String> = contents.iter().cloned().collect();
    assert_eq!(listed.len(), contents.len(), "{contents:?}");
    let there: BTreeSet<String> =
        files_of("", "md").into_iter().filter(|name| name != "SUMMARY.md").collect();
    assert_eq!(listed, there);
}

#[test]
fn every_link_leads_to_a_page_and_a_heading_that_are_there() {
    let pages = pages();
    let text_of = |name: &str| pages.iter().find(|(page, _)| page == name).map(|(_, text)| text);
    let mut followed = 0;
    for (name, text) in &pages {
        for link in links(text) {
            followed += 1;
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if target.is_empty() { name } else { target };
            assert!(book().join(target).is_file(), "{name} leads to {link}, where no page of the book is");
            if !anchor.is_empty() {
                let anchors = anchors(text_of(target).unwrap());
                assert!(
                    anchors.contains(anchor),
                    "{name} leads to {link}, and that page has only {anchors:?}"
                );
            }
        }
    }
    assert!(followed > 50, "{followed}");
}

#[test]
fn every_picture_is_shown_somewhere() {
    let shown: BTreeSet<String> = pages().iter().flat_map(|(_, text)| links(text)).collect();
    let pictures = ["svg", "png"].into_iter().flat_map(|kind| files_of("figures", kind));
    for name in pictures {
        assert!(shown.contains(&format!("figures/{name}")), "no page shows {name}");
    }
}

#[test]
fn every_link_of_the_readme_leads_to_a_file_that_is_there_and_one_of_them_is_a_picture() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let here: Vec<_> = links(&readme).into_iter().filter(|link| !link.contains("://")).collect();
    for link in &here {
        assert!(root().join(link).exists(), "the README leads to {link}, which is nowhere");
    }
    assert!(here.iter().any(|link| link.ends_with(".png")), "{here:?}");
}

#[test]
fn every_file_of_the_checkout_that_a_page_names_is_there() {
    let mut named = 0;
    for (page, text) in pages() {
        let prose: String = text.split("```").step_by(2).collect();
        for span in prose.split('`').skip(1).step_by(2) {
            let is_path =
                FOLDERS.iter().any(|folder| span.starts_with(folder)) && !span.contains([' ', '*', '…']);
            if is_path {
                named += 1;
                assert!(root().join(span).exists(), "{page} names {span}, which is nowhere");
            }
        }
    }
    assert!(named > 20, "{named}");
}

/// Returns the values of an attribute in the content of mdBook's output.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    html.split(start.as_str()).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect()
}

/// Returns the content between navigation and scripts.
fn main_part(html: &str) -> &str {
    let (_, after) = html.split_once("<main>").unwrap();
    after.split_once("</main>").unwrap().0
}

/// Checks that every chapter of the table of contents exists, and that its links resolve.
fn follow_all(made: &Path) {
    let read = |name: &str| fs::read_to_string(made.join(name)).unwrap();
    let chapters = links(&fs::read_to_string(book().join("SUMMARY.md")).unwrap());
    let mut followed = 0;
    for chapter in chapters {
        let name = chapter.replace(".md", ".html");
        let html = read(&name);
        let main = main_part(&html);
        assert!(main.contains("<h1"), "{name} has no heading");
        let targets = attributes(main, "href").into_iter().chain(attributes(main, "src"));
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { &name } else { file };
            assert!(made.join(file).is_file(), "{name} leads to {target}, which mdBook has not made");
            let is_heading = || attributes(&read(file), "id").contains(&anchor);
            assert!(anchor.is_empty() || is_heading(), "{name} leads to {target}, where no such heading is");
            followed += 1;
        }
    }
    assert!(followed > 100, "{followed}");
}

#[test]
fn mdbook_makes_every_page_without_a_complaint_and_their_links_lead_to_each_other() {
    let made = tempfile::tempdir().unwrap();
    let mut command = Command::new("mdbook");
    command.arg("build").arg(root().join("docs/book")).arg("--dest-dir").arg(made.path());
    let output = match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return skipped("mdbook is not installed"),
        output => output.unwrap(),
    };
    let said = String::from_utf8_lossy(&output.stderr).to_string() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
    follow_all(made.path());
}
