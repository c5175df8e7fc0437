//! Finds out what this machine offers to a pager, by trying it and undoing it at once.
//!
//! `overspill run` needs userfaultfd in *full* mode. Only then do system calls wait for an absent page, so that unmodified programs
//! work. There are two ways to get it, tried in this order; the third line tells a missing right from a filter:
//!
//! ```text
//! userfaultfd(0)                           CAP_SYS_PTRACE, or sysctl vm.unprivileged_userfaultfd = 1
//! ioctl(/dev/userfaultfd, IOC_NEW)         access to that device (Linux 6.1)
//! userfaultfd(UFFD_USER_MODE_ONLY)         always allowed; enough for the library, not for `run`. Refused too: a filter is at work
//! ```
//!
//! Then the pager's own way to open its descriptors is tried ([`setup::open_uffds`]), so that the answer is what `run` will find.

use crate::machine::Delivery;
use crate::setup;
use crate::uffd::{self, ApiArg, FEATURE_MOVE, FEATURES_EVENTS};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// What `overspill run` cannot do without.
pub const FEATURES_NEEDED: u64 = FEATURES_EVENTS | FEATURE_MOVE;

const DEVICE: &str = "/dev/userfaultfd";
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// How to get a userfaultfd in full mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The system call.
    SystemCall,
    /// The device `/dev/userfaultfd`.
    Device,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::SystemCall => "by system call",
            Way::Device => "by /dev/userfaultfd",
        })
    }
}

/// A userfaultfd in full mode that has what `overspill run` needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FullMode {
    /// How to open it.
    pub way: Way,
    /// The kernel's `UFFD_FEATURE_*` bits.
    pub features: u64,
}

/// Why there is no userfaultfd in full mode. `Display` gives one message with what to change.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// ENOSYS: a kernel without it, or a sandbox that hides it.
    NotBuilt {
        /// Whether a seccomp filter is on this process, which may answer ENOSYS as well.
        filtered: bool,
    },
    /// Full mode is not permitted; user mode works.
    NotPermitted {
        /// Whether the device exists.
        device: bool,
    },
    /// Not even user mode is permitted, so a seccomp filter must be the reason.
    Filtered {
        /// Whether the device exists.
        device: bool,
    },
    /// The kernel is too old.
    Lacks {
        /// The needed features that are missing.
        features: u64,
        /// The running kernel.
        release: String,
    },
    /// Another error.
    Other(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotBuilt { filtered: false } => f.write_str(
                "this kernel is built without userfaultfd (CONFIG_USERFAULTFD), which paging a program needs; \
                 use a kernel that has it",
            ),
            Refusal::NotBuilt { filtered: true } => f.write_str(
                "the system call userfaultfd, which paging a program needs, does not exist here: the kernel is built without \
                 CONFIG_USERFAULTFD, or this container's seccomp profile hides it; allow it there",
            ),
            Refusal::NotPermitted { device } => write!(
                f,
                "you may not use userfaultfd in full mode, which paging a program needs; as root, \
                 run `sysctl -w vm.unprivileged_userfaultfd=1`, or {} this user, or give the program CAP_SYS_PTRACE",
                if *device {
                    "open /dev/userfaultfd for reading and writing to"
                } else {
                    "(from Linux 6.1) give the device /dev/userfaultfd to"
                }
            ),
            Refusal::Filtered { device } => write!(
                f,
                "userfaultfd, which paging a program needs, is blocked here, most likely by the container's seccomp profile; \
                 allow the system call userfaultfd in the profile (Docker and Podman: --security-opt seccomp=PROFILE) \
                 together with CAP_SYS_PTRACE or sysctl vm.unprivileged_userfaultfd=1, {}",
                if *device { "or open /dev/userfaultfd to this user" } else { "or hand in the device (--device /dev/userfaultfd)" }
            ),
            Refusal::Lacks { features, release } => {
                if features & FEATURE_MOVE != 0 {
                    write!(f, "paging a program needs Linux 6.8 or later (userfaultfd with UFFDIO_MOVE); this is Linux {release}")
                } else {
                    write!(
                        f,
                        "the userfaultfd of this kernel, Linux {release}, lacks the features {features:#x}; \
                         paging a program needs Linux 6.8 or later"
                    )
                }
            }
            Refusal::Other(error) => {
                write!(f, "userfaultfd, which paging a program needs, cannot be opened: {error}")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Tries to get a userfaultfd in full mode with [`FEATURES_NEEDED`].
///
/// # Errors
/// [`Refusal`] says what to change.
pub fn full_mode() -> Result<FullMode, Refusal> {
    let (way, fd) = match by_system_call(0) {
        Ok(fd) => (Way::SystemCall, fd),
        Err(call) => match by_device() {
            Ok(fd) => (Way::Device, fd),
            Err(device) => return Err(refusal(call, &device)),
        },
    };
    let features = features_of(&fd).map_err(Refusal::Other)?;
    let missing = FEATURES_NEEDED & !features;
    if missing != 0 {
        return Err(Refusal::Lacks { features: missing, release: kernel_release() });
    }
    setup::open_uffds(Delivery::Threads, None).map_err(|errno| Refusal::Other(io::Error::from_raw_os_error(errno)))?;
    Ok(FullMode { way, features })
}

fn refusal(call: io::Error, device: &io::Error) -> Refusal {
    let device = device.kind() != io::ErrorKind::NotFound;
    match call.raw_os_error() {
        Some(libc::ENOSYS) => Refusal::NotBuilt { filtered: has_seccomp_filter() },
        Some(libc::EPERM | libc::EACCES) => match user_mode() {
            Ok(_) => Refusal::NotPermitted { device },
            Err(_) => Refusal::Filtered { device },
        },
        _ => Refusal::Other(call),
    }
}

/// Tries to get a userfaultfd for faults of user code only, and gives its features. Needs no privilege; the library's mode.
///
/// # Errors
/// What the kernel says.
pub fn user_mode() -> io::Result<u64> {
    features_of(&by_system_call(uffd::USER_MODE_ONLY)?)
}

fn by_system_call(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: userfaultfd takes one integer and touches no memory of ours.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) })
}

fn by_device() -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
    // SAFETY: the argument of this ioctl is an integer (open flags); `device` is open for the whole call.
    owned(unsafe { libc::ioctl(device.as_raw_fd(), uffd::IOC_NEW as _, libc::O_CLOEXEC) }.into())
}

/// Takes over the descriptor that a system call has just returned.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a system call that makes descriptors has just returned this one (both callers are such), so nobody else owns it;
    // descriptors fit an int.
    Ok(unsafe { OwnedFd::from_raw_fd(result as libc::c_int) })
}

/// The features of the kernel: the answer to a handshake that asks for none. A descriptor allows one handshake, so this one is used
/// up.
fn features_of(fd: &OwnedFd) -> io::Result<u64> {
    let mut api = ApiArg { api: uffd::API, ..ApiArg::default() };
    // SAFETY: UFFDIO_API reads and writes a struct uffdio_api, three 64-bit words, which `api` is and outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), uffd::IOC_API as _, &raw mut api) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(api.features) }
}

/// Whether io_uring can be set up here.
///
/// # Errors
/// What the kernel says: ENOSYS without it, EPERM where a sandbox or sysctl kernel.io_uring_disabled forbids it.
pub fn io_uring() -> io::Result<()> {
    // struct io_uring_params, 120 bytes, all zero: no flags.
    let mut params = [0u32; 30];
    // SAFETY: io_uring_setup reads and writes one struct io_uring_params of 120 bytes; `params` is that long, aligned for its
    // 32-bit fields (64-bit ones are only copied), and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, params.as_mut_ptr()) }).map(drop)
}

/// The kernel's release, such as `6.18.44`.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The value of sysctl `vm.unprivileged_userfaultfd`, if there is one.
pub fn unprivileged_sysctl() -> Option<bool> {
    match fs::read_to_string(SYSCTL).ok()?.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// Whether a seccomp filter is on this process, as in most containers.
pub fn has_seccomp_filter() -> bool {
    let Ok(text) = fs::read_to_string("/proc/self/status") else {
        return false;
    };
    text.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// Whether a file system keeps its files in memory, so that swapping to it gains nothing.
///
/// # Errors
/// What the kernel says about the file system.
pub fn is_memory_file_system(place: BorrowedFd<'_>) -> io::Result<bool> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let magic = rustix::fs::fstatfs(place)?.f_type as u64 & 0xffff_ffff;
    Ok(magic == TMPFS || magic == RAMFS)
}

/// Bytes that this user may still write to the file system.
///
/// # Errors
/// What the kernel says about the file system.
pub fn free_bytes(place: BorrowedFd<'_>) -> io::Result<u64> {
    let fs = rustix::fs::fstatvfs(place)?;
    Ok(fs.f_bavail.saturating_mul(fs.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_one_sentence_that_says_what_to_do() {
        let release = String::from("6.1.0");
        for (refusal, word) in [
            (Refusal::NotBuilt { filtered: false }, "CONFIG_USERFAULTFD"),
            (Refusal::NotBuilt { filtered: true }, "seccomp"),
            (Refusal::NotPermitted { device: true }, "vm.unprivileged_userfaultfd=1"),
            (Refusal::NotPermitted { device: false }, "CAP_SYS_PTRACE"),
            (Refusal::Filtered { device: true }, "seccomp"),
            (Refusal::Filtered { device: false }, "--device /dev/userfaultfd"),
            (Refusal::Lacks { features: FEATURE_MOVE, release: release.clone() }, "6.1.0"),
            (Refusal::Lacks { features: 1 << 6, release }, "0x40"),
            (Refusal::Other(io::Error::from_raw_os_error(libc::EMFILE)), "open files"),
        ] {
            let text = refusal.to_string();
            assert!(text.contains(word), "{text}");
            assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
        }
    }

    #[test]
    fn an_errno_becomes_the_right_refusal() {
        let error = io::Error::from_raw_os_error;
        assert!(matches!(refusal(error(libc::ENOSYS), &error(libc::ENOENT)), Refusal::NotBuilt { .. }));
        assert!(matches!(
            refusal(error(libc::EPERM), &error(libc::EACCES)),
            Refusal::NotPermitted { device: true } | Refusal::Filtered { device: true }
        ));
        assert!(matches!(refusal(error(libc::EMFILE), &error(libc::EMFILE)), Refusal::Other(_)));
    }

    #[test]
    fn this_machine_answers() {
        // Any answer will do: the probes must return, and a refusal must have a message.
        match full_mode() {
            Ok(mode) => assert_eq!(mode.features & FEATURES_NEEDED, FEATURES_NEEDED),
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
        let _ = (user_mode(), io_uring(), unprivileged_sysctl());
        assert!(kernel_release().starts_with(|c: char| c.is_ascii_digit()));
        let here = fs::File::open("/proc").unwrap();
        use std::os::fd::AsFd;
        assert!(!is_memory_file_system(here.as_fd()).unwrap());
    }
}
