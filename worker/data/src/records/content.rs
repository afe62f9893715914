//! Detection of content by a file's first bytes, where its name or the configuration contradicts them.

use std::path::Path;

use longhaul_common::config::DataFormat;

use super::kinds::{self, AROUND_TABLES, BINARY, Kind, PACKED};
use super::prose::check_page;
use super::{floats, no_tokens, width};
use crate::pointers::pointer;

/// Bytes of the content to examine.
pub(crate) const HEAD_BYTES: usize = 512;

/// Offset of tar's magic.
const TAR_MARK_AT: usize = 257;

/// Magic of bzip2's first block, after the digit of its size; or of its end, for empty content.
const BZIP2_BLOCKS: [&[u8]; 2] = [b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90"];
const BZIP2: &str = "a bzip2 file: unpack it (`bzip2 -d`), or pack it with zstd or gzip";

const NUMPY: &[u8] = b"\x93NUMPY";
/// Heads for GPT-2's tokens, of two bytes, and Llama 3's, of four.
const LLM_C_HEADS: [(u32, u32); 3] = [(20_240_520, 1), (20_240_801, 1), (20_240_801, 7)];
const LLM_C: &str = "a token file of llm.c, whose first 1024 bytes are a header: leave it out (`tail -c +1025 IN > OUT.bin`), and say format = \"tokens-u16\" for GPT-2's tokens or \"tokens-u32\" for Llama 3's";

/// Message for an encrypted Parquet file, with its remedy.
pub(super) const ENCRYPTED: &str = "an encrypted Parquet file, which is not read: write it without encryption, with a program that has its keys";

const TAR: &str = "a tar archive: say format = \"webdataset\" for one with images, or unpack it";
const UTF16: &str = "UTF-16 text: convert it, for example with `iconv -f utf-16 -t utf-8`; or numbers of two bytes: say format = \"tokens-u16\" if these are tokens";
const UTF32: &str = "UTF-32 text: convert it, for example with `iconv -f utf-32 -t utf-8`";
/// Messages for the same pattern of zeros among few letters.
const NUMBERS_16: &str = "numbers of two bytes, as it seems: say format = \"tokens-u16\" if these are tokens; or UTF-16 text: convert it, for example with `iconv -f utf-16 -t utf-8`";
const NUMBERS_32: &str = "numbers of four bytes, as it seems: say format = \"tokens-u32\" if these are tokens; or UTF-32 text: convert it, for example with `iconv -f utf-32 -t utf-8`";

/// Refuses first bytes of an unsupported compression.
pub(super) fn check_packing(head: &[u8], path: &Path) -> Result<(), String> {
    let is_bzip2 = head.starts_with(b"BZh")
        && BZIP2_BLOCKS.iter().any(|block| head.get(4..).is_some_and(|rest| rest.starts_with(block)));
    if is_bzip2 {
        return Err(BZIP2.to_owned());
    }
    if let Some(zipped) = kinds::zipped(head, path) {
        return Err(zipped);
    }
    refuse(PACKED.iter().find(|kind| kind.is_of(head)))
}

fn refuse(kind: Option<&Kind>) -> Result<(), String> {
    kind.map_or(Ok(()), |kind| Err(kind.told()))
}

/// Refuses a file that only its name shows to be no text: its content is of an unknown kind.
pub(super) fn check_name(head: &[u8], path: &Path) -> Result<(), String> {
    let is_known = BINARY.iter().any(|kind| kind.is_of(head));
    match kinds::by_name(path) {
        Some(told) if !head.is_empty() && !is_known => {
            Err(format!("{told}; or say format = \"text\" if it is text"))
        }
        _ => Ok(()),
    }
}

/// Refuses content whose first bytes contradict its format.
pub(super) fn check(head: &[u8], format: DataFormat, is_said: bool) -> Result<(), String> {
    if let Some(told) = pointer(head) {
        return Err(told.to_owned());
    }
    match format {
        DataFormat::Text | DataFormat::Jsonl | DataFormat::Csv | DataFormat::Tsv => {
            check_text(head)?;
            match format {
                DataFormat::Jsonl => check_page(head),
                // A value of a table may be a text.
                _ => Ok(()),
            }
        }
        DataFormat::Parquet => check_unpacked(head).and_then(|()| expect(head, &[b"PAR1"])),
        DataFormat::Arrow => {
            check_unpacked(head).and_then(|()| expect(head, &[b"ARROW1", b"\xff\xff\xff\xff"]))
        }
        DataFormat::Idx => expect(head, &[b"\0\0\x08"]),
        DataFormat::Webdataset if is_tar(head) => Ok(()),
        DataFormat::Webdataset => expect(head, &[]),
        DataFormat::TokensU16 | DataFormat::TokensU32 if head.starts_with(NUMPY) => check_text(head),
        DataFormat::TokensU16 | DataFormat::TokensU32 if is_of_llm_c(head) => Err(LLM_C.to_owned()),
        DataFormat::TokensU16 if !is_said => {
            check_kind(head).map_err(no_tokens::or_tokens)?;
            no_tokens::check(head).and_then(|()| width::check(head))?;
            floats::check(head).map_err(no_tokens::or_tokens)
        }
        // Also for an explicit format: numbers begin so less than once in a billion times.
        DataFormat::TokensU16 | DataFormat::TokensU32 => {
            check_kind(head).and_then(|()| no_tokens::check_marked(head))?;
            floats::check(head)?;
            if format == DataFormat::TokensU32 { width::check_four(head) } else { Ok(()) }
        }
        DataFormat::Images => Ok(()),
    }
}

/// Minimum of leading zeros that rule out text.
const ZEROS_MIN: usize = 64;
/// Description of such content.
const ZEROS: &str = "zeros: a download that is not complete, or an empty archive; fetch it again, or take it out of the source";

/// Refuses content that begins with a magic unlikely among numbers.
fn check_kind(head: &[u8]) -> Result<(), String> {
    check_packing(head, Path::new(""))?;
    refuse(BINARY.iter().find(|kind| kind.is_no_number() && kind.is_of(head)))?;
    if is_tar(head) {
        return Err(TAR.to_owned());
    }
    Ok(())
}

/// Refuses compressed content of formats that compress internally.
fn check_unpacked(head: &[u8]) -> Result<(), String> {
    check_packing(head, Path::new(""))?;
    refuse(AROUND_TABLES.iter().find(|kind| kind.is_of(head)))
}

/// Whether it begins like the token files of llm.c and of nanoGPT's descendants: one of their magic numbers, and its version.
fn is_of_llm_c(head: &[u8]) -> bool {
    let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let [Some(magic), Some(version)] = [number(0), number(4)] else { return false };
    let is_another = || {
        // The date of its definition, a version, the number of tokens, and zeros to the end.
        let (year, month, day) = (magic / 10_000, magic / 100 % 100, magic % 100);
        let is_date = (2024..2100).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        let is_empty = head.len() == HEAD_BYTES && head[12..].iter().all(|byte| *byte == 0);
        is_date && (1..=255).contains(&version) && number(8).is_some_and(|tokens| tokens > 0) && is_empty
    };
    LLM_C_HEADS.contains(&(magic, version)) || is_another()
}

/// Refuses known content of another kind; unknown content is left to the reader.
fn expect(head: &[u8], beginnings: &[&[u8]]) -> Result<(), String> {
    if beginnings.iter().any(|begins| head.starts_with(begins)) {
        return Ok(());
    }
    check_text(head)?;
    check_page(head)
}

fn check_text(head: &[u8]) -> Result<(), String> {
    if head.len() >= ZEROS_MIN && head.iter().all(|byte| *byte == 0) {
        return Err(ZEROS.to_owned());
    }
    if is_tar(head) {
        return Err(TAR.to_owned());
    }
    // A text may begin with such letters.
    let is_binary = |kind: &&Kind| !kind.may_be_text() || head.iter().any(is_no_text);
    refuse(BINARY.iter().filter(|kind| kind.is_of(head)).find(is_binary))?;
    if let Some(pdf) = kinds::pdf(head) {
        return Err(pdf);
    }
    if is_encrypted_parquet(head) {
        return Err(ENCRYPTED.to_owned());
    }
    if is_safetensors(head) {
        return Err("a model's safetensors: that is a model and no data".to_owned());
    }
    if kinds::is_tf_records(head) {
        return Err(kinds::TF_RECORDS.to_owned());
    }
    match head {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Err(UTF32.to_owned()),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Err(UTF16.to_owned()),
        _ => check_zeros(head),
    }
}

/// Refuses text of two or four bytes per character without a byte order mark: in mostly Latin text, every other byte or three of four are zero, and
/// hardly any of the rest.
fn check_zeros(head: &[u8]) -> Result<(), String> {
    let characters = head.len() / 4;
    let zeros =
        |place: usize| head.iter().skip(place).step_by(4).take(characters).filter(|byte| **byte == 0).count();
    let counts = [0, 1, 2, 3].map(zeros);
    let (least, most) = (characters / 8, characters.div_ceil(2));
    let has = |zero: &[usize], other: &[usize]| {
        characters > 1
            && zero.iter().all(|place| counts[*place] >= most)
            && other.iter().all(|place| counts[*place] <= least)
    };
    let is_letter = |byte: &&u8| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r');
    let others = head.iter().filter(|byte| **byte != 0);
    let are_numbers = 2 * others.clone().filter(is_letter).count() < others.count();
    match () {
        () if are_numbers && has(&[1, 2, 3], &[0]) => Err(NUMBERS_32.to_owned()),
        () if are_numbers && has(&[1, 3], &[0, 2]) => Err(NUMBERS_16.to_owned()),
        () if has(&[1, 2, 3], &[0]) || has(&[0, 1, 2], &[3]) => Err(UTF32.to_owned()),
        () if has(&[1, 3], &[0, 2]) => Err(UTF16.replace("utf-16", "utf-16le")),
        () if has(&[0, 2], &[1, 3]) => Err(UTF16.replace("utf-16", "utf-16be")),
        () => Ok(()),
    }
}

/// Whether a byte is a control character absent from texts, or a byte beyond ASCII that never occurs in UTF-8.
fn is_no_text(byte: &u8) -> bool {
    matches!(byte, 0..=8 | 0x0e..=0x1a | 0x1c..=0x1f | 0xc0 | 0xc1 | 0xf5..)
}

/// Whether it begins as an image of a common format.
pub(crate) fn is_image(head: &[u8]) -> bool {
    BINARY.iter().any(|kind| kind.is_image() && kind.is_of(head))
}

fn is_tar(head: &[u8]) -> bool {
    head.get(TAR_MARK_AT..).is_some_and(|rest| rest.starts_with(b"ustar"))
}

/// Checks its magic, and the length of the first header, which is short.
fn is_encrypted_parquet(head: &[u8]) -> bool {
    head.starts_with(b"PARE") && head.get(6..8).is_some_and(|half| half == [0, 0])
}

/// Checks the length of a header, and the header.
pub(super) fn is_safetensors(head: &[u8]) -> bool {
    let Some((length, header)) = head.split_first_chunk() else { return false };
    u64::from_le_bytes(*length) < 1 << 32 && header.starts_with(b"{\"")
}

#[cfg(test)]
mod tests {
    use super::super::prose;
    use super::*;

    const OF_TEXT: [DataFormat; 4] = [DataFormat::Text, DataFormat::Jsonl, DataFormat::Csv, DataFormat::Tsv];

    fn tar() -> Vec<u8> {
        let mut tar = vec![b'a'; HEAD_BYTES];
        tar[TAR_MARK_AT..TAR_MARK_AT + 5].copy_from_slice(b"ustar");
        tar
    }

    #[test]
    fn what_is_no_text_is_named_whatever_format_of_text_it_is_read_as() {
        let tar = tar();
        let safetensors = [&100u64.to_le_bytes()[..], b"{\"a\":{\"dtype\":\"F32\""].concat();
        for (head, name) in [
            (&b"PAR1\x15\x04"[..], "a Parquet file: say format = \"parquet\""),
            (b"ARROW1\0\0", "an Arrow file"),
            (b"FEA1\0\0\0\0", "a Feather V1 file: write Parquet of it (`pyarrow"),
            (b"\0\0\x08\x03\0\0", "an IDX file"),
            (b"\0\0\x09\x03\0\0\0\x02", "an IDX file of signed bytes: only unsigned bytes are read"),
            (b"\0\0\x0b\x01\0\0\0\x02\0\x01\0\x02", "an IDX file of 16-bit integers: only unsigned bytes"),
            (b"\0\0\x0c\x01\0\0\0\x02\0\0\0\x01\0\0\0\x02", "an IDX file of 32-bit integers: only"),
            (b"\0\0\x0d\x03\0\0\0\x01", "an IDX file of floats: only"),
            (b"\0\0\x0e\x03\0\0\0\x01", "an IDX file of doubles: only"),
            (b"II*\0\x08\0\0\0", "a TIFF image: convert it"),
            (b"MM\0*\0\0\0\x08", "a TIFF image: convert it"),
            (b"BM\x36\x10\0\0\0\0\0\0", "a BMP image: convert it"),
            (b"\0\0\0\x18ftypheic", "a HEIC image: convert it"),
            (b"\0\0\0\x1cftypavif", "an AVIF image: convert it"),
            (b"\0\0\0\x0cjP  \r\n", "a JPEG 2000 image: convert it"),
            (b"\x89PNG\r\n\x1a\n", "a PNG image"),
            (b"\xff\xd8\xff\xe0", "a JPEG image"),
            (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "a PDF document"),
            (b"%PDF-2.0\n1 0 obj\n<< >>\n", "a PDF document"),
            (b"\x93NUMPY\x01\0", "a numpy array"),
            (b"\x80\x04\x95\x10", "a pickle"),
            (b"SQLite format 3\0", "an SQLite database: write its table as CSV (`sqlite3 -header -csv"),
            (b"\x80\x03cpandas", "a pickle of Python: load it"),
            (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of PyTorch: write a tensor"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file: write its texts"),
            (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a file of old Office programs (.xls, .doc): save"),
            (b"RIFF\x24\0\0\0WAVEfmt ", "a sound recording: sound is not read"),
            (b"RIFF\x24\0\0\0WEBPVP8 ", "a WebP image: convert it"),
            (b"ID3\x04\0\0", "a sound recording"),
            (b"\xff\xfb\x90\x64", "a sound recording"),
            (b"fLaC\0\0\0\x22", "a sound recording"),
            (b"OggS\0\x02", "a sound recording"),
            (b"\0\0\0\x20ftypisom\0\0", "a video or a sound recording (MP4)"),
            (b"ORC\x1a\0\x03", "an ORC file: write Parquet of it"),
            (b"Obj\x01\x04\x14avro", "an Avro file: write Parquet"),
            (b"MMIDIDX\0\0\x01\0", "an index of Megatron-LM: name the .bin file beside it"),
            (b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xde\xc0\xef\xbe\x01", "an LMDB database"),
            (b"PARE\x2c\0\0\0\x11\x22", "an encrypted Parquet file, which is not read: write it"),
            (b"\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3ehello", "a file of TensorFlow's records (TFRecord): "),
            (b"\xff\xfeh\0i\0", "UTF-16 text"),
            (b"\xfe\xff\0h\0i", "UTF-16 text"),
            (b"h\0i\0 \0t\0", "UTF-16 text"),
            (b"\0h\0i\0 \0t", "UTF-16 text"),
            (b"e\0\x01\x03 \0f\0o\0r\0", "UTF-16 text"),
            (b"\xff\xfe\0\0h\0\0\0", "UTF-32 text"),
            (b"h\0\0\0i\0\0\0", "UTF-32 text"),
            (b"\0\0\0h\0\0\0i", "UTF-32 text"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "a pointer of git-lfs"),
            (&tar, "a tar archive"),
            (&safetensors, "a model's safetensors"),
        ] {
            for format in OF_TEXT {
                for is_said in [false, true] {
                    let message = check(head, format, is_said).unwrap_err();
                    assert!(message.starts_with(name), "{format:?}: {message}");
                }
            }
        }
    }

    #[test]
    fn numbers_are_told_before_an_encoding_where_hardly_any_is_a_letter() {
        let words =
            |numbers: &[u16]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        let wide =
            |numbers: &[u32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        for (head, start) in [
            (words(&[1, 2, 3, 4, 5, 6, 7, 8]), "numbers of two bytes"),
            (
                words(&[200, 65, 300, 7, 9, 201, 140, 150, 3, 5, 1, 2, 250, 251, 252, 253]),
                "numbers of two bytes",
            ),
            (wide(&[1, 2, 3, 200]), "numbers of four bytes"),
            (words(&[104, 101, 108, 108, 111, 10, 97, 98]), "UTF-16 text"),
            (wide(&[104, 101, 108, 108]), "UTF-32 text"),
        ] {
            let message = check_zeros(&head).unwrap_err();
            assert!(message.starts_with(start), "{head:?}: {message}");
        }
    }

    #[test]
    fn zeros_that_are_no_pattern_of_characters_are_left_to_who_reads_them() {
        for head in
            [&b"a\0\0\0b"[..], b"fo\0ur and more text, which goes on", &[0; 64], b"\0a\0\0\0\0\0\0\0\0\0\0"]
        {
            assert_eq!(check_zeros(head), Ok(()), "{head:?}");
        }
    }

    #[test]
    fn other_formats_take_what_is_theirs_and_name_what_is_known() {
        let tar = tar();
        for (head, format) in [
            (&b"PAR1\x15"[..], DataFormat::Parquet),
            (b"ARROW1\0\0", DataFormat::Arrow),
            (b"\xff\xff\xff\xff\x10", DataFormat::Arrow),
            (b"\0\0\x08\x03", DataFormat::Idx),
            (&tar, DataFormat::Webdataset),
        ] {
            check(head, format, false).unwrap();
            for other in [DataFormat::Parquet, DataFormat::Arrow, DataFormat::Idx, DataFormat::Webdataset] {
                assert_eq!(check(head, other, true).is_ok(), other == format, "{other:?} {head:?}");
            }
            let feather = check(b"FEA1\0\0\0\0\x08", DataFormat::Arrow, false).unwrap_err();
            assert!(feather.starts_with("a Feather V1 file"), "{feather}");
        }
        let signed = check(b"\0\0\x09\x03\0\0", DataFormat::Idx, true).unwrap_err();
        assert!(signed.starts_with("an IDX file of signed bytes: only unsigned bytes are read"), "{signed}");
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n";
        assert!(check(pointer, DataFormat::TokensU16, true).unwrap_err().contains("git lfs pull"));
    }

    #[test]
    fn tokens_do_not_begin_with_the_mark_or_the_header_of_another_format() {
        let of_llm_c = |first: u32, version: u32| [first.to_le_bytes(), version.to_le_bytes()].concat();
        for is_said in [false, true] {
            for format in [DataFormat::TokensU16, DataFormat::TokensU32] {
                let array = check(b"\x93NUMPY\x01\0v\0", format, is_said).unwrap_err();
                assert!(array.starts_with("a numpy array") && array.contains("tofile"), "{array}");
                for (magic, version) in LLM_C_HEADS {
                    let message = check(&of_llm_c(magic, version), format, is_said).unwrap_err();
                    assert!(message.contains("tail -c +1025"), "{message}");
                    check(&of_llm_c(magic, 2), format, is_said).unwrap();
                }
            }
        }
    }

    #[test]
    fn what_is_marked_as_something_else_is_no_tokens_whatever_is_said_of_it() {
        let tar = tar();
        let safetensors = [&80_u64.to_le_bytes()[..], b"{\"a\":{\"dtype\":\"U16\""].concat();
        let llm_c =
            [&20_270_131_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), &900_u32.to_le_bytes(), &[0; 500]]
                .concat();
        let half: Vec<u8> = (0..256_u16).flat_map(|at| (0x5c00 + 4 * at).to_le_bytes()).collect();
        for (head, words) in [
            (&b"PAR1\x15\x04"[..], "a Parquet file"),
            (b"ARROW1\0\0", "an Arrow file"),
            (b"FEA1\0\0", "a Feather V1 file"),
            (b"PK\x03\x04\x14\0", "a zip archive"),
            (b"GGUF\x03\0", "a GGUF model"),
            (b"LITPKDS\x01\0\0\0\0\0\0\0\x08", "a packed dataset of lit-gpt"),
            (b"MMIDIDX\0\0\x01\0\0\0", "an index of Megatron-LM"),
            (b"\x04\0\0\0\x18\0\0\0\0\x04\0\0\0\x08\0\0", "a chunk of litdata"),
            (b"SQLite format 3\0\x10", "an SQLite database"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
            (b"\x89PNG\r\n\x1a\n", "a PNG image"),
            (b"lmgg\0\0", "a GGML model"),
            (b"\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3ehello", "a file of TensorFlow's records"),
            (&tar, "a tar archive"),
            (&safetensors, "a model's safetensors"),
            (&llm_c, "a token file of llm.c"),
            (&half, "a file with floating-point numbers of 2 bytes"),
        ] {
            for format in [DataFormat::TokensU16, DataFormat::TokensU32] {
                for is_said in [false, true] {
                    let message = check(head, format, is_said).unwrap_err();
                    assert!(message.starts_with(words), "{words}, {format:?}: {message}");
                }
            }
            let message = check(head, DataFormat::TokensU16, false).unwrap_err();
            assert!(message.contains("format = \"tokens-u16\"") || words.contains("chunk"), "{message}");
        }
        // Possible first bytes of numbers.
        for head in
            [&b"\x1f\x8b\x08\0\0\0"[..], b"\0\0\x08\x03", b"\xff\xd8\xff\xe0", b"letters of a text", b""]
        {
            check(head, DataFormat::TokensU16, true).unwrap();
        }
    }

    #[test]
    fn a_web_page_is_no_record_and_texts_that_begin_as_something_else_are_taken() {
        check(b"<html>,1\n", DataFormat::Csv, false).unwrap();
        for format in [DataFormat::Jsonl, DataFormat::Parquet, DataFormat::Webdataset] {
            let message = check(b"<!doctype HTML>\n<p>Not found", format, true).unwrap_err();
            assert_eq!(message, "a web page, as servers send it in place of a file: fetch that again");
        }
        for head in [
            "",
            "{",
            "{}",
            "{\"",
            "{\"quoted\" words}",
            "{{\"a\": 1}}",
            "[1] A. Author",
            "<p>a</p>",
            "{a: b}",
            "\"text\": a",
            "BZh",
            "PK",
            "\0",
            "a\0b",
            "version https://git-lfs.github.com/spec/v1 is how it begins",
            "GIF89a is a format",
            "PAR1,PAR2,text\n",
            "ARROW1\n",
            "ORCs are no format",
            "RIFFraffWAVE",
            "PARENTAL",
            "ID3 tags",
            "FEA1 is what an old format begins with",
            "%PDF-1.7 begins so, é",
            "id,text\n",
        ] {
            check(head.as_bytes(), DataFormat::Text, false)
                .unwrap_or_else(|error| panic!("{head:?}: {error}"));
            prose::check(head.as_bytes()).unwrap();
            check_packing(head.as_bytes(), Path::new("a.txt")).unwrap();
        }
    }

    #[test]
    fn what_is_packed_otherwise_is_named() {
        for (head, name) in [
            (&b"\xfd7zXZ\0\0\x04"[..], "an xz file: unpack it (`xz -d`)"),
            (b"BZh91AY&SY\x12", "a bzip2 file"),
            (b"BZh9\x17\x72\x45\x38\x50\x90", "a bzip2 file"),
            (b"\x04\x22\x4d\x18\x64", "an lz4 file"),
            (b"PK\x03\x04\x14\0", "a zip archive"),
            (b"7z\xbc\xaf\x27\x1c\0", "a 7z archive"),
            (b"Rar!\x1a\x07\x01\0", "a rar archive"),
        ] {
            assert!(check_packing(head, Path::new("a")).unwrap_err().starts_with(name), "{name}");
        }
        check_packing(b"BZhe tail of a text", Path::new("a")).unwrap();
    }

    #[test]
    fn a_table_that_is_packed_as_a_whole_is_told_with_what_unpacks_it() {
        for format in [DataFormat::Parquet, DataFormat::Arrow] {
            for (head, words) in [
                (&b"\x1f\x8b\x08\0\0\0"[..], "packed with gzip: unpack it (`gzip -dc IN > OUT`), as tables"),
                (b"\x28\xb5\x2f\xfd\x24", "packed with zstd: unpack it (`zstd -dc IN > OUT`)"),
                (b"\xfd7zXZ\0\0\x04", "an xz file: unpack it"),
                (b"PK\x03\x04\x14\0", "a zip archive: unpack it"),
            ] {
                let message = check(head, format, true).unwrap_err();
                assert!(message.starts_with(words), "{format:?}: {message}");
            }
        }
    }

    #[test]
    fn a_name_tells_where_bytes_do_not_and_an_empty_file_is_nothing_yet() {
        let message = check_name(b"(dp0\n", Path::new("a.pkl")).unwrap_err();
        assert!(message.starts_with("a pickle of Python, as its name says"), "{message}");
        assert!(message.ends_with("or say format = \"text\" if it is text"), "{message}");
        check_name(b"", Path::new("a.pkl")).unwrap();
        check_name(b"(dp0\n", Path::new("a.txt")).unwrap();
    }
}
