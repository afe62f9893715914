//! Names of files below patterns that spell their path in several ways.

use std::os::unix::fs::symlink;

use super::*;

const LINES: &str = "sequence_length = 1\nvalidation_share = 0.0";

#[test]
fn names_are_checked_whichever_way_a_pattern_spells_the_path() {
    let folder = Folder::new();
    for name in ["d", "n"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    for name in ["d/t-00000-of-00003.txt", "d/t-00002-of-00003.txt"] {
        folder.write(name, "text\n");
    }
    for part in [0, 1, 2, 4] {
        folder.write(&format!("n/part-{part}.txt"), format!("{part}\n"));
    }
    for (name, to) in [("link", "d"), ("n/link", "../n")] {
        symlink(to, folder.path().join(name)).unwrap();
    }
    let lines = |pattern: &str| format!("{LINES}\nsources = [{{ glob = \"{pattern}\" }}]");
    let whole = folder.path().display();
    for pattern in [
        "d/*",
        "./d/*",
        ".//d/./*",
        "d//t-*",
        "d/../d/*",
        "n/../d/./t*",
        "link/*",
        "./**/t-*",
        "*/./t*",
        &format!("{whole}/./d/*"),
        &format!("{whole}//d//*"),
    ] {
        let message = folder.open(&lines(pattern)).unwrap_err().to_string();
        assert!(message.contains("not there, by the names of the others"), "{pattern}: {message}");
    }
    for pattern in ["n/*.txt", "./n/*.txt", "n/./part-*", &format!("{whole}/n//*.txt")] {
        let data = folder.open(&lines(pattern)).unwrap();
        let told = data.sources()[0].size.passed.to_string();
        assert!(told.contains("1 number that the names of the others skip"), "{pattern}: {told}");
    }
}
