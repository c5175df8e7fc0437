//! How much memory this process may have: the lowest limit of its memory control groups, and the machine's memory.
//!
//! ```text
//! /proc/self/cgroup      0::/a/b            (version 2)         4:memory:/a/b          (version 1, also both at once)
//! /proc/self/mountinfo   where the hierarchy is mounted, and which of its directories (a container often sees only its own)
//! then, from /a/b up to the mount point: memory.max or memory.limit_in_bytes; the lowest number counts
//! ```
//!
//! A limit above the mount point cannot be seen from here. In a container that is normal, and the container's own limit counts.
//! `memory.high` is ignored: it slows a program down and does not end it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// A memory limit and where it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// In bytes.
    pub bytes: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// The lowest memory limit of this process, or `None` if there is none below the machine's memory.
pub fn memory_limit() -> Option<Limit> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let total = total_memory().unwrap_or(u64::MAX);
    memory_limit_in(&cgroups, &mounts, Path::new("/")).filter(|limit| limit.bytes < total)
}

/// [`memory_limit`] from the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`, with every file looked up below `root`.
/// Includes limits above the machine's memory, but not the number that means "no limit" in version 1.
pub fn memory_limit_in(cgroups: &str, mountinfo: &[u8], root: &Path) -> Option<Limit> {
    let mut lowest: Option<Limit> = None;
    for mount in mountinfo.split(|b| *b == b'\n').filter_map(Mount::parse) {
        let Some(group) = group_of(cgroups, mount.version) else {
            continue;
        };
        let inside = below(&mount.directory, Path::new(group));
        let name = match mount.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        // From the group up to the mount point, which is where `inside` has become empty.
        for directory in inside.ancestors() {
            let file = mount.point.join(directory).join(name);
            let real = root.join(file.strip_prefix("/").unwrap_or(&file));
            let Some(bytes) = fs::read_to_string(real).ok().and_then(|text| number(&text)) else {
                continue;
            };
            if lowest.as_ref().is_none_or(|l| bytes < l.bytes) {
                lowest = Some(Limit { bytes, file });
            }
        }
    }
    lowest
}

/// The machine's memory in bytes, as `/proc/meminfo` tells it.
pub fn total_memory() -> Option<u64> {
    total_memory_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn total_memory_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

/// A mounted hierarchy that may hold memory limits.
#[derive(PartialEq, Eq, Debug)]
struct Mount {
    version: Version,
    /// The directory of the hierarchy that is mounted.
    directory: PathBuf,
    /// The mount point.
    point: PathBuf,
}

impl Mount {
    /// A line of mountinfo: `35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|b| *b == b' ');
        let directory = unescape(fields.nth(3)?);
        let point = unescape(fields.next()?);
        fields.find(|f| *f == b"-")?;
        let kind = fields.next()?;
        let options = fields.nth(1)?;
        let version = match kind {
            b"cgroup2" => Version::Two,
            b"cgroup" if options.split(|b| *b == b',').any(|o| o == b"memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, directory, point })
    }
}

/// Undoes mountinfo's `\040` for a space, and so on.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let octal = field.get(i + 1..i + 4).filter(|d| d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match octal {
            Some(d) if field[i] == b'\\' && d[0] <= b'3' => {
                out.push((d[0] - b'0') << 6 | (d[1] - b'0') << 3 | (d[2] - b'0'));
                i += 4;
            }
            _ => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    OsString::from_vec(out).into()
}

/// The process's group in the hierarchy with memory limits, from the text of `/proc/self/cgroup`.
fn group_of(cgroups: &str, version: Version) -> Option<&str> {
    cgroups.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let this = match version {
            Version::One => controllers.split(',').any(|c| c == "memory"),
            Version::Two => id == "0" && controllers.is_empty(),
        };
        this.then_some(path)
    })
}

/// `group` as seen from the mounted directory, relative. A group outside of it (`/../other`, as a cgroup namespace shows it)
/// counts as the mounted directory itself: its limit is the only one that can be seen.
fn below(directory: &Path, group: &Path) -> PathBuf {
    let inside = group.strip_prefix(directory).unwrap_or(Path::new(""));
    if inside.components().all(|c| matches!(c, Component::Normal(_))) { inside.to_path_buf() } else { PathBuf::new() }
}

/// The content of a limit file. Version 1 writes "no limit" as the greatest multiple of the page size below 2^63.
fn number(text: &str) -> Option<u64> {
    let bytes = text.trim().parse::<u64>().ok()?; // "max" is not a number
    (bytes < i64::MAX as u64 & !0xffff).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/devices rw,relatime shared:9 master:1 - cgroup cgroup rw,devices\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    /// A directory of its own with these files, removed at the end.
    struct Tree(PathBuf);
    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("overspill-cgroup-{}-{name}", std::process::id()));
            for (file, text) in files {
                let path = root.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Tree(root)
        }
    }
    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_lowest_limit_of_nested_groups_counts() {
        let tree = Tree::new(
            "nested",
            &[
                ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/a/b/memory.max", "2147483648\n"),
                ("sys/fs/cgroup/a/b/c/memory.max", "max\n"),
            ],
        );
        let mounts = b"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let limit = memory_limit_in("0::/a/b/c\n", mounts, &tree.0).unwrap();
        assert_eq!(limit.bytes, 1 << 30);
        assert_eq!(limit.file, Path::new("/sys/fs/cgroup/a/memory.max"));
        assert_eq!(memory_limit_in("0::/\n", mounts, &tree.0), None);
    }

    #[test]
    fn version_one_beside_version_two() {
        let tree = Tree::new(
            "hybrid",
            &[
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "67108864\n"),
                ("sys/fs/cgroup/devices/job/memory.limit_in_bytes", "1\n"),
            ],
        );
        let cgroups = "9:name=systemd:/\n4:cpu,memory:/job\n3:devices:/job\n0::/\n";
        let limit = memory_limit_in(cgroups, HYBRID.as_bytes(), &tree.0).unwrap();
        assert_eq!(limit.bytes, 64 << 20);
        let none = "9:name=systemd:/\n4:memory:/\n0::/\n";
        assert_eq!(memory_limit_in(none, HYBRID.as_bytes(), &tree.0), None);
    }

    #[test]
    fn a_container_sees_its_own_group_only() {
        // Without a cgroup namespace: the container's group is mounted, and /proc/self/cgroup names it in full.
        let tree = Tree::new("container", &[("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n")]);
        let mounts = b"1 2 0:3 /docker/0a1b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        for group in ["4:memory:/docker/0a1b\n", "4:memory:/\n", "4:memory:/../other\n"] {
            assert_eq!(memory_limit_in(group, mounts, &tree.0).unwrap().bytes, 512 << 20, "{group}");
        }
    }

    #[test]
    fn texts_that_are_not_what_they_should_be() {
        for line in ["", "1 2", "1 2 3 / /x rw", "1 2 3 / /x rw - cgroup2", "1 2 3 / /x rw - ext4 a rw"] {
            assert_eq!(Mount::parse(line.as_bytes()), None, "{line}");
        }
        assert_eq!(unescape(b"/a\\040b\\134"), Path::new("/a b\\"));
        assert_eq!(unescape(b"/a\\04"), Path::new("/a\\04"));
        assert_eq!(number("max\n"), None);
        assert_eq!(number("9223372036854710272\n"), None, "no limit with pages of 64 KiB");
        assert_eq!(number("0\n"), Some(0));
        assert_eq!(total_memory_in("MemFree: 1 kB\nMemTotal:   16 kB\n"), Some(16384));
        assert_eq!(total_memory_in("MemTotal: kB"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(total_memory().unwrap() > 1 << 20);
        if let Some(limit) = memory_limit() {
            assert!(limit.bytes < total_memory().unwrap());
        }
    }
}
