//! Names of plain texts. Without a configured format, a file is read as text only if its name permits it.

use std::path::Path;

/// Extensions of plain texts.
const PROSE: [&str; 14] = [
    "txt", "text", "raw", "tokens", "md", "markdown", "mdx", "rst", "adoc", "asciidoc", "org", "tex",
    "textile", "log",
];
/// Extensions of source code.
const SOURCES: [&str; 116] = [
    "ada", "adb", "ads", "asm", "awk", "bash", "bat", "c", "cc", "cjs", "cl", "clj", "cljs", "cmake", "cpp",
    "cs", "cu", "cuh", "cxx", "d", "dart", "el", "elm", "erl", "ex", "exs", "f", "f03", "f08", "f77", "f90",
    "f95", "fish", "for", "fs", "fsx", "glsl", "go", "gradle", "graphql", "groovy", "h", "hh", "hlsl", "hpp",
    "hrl", "hs", "hxx", "inl", "java", "jl", "js", "jsx", "kt", "kts", "lean", "lhs", "lisp", "lua", "m",
    "mjs", "mk", "ml", "mli", "mm", "nim", "nix", "pas", "php", "pl", "pm", "pro", "proto", "ps1", "py",
    "pyi", "pyx", "r", "rb", "rkt", "rs", "s", "scala", "scm", "sed", "sh", "sol", "sv", "swift", "tcl",
    "tf", "thrift", "ts", "tsx", "v", "vb", "vert", "vhd", "vhdl", "vim", "wgsl", "zig", "zsh", "comp",
    "css", "scss", "less", "vue", "svelte", "yaml", "yml", "toml", "bib", "diff", "patch", "ini",
];

/// Other extensions, each with a remedy.
const OTHERS: [(&[&str], &str); 9] = [
    (&["tab"], "a table with tabs: say format = \"tsv\""),
    (&["psv"], "a table: say format = \"csv\" and delimiter = \"|\""),
    (&["csv", "tsv", "json", "jsonl", "ndjson", "parquet", "arrow"], "another format: say which (format)"),
    (
        &["gzip", "z", "zstd"],
        "packed, under a name that does not say what is in it: rename it to end with .gz or .zst behind the name of its content (`a.txt.gz`)",
    ),
    (&["html", "htm", "xhtml", "xml", "svg"], "text within tags: write its text alone"),
    (&["srt", "vtt", "ass", "ssa", "sub"], "subtitles, with numbers and times: write their lines alone"),
    (&["sql"], "SQL: write the rows of a dump as CSV"),
    (&["warc", "wet", "wat", "arc"], "an archive of the web: write its texts as JSON lines"),
    (
        &[
            "bak",
            "old",
            "orig",
            "save",
            "swp",
            "tmp",
            "temp",
            "part",
            "partial",
            "crdownload",
            "download",
            "aria2",
        ],
        "a backup, or a file that is not complete: take it away",
    ),
];

/// Whether it is a name of source code.
pub(crate) fn is_source_code(path: &Path) -> bool {
    SOURCES.contains(&end_of(&unpacked(path)).as_str())
}

/// Refuses a name that is not a plain text's.
pub(super) fn check(path: &Path) -> Result<(), String> {
    const ALL_THE_SAME: &str = "or say format = \"text\" if all of it is to be trained on as it stands";
    let name = unpacked(path);
    let end = end_of(&name);
    let other = |end: &str| OTHERS.iter().find(|(ends, _)| ends.contains(&end)).map(|(_, what)| *what);
    match end.as_str() {
        "" => Ok(()),
        end if SOURCES.contains(&end) => Ok(()),
        end if PROSE.contains(&end) => {
            let inner = end_of(&name.with_extension(""));
            match other(&inner) {
                Some(what) => Err(format!("named .{inner}.{end}, and .{inner} is {what}; {ALL_THE_SAME}")),
                None => Ok(()),
            }
        }
        end if end.ends_with('~') => {
            Err(format!("a backup, by the ~ of its name: take it away; {ALL_THE_SAME}"))
        }
        end => Err(match other(end) {
            Some(what) => format!("named .{end}, which is {what}; {ALL_THE_SAME}"),
            None => format!(
                "named .{end}, which is no ending of plain text that is known: say with format what it is; {ALL_THE_SAME}"
            ),
        }),
    }
}

/// Removes the extension of a compression.
fn unpacked(path: &Path) -> std::path::PathBuf {
    match end_of(path).as_str() {
        "gz" | "zst" => path.with_extension(""),
        _ => path.to_owned(),
    }
}

fn end_of(path: &Path) -> String {
    path.extension().map(|end| end.to_string_lossy().to_lowercase()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_text_only_where_its_name_may_be_that_of_one() {
        for name in [
            "a.txt",
            "A.TXT",
            "a.txt.gz",
            "a.md.zst",
            "wiki.train.tokens",
            "enwik8",
            "part-00000",
            "d/README",
            "a.py",
            "a.v2.txt",
            "train.en.txt",
            "a.rs.gz",
            ".hidden",
            "text.gz",
        ] {
            assert_eq!(check(Path::new(name)), Ok(()), "{name}");
        }
        for (name, words) in [
            (
                "a.tab",
                "named .tab, which is a table with tabs: say format = \"tsv\"; or say format = \"text\"",
            ),
            ("a.psv.gz", "named .psv, which is a table: say format = \"csv\" and delimiter = \"|\""),
            ("a.tsv.gzip", "named .gzip, which is packed"),
            ("a.csv.txt", "named .csv.txt, and .csv is another format: say which"),
            ("a.jsonl.log.zst", "named .jsonl.log, and .jsonl is another format"),
            ("a.html", "named .html, which is text within tags"),
            ("enwiki.xml.txt", "named .xml.txt, and .xml is text within tags"),
            ("a.SRT", "named .srt, which is subtitles"),
            ("dump.sql", "named .sql, which is SQL"),
            ("CC-MAIN.warc.gz", "named .warc, which is an archive of the web"),
            ("a.txt~", "a backup, by the ~ of its name"),
            ("a.txt.bak", "named .bak, which is a backup"),
            ("a.crdownload", "named .crdownload, which is a backup, or a file that is not complete"),
            ("a.txt.1", "named .1, which is no ending of plain text that is known"),
            ("a.dat", "named .dat, which is no ending"),
        ] {
            let told = check(Path::new(name)).unwrap_err();
            assert!(told.starts_with(words) && told.contains("format = \"text\""), "{name}: {told}");
        }
    }
}
