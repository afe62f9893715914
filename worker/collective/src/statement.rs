//! Members' statements about a call before it begins.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use super::{Reduction, Word};

/// Bytes of a statement.
pub const STATEMENT_BYTES: usize = 32;

/// Calls that members agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Call {
    Sum = 1,
    Mean,
    AllGather,
    Broadcast,
    Barrier,
    JoinNccl,
    Exchange,
}

/// One member's statement. All fields but the samples, and the length of a broadcast, must be the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    call: u8,
    /// The root of a broadcast, the machine when joining NCCL, a member's own word in an exchange, else a hash of the ranges.
    detail: [u8; 16],
    /// Length of the vector; for a broadcast, of the root's bytes.
    pub len: u64,
    /// This member's samples.
    pub samples: u32,
}

impl Statement {
    /// Before a reduction of a vector of `len` values.
    #[must_use]
    pub fn reduce(reduction: Reduction, len: usize, ranges: &[Range<usize>]) -> Self {
        let (call, samples) = match reduction {
            Reduction::Sum => (Call::Sum, 0),
            Reduction::Mean { samples } => (Call::Mean, samples),
        };
        Self { call: call as u8, samples, ..Self::gather(len, ranges) }
    }

    /// Before gathering.
    #[must_use]
    pub fn gather(len: usize, ranges: &[Range<usize>]) -> Self {
        let mut hash = blake3::Hasher::new();
        for range in ranges {
            hash.update(&(range.start as u64).to_le_bytes()).update(&(range.end as u64).to_le_bytes());
        }
        let mut detail = [0; 16];
        hash.finalize_xof().fill(&mut detail);
        Self { detail, len: len as u64, ..Self::plain(Call::AllGather) }
    }

    /// Before a broadcast, whose root states the length.
    #[must_use]
    pub fn broadcast(root: usize, len: usize) -> Self {
        Self { detail: (root as u128).to_le_bytes(), len: len as u64, ..Self::plain(Call::Broadcast) }
    }

    /// With the hash of the common machine, or zeros.
    #[must_use]
    pub fn join_nccl(machine: [u8; 16]) -> Self {
        Self { detail: machine, ..Self::plain(Call::JoinNccl) }
    }

    /// Before an exchange of words.
    #[must_use]
    pub fn exchange(word: Word) -> Self {
        Self { detail: word, ..Self::plain(Call::Exchange) }
    }

    /// Returns a member's word in an exchange.
    #[must_use]
    pub fn word(&self) -> Word {
        self.detail
    }

    /// Of a call without a vector.
    #[must_use]
    pub fn plain(call: Call) -> Self {
        Self { call: call as u8, detail: [0; 16], len: 0, samples: 0 }
    }

    /// Reports whether both describe the same call.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let any_len = self.call == Call::Broadcast as u8;
        let any_detail = self.call == Call::Exchange as u8;
        self.call == other.call
            && (any_detail || self.detail == other.detail)
            && (any_len || self.len == other.len)
    }

    /// Encodes for the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; STATEMENT_BYTES] {
        let mut bytes = [0; STATEMENT_BYTES];
        bytes[0] = self.call;
        bytes[4..8].copy_from_slice(&self.samples.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..].copy_from_slice(&self.detail);
        bytes
    }

    /// Decodes; any bytes are valid.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; STATEMENT_BYTES]) -> Self {
        Self {
            call: bytes[0],
            samples: u32::from_le_bytes(part(bytes, 4)),
            len: u64::from_le_bytes(part(bytes, 8)),
            detail: part(bytes, 16),
        }
    }
}

fn part<const N: usize>(bytes: &[u8; STATEMENT_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}

impl Display for Statement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (len, [a, b, ..]) = (self.len, self.detail);
        match self.call {
            1 => write!(f, "sum of {len} values in ranges #{a:02x}{b:02x}"),
            2 => write!(f, "mean of {len} values in ranges #{a:02x}{b:02x}"),
            3 => write!(f, "gathering {len} values in ranges #{a:02x}{b:02x}"),
            4 => write!(f, "broadcast from rank {}", u128::from_le_bytes(self.detail)),
            5 => write!(f, "barrier"),
            6 => write!(f, "joining NCCL on machine #{a:02x}{b:02x}"),
            7 => write!(f, "exchange of words"),
            other => write!(f, "unknown call {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_its_golden_form_and_survives_it() {
        let statement = Statement { len: 0x0102_0304_0506, samples: 7, ..Statement::broadcast(2, 0) };
        let bytes = statement.to_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "0400000007000000060504030201000002000000000000000000000000000000");
        assert_eq!(Statement::from_bytes(&bytes), statement);
        let reduce = Statement::reduce(Reduction::Mean { samples: 9 }, 10, &[0..4, 4..10]);
        assert_eq!(Statement::from_bytes(&reduce.to_bytes()), reduce);
    }

    #[test]
    fn members_agree_whatever_their_samples_and_disagree_on_all_else() {
        let mean = |samples, len, at| Statement::reduce(Reduction::Mean { samples }, len, &[0..at, at..9]);
        assert!(mean(1, 9, 4).agrees_with(&mean(5, 9, 4)));
        assert!(!mean(1, 9, 4).agrees_with(&mean(1, 10, 4)));
        assert!(!mean(1, 9, 4).agrees_with(&mean(1, 9, 5)));
        assert!(!mean(0, 9, 4).agrees_with(&Statement::reduce(Reduction::Sum, 9, &[0..4, 4..9])));
        assert!(!mean(0, 9, 4).agrees_with(&Statement::gather(9, &[0..4, 4..9])));
        assert!(Statement::broadcast(1, 5).agrees_with(&Statement::broadcast(1, 0)));
        assert!(!Statement::broadcast(1, 5).agrees_with(&Statement::broadcast(0, 5)));
        assert!(Statement::exchange([1; 16]).agrees_with(&Statement::exchange([2; 16])));
        assert!(!Statement::exchange([1; 16]).agrees_with(&mean(0, 9, 4)));
    }
}
