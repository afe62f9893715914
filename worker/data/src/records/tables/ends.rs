//! What Parquet files begin and end with.

use std::io::{Read, Seek, SeekFrom};

use super::table_file::TableFile;
use crate::DataError;
use crate::records::content::ENCRYPTED;

const MAGIC: &[u8; 4] = b"PAR1";
/// Of a file whose description is encrypted.
const ENCRYPTED_MAGIC: &[u8; 4] = b"PARE";
/// Bytes of the shortest file: both marks, and the length of its description.
const BYTES_MIN: u64 = 12;

/// Refuses a file that is cut off, encrypted, or none of Parquet. Its reader tells of faults in between.
pub(super) fn check_ends(table: &TableFile) -> Result<(), DataError> {
    let (mut first, mut last) = ([0; 4], [0; 4]);
    if table.size >= BYTES_MIN {
        let mut file = table.rewound()?;
        let read = file.read_exact(&mut first).and_then(|()| {
            file.seek(SeekFrom::End(-4))?;
            file.read_exact(&mut last)
        });
        read.map_err(DataError::io("read", &table.path))?;
    }
    let path = table.path.clone();
    match (&first, &last) {
        (ENCRYPTED_MAGIC, _) | (_, ENCRYPTED_MAGIC) => {
            Err(DataError::OtherContent { path, what: ENCRYPTED.to_owned() })
        }
        (_, MAGIC) => Ok(()),
        (MAGIC, _) => Err(malformed(
            table,
            "it was cut off, or never closed, or something was put behind it: fetch it again, or write it anew",
        )),
        _ if table.size < BYTES_MIN => Err(malformed(table, "it is cut off: fetch it again")),
        _ => Err(malformed(
            table,
            "it does not begin as Parquet does either: name the format that it has, or take it out of the source",
        )),
    }
}

/// That its end is not that of Parquet.
fn malformed(table: &TableFile, remedy: &str) -> DataError {
    let (path, place) = (table.path.clone(), format!("byte {}, its end", table.size));
    let reason = format!("it does not end as Parquet does: {remedy}");
    DataError::Malformed { path, format: "Parquet", place, reason }
}
