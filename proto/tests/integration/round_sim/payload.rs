//! Updates with distinguishable parts: instead of numbers they contain *atoms*, each made once, by one worker
//! in one round. A sum is a concatenation; compression keeps some atoms and leaves the rest as residual. A
//! test thus sees which part of which update was lost or counted twice, not only that a total is right.

use bytes::Bytes;
use longhaul_common::id::{Round, WorkerId};
use longhaul_proto::round::{Content, FragmentResult};

/// worker (16 bits) | round (32 bits) | lane (16 bits)
pub type Atom = u64;

/// Atoms of a fragment that a worker makes in a round.
pub const LANES: u64 = 3;

pub fn learn(worker: WorkerId, round: Round) -> Vec<Atom> {
    (0..LANES).map(|lane| u64::from(worker.0) << 48 | round.0 << 16 | lane).collect()
}

pub fn worker_of(atom: Atom) -> WorkerId {
    WorkerId((atom >> 48) as u32)
}

pub fn show(atom: Atom) -> String {
    format!("{}/r{}/{}", worker_of(atom), atom >> 16 & 0xffff_ffff, atom & 0xffff)
}

/// Splits atoms into the part that a round's compression keeps, and the residual. The kept lanes alternate,
/// so that all are sent eventually.
pub fn compress(round: Round, atoms: Vec<Atom>) -> (Vec<Atom>, Vec<Atom>) {
    atoms.into_iter().partition(|atom| (atom + round.0).is_multiple_of(2))
}

/// The same for an owner, whose residual differs from the contributors'.
pub fn compress_mean(round: Round, atoms: Vec<Atom>) -> (Vec<Atom>, Vec<Atom>) {
    atoms.into_iter().partition(|atom| (atom / 2 + round.0).is_multiple_of(2))
}

pub fn encode(atoms: &[Atom]) -> Bytes {
    atoms.iter().flat_map(|atom| atom.to_le_bytes()).collect()
}

pub fn decode(bytes: &Bytes) -> Vec<Atom> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

pub fn atoms_of(result: &FragmentResult) -> Vec<Atom> {
    match &result.content {
        Content::Bundle(parts) => parts.iter().flat_map(decode).collect(),
        Content::Mean(mean) => decode(mean),
    }
}
