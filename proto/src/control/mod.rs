//! The conversation between a worker and the coordinator. `docs/identity.md` is the design of all but the messages.

mod channel;
mod close;
mod frame;
mod hello;
pub mod message;
mod wire;

pub use channel::{
    ControlError, ControlReceiver, ControlSender, QUEUE_BYTES_MAX, QUEUE_MESSAGES_MAX, SendError, accept,
    open,
};
pub use close::CloseCode;
pub use frame::{FRAME_GRACE, FRAME_RATE_BYTES_PER_S_MIN, FrameError};
pub use hello::{HELLO_DEADLINE, Hello, HelloError, SOFTWARE_BYTES_MAX};
pub use wire::{
    CONTROL_FRAME_BYTES_MAX, ControlMessage, DecodeError, REPORT_FRAME_BYTES_MAX, decode, encode,
};
