//! A Parquet column as raw bytes, for files with texts that are not UTF-8: the column reader refuses a whole batch for one such text.

use std::fs::File;

use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, SerializedFileReader};

/// The bytes of a row, or null.
pub(super) type RawText = Option<Vec<u8>>;

/// The texts of one column, row by row.
pub(super) struct RawTexts {
    file: SerializedFileReader<File>,
    /// Index among the leaves of the file's schema.
    leaf: usize,
    /// Index of the next row group.
    group: usize,
    current: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Unread rows of the current group, as declared by the file.
    left: u64,
}

impl RawTexts {
    /// Opens the column at this index of the schema, and skips `skip` rows.
    ///
    /// # Errors
    /// The file cannot be read, or the column does not hold texts.
    pub(super) fn open(file: File, column: usize, skip: u64) -> Result<Self> {
        let file = SerializedFileReader::new(file)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let mut leaves = (0..schema.num_columns()).filter(|leaf| schema.get_column_root_idx(*leaf) == column);
        let (Some(leaf), None) = (leaves.next(), leaves.next()) else {
            return Err(ParquetError::General("the column has columns within".to_owned()));
        };
        let mut raw = Self { file, leaf, group: 0, current: None, left: 0 };
        raw.skip(skip)?;
        Ok(raw)
    }

    fn skip(&mut self, mut rows: u64) -> Result<()> {
        while rows > 0 && self.group < self.file.num_row_groups() {
            let all = u64::try_from(self.file.metadata().row_group(self.group).num_rows()).unwrap_or(0);
            if all > rows {
                self.begin_group()?;
                let skip = usize::try_from(rows).unwrap_or(usize::MAX);
                self.left -= rows;
                let skipped = self.current.as_mut().map_or(Ok(0), |current| current.skip_records(skip))?;
                return if skipped == skip { Ok(()) } else { Err(cut_off()) };
            }
            (self.group, rows) = (self.group + 1, rows - all);
        }
        Ok(())
    }

    fn begin_group(&mut self) -> Result<()> {
        let ColumnReader::ByteArrayColumnReader(reader) =
            self.file.get_row_group(self.group)?.get_column_reader(self.leaf)?
        else {
            return Err(ParquetError::General("the column holds no bytes".to_owned()));
        };
        self.left = u64::try_from(self.file.metadata().row_group(self.group).num_rows()).unwrap_or(0);
        (self.group, self.current) = (self.group + 1, Some(reader));
        Ok(())
    }

    /// Returns up to `most` further rows; none at the end.
    pub(super) fn next_rows(&mut self, most: usize) -> Result<Vec<RawText>> {
        loop {
            if let Some(current) = &mut self.current {
                let (mut levels, mut values) = (Vec::new(), Vec::new());
                let (rows, _, _) = current.read_records(most, Some(&mut levels), None, &mut values)?;
                if rows > 0 {
                    self.left = self.left.checked_sub(rows as u64).ok_or_else(cut_off)?;
                    return Ok(in_rows(rows, &levels, values));
                }
                if self.left > 0 {
                    return Err(cut_off());
                }
                self.current = None;
            }
            if self.group == self.file.num_row_groups() {
                return Ok(Vec::new());
            }
            self.begin_group()?;
        }
    }
}

fn cut_off() -> ParquetError {
    ParquetError::General("the column has another number of rows than its group".to_owned())
}

/// Restores null rows. A top-level column is null below its highest level, 1; one that is never null has no levels.
fn in_rows(rows: usize, levels: &[i16], values: Vec<ByteArray>) -> Vec<RawText> {
    let mut values = values.into_iter().map(|value| value.data().to_vec());
    if levels.is_empty() {
        return values.take(rows).map(Some).collect();
    }
    levels.iter().map(|level| if *level > 0 { values.next() } else { None }).collect()
}
