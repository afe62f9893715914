//! Kinds of files recognised by their first bytes or their names, each with a remedy.

use std::path::Path;

/// A kind recognised by its first bytes.
pub(super) struct Kind {
    begins: &'static [u8],
    /// A magic at a later offset.
    at: usize,
    mark: &'static [u8],
    name: &'static str,
    /// The remedy for a file of this kind.
    remedy: &'static str,
}

/// Minimum length of a magic that is unlikely among numbers.
const MARK_BYTES: usize = 4;

const fn kind(begins: &'static [u8], name: &'static str, remedy: &'static str) -> Kind {
    Kind { begins, at: 0, mark: b"", name, remedy }
}

/// Creates a kind with a magic at a later offset.
const fn marked(
    (begins, at, mark): (&'static [u8], usize, &'static [u8]),
    name: &'static str,
    remedy: &'static str,
) -> Kind {
    Kind { begins, at, mark, name, remedy }
}

impl Kind {
    pub(super) fn is_of(&self, head: &[u8]) -> bool {
        head.starts_with(self.begins) && head.get(self.at..).is_some_and(|rest| rest.starts_with(self.mark))
    }

    /// Whether a text may begin so: all bytes are printable ASCII.
    pub(super) fn may_be_text(&self) -> bool {
        self.begins.iter().chain(self.mark).all(u8::is_ascii_graphic)
    }

    /// Whether numbers are unlikely to begin so.
    pub(super) fn is_no_number(&self) -> bool {
        self.begins.len() + self.mark.len() >= MARK_BYTES && self.begins.first() != Some(&0xff)
    }

    pub(super) fn is_image(&self) -> bool {
        self.name.ends_with(" image")
    }

    /// Returns its name and remedy.
    pub(super) fn told(&self) -> String {
        format!("{}: {}", self.name, self.remedy)
    }
}

const ELSE: &str = "take it out of the source, or convert it to a format that is read";
const CONVERT: &str = "convert it to PNG or JPEG";
const UNSIGNED: &str =
    "only unsigned bytes are read (third byte 8): write its values so, with as many classes as fit";
const AN_IMAGE: &str =
    "images are in folders of classes (format = \"images\") or archives (format = \"webdataset\")";
const UNPACK: &str = "unpack it, or pack it with zstd or gzip";
pub(super) const A_PICKLE: &str = "a pickle of Python";
pub(super) const OF_A_PICKLE: &str =
    "load it in Python where you trust it, and write its texts as JSON lines, or its tokens as a numpy array";
const A_RECORDING: &str = "a sound recording";
const OF_A_RECORDING: &str =
    "sound is not read: take its transcript, or write tokens of a codec and say format = \"tokens-u16\"";
const A_PDF: &str = "a PDF document";
const OF_A_PDF: &str = "convert it to text (`pdftotext`)";
const A_VIDEO: &str = "a video";
const A_TORCH_FILE: &str = "a file of PyTorch";
const OF_TORCH: &str = "write a tensor of tokens with `tensor.numpy().astype('<u4').tofile(OUT)` and say format = \"tokens-u32\"; a model is no data";

/// Unsupported compressions.
pub(super) const PACKED: [Kind; 7] = [
    kind(b"\xfd7zXZ\0", "an xz file", "unpack it (`xz -d`), or pack it with zstd or gzip"),
    kind(b"\x04\x22\x4d\x18", "an lz4 file", "unpack it (`lz4 -d`), or pack it with zstd or gzip"),
    kind(b"PK\x05\x06", "an empty zip archive", ELSE),
    kind(b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    kind(b"Rar!\x1a\x07", "a rar archive", UNPACK),
    kind(b"\xff\x06\0\0sNaPpY", "a snappy file", UNPACK),
    kind(b"LZIP\x01", "an lzip file", UNPACK),
];

/// Compressions that are supported, except around tables.
pub(super) const AROUND_TABLES: [Kind; 2] = [
    kind(
        b"\x1f\x8b\x08",
        "packed with gzip",
        "unpack it (`gzip -dc IN > OUT`), as tables are compressed within",
    ),
    kind(
        b"\x28\xb5\x2f\xfd",
        "packed with zstd",
        "unpack it (`zstd -dc IN > OUT`), as tables are compressed within",
    ),
];

/// Neither text nor tokens.
pub(super) const BINARY: [Kind; 53] = [
    kind(b"PAR1", "a Parquet file", "say format = \"parquet\""),
    kind(b"ARROW1", "an Arrow file", "say format = \"arrow\""),
    kind(b"\xff\xff\xff\xff", "an Arrow stream", "say format = \"arrow\""),
    kind(
        b"FEA1",
        "a Feather V1 file",
        "write Parquet of it (`pyarrow.parquet.write_table(pyarrow.feather.read_table(IN), OUT)`)",
    ),
    kind(
        b"ORC",
        "an ORC file",
        "write Parquet of it (`pyarrow.parquet.write_table(pyarrow.orc.read_table(IN), OUT)`)",
    ),
    kind(
        b"Obj\x01",
        "an Avro file",
        "write Parquet or JSON lines of it (`avro-tools tojson IN > OUT.jsonl`)",
    ),
    kind(b"\0\0\x08", "an IDX file", "say format = \"idx\", and name its labels"),
    kind(b"\0\0\x09", "an IDX file of signed bytes", UNSIGNED),
    kind(b"\0\0\x0b", "an IDX file of 16-bit integers", UNSIGNED),
    kind(b"\0\0\x0c", "an IDX file of 32-bit integers", UNSIGNED),
    kind(b"\0\0\x0d", "an IDX file of floats", UNSIGNED),
    kind(b"\0\0\x0e", "an IDX file of doubles", UNSIGNED),
    kind(
        b"LITPKDS",
        "a packed dataset of lit-gpt",
        "write its tokens without the head (`numpy.fromfile(IN, DTYPE, offset=24).tofile(OUT)`) and say format = \"tokens-u16\" or \"tokens-u32\" as wide as they are",
    ),
    kind(
        b"MMIDIDX\0\0",
        "an index of Megatron-LM",
        "name the .bin file beside it, with format = \"tokens-u16\" or \"tokens-u32\" as wide as its numbers are",
    ),
    kind(b"\x89PNG\r\n", "a PNG image", AN_IMAGE),
    kind(b"\xff\xd8\xff", "a JPEG image", AN_IMAGE),
    kind(b"GIF8", "a GIF image", ELSE),
    marked((b"RIFF", 8, b"WEBP"), "a WebP image", CONVERT),
    kind(b"II*\0", "a TIFF image", CONVERT),
    kind(b"MM\0*", "a TIFF image", CONVERT),
    marked((b"BM", 6, b"\0\0\0\0"), "a BMP image", CONVERT),
    marked((b"", 4, b"ftyphei"), "a HEIC image", CONVERT),
    marked((b"", 4, b"ftypavif"), "an AVIF image", CONVERT),
    kind(b"\0\0\0\x0cjP  ", "a JPEG 2000 image", CONVERT),
    marked((b"RIFF", 8, b"WAVE"), A_RECORDING, OF_A_RECORDING),
    kind(b"ID3\x02", A_RECORDING, OF_A_RECORDING),
    kind(b"ID3\x03", A_RECORDING, OF_A_RECORDING),
    kind(b"ID3\x04", A_RECORDING, OF_A_RECORDING),
    kind(b"\xff\xfb", A_RECORDING, OF_A_RECORDING),
    kind(b"\xff\xf3", A_RECORDING, OF_A_RECORDING),
    kind(b"\xff\xf2", A_RECORDING, OF_A_RECORDING),
    kind(b"fLaC\0", A_RECORDING, OF_A_RECORDING),
    kind(b"OggS\0", A_RECORDING, OF_A_RECORDING),
    marked((b"RIFF", 8, b"AVI"), A_VIDEO, ELSE),
    marked((b"", 4, b"ftyp"), "a video or a sound recording (MP4)", ELSE),
    kind(b"%PDF-", A_PDF, OF_A_PDF),
    kind(
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "a file of old Office programs (.xls, .doc)",
        "save a workbook as CSV, and a document as plain text",
    ),
    kind(
        b"SQLite format 3\0",
        "an SQLite database",
        "write its table as CSV (`sqlite3 -header -csv IN 'SELECT * FROM TABLE' > OUT.csv`)",
    ),
    marked(
        (b"", 16, b"\xde\xc0\xef\xbe"),
        "an LMDB database",
        "write its texts as JSON lines, or its images as an archive",
    ),
    kind(
        b"\x89HDF\r\n",
        "an HDF5 file",
        "write its texts as JSON lines, or tokens with `h5py.File(IN)[NAME][:].astype('<u4').tofile(OUT)` and say format = \"tokens-u32\"",
    ),
    kind(
        b"\x93NUMPY",
        "a numpy array",
        "write tokens with `array.astype('<u2').tofile(...)` and say format = \"tokens-u16\", or with '<u4' and \"tokens-u32\" where there are some beyond 65,535",
    ),
    kind(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", A_TORCH_FILE, OF_TORCH),
    kind(b"\x80\x02", A_PICKLE, OF_A_PICKLE),
    kind(b"\x80\x03", A_PICKLE, OF_A_PICKLE),
    kind(b"\x80\x04\x95", A_PICKLE, OF_A_PICKLE),
    kind(b"\x80\x05\x95", A_PICKLE, OF_A_PICKLE),
    kind(b"GGUF\x02\0", "a GGUF model", "that is a model and no data"),
    kind(b"GGUF\x03\0", "a GGUF model", "that is a model and no data"),
    kind(b"\x7fELF", "a program", ELSE),
    kind(b"\0asm", "a program", ELSE),
    kind(b"\xca\xfe\xba\xbe", "a program", ELSE),
    kind(b"MZ\x90\0", "a program", ELSE),
    kind(b"RDX3\n", "a file of R", "write its table as CSV (`write.csv`)"),
];

/// Magic of a zip archive's first file, whose name follows later.
const ZIP: &[u8] = b"PK\x03\x04";
/// Offsets of the length of that name, and of the name.
const ZIP_LENGTH_AT: usize = 26;
const ZIP_NAME_AT: usize = 30;
/// Kinds of zip archives by extension.
const ZIPPED: [(&[&str], &str, &str); 5] = [
    (
        &["xlsx", "xlsm", "xlsb", "ods"],
        "a workbook",
        "save it as CSV (`pandas.read_excel(IN).to_csv(OUT, index=False)`)",
    ),
    (
        &["docx", "odt", "epub"],
        "a document with its layout",
        "write its text (`pandoc IN -t plain -o OUT.txt`)",
    ),
    (&["pptx", "odp"], "a presentation", "save its text as plain text"),
    (&["npz"], A_NUMPY_ARCHIVE, OF_A_NUMPY_ARCHIVE),
    (&["pt", "pth", "ckpt"], A_TORCH_FILE, OF_TORCH),
];
const A_NUMPY_ARCHIVE: &str = "an archive of numpy arrays";
const OF_A_NUMPY_ARCHIVE: &str = "write tokens with `numpy.load(IN)[NAME].astype('<u2').tofile(OUT)` and say format = \"tokens-u16\", or with '<u4' and \"tokens-u32\" where there are some beyond 65,535";

/// Describes a zip archive by its first file or its name; `None`: it is no such archive.
pub(super) fn zipped(head: &[u8], path: &Path) -> Option<String> {
    let told = |name: &str, remedy: &str| Some(format!("{name}: {remedy}"));
    if !head.starts_with(ZIP) {
        return None;
    }
    let first = first_in_zip(head).unwrap_or_default();
    if first.ends_with(b"data.pkl") {
        return told(A_TORCH_FILE, OF_TORCH);
    }
    if first.ends_with(b".npy") {
        return told(A_NUMPY_ARCHIVE, OF_A_NUMPY_ARCHIVE);
    }
    let end = end_of(path);
    if let Some((_, name, remedy)) = ZIPPED.iter().find(|(ends, ..)| ends.contains(&end.as_str())) {
        return told(name, remedy);
    }
    match first {
        b"[Content_Types].xml" => {
            told("an Office file", "save a workbook as CSV, and a document as plain text")
        }
        _ => told("a zip archive", "unpack it (`unzip`), and name the files in it"),
    }
}

fn first_in_zip(head: &[u8]) -> Option<&[u8]> {
    let length = head.get(ZIP_LENGTH_AT..)?.first_chunk()?;
    let name = head.get(ZIP_NAME_AT..)?;
    Some(&name[..name.len().min(u16::from_le_bytes(*length).into())])
}

/// Kinds without a magic, by extension.
const BY_NAME: [(&[&str], &str, &str); 3] = [
    (&["pkl", "pickle", "joblib"], A_PICKLE, OF_A_PICKLE),
    (
        &["mds"],
        "a shard of MosaicML's streaming format",
        "write its texts as JSON lines, with the `streaming` package in Python",
    ),
    (&["lance"], A_LANCE_FILE, OF_LANCE),
];
const A_LANCE_FILE: &str = "a Lance dataset, or a file of one";
const OF_LANCE: &str =
    "write Parquet of the dataset (`pyarrow.parquet.write_table(lance.dataset(IN).to_table(), OUT)`)";

/// Describes a file or folder of another kind than text by its name, where its bytes are inconclusive.
pub(crate) fn by_name(path: &Path) -> Option<String> {
    let end = end_of(path);
    let (_, name, remedy) = BY_NAME.iter().find(|(ends, ..)| ends.contains(&end.as_str()))?;
    Some(format!("{name}, as its name says: {remedy}"))
}

/// Returns the extension of a name, without that of its compression.
fn end_of(path: &Path) -> String {
    let end = |path: &Path| path.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase);
    match end(path) {
        Some(packed) if packed == "gz" || packed == "zst" => end(&path.with_extension("")),
        other => other,
    }
    .unwrap_or_default()
}

/// A PDF document's first line: its version alone.
const PDF: &[u8] = b"%PDF-";
const PDF_LINE_END_AT: usize = 8;

/// Describes a PDF document by its first line; `None`: it is none. A text may begin with the same letters.
pub(super) fn pdf(head: &[u8]) -> Option<String> {
    let ends = head.get(PDF_LINE_END_AT).is_some_and(|byte| matches!(byte, b'\r' | b'\n'));
    (head.starts_with(PDF) && ends).then(|| format!("{A_PDF}: {OF_A_PDF}"))
}

/// Message for TensorFlow's records.
pub(super) const TF_RECORDS: &str = "a file of TensorFlow's records (TFRecord): write its texts as JSON lines (`tf.data.TFRecordDataset(IN)` reads it)";

/// Whether it begins with the length of a record and its masked checksum, as TensorFlow's files do.
pub(super) fn is_tf_records(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk::<8>() else { return false };
    let masked = crc32c(length).rotate_right(15).wrapping_add(0xa282_ead8);
    rest.first_chunk() == Some(&masked.to_le_bytes())
}

/// Returns the checksum of RFC 3720 (Castagnoli).
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |crc: u32, _: u32| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_tensorflow_are_known_by_the_checksum_of_their_length() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // A record of five bytes from TensorFlow.
        let head = b"\x05\0\0\0\0\0\0\0\xea\xb2\x04\x3ehello";
        assert!(is_tf_records(head));
        for at in 0..12 {
            let mut other = head.to_vec();
            other[at] ^= 1;
            assert!(!is_tf_records(&other), "{at}");
        }
        assert!(!is_tf_records(&head[..11]));
    }

    #[test]
    fn a_zip_archive_is_what_its_first_file_or_its_name_says() {
        let zip = |first: &str| {
            let length = u16::try_from(first.len()).unwrap().to_le_bytes();
            [&b"PK\x03\x04"[..], &[0; 22], &length, &[0; 2], first.as_bytes(), b"content"].concat()
        };
        for (name, first, words) in [
            ("a.xlsx", "[Content_Types].xml", "a workbook: save it as CSV"),
            ("a.XLSX", "docProps/app.xml", "a workbook: "),
            ("a.docx", "[Content_Types].xml", "a document with its layout: write its text (`pandoc"),
            ("a.epub", "mimetype", "a document with its layout"),
            ("a.pptx", "[Content_Types].xml", "a presentation"),
            ("a.npz", "arr_0.npy", "an archive of numpy arrays: write tokens"),
            ("a.zip", "tokens.npy", "an archive of numpy arrays"),
            ("a.pt", "archive/data.pkl", "a file of PyTorch: write a tensor"),
            ("pytorch_model.bin", "archive/data.pkl", "a file of PyTorch"),
            ("download", "[Content_Types].xml", "an Office file"),
            ("a.zip", "a.txt", "a zip archive: unpack it (`unzip`)"),
            ("a.txt", "", "a zip archive"),
        ] {
            let told = zipped(&zip(first), Path::new(name)).unwrap();
            assert!(told.starts_with(words), "{name} {first}: {told}");
        }
        assert!(zipped(b"PK\x03\x04", Path::new("a.zip")).unwrap().starts_with("a zip archive"));
        assert_eq!(zipped(b"PK is how a text begins", Path::new("a.xlsx")), None);
    }

    #[test]
    fn kinds_without_a_mark_are_known_by_their_names() {
        for (name, words) in [
            ("a.pkl", Some("a pickle of Python, as its name says: load it")),
            ("a.pickle.gz", Some("a pickle")),
            ("shard.00000.mds", Some("a shard of MosaicML's")),
            ("a.LANCE", Some("a Lance dataset")),
            ("a.txt", None),
            ("pkl", None),
            ("a.pkl.txt", None),
        ] {
            let told = by_name(Path::new(name));
            assert_eq!(told.is_some(), words.is_some(), "{name}");
            assert!(told.unwrap_or_default().starts_with(words.unwrap_or_default()), "{name}");
        }
    }
}
