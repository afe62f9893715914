//! The memory limit of a container, job or service: the smallest of its control group and the ancestors.

use std::fs::read_to_string;
use std::path::Path;

/// Bytes left by this process's control groups; `None`: no limit, or no control groups.
pub(super) fn free_bytes() -> Option<u64> {
    free_bytes_in(Path::new("/sys/fs/cgroup"), &read_to_string("/proc/self/cgroup").ok()?)
}

/// The file names of one control group version.
struct Version {
    limit: &'static str,
    used: &'static str,
    /// Keys of `memory.stat` for reclaimable memory, such as the page cache.
    given_up: [&'static str; 3],
}

const SECOND: Version = Version {
    limit: "memory.max",
    used: "memory.current",
    given_up: ["inactive_file ", "active_file ", "slab_reclaimable "],
};
const FIRST: Version = Version {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    given_up: ["total_inactive_file ", "total_active_file ", "total_slab_reclaimable "],
};

fn free_bytes_in(mount: &Path, groups: &str) -> Option<u64> {
    let least = |root: &Path, group: &str, version: &Version| {
        // Within a container the path may be the host's, and the root the group's own folder.
        let own = root.join(group.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(root));
        folders.filter_map(|folder| free_in(folder, version)).min()
    };
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        match controllers {
            "" => least(mount, group, &SECOND),
            _ if controllers.split(',').any(|name| name == "memory") => {
                least(&mount.join("memory"), group, &FIRST)
            }
            _ => None,
        }
    };
    groups.lines().filter_map(of_line).min()
}

/// Bytes that a group leaves; `None`: no limit.
fn free_in(folder: &Path, version: &Version) -> Option<u64> {
    let number = |file| read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let limit = number(version.limit)?;
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let of_line = |line: &str| {
        let number = version.given_up.iter().find_map(|name| line.strip_prefix(name))?;
        number.trim().parse::<u64>().ok()
    };
    let given_up: u64 = stat.lines().filter_map(of_line).sum();
    let used = number(version.used).unwrap_or(0).saturating_sub(given_up);
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use super::*;

    fn mount(files: &[(&str, &str)]) -> tempfile::TempDir {
        let mount = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = mount.path().join(name);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, content).unwrap();
        }
        mount
    }

    #[test]
    fn the_narrowest_of_a_group_and_those_that_it_is_in_counts() {
        let files = [
            ("memory.stat", "anon 1\n"),
            ("a/memory.max", "1000\n"),
            ("a/memory.current", "700\n"),
            ("a/memory.stat", "anon 5\ninactive_file 200\nactive_file 90\nslab_reclaimable 10\n"),
            ("a/b/memory.max", "max\n"),
            ("a/c/memory.max", "500\n"),
            ("a/c/memory.current", "450\n"),
        ];
        let mount = mount(&files);
        for (groups, free) in [
            ("0::/a\n", Some(600)),
            ("0::/a/b\n", Some(600)),
            ("0::/a/c\n", Some(50)),
            ("0::/\n", None),
            ("0::/elsewhere\n", None),
            ("", None),
            ("nonsense\n1:cpu:/a\n", None),
        ] {
            assert_eq!(free_bytes_in(mount.path(), groups), free, "{groups}");
        }
    }

    #[test]
    fn groups_of_the_first_version_and_a_container_that_sees_its_own_as_the_root_are_read() {
        let first = mount(&[
            ("memory/a/memory.limit_in_bytes", "700\n"),
            ("memory/a/memory.usage_in_bytes", "200\n"),
            ("memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 50\n"),
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!(free_bytes_in(first.path(), "5:cpu:/a\n4:hugetlb,memory:/a\n"), Some(550));
        let second = mount(&[("memory.max", "700\n"), ("memory.current", "800\n")]);
        assert_eq!(free_bytes_in(second.path(), "0::/system.slice/docker-1.scope\n"), Some(0));
    }
}
