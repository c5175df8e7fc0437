//! The shared memory file that holds a [`Status`] block: made by `overspill run` or by a pager, read by `overspill stat`.
//!
//! ```text
//! overspill run              agent in the program                 overspill stat PID
//! StatusFile::create   --->  StatusFile::open(OVERSPILL_STATUS)   find(PID)
//!    init(pid)               counters, outcome, message   ------> StatusView::snapshot
//! ```
//!
//! Invariant: a block is mapped only from a memory file that is sealed against shrinking and at least as long as a [`Status`], so
//! a mapped block never raises SIGBUS, whatever its other owners do. Every field is an atomic, so any bytes are a valid `Status`.

use crate::control_client::{has_ended, users_of};
use crate::sys;
use overspill_vm::counters::{Info, TABLE};
use overspill_vm::hold_times::HoldTimes;
use overspill_vm::status::{Outcome, STATUS_NAME, Status, Text};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// A type that processes may share.
///
///
/// # Safety
/// All fields are atomics, so any bytes are a valid value, and others may write to it at any time.
pub(crate) unsafe trait Shared {}

// SAFETY: a `Status` is a block of atomics.
unsafe impl Shared for Status {}

/// A shared mapping of a block.
#[derive(Debug)]
pub(crate) struct Mapping<T: Shared>(NonNull<T>);

// SAFETY: the mapping is process-wide memory that only Drop removes, and all access goes through `&T`, whose fields are all
// atomics; neither depends on the thread.
unsafe impl<T: Shared> Send for Mapping<T> {}
// SAFETY: as for Send: `T` is a block of atomics, which may be shared.
unsafe impl<T: Shared> Sync for Mapping<T> {}

impl<T: Shared> Mapping<T> {
    const LENGTH: usize = size_of::<T>();

    /// Makes a new memory file, close-on-exec, with a zeroed block, and maps it.
    pub(crate) fn create(name: &str) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Before Linux 6.3 there is no NOEXEC_SEAL.
            Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
            other => other?,
        };
        rustix::fs::ftruncate(&file, Self::LENGTH as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::new(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?, file))
    }

    /// Maps another process's block to write to.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, OwnedFd)> {
        let file: OwnedFd = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)?.into();
        Ok((Self::new(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?, file))
    }

    /// Maps the block at the start of `file`.
    fn new(file: BorrowedFd<'_>, protection: ProtFlags) -> io::Result<Self> {
        let other = |why: &str| io::Error::new(ErrorKind::InvalidData, why.to_owned());
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| other("it is not a memory file"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(other("it is a memory file that may shrink"));
        }
        // After the seals: the length can only have grown since.
        if rustix::fs::fstat(file)?.st_size < Self::LENGTH as i64 {
            return Err(other("it is shorter than a block of this version"));
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that anything else uses. The file is at
        // least LENGTH bytes long and sealed against shrinking (both checked above), so every byte of the mapping is backed.
        let address = unsafe { rustix::mm::mmap(std::ptr::null_mut(), Self::LENGTH, protection, MapFlags::SHARED, file, 0)? };
        Ok(Mapping(NonNull::new(address.cast()).expect("mmap without MAP_FIXED never gives page 0")))
    }

    pub(crate) fn block(&self) -> &T {
        // SAFETY: `new` mapped LENGTH bytes, page-aligned, readable and backed for good; any bytes are a valid `T`, because
        // its fields are atomic integers; only Drop unmaps, and the borrow keeps it from running. Users of a read-only mapping
        // only load (StatusView gives no `&T` away), which on this platform is allowed on read-only memory for 64 bits.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Shared> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; nobody else unmaps it, and `block` borrows from self, so no reference
        // into it is left.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), Self::LENGTH) };
    }
}

/// The path by which this process's descendants can open its file, as long as it lives.
pub(crate) fn path_of(file: &OwnedFd) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into()
}

/// A status block to write to.
#[derive(Debug)]
pub struct StatusFile {
    map: Mapping<Status>,
    file: OwnedFd,
}

impl StatusFile {
    /// Makes a new memory file, close-on-exec, with a zeroed block. The caller marks it valid with [`Status::init`].
    ///
    /// # Errors
    /// What the kernel says: no memory, or no descriptor left.
    pub fn create() -> io::Result<Self> {
        let (map, file) = Mapping::create(STATUS_NAME)?;
        Ok(StatusFile { map, file })
    }

    /// Opens another process's block to write to: `path` is `/proc/PID/fd/N`, as in `OVERSPILL_STATUS`. The caller checks
    /// [`Status::is_valid`] and whom the block is meant for.
    ///
    /// # Errors
    /// The path cannot be opened, or what stands there is not a sealed memory file of the right length.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (map, file) = Mapping::open(path)?;
        Ok(StatusFile { map, file })
    }

    /// The block.
    pub fn status(&self) -> &Status {
        self.map.block()
    }

    /// The path by which this process's children can [`open`](Self::open) the block.
    pub fn path(&self) -> PathBuf {
        path_of(&self.file)
    }

    /// A copy of what the block says now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.status())
    }

    /// Keeps block and descriptor for the rest of the process's life, so that `overspill stat` finds them.
    pub fn leak(self) -> &'static Status {
        let this = Box::leak(Box::new(self));
        this.status()
    }
}

impl AsRawFd for StatusFile {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

/// A status block to read from.
#[derive(Debug)]
pub struct StatusView {
    map: Mapping<Status>,
}

impl StatusView {
    /// Opens a block read-only.
    ///
    /// # Errors
    /// The path cannot be opened, or what stands there is not a valid block of this version (`InvalidData`).
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let view = StatusView { map: Mapping::new(file.as_fd(), ProtFlags::READ)? };
        if !view.map.block().is_valid() {
            let why = "its status block is of another version of Overspill";
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        Ok(view)
    }

    /// A copy of what the block says now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.map.block())
    }

    /// The process to ask for a change if this block was found for `named`: the program that the block names if `named` is the
    /// `overspill run` that started it, else `named` itself.
    ///
    /// Any process can hold a block that names any other, so the block is not believed. The program must be a child of `named`, as
    /// the kernel says. Children can be somebody else's: a process can become the parent of root's (PR_SET_CHILD_SUBREAPER). So
    /// they must also have the same user, unless `named` is root's, whose program may have given up root.
    pub fn program(&self, named: u32) -> u32 {
        let program = self.map.block().pid.load(Relaxed);
        let user = |pid| users_of(pid).first().copied();
        let is_child = parent_of(&PathBuf::from(format!("/proc/{program}"))) == Some(named);
        let may_have_started = user(named).is_some_and(|user_of_named| user_of_named == 0 || user(program) == Some(user_of_named));
        if is_child && may_have_started { program } else { named }
    }
}

/// The content of a status block at one moment. Counters that belong together may differ by the events of a microsecond.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The program's process id, as whoever wrote the block says. Nothing may be done to that process for this reason alone: see
    /// [`StatusView::program`].
    pub pid: u32,
    /// `None` for a value that this version does not know.
    pub outcome: Option<Outcome>,
    /// Whether `overspill run` has seen the program end.
    pub supervisor_done: bool,
    /// CLOCK_MONOTONIC at the pager's start, in nanoseconds; 0 before.
    pub start_ns: u64,
    /// Replacement policy.
    pub policy: String,
    /// I/O engine.
    pub engine: String,
    /// Swap place.
    pub swap: String,
    /// Why the pager did not start, or stopped the program.
    pub message: String,
    /// The place of the first page that was lost, and the reason; empty if none was lost.
    pub loss: String,
    /// The counters in table order.
    pub counters: Vec<(&'static Info, u64)>,
    /// The policy's transitions from queue to queue: name and count.
    pub transitions: Vec<(&'static str, u64)>,
    /// The policies at work if there are several: the pager's, and those of regions that have one of their own.
    pub policies: Vec<PolicySeen>,
    /// How long the locks were held.
    pub locks: Vec<LockHolds>,
}

/// A policy at work.
#[derive(Clone, Debug)]
pub struct PolicySeen {
    /// As it is set.
    pub policy: String,
    /// Which region has it; empty for the pager's.
    pub region: String,
    /// What became of its pages.
    pub counts: [(&'static str, u64); 6],
}

/// How long one lock was held each time.
#[derive(Clone, Debug)]
pub struct LockHolds {
    /// The lock's name.
    pub name: &'static str,
    /// How many times it was held.
    pub count: u64,
    /// 50 %, 99 % and 99.9 % of the holds were at most as long, in nanoseconds. Too high by a quarter at most.
    pub quantiles_ns: [u64; 3],
    /// The longest hold.
    pub longest_ns: u64,
    /// Where the longest hold began: file and line.
    pub longest_at: String,
    /// For each length in nanoseconds: how many holds were at most that long, and longer than the entry before.
    pub histogram: Vec<(u64, u64)>,
}

impl LockHolds {
    /// `ns_per_tick`: the length of a tick of the writer's clock.
    fn of(name: &'static str, times: &HoldTimes, ns_per_tick: f64) -> Self {
        let ns = |ticks: u64| (ticks as f64 * ns_per_tick) as u64;
        let (file, line) = times.longest_at();
        let mut histogram = Vec::new();
        times.for_each(|last, count| histogram.push((ns(last), count)));
        LockHolds {
            name,
            count: times.count(),
            quantiles_ns: [500, 990, 999].map(|thousandths| ns(times.quantile(thousandths))),
            longest_ns: ns(times.longest()),
            longest_at: format!("{}:{line}", string(file)),
            histogram,
        }
    }
}

impl Snapshot {
    /// Copies a block.
    pub fn of(status: &Status) -> Self {
        // Acquire: a writer that stores the outcome with Release has its message seen.
        let outcome = Outcome::from_u32(status.outcome.load(Acquire));
        let mut counters = Vec::with_capacity(TABLE.len());
        status.counters.for_each(|info, value| counters.push((info, value)));
        let mut transitions = Vec::new();
        status.transitions.for_each(|name, count| transitions.push((name, count)));
        let mut policies = Vec::new();
        for (at, row) in status.policies.iter().enumerate() {
            let policy = if at == 0 { &status.policy } else { &row.policy };
            if !policy.is_empty() {
                policies.push(PolicySeen { policy: string(policy), region: string(&row.region), counts: row.counts() });
            }
        }
        policies.truncate(if policies.len() > 1 { policies.len() } else { 0 });
        // The time since the pager's start, by both clocks. (Both are clocks of the machine, not of the program.)
        let (ns, cycles) = sys::clocks();
        let ns = ns.saturating_sub(status.start_ns.load(Relaxed));
        let ticks = cycles.saturating_sub(status.start_ticks.load(Relaxed));
        let ns_per_tick = ns as f64 / ticks.max(1) as f64;
        Snapshot {
            pid: status.pid.load(Relaxed),
            outcome,
            supervisor_done: status.supervisor_done.load(Relaxed) != 0,
            start_ns: status.start_ns.load(Relaxed),
            policy: string(&status.policy),
            engine: string(&status.engine),
            swap: string(&status.swap),
            message: string(&status.message),
            loss: string(&status.loss),
            counters,
            transitions,
            policies,
            locks: status.locks.each().map(|(name, times)| LockHolds::of(name, times, ns_per_tick)).into(),
        }
    }

    /// The counter of this name.
    ///
    /// # Panics
    /// If the table has no such counter: a mistake of the caller.
    pub fn counter(&self, name: &str) -> u64 {
        match self.counters.iter().find(|(info, _)| info.name == name) {
            Some((_, value)) => *value,
            None => panic!("no counter {name}"),
        }
    }
}

/// A text of the block, as UTF-8 without control characters, because another process wrote it and it goes to a terminal.
fn string<const N: usize>(text: &Text<N>) -> String {
    let mut bytes = [0; N];
    let length = text.copy_to(&mut bytes);
    let text = String::from_utf8_lossy(&bytes[..length]);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Why [`find`] found no block. `Display` gives one message.
#[derive(Debug)]
#[non_exhaustive]
pub enum FindError {
    /// There is no process of this id.
    NoSuchProcess(u32),
    /// The process belongs to somebody else.
    NotPermitted(u32),
    /// The process has no status block.
    NotPaged(u32),
    /// There is a block, but it cannot be read.
    Unreadable(u32, io::Error),
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NoSuchProcess(pid) => write!(f, "there is no process {pid}"),
            FindError::NotPermitted(pid) => write!(f, "you may not look into process {pid}; try as its owner or as root"),
            FindError::NotPaged(pid) => write!(
                f,
                "process {pid} does not run under Overspill; \
                 name the process of `overspill run` or of the program it started"
            ),
            FindError::Unreadable(pid, error) => {
                write!(f, "the status of process {pid} cannot be read: {error}")
            }
        }
    }
}

impl std::error::Error for FindError {}

/// Finds the status block of a running program, or of the `overspill run` above it.
///
/// The pager's threads may have a descriptor table of their own, so the descriptors of all threads are searched. A program may have
/// closed descriptors that are not its own. So those of the parent process come next, for a block meant for `pid`.
///
/// # Errors
/// [`FindError`] says why there is none.
pub fn find(pid: u32) -> Result<StatusView, FindError> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    if !process.exists() {
        return Err(FindError::NoSuchProcess(pid));
    }
    let mut tables = vec![process.join("fd")];
    if let Ok(tasks) = fs::read_dir(process.join("task")) {
        tables.extend(tasks.flatten().map(|task| task.path().join("fd")));
    }
    let own = tables.len();
    if let Some(parent) = parent_of(&process) {
        tables.push(format!("/proc/{parent}/fd").into());
    }

    let mut fallback = None;
    let mut failure = None;
    for (i, table) in tables.iter().enumerate() {
        let entries = match fs::read_dir(table) {
            Ok(entries) => entries,
            Err(error) if i == 0 && error.kind() == ErrorKind::PermissionDenied => {
                return Err(FindError::NotPermitted(pid));
            }
            Err(_) => continue,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if !fs::read_link(&path).is_ok_and(|target| is_status_link(&target)) {
                continue;
            }
            match StatusView::open(&path) {
                Ok(view) if view.map.block().pid.load(Relaxed) == pid => return Ok(view),
                Ok(view) if i < own => {
                    fallback.get_or_insert(view);
                }
                Err(error) if i < own => {
                    failure.get_or_insert(error);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    match (fallback, failure) {
        (Some(view), _) => Ok(view),
        (None, Some(error)) if error.kind() == ErrorKind::PermissionDenied => Err(FindError::NotPermitted(pid)),
        (None, Some(error)) => Err(FindError::Unreadable(pid, error)),
        (None, None) if has_ended(pid, Duration::ZERO) => Err(FindError::NoSuchProcess(pid)),
        (None, None) => Err(FindError::NotPaged(pid)),
    }
}

/// Whether a link of `/proc` shows a descriptor of a block: `/memfd:overspill-status (deleted)`.
fn is_status_link(target: &Path) -> bool {
    let rest = target.as_os_str().as_bytes().strip_prefix(b"/memfd:");
    rest.and_then(|rest| rest.strip_prefix(STATUS_NAME.as_bytes())).is_some_and(|end| end.is_empty() || end == b" (deleted)")
}

fn parent_of(process: &Path) -> Option<u32> {
    let text = fs::read_to_string(process.join("status")).ok()?;
    let parent = text.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    (parent != 0).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let file = StatusFile::create().unwrap();
        let path = file.path();
        assert_eq!(StatusView::open(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        file.status().init(std::process::id());

        let agent = StatusFile::open(&path).unwrap();
        assert!(agent.status().is_valid());
        agent.status().policy.set(b"use-once");
        agent.status().message.set(b"swap is full\x1b[31m");
        agent.status().outcome.store(Outcome::Stopped as u32, Relaxed);
        agent.status().counters.hard_faults.add(3);

        let seen = StatusView::open(&path).unwrap().snapshot();
        assert_eq!(seen.pid, std::process::id());
        assert_eq!(seen.outcome, Some(Outcome::Stopped));
        assert_eq!(seen.policy, "use-once");
        assert_eq!(seen.message, "swap is full\u{fffd}[31m", "no escape sequence reaches a terminal");
        assert_eq!(seen.counter("hard_faults"), 3);
        assert_eq!(find(std::process::id()).unwrap().snapshot().counter("hard_faults"), 3);
    }

    #[test]
    fn the_block_cannot_be_cut_off() {
        let file = StatusFile::create().unwrap();
        let other = OpenOptions::new().write(true).open(file.path()).unwrap();
        assert!(other.set_len(0).is_err());
    }

    #[test]
    fn other_files_are_not_mapped() {
        assert!(StatusView::open(Path::new("/proc/self/exe")).is_err());
        assert!(StatusFile::open(Path::new("/dev/null")).is_err());
        // Long enough, and not sealed.
        let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 1 << 20).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", loose.as_raw_fd()));
        assert!(StatusView::open(&path).unwrap_err().to_string().contains("may shrink"));
        rustix::fs::ftruncate(&loose, 8).unwrap();
        rustix::fs::fcntl_add_seals(&loose, SealFlags::SHRINK).unwrap();
        assert!(StatusView::open(&path).unwrap_err().to_string().contains("shorter"));
    }

    #[test]
    fn links() {
        assert!(is_status_link(Path::new("/memfd:overspill-status (deleted)")));
        assert!(!is_status_link(Path::new("/memfd:overspill-status-2 (deleted)")));
        assert!(!is_status_link(Path::new("/tmp/memfd:overspill-status")));
    }

    #[test]
    fn no_such_process() {
        // Above the greatest process id that Linux can give (2^22).
        assert!(matches!(find(u32::MAX), Err(FindError::NoSuchProcess(_))));
    }
}
