use longhaul_collective::NcclError;

/// A random number that Linux draws at each boot, and shows alike to all processes and containers of a machine (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The machine's name as the process sees it: each container has its own (uts_namespaces(7)).
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// Returns a machine's identity, for comparison between members. Like NCCL's own, it includes the name: between containers of one machine NCCL uses the
/// network, in the clear and on ports of its own choice.
pub(super) fn this() -> Result<[u8; 16], NcclError> {
    let read =
        |path| std::fs::read(path).map_err(|error| NcclError::NoMachine { path, reason: error.to_string() });
    Ok(named(&read(BOOT_ID)?, &read(HOSTNAME)?))
}

fn named(boot_id: &[u8], hostname: &[u8]) -> [u8; 16] {
    let mut hash = [0; 16];
    let mut hasher = blake3::Hasher::new();
    // Both end with a line break, and have no other.
    hasher.update(b"longhaul machine v1").update(boot_id).update(hostname);
    hasher.finalize_xof().fill(&mut hash);
    hash
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_stays_the_same() {
        assert_eq!(super::this().unwrap(), super::this().unwrap());
    }

    #[test]
    fn containers_of_one_machine_are_machines_of_their_own() {
        assert_ne!(super::named(b"boot\n", b"workers-0\n"), super::named(b"boot\n", b"workers-1\n"));
    }
}
