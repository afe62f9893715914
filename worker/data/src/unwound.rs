//! Calls of libraries that panic on some inputs, as if that were an error of theirs.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `decode` gives; a panic in it is an error of the file, by its words. What it works on is not used any more after an error.
pub(crate) fn unwound<T, E>(
    decode: impl FnOnce() -> Result<T, E>,
    damaged: impl FnOnce(String) -> E,
) -> Result<T, E> {
    caught(decode).unwrap_or_else(|reason| Err(damaged(format!("it is damaged ({reason})"))))
}

/// What `call` gives, or the words of its panic. What it works on is not used any more after that.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| words(&*panic))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "its reader gives no reason".to_owned())
}
