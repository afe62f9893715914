//! TensorFlow's `Event` as protocol buffers write it, as far as curves need it.
//!
//! `tensorflow/core/util/event.proto` and `tensorflow/core/framework/summary.proto` are the source of the numbers of fields. Six of them do not pay
//! for a compiler of schemas.

use super::scalars::Scalar;

/// Version of the format: the one with restarts.
const VERSION: &str = "brain.Event:2";

/// One record of an event file.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// The step of the run.
    pub step: u64,
    /// Content of the event.
    pub content: Content,
}

/// Content of an [`Event`].
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Which format follows: the first record of a file.
    Version,
    /// Voids this step and later ones.
    Restart,
    /// Points of curves.
    Scalars(Vec<Scalar>),
}

/// The types of fields on the wire.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

impl Event {
    /// As it is written.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        key(&mut bytes, 1, Wire::Fixed64);
        bytes.extend((self.at_ms as f64 / 1e3).to_le_bytes());
        if self.step > 0 {
            key(&mut bytes, 2, Wire::Varint);
            varint(&mut bytes, self.step);
        }
        match &self.content {
            Content::Version => field(&mut bytes, 3, VERSION.as_bytes()),
            Content::Scalars(scalars) => {
                let mut summary = Vec::new();
                scalars.iter().for_each(|scalar| field(&mut summary, 1, &value(scalar)));
                field(&mut bytes, 5, &summary);
            }
            Content::Restart => {
                /// `SessionLog.status`, and its value `START`.
                const START: [u8; 2] = [1 << 3, 1];
                field(&mut bytes, 7, &START);
            }
        }
        bytes
    }
}

/// A `Summary.Value`.
fn value(scalar: &Scalar) -> Vec<u8> {
    let mut bytes = Vec::new();
    field(&mut bytes, 1, scalar.tag.as_bytes());
    key(&mut bytes, 2, Wire::Fixed32);
    bytes.extend(scalar.value.to_le_bytes());
    bytes
}

fn field(to: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    key(to, number, Wire::Bytes);
    varint(to, bytes.len() as u64);
    to.extend(bytes);
}

fn key(to: &mut Vec<u8>, number: u64, wire: Wire) {
    varint(to, (number << 3) | wire as u64);
}

/// Seven bits a byte, the lowest first.
fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value as u8) | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// By TensorBoard 2.21.0: `Event(wall_time=1.5, step=300, …).SerializeToString().hex()` with the classes of `tensorboard.compat.proto`.
    #[test]
    fn events_are_the_bytes_that_tensorboards_own_classes_make() {
        let encoded = |step, content| hex(&Event { at_ms: 1500, step, content }.encode());
        assert_eq!(encoded(0, Content::Version), "09000000000000f83f1a0d627261696e2e4576656e743a32");
        assert_eq!(encoded(300, Content::Restart), "09000000000000f83f10ac023a020801");
        let scalars = vec![
            Scalar { tag: "train/loss".into(), value: 2.5 },
            Scalar { tag: "speed/workers".into(), value: -0.0 },
        ];
        let expected = concat!(
            "09000000000000f83f10ac022a290a110a0a747261696e2f6c6f73731500002040",
            "0a140a0d73706565642f776f726b6572731500000080",
        );
        assert_eq!(encoded(300, Content::Scalars(scalars)), expected);
    }
}
