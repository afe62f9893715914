//! Calls of libraries that panic on some inputs, with panics as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Returns the result of `decode`; a panic becomes an error of the file with the panic's message. The state of `decode` must not be used after an error.
pub(crate) fn unwound<T, E>(
    decode: impl FnOnce() -> Result<T, E>,
    damaged: impl FnOnce(String) -> E,
) -> Result<T, E> {
    caught(decode).unwrap_or_else(|reason| Err(damaged(format!("it is damaged ({reason})"))))
}

/// Returns the result of `call`, or the message of its panic. The state of `call` must not be used afterwards.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| words(&*panic))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "its reader gives no reason".to_owned())
}
