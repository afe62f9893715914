//! Calls of readers that panic on some kinds of damage, as if it were a defect of their own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_schema::ArrowError;

/// What `read` gives; a panic in it is an error of the file. What it works on is not used any more after an error.
pub(super) fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| Err(ArrowError::ParseError(words(&*panic))))
}

/// The same of decoders that say what is wrong in words.
pub(in crate::data) fn unwound<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| Err(words(&*panic)))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it is damaged ({})", text.as_deref().unwrap_or("its reader gives no reason"))
}
