//! A control message, in both directions, and what is said at the desk by and to who has shown no certificate yet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_proto::control::message::{ToCoordinator, ToWorker};
use longhaul_proto::control::{ControlMessage, FromDesk, ToDesk, decode, encode};

fuzz_target!(|bytes: &[u8]| {
    there_and_back::<ToWorker>(bytes);
    there_and_back::<ToCoordinator>(bytes);
    there_and_back::<ToDesk>(bytes);
    there_and_back::<FromDesk>(bytes);
});

/// Compares bytes: a number that is not one differs from itself.
fn there_and_back<T: ControlMessage>(bytes: &[u8]) {
    if let Ok(message) = decode::<T>(bytes) {
        let written = encode(&message).expect("what was read can be written");
        let again = decode::<T>(&written).expect("what was written can be read");
        assert_eq!(encode(&again).expect("what was read can be written"), written);
    }
}
