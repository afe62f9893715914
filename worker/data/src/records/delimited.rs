//! Tables with commas or tabs between values.

use std::path::{Path, PathBuf};

use csv::ByteRecord;
use longhaul_common::config::{Column, DataFormat, Dialect};

use super::delimiters::{self, HEAD_BYTES_MAX};
use super::encoding::NotUtf8;
use super::head_like::HeadLike;
use super::input::{Input, MARK, Packing, Position, command};
use super::known::{example, listed, meant, shown};
use super::labels::Beside;
use super::remedies::Remedies;
use super::rows::Row;
use super::watched::{Watch, Watched};
use super::{Record, Records, faults};
use crate::counted::counted;
use crate::notes::{Note, Notes};
use crate::{DataError, Recipe};

/// The texts of one column, or of labelled texts with their classes.
pub(super) struct Delimited {
    path: PathBuf,
    reader: csv::Reader<Watched>,
    watch: Watch,
    position: Position,
    column: usize,
    /// The other columns of labelled texts.
    beside: Option<Beside>,
    /// The names of the columns; `None`: columns are given by number.
    head: Option<ByteRecord>,
    /// Values per row, and the origin of that number.
    width: Option<(usize, &'static str)>,
    separator: String,
    row: ByteRecord,
    dialect: Dialect,
    packing: Option<Packing>,
    remedies: Remedies,
    noticed: Noticed,
}

/// Most columns whose values are counted.
const UNREAD_MAX: usize = 1 << 10;

/// Findings in the rows so far.
#[derive(Default)]
struct Noticed {
    /// Whether a text had characters beyond ASCII.
    has_characters: bool,
    /// The first line, if the column is given by number.
    head_like: HeadLike,
    /// Rows with a value in each column that is not read, up to [`UNREAD_MAX`] columns.
    unread: Vec<u64>,
    notes: Notes,
}

impl Delimited {
    pub(super) fn new(mut input: Input, recipe: &Recipe) -> Result<Self, DataError> {
        let (ahead, dialect) = (input.ahead(HEAD_BYTES_MAX)?, recipe.dialect);
        let Input { path, reader, position, packing, .. } = input;
        check_first_line(&ahead, recipe, packing).map_err(|reason| malformed(&path, 1, reason))?;
        let watch = Watch::new(dialect);
        let watched = Watched { reader, watch: watch.clone() };
        let is_named = matches!(recipe.column, Column::Name(_));
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(dialect.delimiter)
            .quoting(dialect.quote.is_some())
            .quote(dialect.quote.unwrap_or(b'"'))
            .escape(dialect.escape)
            // A row of another length is a bad record, not the end of the file.
            .flexible(true)
            .has_headers(is_named)
            .from_reader(watched);
        let (column, width, head, beside) = match &recipe.column {
            Column::Number(_) => {
                let beside = Beside::of(recipe, |column| Ok(index_of(column)))?;
                (index_of(&recipe.column), None, None, beside)
            }
            Column::Name(name) => {
                let header =
                    reader.byte_headers().map_err(|error| malformed(&path, 1, error.to_string()))?.clone();
                let at_end = watch.is_at_end();
                let read = watch.row_at(reader.position().byte());
                let header = match (read, dialect.escape) {
                    (Some(row), Some(escape)) => unescaped(&header, row, escape),
                    _ => header,
                };
                let is_labelled = recipe.labelling.is_some();
                let head = Head { names: &header, text: &ahead, dialect, packing, at_end, is_labelled };
                let (column, width) = (head.place_of(name, &path)?, header.len());
                let place_of = |column: &Column| head.place_of(column.name().unwrap_or_default(), &path);
                let beside = Beside::of(recipe, place_of)?;
                if let Some(fault) = read.and_then(|row| row.fault) {
                    return Err(malformed(&path, 1, fault.to_owned()));
                }
                (column, Some((width, "the head")), Some(header), beside)
            }
        };
        Ok(Self {
            path,
            reader,
            watch,
            position,
            column,
            beside,
            head,
            width,
            separator: recipe.separator.clone(),
            row: ByteRecord::new(),
            dialect,
            packing,
            remedies: Remedies::default(),
            noticed: Noticed::default(),
        })
    }

    /// Returns the columns that are read.
    fn columns(&self) -> impl Iterator<Item = usize> {
        let beside = self.beside.as_ref().map(Beside::columns);
        std::iter::once(self.column).chain(beside.into_iter().flatten())
    }

    /// Counts the values of the row read last that are not read.
    fn count_unread(&mut self) {
        let counts = &mut self.noticed.unread;
        counts.resize(self.row.len().min(UNREAD_MAX).max(counts.len()), 0);
        counts.iter_mut().zip(&self.row).for_each(|(count, value)| *count += u64::from(!value.is_empty()));
    }

    /// Adds a good row to the notes.
    fn note_row(&mut self, row: Option<Row>, line: u64) {
        self.count_unread();
        let path = &self.path;
        if let Some(Row { first, last, .. }) = row.filter(|row| row.last > row.first)
            && self.dialect.delimiter == b'\t'
        {
            self.noticed
                .notes
                .note(Note::LongRows, 1, || format!("{}, lines {first} to {last}", path.display()));
        }
        if let Some(row) = row.filter(|row| row.has_letters(self.column)) {
            self.noticed.notes.note(Note::Escapes, 1, || format!("{}, line {}", path.display(), row.first));
        }
        if self.head.is_some() {
            return;
        }
        let is_first = !self.noticed.head_like.is_begun();
        if let Some(own) = self.noticed.head_like.see(&self.row, self.column) {
            let own = shown(&own);
            self.noticed
                .notes
                .note(Note::HeadTaken, 1, || format!("{}: its text is `{own}`", path.display()));
        }
        // Only a file's first line may be a head.
        if is_first && (!self.noticed.head_like.is_begun() || row.map_or(line, |row| row.first) > 1) {
            self.noticed.head_like.give_up();
        }
    }

    /// Returns the text of the row read last, or its fault.
    fn text(&mut self, row: Option<Row>) -> Result<String, String> {
        if let Some(fault) = row.and_then(|row| row.fault) {
            return Err(fault.to_owned());
        }
        if let (Some(row), Some(escape)) = (row.filter(Row::has_escapes), self.dialect.escape) {
            let is_null =
                |column| row.is_escaped(column) && self.row.get(column) == Some(&[escape, b'N'][..]);
            if self.columns().any(is_null) {
                return Err("it is null (`\\N`)".to_owned());
            }
            self.row = unescaped(&self.row, row, escape);
        }
        let values = self.row.len();
        let Some(cell) = self.row.get(self.column) else {
            let (columns, wanted) = (counted(values as u64, "column"), self.column + 1);
            let whole = if values == 1 { self.row.as_slice() } else { &[] };
            let other = || {
                let (delimiter, _) = delimiters::with_values(whole, self.dialect, wanted)?;
                Some(format!("if {0} stands between its values, say delimiter = {0}", quoted(delimiter)))
            };
            let reason = format!("it has {columns}, and column {wanted} was asked for");
            let remedy = self.why_short(row).or_else(other).unwrap_or_default();
            return Err(self.remedies.told(reason, remedy));
        };
        let (width, whose) = *self.width.get_or_insert((values, "the first row"));
        if values != width {
            let why = self.why_short(row).filter(|_| values < width);
            let why = why.as_deref().unwrap_or("is there a delimiter in a text without quotes around it?");
            let values = counted(values as u64, "value");
            return Err(format!("it has {values}, and {whose} has {width}: {why}"));
        }
        if self.head.as_ref().is_some_and(|head| are_same(head, &self.row)) {
            return Err(HEAD_AGAIN.to_owned());
        }
        let (text, error) = match str::from_utf8(cell) {
            Ok(text) => (text, None),
            Err(error) => ("", Some((self.column, cell, error))),
        };
        let is_bad = |(column, cell)| Some((column, cell, str::from_utf8(cell).err()?));
        // A cut may show only in values beside the text.
        let bad = error.or_else(|| self.row.iter().enumerate().find_map(is_bad));
        if let Some((column, cell, error)) = bad {
            let is_last = self.watch.is_at_end() && column + 1 == values;
            let found = NotUtf8::of_part(cell, error, self.noticed.has_characters, is_last);
            let reason = format!("it is {}", found.within(&format!("column {}", column + 1)));
            return Err(self.remedies.told(reason, found.remedy(self.packing)));
        }
        self.noticed.has_characters = self.noticed.has_characters || !text.is_ascii();
        let delimiter = self.dialect.delimiter;
        if self.row.iter().enumerate().any(|(at, value)| holds_rows(value, delimiter, at, width)) {
            return Err(HOLDS_ROWS.to_owned());
        }
        Ok(format!("{text}{}", self.separator))
    }
}

/// The character that ends a text of DOS: Ctrl-Z.
const END_OF_DOS: &[u8] = b"\x1a";

impl Delimited {
    /// Returns the likely cause, with its remedy, of too few values in the row read last.
    fn why_short(&self, row: Option<Row>) -> Option<String> {
        if self.row.len() == 1 && self.row.get(0) == Some(END_OF_DOS) {
            let out = if self.dialect.delimiter == b'\t' { "OUT.tsv" } else { "OUT.csv" };
            let sed = command(self.packing, r"sed '/^\x1a/d'", out);
            return Some(format!(
                "it is Ctrl-Z alone (0x1a), with which DOS ends a text: take it out ({sed})"
            ));
        }
        row.filter(|row| row.is_after_return).map(|_| {
            "the line before it ends with a carriage return alone (0x0d): if that is part of a value, write such values in quotes (with pandas `quoting=csv.QUOTE_ALL`), or without it".to_owned()
        })
    }
}

/// Returns a row without the escapes outside quotes.
fn unescaped(values: &ByteRecord, row: Row, escape: u8) -> ByteRecord {
    let without = |(at, value): (usize, &[u8])| {
        let (mut text, mut rest) = (Vec::with_capacity(value.len()), value);
        while row.is_escaped(at)
            && let Some(place) = memchr::memchr(escape, rest)
        {
            let behind = rest.len().min(place + 2);
            text.extend_from_slice(&rest[..place]);
            text.extend_from_slice(&rest[place + 1..behind]);
            rest = &rest[behind..];
        }
        text.extend_from_slice(rest);
        text
    };
    values.iter().enumerate().map(without).collect()
}

/// Whether two rows are the same, but for a byte order mark before the second.
fn are_same(head: &ByteRecord, row: &ByteRecord) -> bool {
    let mark = MARK.to_string();
    let first = row.get(0).map(|first| first.strip_prefix(mark.as_bytes()).unwrap_or(first));
    head.len() == row.len() && head.get(0) == first && head.iter().skip(1).eq(row.iter().skip(1))
}

const HEAD_AGAIN: &str = "it is the head again: were tables joined with `cat`?";
const HOLDS_ROWS: &str = "a quote that opens in one row closes in another, as each line between has as many tabs as a row: where quotes are text as any other, say quote = \"\"";

/// Minimum of further lines in a value that distinguish rows of two values from a text of two lines with a tab.
const HELD_ROWS_MIN: usize = 2;

/// Whether a quoted value contains ends and starts of rows of a table with tabs: all of its lines have the tabs of rows. `column`: its index, from 0.
fn holds_rows(value: &[u8], delimiter: u8, column: usize, width: usize) -> bool {
    let tabs = |line: &[u8]| line.iter().filter(|byte| **byte == delimiter).count();
    let mut lines: Vec<usize> = value.split(|byte| *byte == b'\n').map(tabs).collect();
    let (Some(last), least) = (lines.pop(), if width > 2 { 1 } else { HELD_ROWS_MIN }) else { return false };
    if delimiter != b'\t' || width < 2 || lines.len() < least {
        return false;
    }
    let (first, between) = (lines[0], &lines[1..]);
    first + column + 1 == width && last == column && between.iter().all(|tabs| tabs + 1 == width)
}

/// Refuses Excel's delimiter line before the head.
fn check_first_line(text: &[u8], recipe: &Recipe, packing: Option<Packing>) -> Result<(), String> {
    let Some(delimiter) = delimiters::excel(text) else { return Ok(()) };
    let dialect = recipe.dialect;
    // The extension gives the delimiter.
    let out = if recipe.format == DataFormat::Tsv { "OUT.tsv" } else { "OUT.csv" };
    let is_known =
        delimiter == dialect.delimiter || Some(delimiter) == dialect.quote || !delimiter.is_ascii();
    let say = if is_known { String::new() } else { format!(", and say delimiter = {}", quoted(delimiter)) };
    Err(format!(
        "it is a line for Excel (`sep=...`) and no row: take it out ({}){say}",
        command(packing, "tail -n +2", out)
    ))
}

/// Returns a delimiter as written in a configuration.
fn quoted(delimiter: u8) -> String {
    format!("{:?}", char::from(delimiter).to_string())
}

/// The start of a table.
struct Head<'a> {
    names: &'a ByteRecord,
    /// The text that contains them.
    text: &'a [u8],
    dialect: Dialect,
    packing: Option<Packing>,
    /// Whether the file ends with them.
    at_end: bool,
    /// Whether `data.classification` names the columns.
    is_labelled: bool,
}

impl Head<'_> {
    /// Returns the index of the column of this name.
    fn place_of(&self, name: &str, path: &Path) -> Result<usize, DataError> {
        let is_called_so = |(_, cell): &(usize, &[u8])| *cell == name.as_bytes();
        let mut places = self.names.iter().enumerate().filter(is_called_so).map(|(place, _)| place);
        match (places.next(), places.next()) {
            (Some(place), None) => Ok(place),
            (Some(first), Some(second)) => {
                let (first, second) = (first + 1, second + 1);
                let key = if self.is_labelled {
                    "in data.classification give all columns by number, that one as"
                } else {
                    "say column ="
                };
                let reason = format!(
                    "columns {first} and {second} are both called `{name}`: {key} {first} or {second}, and leave out the head"
                );
                Err(malformed(path, 1, reason))
            }
            (None, _) => Err(DataError::NoColumn {
                path: path.to_owned(),
                column: format!("`{name}`"),
                known: listed(self.names.iter().map(|cell| shown(&String::from_utf8_lossy(cell)))),
                remedy: self.remedy(name),
            }),
        }
    }

    /// Returns the remedy for a missing column.
    fn remedy(&self, wanted: &str) -> String {
        if let Some(delimiter) = delimiters::with_name(self.text, self.dialect, wanted) {
            return format!("say delimiter = {}, which stands between its names", quoted(delimiter));
        }
        let is_bad = |(place, cell)| Some((place, cell, str::from_utf8(cell).err()?));
        if let Some((place, cell, error)) = self.names.iter().enumerate().find_map(is_bad) {
            let is_last = self.at_end && place + 1 == self.names.len();
            return NotUtf8::of_part(cell, error, false, is_last).remedy(self.packing);
        }
        if let Some(line) = delimiters::line_with_name(self.text, self.dialect, wanted) {
            let out = if self.dialect.delimiter == b'\t' { "OUT.tsv" } else { "OUT.csv" };
            let tail = command(self.packing, &format!("tail -n +{line}"), out);
            return format!("its head is line {line}: leave out those before it ({tail})");
        }
        if self.names.len() == 1
            && let Some((delimiter, names)) = delimiters::with_values(self.text, self.dialect, 2)
        {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let delimiter = quoted(delimiter);
            return format!(
                "if {delimiter} stands between its names, say delimiter = {delimiter}; then {}",
                self.give_column(wanted, &names)
            );
        }
        let names: Vec<&str> = self.names.iter().filter_map(|cell| str::from_utf8(cell).ok()).collect();
        self.give_column(wanted, &names)
    }

    /// Returns the remedy that selects one of these columns, if none has the configured name.
    fn give_column(&self, wanted: &str, names: &[&str]) -> String {
        // With a known name, the first line is a head.
        let is_known = meant(wanted, names).is_some();
        if self.is_labelled {
            let number = if is_known { "" } else { NUMBERED };
            return format!("data.classification names the columns of text, text_pair and label{number}");
        }
        let name = example(wanted, names).map(|name| format!(", as in column = {name}")).unwrap_or_default();
        let number = match is_known {
            true => "",
            false => ", or by its number (column = 1) if the first line is a row as all others",
        };
        format!("give the column with the texts by its name{name}{number}")
    }
}

const NUMBERED: &str =
    "; if the first line is a row as all others, give all of them by number, as in text = 1 and label = 2";

/// Returns the index of a column that is given by number.
fn index_of(column: &Column) -> usize {
    match column {
        Column::Number(number) => (*number as usize).saturating_sub(1),
        Column::Name(_) => 0,
    }
}

impl Records for Delimited {
    fn next_record(&mut self) -> Result<Option<Record>, DataError> {
        self.watch.begin_row();
        let read = self.reader.read_byte_record(&mut self.row);
        let line = self.reader.position().line();
        if !read.map_err(|error| malformed(&self.path, line, error.to_string()))? {
            return Ok(None);
        }
        let row = self.watch.row_at(self.reader.position().byte());
        let text = self.text(row).and_then(faults::checked);
        if text.is_ok() {
            self.note_row(row, line);
        }
        let lines = match row {
            Some(Row { first, last, .. }) if last > first => format!("lines {first} to {last}"),
            row => format!("line {}", row.map_or(line, |row| row.first)),
        };
        let record = text.and_then(|text| match &self.beside {
            Some(beside) => {
                let text = beside.labelled(text, &self.row)?;
                Ok(Record::Labelled { text, place: format!("{}, {lines}", self.path.display()) })
            }
            None => Ok(Record::Text(text)),
        });
        Ok(Some(record.unwrap_or_else(|reason| {
            let count = row.map_or(1, |row| match reason == HOLDS_ROWS {
                true => row.last - row.first + 1,
                false => row.counts_for(),
            });
            Record::Bad { reason: format!("{}, {lines}: {reason}", self.path.display()), count }
        })))
    }

    fn read_bytes(&self) -> u64 {
        self.position.bytes()
    }

    fn content_bytes(&self) -> u64 {
        self.position.content_bytes()
    }

    fn take_notes(&mut self) -> Notes {
        let (mut notes, counts) =
            (std::mem::take(&mut self.noticed.notes), std::mem::take(&mut self.noticed.unread));
        let read: Vec<usize> = self.columns().collect();
        for (at, count) in counts.into_iter().enumerate().filter(|(at, _)| !read.contains(at)) {
            let name = self.head.as_ref().and_then(|head| head.get(at)).filter(|name| !name.is_empty());
            let name = name.map(String::from_utf8_lossy);
            let name = name.unwrap_or_else(|| format!("column {}", at + 1).into());
            notes.names(Note::UnreadColumns, &name, count);
        }
        notes
    }
}

fn malformed(path: &Path, line: u64, reason: String) -> DataError {
    DataError::Malformed { path: path.to_owned(), format: "a table", place: format!("line {line}"), reason }
}
