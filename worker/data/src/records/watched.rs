//! A delimited text that is watched while a library splits it.

use std::cell::{Cell, RefCell};
use std::io::{self, Read};
use std::rc::Rc;

use longhaul_common::config::Dialect;

use super::rows::{Row, Rows};
use crate::bounds::RECORD_BYTES_MAX;

/// The findings of a [`Watched`], shared with it.
#[derive(Clone)]
pub(super) struct Watch {
    /// Bytes that may be read before the row ends.
    left: Rc<Cell<u64>>,
    at_end: Rc<Cell<bool>>,
    rows: Rc<RefCell<Rows>>,
}

impl Watch {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            left: Rc::new(Cell::new(RECORD_BYTES_MAX)),
            at_end: Rc::new(Cell::new(false)),
            rows: Rc::new(RefCell::new(Rows::new(dialect))),
        }
    }

    /// Allows the bytes of another row.
    pub(super) fn begin_row(&self) {
        self.left.set(RECORD_BYTES_MAX);
    }

    /// Returns the row that ended last within the first `read` bytes, and forgets it and those before it.
    pub(super) fn row_at(&self, read: u64) -> Option<Row> {
        self.rows.borrow_mut().take(read)
    }

    /// Whether the end of the text was read.
    pub(super) fn is_at_end(&self) -> bool {
        self.at_end.get()
    }
}

/// A reader with a limit for each row, which passes its bytes to [`Rows`].
pub(super) struct Watched {
    pub(super) reader: Box<dyn Read>,
    pub(super) watch: Watch,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Watch { left, at_end, rows } = &self.watch;
        if left.get() == 0 {
            let reason = format!("a row has more than {RECORD_BYTES_MAX} bytes; is a quote not closed?");
            return Err(io::Error::other(reason));
        }
        let wanted = buffer.len().min(usize::try_from(left.get()).unwrap_or(usize::MAX));
        let read = self.reader.read(&mut buffer[..wanted])?;
        rows.borrow_mut().see(&buffer[..read]);
        at_end.set(read == 0);
        left.set(left.get() - read as u64);
        Ok(read)
    }
}
