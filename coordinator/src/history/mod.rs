//! History for the dashboard: curves of a run, of bounded size, and their files.
//!
//! `docs/dashboard.md` is the design. [`History`] is a value: time is an argument. [`Folder`] writes and reads it; nothing waits for it, and no decision depends on it.

mod activity;
mod done;
mod folder;
mod lines;
mod news;
mod note;
mod points;
mod shared;
mod thinned;

pub use activity::{Activity, Interval, Spent};
pub use done::Done;
pub use folder::{FOLDER, Folder, Found, HistoryError, Last, Rest};
pub use news::{Mark, News, Open};
pub use note::{FORMAT, History, Meta, RetainedHistory};
pub use points::{RoundPoint, Sample};
pub use shared::SharedHistory;
pub use thinned::{Point, Thinned};
