//! Greeting of neighbours after TLS has authenticated them.

use longhaul_common::id::WorkerId;

/// Bytes of the dialler's greeting: the group's hash and its rank.
pub(super) const HELLO_BYTES: usize = 36;

/// Answer to the same group and the right rank.
pub(super) const WELCOME: u8 = 1;

/// Answer to any other: not now, perhaps later.
pub(super) const ANOTHER_GROUP: u8 = 2;

/// A hash of the session and the members in order of rank.
pub(super) type Group = [u8; 32];

pub(super) fn group(session: u64, members: impl Iterator<Item = WorkerId>) -> Group {
    let mut hash = blake3::Hasher::new();
    hash.update(b"longhaul site v1").update(&session.to_le_bytes());
    for member in members {
        hash.update(&member.0.to_le_bytes());
    }
    *hash.finalize().as_bytes()
}

pub(super) fn hello(group: &Group, rank: usize) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..32].copy_from_slice(group);
    // Ranks are below MEMBERS_MAX.
    bytes[32..].copy_from_slice(&(rank as u32).to_le_bytes());
    bytes
}
