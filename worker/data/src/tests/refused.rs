//! A refused file is identified, with a remedy.

use std::io::Write;

use super::silent::read_as;
use super::*;

pub(super) fn gz(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zst(content: &[u8]) -> Vec<u8> {
    zstd::encode_all(content, 3).unwrap()
}

#[test]
fn a_packed_file_that_is_cut_off_is_told_with_the_byte_where_it_ends() {
    let number = |n: u32| n.wrapping_mul(2_654_435_761);
    let lines = |line: &dyn Fn(u32) -> String| (0..20_000).map(line).collect::<String>();
    let contents = [
        ("a.txt", lines(&|n| format!("{}\n", number(n)))),
        ("a.jsonl", lines(&|n| format!("{{\"text\": \"{}\"}}\n", number(n)))),
        ("a.csv", format!("id,text\n{}", lines(&|n| format!("{n},{}\n", number(n))))),
    ];
    for (name, content) in contents {
        for (end, kind, packed) in
            [("gz", "gzip", gz(content.as_bytes())), ("zst", "zstd", zst(content.as_bytes()))]
        {
            let name = format!("{name}.{end}");
            assert!(read_as(&name, "", &packed).is_ok(), "{name}");
            for bytes in [20, packed.len() / 2, packed.len() - 1] {
                let message = read_as(&name, "", &packed[..bytes]).unwrap_err();
                let words =
                    format!("it is cut off at byte {bytes}, before its {kind} data ends: fetch it again");
                assert!(message.contains(&name) && message.contains(&words), "{bytes}: {message}");
            }
        }
    }
}

#[test]
fn a_packed_file_that_is_damaged_is_told_with_what_helps() {
    let number = |n: u32| n.wrapping_mul(2_654_435_761);
    let text: String = (0..20_000).map(|n| format!("{}\n", number(n))).collect();
    let mut with_checksum = zstd::Encoder::new(Vec::new(), 3).unwrap();
    with_checksum.include_checksum(true).unwrap();
    with_checksum.write_all(text.as_bytes()).unwrap();
    for (end, kind, packed) in
        [("gz", "gzip", gz(text.as_bytes())), ("zst", "zstd", with_checksum.finish().unwrap())]
    {
        let name = format!("a.txt.{end}");
        assert!(read_as(&name, "", &packed).is_ok(), "{name}");
        for from_end in [1, 5, packed.len() / 2] {
            let mut other = packed.clone();
            let at = packed.len() - from_end;
            other[at] ^= 0x10;
            let message = read_as(&name, "", &other).unwrap_err();
            assert!(message.contains(&format!("its {kind} data is damaged at byte ")), "{at}: {message}");
            assert!(message.ends_with("): fetch it again, or pack it anew"), "{at}: {message}");
        }
    }
    // A frame with the number of a dictionary (RFC 8878), and an empty block.
    let message = read_as("a.txt.zst", "", b"\x28\xb5\x2f\xfd\x01\x00\x05\x01\x00\x00").unwrap_err();
    assert!(
        message.contains("its zstd data needs a dictionary (Dictionary mismatch): unpack it"),
        "{message}"
    );
}

#[test]
fn a_file_without_a_byte_is_said_to_be_empty() {
    for (name, keys, words) in [
        ("a.txt", "", "a.txt has nothing to train on: its file is empty (0 bytes)"),
        ("b.jsonl", "", "b.jsonl has nothing to train on: its file is empty (0 bytes)"),
        ("c.bin", "", "c.bin has nothing to train on: its file is empty"),
        ("d.csv", ", column = 2", "d.csv has nothing to train on: its file is empty"),
        ("d.csv", "", "d.csv is empty (0 bytes): fetch it again, or take it out of the source"),
        ("e.tsv", "", "e.tsv is empty (0 bytes)"),
        ("f.parquet", "", "f.parquet is empty (0 bytes)"),
        ("g.arrow", "", "g.arrow is empty (0 bytes)"),
        ("h.txt.gz", "", "h.txt.gz is empty (0 bytes)"),
        ("i.jsonl.zst", "", "i.jsonl.zst is empty (0 bytes)"),
        ("j.bin.zst", "", "j.bin.zst is empty (0 bytes)"),
    ] {
        let message = read_as(name, keys, b"").unwrap_err();
        assert!(message.contains(words), "{name}: {message}");
    }
    for (name, packed, kind) in [
        ("k.csv.zst", zst(b""), "zstd"),
        ("l.txt.gz", gz(b""), "gzip"),
        ("m.txt", gz(b""), "gzip"),
        ("n.jsonl.zst", [zst(b""), zst(b"")].concat(), "zstd"),
        ("o.bin.gz", gz(b""), "gzip"),
    ] {
        let message = read_as(name, "", &packed).unwrap_err();
        assert!(message.contains(&format!("{name} is {kind} data of nothing: pack it anew")), "{message}");
    }
    let folder = Folder::new();
    folder.write("a.txt", "");
    folder.write("b.txt", "");
    let lines = "sequence_length = 1\nsources = [{ glob = \"*.txt\" }]";
    let message = folder.open(lines).unwrap_err().to_string();
    assert!(message.contains("each of its 2 files is empty (0 bytes)"), "{message}");
    folder.write("b.txt", "some text");
    assert_eq!(text(&folder.open(lines).unwrap()), "some text\n");
}

/// The result of a failed download.
#[test]
fn an_empty_file_among_others_is_refused_or_counted_and_an_empty_text_is_counted() {
    let line = b"{\"text\": \"one\"}\n";
    for (end, content, expected) in [
        ("jsonl", &line[..], "one|"),
        ("jsonl.gz", &gz(line), "one|"),
        ("bin", b"o\0n\0e\0", "one"),
        ("csv", b"text\none\n", "one|"),
        ("txt.gz", &gz(b"one"), "one|"),
    ] {
        let folder = Folder::new();
        folder.write(&format!("a.{end}"), "");
        folder.write(&format!("b.{end}"), content);
        let lines = |is_strict: bool| {
            format!(
                "sequence_length = 1\nvalidation_share = 0.0\nseparator = \"|\"\nstrict_files = {is_strict}\nsources = [{{ glob = \"*.{end}\" }}]"
            )
        };
        let words = format!(
            "1 passed over: 1 empty file of 0 bytes (fetch it again, or take it away) ({}/a.{end})",
            folder.path().display()
        );
        let message = folder.open(&lines(true)).unwrap_err().to_string();
        assert!(message.contains(&words) && message.contains("data.strict_files = false"), "{message}");
        let data = folder.open(&lines(false)).unwrap();
        let size = data.sources().remove(0).size;
        assert_eq!((text(&data).as_str(), size.files), (expected, 1), "{end}");
        assert_eq!(size.passed.to_string(), words);
    }
    let folder = Folder::new();
    folder.write("a.txt", "");
    folder.write("b.txt", "one");
    let lines = "sequence_length = 1\nvalidation_share = 0.0\nsources = [{ glob = \"*.txt\" }]";
    let size = folder.open(lines).unwrap().sources().remove(0).size;
    let words = format!("1 passed over: 1 empty text ({}/a.txt)", folder.path().display());
    assert_eq!((size.files, size.passed.to_string()), (1, words));
}

#[test]
fn a_packed_file_of_nothing_among_others_is_refused_or_counted() {
    let line = b"{\"text\": \"one\"}\n";
    for (end, nothing, content, expected) in [
        ("jsonl.gz", gz(b""), gz(line), "one|"),
        ("txt.zst", zst(b""), zst(b"one"), "one|"),
        ("txt.gz", [gz(b""), gz(b"")].concat(), gz(b"one"), "one|"),
        ("bin.gz", gz(b""), gz(b"o\0n\0e\0"), "one"),
        ("csv.zst", zst(b""), zst(b"text\none\n"), "one|"),
    ] {
        let folder = Folder::new();
        folder.write(&format!("a.{end}"), nothing);
        folder.write(&format!("b.{end}"), content);
        let lines = |is_strict: bool| {
            format!(
                "sequence_length = 1\nvalidation_share = 0.0\nseparator = \"|\"\nstrict_files = {is_strict}\nsources = [{{ glob = \"*.{end}\" }}]"
            )
        };
        let words = format!(
            "1 passed over: 1 packed file of nothing (pack it anew, or take it away) ({}/a.{end})",
            folder.path().display()
        );
        let config = config(&lines(true)).found_at(folder.path());
        let looked = Dataset::look(&config, &Tokenizer::Bytes, &folder.path().join("cache")).unwrap_err();
        for message in [folder.open(&lines(true)).unwrap_err().to_string(), looked.to_string()] {
            assert!(message.contains(&words) && message.contains("data.strict_files = false"), "{message}");
        }
        let data = folder.open(&lines(false)).unwrap();
        let size = data.sources().remove(0).size;
        assert_eq!((text(&data).as_str(), size.files), (expected, 1), "{end}");
        assert_eq!(size.passed.to_string(), words);
    }
}

#[test]
fn a_file_that_its_name_alone_makes_one_of_tokens_and_that_begins_otherwise_is_refused() {
    let line = b"It was the best of times, it was the worst of times.\n";
    let mut tar = vec![0; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    let within = "packed twice: within its zstd data (`zstd -dc IN > OUT` unpacks it) is ";
    // Compressed, the message is the same, or this one.
    for (content, words, packed) in [
        (line.to_vec(), "text, as it seems, and its name stands for tokens: say format = \"text\"", None),
        (
            zst(line),
            "zstd data, and its name does not end so: rename it to end with `.bin.zst`",
            Some(
                "packed twice, with zstd and then with zstd: unpack it once (`zstd -dc IN > OUT`)".to_owned(),
            ),
        ),
        (
            gz(line),
            "gzip data, and its name does not end so: rename it to end with `.bin.gz`",
            Some(
                "packed twice, with gzip and then with zstd: unpack it once (`zstd -dc IN > OUT`)".to_owned(),
            ),
        ),
        (tar, "a tar archive", None),
        (
            b"BZh91AY&SY\x12\x34".to_vec(),
            "a bzip2 file: unpack it",
            Some(format!("{within}a bzip2 file: unpack it")),
        ),
        (
            b"PK\x03\x04\x14\0\0\0".to_vec(),
            "a zip archive: unpack it",
            Some(format!("{within}a zip archive: unpack it")),
        ),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n".to_vec(), "a PDF document", None),
        (b"\x7fELF\x02\x01\x01\0".to_vec(), "a program", None),
        (b"\x89PNG\r\n\x1a\n".to_vec(), "a PNG image", None),
        (b"\xff\xd8\xff\xe0\0\x10JFIF".to_vec(), "a JPEG image", None),
        ([&9_u64.to_le_bytes()[..], b"{\"a\":1}  "].concat(), "a model's safetensors", None),
    ] {
        let message = read_as("a.bin", "", &content).unwrap_err();
        assert!(message.contains(&format!("a.bin is {words}")), "{message}");
        let message = read_as("a.bin.zst", "", &zst(&content)).unwrap_err();
        let packed = packed.unwrap_or_else(|| words.to_owned());
        assert!(message.contains(&format!("a.bin.zst is {packed}")), "{message}");
        // For any configured format; a few bytes may be numbers, which are too large here.
        let is_marked =
            ["zstd data", "gzip data", "text", "a JPEG"].iter().all(|few| !words.starts_with(few));
        let message = read_as("a.bin", ", format = \"tokens-u16\"", &content).unwrap_err();
        let words = if is_marked { words } else { "cannot be read as tokens-u16 (token " };
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_file_that_is_packed_twice_is_told_with_what_unpacks_it() {
    let line = b"{\"text\": \"one\"}\n";
    let xz = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46";
    for (name, content, words) in [
        ("a.jsonl.gz", gz(&gz(line)), "with gzip and then with gzip: unpack it once (`gzip -dc IN > OUT`)"),
        ("b.jsonl.zst", zst(&gz(line)), "with gzip and then with zstd: unpack it once (`zstd -dc IN > OUT`)"),
        ("c.csv.gz", gz(&zst(b"text\none\n")), "with zstd and then with gzip: unpack it once (`gzip"),
        ("d", zst(&zst(b"some text")), "with zstd and then with zstd: unpack it once"),
        (
            "e.txt.gz",
            gz(xz),
            "within its gzip data (`gzip -dc IN > OUT` unpacks it) is an xz file: unpack it (`xz -d`)",
        ),
    ] {
        let message = read_as(name, "", &content).unwrap_err();
        assert!(message.contains(&format!("{name} is packed twice")), "{message}");
        assert!(message.contains(words), "{name}: {message}");
    }
    assert_eq!(read_as("a.jsonl.gz", "", &gz(line)).as_deref(), Ok("one|"));
    // Numbers may be any bytes if the format is configured.
    let numbers = gz(b"\x1f\x8b\x08\0");
    let message = read_as("a.bin.gz", ", format = \"tokens-u16\"", &numbers).unwrap_err();
    assert!(message.contains("beyond the tokenizer's vocabulary"), "{message}");
    let message = read_as("a.bin.gz", "", &numbers).unwrap_err();
    assert!(message.contains("a.bin.gz is packed twice, with gzip and then with gzip"), "{message}");
}

#[test]
fn one_json_array_is_told_with_what_makes_lines_of_it() {
    let [objects, texts] = ["`jq -c '.[]' IN", "`jq -c '.[] | {\"text\": .}' IN"];
    for (content, command) in [
        ("[{\"text\": \"one\"}, {\"text\": \"two\"}]", objects),
        ("[\n  {\n    \"text\": \"one\"\n  }\n]\n", objects),
        ("\u{feff}\n\n [ {\"text\": \"one\",\n\"n\": NaN}]", objects),
        ("[{\"n\": NaN}]\n \n\n", objects),
        ("[\"one\", \"two\"]\n", texts),
        ("[\"one\",\n\"two\"]\n", texts),
        ("[\"one\", \"two\",", texts),
        ("[\n{\"text\": \"one\"},\n{\"text\": \"two\"}\n]\n", objects),
        ("[\n\n{\"text\": \"one\"}\n]\n", objects),
        ("[{\"text\": \"one\"},\n{\"text\": \"two\"}]\n", objects),
        ("[{\"text\": \"one\"}\n, {\"text\": \"two\"}\n]\n", objects),
        ("[\n{\"text\": \"one\"}\n , {\"text\": \"two\"}\n]\n", objects),
    ] {
        for name in ["a.json", "b.jsonl"] {
            let message = read_as(name, "", content.as_bytes()).unwrap_err();
            let words =
                format!("{name} is one JSON array, and no object on each line: {command} > OUT.jsonl`");
            assert!(message.contains(&words), "{content}: {message}");
        }
    }
    let message = read_as("a.json", ", field = \"body\"", b"[\"one\"]").unwrap_err();
    assert!(message.contains("'.[] | {\"body\": .}'"), "{message}");
    for (content, words) in [
        ("[\"one\"]\n{\"text\": \"two\"}\n", "a.json, line 1: it is no JSON object"),
        ("[one]\n{\"text\": \"two\"}\n", "a.json, line 1: it is no JSON object"),
        ("[1]\n\n\n{\"n\": 2}\n", "a.json, line 1: it is no JSON object"),
        ("{\"text\": \"one\"}\n[\n", "a.json, line 2: it is no JSON object"),
        (
            "{\"text\": \"one\"}\n\u{feff}{\"text\": \"two\"}\n",
            "a.json, line 2: it is no JSON: a byte order mark stands before it",
        ),
    ] {
        let message = read_as("a.json", "", content.as_bytes()).unwrap_err();
        assert!(message.contains(words) && message.contains("of a source cannot be read"), "{message}");
    }
}

#[test]
fn a_first_line_that_is_cut_off_is_one_bad_record_where_objects_follow() {
    for first in ["[\"a\", \"b\",", "[\"a\", \"b", "[", "[[1, [2", "[{\"text\": \"a\"", "[{\"text\": \"a\"},"]
    {
        let rest = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
        for between in ["\n", "\n\n \n"] {
            let folder = Folder::new();
            folder.write("a.jsonl", format!("{first}{between}{rest}"));
            let open = |max: u64| {
                let lines = "sequence_length = 1\nvalidation_share = 0.0\nseparator = \"|\"";
                folder
                    .open(&format!("{lines}\nbad_records_max = {max}\nsources = [{{ path = \"a.jsonl\" }}]"))
            };
            let data = open(1).unwrap();
            let size = data.sources().remove(0).size;
            assert_eq!((text(&data).as_str(), size.records, size.bad.count), ("one|two|", 2, 1), "{first}");
            let message = open(0).unwrap_err().to_string();
            assert!(message.contains("a.jsonl, line 1: it is no JSON"), "{first}: {message}");
        }
    }
    // Lines after the examined ones have correct numbers.
    let message = read_as("a.jsonl", "", b"[1,\n\n{\"text\": \"one\"}\n\n{\n").unwrap_err();
    assert!(message.contains("a.jsonl, line 1: ") && message.contains("a.jsonl, line 5: "), "{message}");
}

#[test]
fn feather_v1_is_told_with_what_writes_parquet_of_it() {
    let content = [&b"FEA1\0\0\0\0\x02\0\0\0"[..], &[0; 64], b"FEA1"].concat();
    for name in ["a.feather", "b.arrow", "c.parquet", "d.txt", "e.csv"] {
        let message = read_as(name, "", &content).unwrap_err();
        assert!(message.contains(&format!("{name} is a Feather V1 file: write Parquet of it")), "{message}");
        assert!(message.contains("pyarrow.parquet.write_table(pyarrow.feather.read_table("), "{message}");
    }
}

#[test]
fn numbers_of_four_bytes_anywhere_in_a_file_of_tokens_are_refused_unless_it_is_said_what_they_are() {
    let token = |n: u32| n * 7919 % 251;
    let two: Vec<u8> = (0..3001).flat_map(|n| (token(n) as u16).to_le_bytes()).collect();
    let four: Vec<u8> = (0..3000).flat_map(|n| token(n).to_le_bytes()).collect();
    let read = |keys: &str, content: &[u8]| read_as("a.bin", keys, content);
    assert!(read("", &two).is_ok());
    for content in [[&two[..], &four].concat(), [&two[..], &four, &two].concat()] {
        let message = read("", &content).unwrap_err();
        assert!(
            message.contains("a.bin is a file with numbers of four bytes from token 3001 on"),
            "{message}"
        );
        assert!(message.contains("say format = \"tokens-u16\" if all are of two"), "{message}");
        assert!(read(", format = \"tokens-u16\"", &content).is_ok());
    }
    let eight: Vec<u8> = (0..600).flat_map(|n| u64::from(token(n)).to_le_bytes()).collect();
    let message = read("", &[&two[..], &eight].concat()).unwrap_err();
    assert!(message.contains("numbers of eight bytes (numpy's int64) from token 3001 on"), "{message}");
    // States and actions look the same.
    let turns: Vec<u8> =
        (0..600).flat_map(|n| [token(n) as u16, n as u16 % 4]).flat_map(u16::to_le_bytes).collect();
    let message = read("", &turns).unwrap_err();
    assert!(message.contains("numbers of four bytes, as it seems"), "{message}");
    assert!(read(", format = \"tokens-u16\"", &turns).is_ok());
    for count in [3, 7, 12] {
        let few = &four[4..4 + 4 * count];
        let message = read("", few).unwrap_err();
        assert!(message.contains("a.bin is a file with numbers of four bytes, as it seems"), "{message}");
        assert!(read(", format = \"tokens-u32\"", few).is_ok(), "{count}");
        assert_eq!(read(", format = \"tokens-u16\"", few).is_ok(), count < 4, "{count}");
    }
}
