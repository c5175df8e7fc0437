//! The agent: machine, pager threads, the clerk, and forks.
//!
//! Threads: one handler per CPU, the page daemon, and the *clerk*, who does for the program's threads what needs the pager's
//! descriptors (they are in a table of their own) and watches for the end of forked children.
//!
//! **Fork.** The forking thread stops the pager at a point where no page is busy and no write is in flight, with both locks held;
//! the kernel then copies the pager's whole state with the process. The child opens userfaultfds of its own, registers the same
//! ranges, starts its own threads, and reads what its parent had paged out from its parent's file, which neither writes over: the
//! parent puts slots that were in use at the fork aside until the child's end of a socket is closed, which exec and every kind of
//! death do. Parent and child share the budget (`family.rs`): before the fork the parent must be so small that both fit into it.
//!
//! The child's share of the pager's descriptors comes over the same socket, from the clerk to the child's first pager thread. So
//! the program's table, which may be full, has one descriptor more, for a moment; nothing is opened anew, which the program may
//! have lost the right to; and a block device's claim, which belongs to the open file, is the child's too.

use crate::hooks::{self, Fork, HookStacks};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use overspill_linux::area;
use overspill_linux::control::Packet;
use overspill_linux::control_server;
use overspill_linux::credentials::Follower;
use overspill_linux::descriptors::{self, PACK_MAX};
use overspill_linux::device_spec::{self, DeviceSpec, FILES_MAX, Place};
use overspill_linux::devices;
use overspill_linux::family::Family;
use overspill_linux::family::shares::{MEMBERS_MAX, Tag};
use overspill_linux::io::Engine;
use overspill_linux::machine::{Core, Delivery, Machine, Space};
use overspill_linux::mappings;
use overspill_linux::ranges::{Flags, Kind, Range};
use overspill_linux::record::Recorder;
use overspill_linux::sanitizers::SANITIZERS;
use overspill_linux::setup::{self, DEVICES_MAX, Options};
use overspill_linux::space::{Piece, Pieces};
use overspill_linux::status_file::StatusFile;
use overspill_linux::swap_file::SwapFiles;
use overspill_linux::swapoff::{State, Worker};
use overspill_linux::sys::{self, Errno, Fd, futex_wait, futex_wake};
use overspill_linux::threads;
use overspill_linux::uffd;
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::{DeviceId, ObjectId, PAGE_SHIFT};
use std::io::Write as _;
use std::os::fd::AsRawFd;

static AGENT: AtomicPtr<Agent> = AtomicPtr::new(core::ptr::null_mut());

/// The agent, once it serves. A child that was forked past libc has a copy of it, and none of its threads: there it does not.
pub fn get() -> Option<&'static Agent> {
    // SAFETY: set once to a leaked agent. Acquire pairs with the Release in `start`.
    unsafe { AGENT.load(Acquire).as_ref() }.filter(|agent| agent.here.load(Relaxed) != 0)
}

/// What the clerk is asked for.
#[derive(Clone, Copy)]
pub enum Request {
    /// A new anonymous private range.
    Add(Piece),
    /// What the map knows here has gone: something else that is not the pager's was mapped.
    NotOurs { start: usize, end: usize },
    /// What is managed here is the kernel's from now on: [`Machine::hand_over`].
    HandOver { start: usize, end: usize },
    /// Native ranges in here are to be managed.
    Adopt { start: usize, end: usize },
    /// A managed range was moved or resized.
    Resized { old_len: usize, new: usize, new_len: usize },
    /// The program's thread of this id may do less now, and perhaps has confined itself by this Landlock ruleset: so may the
    /// pager's threads.
    Follow { tid: u32, ruleset: Option<i32> },
    /// A managed range was moved and is still there, empty.
    LeftEmpty { old: usize, new: usize, len: usize },
    /// All of the pager's threads are to end.
    Retire,
    /// A fork is about to happen: there must be room for a child with all that is charged to this process.
    Shrink,
    /// The same: there must be an entry for a device of the child's.
    MakeRoom,
    /// The same: take `socket`, a descriptor of thread `tid`, and send what the child needs through it.
    Send { socket: i32, tid: u32 },
    /// The same, where that cannot be: be there to be met by the child.
    Listen,
    /// The child is there, by that fork of the pager's, as that member of the family.
    Child { pid: u32, fork: u64, member: Tag },
    /// There is none.
    NoChild,
    /// How much of the process's memory is locked: to `locked_bytes`.
    Locked,
}

/// A system call that unmaps, replaces or moves memory, and has not been made yet.
#[derive(Clone, Copy)]
pub struct Remap {
    /// What of it was left to the kernel.
    pub native: [Pieces; 2],
    managed: bool,
}

/// Mappings that lie side by side and are alike: where each begins.
#[derive(Clone, Copy)]
pub struct Alike {
    starts: [usize; ALIKE_MAX],
    count: usize,
}

impl Alike {
    /// In order.
    pub fn starts(&self) -> &[usize] {
        &self.starts[..self.count]
    }
}

/// More are rarely in one call. The list is on the program's stack.
const ALIKE_MAX: usize = 32;
/// There are some forty flags of two letters; few of them are set.
const FLAGS_LEN: usize = 128;

/// Of the flags of a mapping (VmFlags) those that set it apart: not whether it is registered with a userfaultfd (um, uw, ui), nor
/// whether it was written to (sd).
fn what_sets_apart(flags: &[u8]) -> [u8; FLAGS_LEN] {
    let (mut kept, mut len) = ([0; FLAGS_LEN], 0);
    for flag in flags.split(|&byte| byte == b' ').filter(|flag| !flag.is_empty() && flag[0] != b'u' && *flag != b"sd") {
        for &byte in flag.iter().chain(b" ") {
            if let Some(next) = kept.get_mut(len) {
                (*next, len) = (byte, len + 1);
            }
        }
    }
    kept
}

/// See [`Agent::in_parts`].
pub struct Parts(&'static Agent);

impl Drop for Parts {
    fn drop(&mut self) {
        let agent = self.0;
        agent.stacks.run(move || agent.machine.end_parts());
    }
}

/// No range.
pub const NOTHING: (usize, usize) = (0, 0);

/// A forked child that may still read what was paged out at its fork.
struct Child {
    /// The other end is the child's, and its descendants'.
    socket: Fd,
    fork: u64,
    member: Tag,
}

/// Children that are watched at a time: their table is address space until it is used.
const CHILDREN_MAX: usize = 1 << 16;
/// How often they are looked at while there are few, in nanoseconds.
const WATCH_NS: u64 = 5_000_000;
/// Sockets to ancestors that a process keeps open: one per generation.
const ANCESTORS_MAX: usize = 64;
/// Of the pager's threads: two userfaultfds and the device that makes them, the devices' files, our own process, the status block,
/// an event, standard error, and those sockets.
const DESCRIPTORS_MAX: usize = 3 + DEVICES_MAX * FILES_MAX + 4 + ANCESTORS_MAX;
const _: () = assert!(DESCRIPTORS_MAX <= PACK_MAX);
/// A child's pager gets room for so many descriptors while it starts: those, and the rings and timers of its threads.
const DESCRIPTORS_AT_START: u64 = 512;
/// Where a program's addresses end, less a page: as TASK_SIZE.
pub const ADDRESSES_END: usize = (1 << 47) - 4096;
/// How old a descendant must be to get a control socket, in nanoseconds.
const SOCKET_AFTER_NS: u64 = 200_000_000;
/// How long the pager's threads may take to end, in nanoseconds.
const RETIRE_NS: u64 = 10_000_000_000;
/// Members of a family if address space is limited: their entries take 256 KiB.
const MEMBERS_FEW: usize = 1 << 12;
/// How long a fork waits for others of its family to give what they do not use, in nanoseconds.
const ASK_NS: u64 = 4_000_000;
/// How long a fork waits for the page daemon to make room, in nanoseconds.
const SHRINK_NS: u64 = 30_000_000_000;
/// The same if the daemon cannot write for so long, though there is something to be written.
const STUCK_NS: u64 = 300_000_000;
/// The same if there is only compressed memory, and it has not made any for so long.
const SHRINK_MEMORY_NS: u64 = 500_000_000;

/// Only the clerk touches it (and a fork's child, alone).
struct Clerks {
    /// Never longer than [`CHILDREN_MAX`], for which it has room.
    children: Vec<Child>,
    /// Of a fork that is under way: our end of its socket, or where the child can be met.
    pending: Option<Fd>,
    listener: Option<Fd>,
}

/// See the module.
pub struct Agent {
    machine: &'static Machine,
    /// On a page that a fork's child finds empty (MADV_WIPEONFORK): 1 where the agent's threads are.
    here: &'static AtomicU32,
    engine: Engine,
    cluster_pages: usize,
    stacks: HookStacks,
    /// The program's break.
    pub heap_end: AtomicUsize,
    /// What a forked child's own device is made from; nothing if all is compressed memory, of which it has a copy.
    child_device: Option<DeviceSpec>,
    /// The directory of control sockets and the name of this process's; empty: it has none.
    control: ControlPlace,
    // the clerk's desk: one request at a time, of the thread of this id; 0: of none
    desk: AtomicU32,
    state: AtomicU32,
    request: UnsafeCell<Request>,
    locked_bytes: AtomicUsize,
    clerks: UnsafeCell<Clerks>,
    /// Where a child that has inherited no socket meets the clerk.
    meeting: UnsafeCell<descriptors::Name>,
    /// Of a forked child: its pager is there, or cannot be.
    born: AtomicU32,
    /// How the last request ended: 0, or an errno.
    answer: AtomicI32,
    // the pager's threads
    daemon_tid: AtomicU32,
    threads_ready: AtomicU32,
    threads_failed: AtomicI32,
    /// How many there are.
    threads: AtomicU32,
    // descriptors in the pager's table that a forked child needs: our ends of the sockets to our ancestors
    ancestors: [AtomicI32; ANCESTORS_MAX],
    /// /dev/userfaultfd, in the pager's table: after a change of users a child can make a userfaultfd in no other way. -1: it
    /// cannot be opened.
    uffd_device: AtomicI32,
    status: &'static Status,
    /// The status block's descriptor, in the pager's table; -1 if `overspill run` holds it.
    status_fd: AtomicI32,
}

/// Where the control socket is to be.
struct ControlPlace {
    /// Empty: there is none.
    directory: Vec<u8>,
    /// Of the process that `overspill run` started, and of no other.
    name: String,
}

impl ControlPlace {
    fn new(supervised: bool) -> Self {
        let directory = std::env::var_os("OVERSPILL_CONTROL").unwrap_or_default().into_encoded_bytes();
        let name = if supervised { variable("OVERSPILL_NAME").unwrap_or_default() } else { String::new() };
        ControlPlace { directory, name }
    }
    fn is_some(&self) -> bool {
        !self.directory.is_empty()
    }
}

// SAFETY: `request` is written by the holder of `desk` before `state` says so and read by the clerk after; `clerks` is the clerk's.
unsafe impl Sync for Agent {}

/// How often a thread that waits for the desk looks whether its owner is still alive, in nanoseconds.
const DESK_LOOK_NS: u64 = 20_000_000;
const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// An agent that starts, for [`no_memory`].
struct Starting {
    now: AtomicBool,
    /// Null: not yet there.
    status: AtomicPtr<Status>,
    supervised: AtomicBool,
}

static STARTING: Starting =
    Starting { now: AtomicBool::new(false), status: AtomicPtr::new(core::ptr::null_mut()), supervised: AtomicBool::new(false) };

/// The arena cannot have `bytes` bytes. While the agent starts that is its end, with the figures of the limits that are most likely
/// the cause; std would only say how many bytes, and abort. Nothing here allocates.
pub fn no_memory(bytes: usize) {
    if !STARTING.now.load(Acquire) {
        return;
    }
    let mut line = Packet::new();
    let _ = write!(line, "the pager could not get {} KiB of memory for its tables", bytes >> 10);
    let limits = [("-v", limit(libc::RLIMIT_AS)), ("-d", limit(libc::RLIMIT_DATA))];
    let mut said = " as there is a limit:";
    for (option, bytes) in limits.iter().filter_map(|(option, bytes)| Some((option, (*bytes)?))) {
        let _ = write!(line, "{said} ulimit {option} {}", bytes >> 10);
        said = ",";
    }
    let _ = write!(line, "{}", if said == "," { "; raise it, or take it away" } else { "; the machine has none left" });
    let line = core::str::from_utf8(line.bytes()).unwrap_or("the pager could not get memory for its tables");
    // SAFETY: null, or the status block, which is mapped for good. Acquire above pairs with the Release of `start`.
    let status = unsafe { STARTING.status.load(Acquire).as_ref() };
    refuse(status, STARTING.supervised.load(Relaxed), line)
}

/// A limit of this process in bytes, if there is one.
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::getrlimit(resource, &mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Ignores SIGXFSZ until it is dropped: what `ulimit -f` does not allow the pager is an error (EFBIG) then, which can be told. The
/// pager's threads have it blocked.
struct NoFileSizeSignal(libc::sigaction);

impl NoFileSizeSignal {
    fn new() -> Self {
        // SAFETY: all-zero bytes are a valid sigaction; SIG_IGN runs no code; the old action is written to a place that is large
        // enough.
        unsafe {
            let mut ignore: libc::sigaction = core::mem::zeroed();
            let mut before: libc::sigaction = core::mem::zeroed();
            ignore.sa_sigaction = libc::SIG_IGN;
            libc::sigaction(libc::SIGXFSZ, &raw const ignore, &raw mut before);
            NoFileSizeSignal(before)
        }
    }
}

impl Drop for NoFileSizeSignal {
    fn drop(&mut self) {
        // SAFETY: the action that the program had, as the kernel gave it.
        unsafe { libc::sigaction(libc::SIGXFSZ, &raw const self.0, core::ptr::null_mut()) };
    }
}

/// Last words of an agent that cannot start.
fn refuse(status: Option<&Status>, supervised: bool, message: &str) -> ! {
    if let Some(status) = status {
        status.message.set(message.as_bytes());
        status.outcome.store(Outcome::StartFailed as u32, Release);
    }
    if !supervised {
        sys::complain(message.as_bytes());
    }
    sys::exit_group(125)
}

/// A panic is a bug of Overspill's: says where, and ends the program. A pager thread has no standard error of its own (see
/// `Machine`'s threads), so the text goes where `overspill run` finds it. Nothing here allocates: whoever panicked may hold any
/// lock.
fn last_words(info: &std::panic::PanicHookInfo<'_>) {
    let mut line = [0u8; 400];
    let mut rest = &mut line[..];
    let place = info.location();
    let text = info.payload();
    let text = text.downcast_ref::<&str>().copied().or_else(|| text.downcast_ref::<String>().map(String::as_str)).unwrap_or("");
    let (file, number) = place.map_or(("?", 0), |p| (p.file(), p.line()));
    let _ = write!(rest, "the program was stopped: internal error of the pager at {file}:{number}, please report it: {text}");
    let left = rest.len();
    let line = &line[..line.len() - left];
    match get() {
        Some(agent) => agent.machine.stop_program(line),
        None => {
            sys::complain(line);
            sys::kill_self()
        }
    }
}

/// The constructor: nothing without `OVERSPILL_MEMORY`.
pub fn start() {
    // SAFETY: looks a name up.
    let has = |symbol: &core::ffi::CStr| !unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) }.is_null();
    if SANITIZERS.iter().any(|(_, _, symbol)| has(symbol)) {
        return; // (`overspill run` refuses such a program, and a descendant is left alone)
    }
    let Some(memory) = variable("OVERSPILL_MEMORY") else { return };
    STARTING.now.store(true, Release);
    reserve_area(memory.parse().unwrap_or(0));
    let _quiet = NoFileSizeSignal::new();
    serve(&memory);
    STARTING.now.store(false, Release);
}

/// Where address space is limited, the stack grows now by what the start may need of it: once the tables have taken the rest it
/// cannot, and the sentence that says so would be a crash. Without room for that either, it is said at once.
#[inline(never)] // or all that follows would stand on top of it
fn grow_stack() {
    const DEPTH: usize = 128 << 10; // it takes some 50 KiB
    let is_short = |resource| limit(resource).is_some_and(|bytes| bytes < 1 << 20);
    if limit(libc::RLIMIT_AS).is_none() || is_short(libc::RLIMIT_STACK) {
        return;
    }
    match sys::map_anonymous(DEPTH) {
        // SAFETY: the mapping just made, which nobody has seen.
        Ok(room) => unsafe { sys::unmap(room, DEPTH) },
        Err(_) => no_memory(DEPTH),
    }
    core::hint::black_box([0u8; DEPTH]);
}

/// Room for the pager's own mappings: tables (7 GiB), the parking area (the budget), and what a compressed device or many forks
/// take.
fn reserve_area(memory_bytes: usize) {
    let wanted = (16 << 30) + memory_bytes.saturating_mul(4).min(16 << 40);
    area::reserve(limit(libc::RLIMIT_AS).map_or(wanted, |limit| wanted.min(limit as usize / 2)));
}

/// What is kept of it where address space is limited: for the threads of forked children, and for devices that come.
const KEPT_BYTES: usize = 16 << 20;

/// `memory` is the budget in bytes.
fn serve(memory: &str) {
    std::panic::set_hook(Box::new(last_words));
    keep_stderr();
    let pid = sys::getpid();
    let given = variable("OVERSPILL_STATUS").and_then(|path| StatusFile::open(path.as_ref()).ok());
    let given = given.filter(|f| f.status().is_valid() && f.status().pid.load(Relaxed) == pid);
    let supervised = given.is_some();
    let own = || {
        let file = StatusFile::create().ok()?;
        file.status().init(pid);
        Some(file)
    };
    let Some(file) = given.or_else(own) else { refuse(None, false, "no memory file could be made for the pager's counters") };
    let status_fd = file.as_raw_fd();
    let status = file.leak();
    if supervised {
        let _ = sys::close(status_fd); // `overspill run` holds it, and the program's table stays as it would be
    }
    STARTING.supervised.store(supervised, Relaxed);
    STARTING.status.store(core::ptr::from_ref(status).cast_mut(), Release);
    grow_stack();
    match serve_with(memory, status, status_fd, supervised) {
        Ok(()) => {}
        Err(why) if supervised => refuse(Some(status), supervised, &why),
        Err(why) => go_without(status_fd, &why),
    }
}

/// A descendant whose pager cannot start goes on without one, as it would without Overspill; and so do its own descendants, without
/// a word.
fn go_without(status_fd: i32, why: &str) {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    sys::complain(format!("process {} ({}) runs without paging: {why}", sys::getpid(), name.trim_end()).as_bytes());
    let _ = sys::close(status_fd);
    if sys::voice() >= 0 {
        let _ = sys::close(sys::voice());
    }
    // SAFETY: the process has one thread as yet, and no other that reads the environment.
    unsafe { std::env::remove_var("OVERSPILL_MEMORY") };
}

/// A copy of standard error for last words, unless descriptor 2 may be a file of data: in a descendant it counts if it is what
/// `overspill run` had there, or nothing that keeps what is written to it.
fn keep_stderr() {
    // SAFETY: all-zero bytes are a valid stat, which the call writes.
    let stat = unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        (libc::fstat(libc::STDERR_FILENO, &raw mut stat) == 0).then_some(stat)
    };
    let of_run = variable("OVERSPILL_STDERR");
    let good = stat.filter(|stat| {
        matches!(stat.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFCHR | libc::S_IFSOCK)
            || of_run.is_none_or(|of_run| of_run == format!("{}:{}", stat.st_dev, stat.st_ino))
    });
    // SAFETY: takes numbers only.
    let kept = good.map_or(-1, |_| unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3) });
    sys::set_voice(kept, 0);
}

/// What can be known to fail before anything of the program is touched is an error.
fn serve_with(memory: &str, status: &'static Status, status_fd: i32, supervised: bool) -> Result<(), String> {
    let fail = |message: &str| -> ! { refuse(Some(status), supervised, message) };
    let Ok(memory_bytes) = memory.parse::<u64>() else { return Err("OVERSPILL_MEMORY is not a number of bytes".into()) };
    let policy = variable("OVERSPILL_POLICY");
    let policy = match policy.as_deref().unwrap_or(overspill_vm::policy::DEFAULT).parse() {
        Ok(policy) => policy,
        Err(e) => return Err(format!("OVERSPILL_POLICY: {e}")),
    };
    let engine = variable("OVERSPILL_ENGINE");
    let Some(engine) = Engine::from_name(engine.as_deref().unwrap_or("auto")) else {
        return Err("OVERSPILL_ENGINE is none of auto, io_uring, psync".into());
    };
    let engine = match engine.resolve() {
        Ok(engine) => engine,
        Err(e) => return Err(setup::SetupError::Engine(e).to_string()),
    };
    let swap = std::env::var_os("OVERSPILL_SWAP").filter(|v| !v.is_empty()).unwrap_or_else(|| "file:/tmp".into());
    let mut swap = match device_spec::parse_list(&swap) {
        Ok(devices) => devices,
        Err(e) => return Err(format!("OVERSPILL_SWAP {e}")),
    };
    device_spec::settle_priorities(&mut swap, core::iter::empty());
    let file = swap.iter().find(|d| matches!(d.place, Place::File(_)));
    let only_memory = swap.iter().all(|d| matches!(d.place, Place::Compressed(_)));
    let default = || (!only_memory).then(|| DeviceSpec::file(std::env::temp_dir()));
    let child_device = file.cloned().or_else(default);
    if !supervised {
        // One process has a block device; its descendants use the others, or a file of their own.
        swap.retain(|d| !matches!(d.place, Place::Block { .. }) || SwapFiles::open(d).is_ok());
        if swap.is_empty() {
            swap.extend(child_device.clone());
        }
    }
    // Only the process that `overspill trace record` started, and none of its descendants.
    let record = match variable("OVERSPILL_RECORD").filter(|_| supervised).map(|path| Recorder::open(path.as_ref())) {
        Some(Err(e)) => return Err(format!("the recording could not be begun: {e}")),
        opened => opened.and_then(Result::ok),
    };
    let control = ControlPlace::new(supervised);
    let cpus = allowed_cpus();
    let options = Options {
        memory_bytes,
        swap: &swap,
        policy,
        engine,
        delivery: Delivery::Threads,
        load_control: record.is_none() && variable("OVERSPILL_LOAD_CONTROL").as_deref() != Some("no"),
        follow_pointers: record.is_none() && variable("OVERSPILL_FOLLOW_POINTERS").as_deref() != Some("no"),
        encrypt: variable("OVERSPILL_ENCRYPT").as_deref() != Some("no"),
        pages_max: pages_max(),
        objects_max: 1,
        readers: cpus.len(),
        // Readahead would hide references.
        ahead_pages_max: record.is_some().then_some(1),
        decisions_max: 0,
    };
    let heap = heap_range();
    let machine = match setup::machine(&options, status) {
        Ok(mut machine) => {
            machine.record = record;
            let core = machine.core.lock();
            let (pages, buffers) = (core.vm.limit(), core.vm.charge_total() as u32);
            drop(core);
            let members = if limit(libc::RLIMIT_AS).is_some() { MEMBERS_FEW } else { MEMBERS_MAX };
            match Family::new(pages, buffers, members) {
                Ok(family) => machine.family = Some(family),
                Err(e) => return Err(setup::SetupError::Memory(e).to_string()),
            }
            status.counters.family_budget_bytes.set(u64::from(pages) << PAGE_SHIFT);
            status.counters.family_members.set(1);
            Box::leak(Box::new(machine))
        }
        Err(e) => return Err(e.to_string()),
    };
    machine.supervised.store(supervised, Relaxed);
    match sys::event() {
        Ok(event) => machine.quit_event.store(event.into_raw(), Release),
        Err(e) => fail(&setup::SetupError::Memory(e).to_string()),
    }
    if let Some(record) = &machine.record {
        machine.core.lock().vm.set_mapped_max(record.mapped_pages_max());
    }
    let here = page_of_this_process().unwrap_or_else(|e| fail(&setup::SetupError::Memory(e).to_string()));
    here.store(1, Relaxed);
    let stacks = HookStacks::new().unwrap_or_else(|_| fail("no memory for the pager's stacks"));
    let agent: &'static Agent = Box::leak(Box::new(Agent {
        machine,
        here,
        engine,
        cluster_pages: setup::cluster_pages((memory_bytes >> PAGE_SHIFT) as u32),
        stacks,
        heap_end: AtomicUsize::new(heap.1),
        child_device,
        control,
        desk: AtomicU32::new(0),
        state: AtomicU32::new(IDLE),
        request: UnsafeCell::new(Request::Shrink),
        clerks: UnsafeCell::new(Clerks { children: Vec::with_capacity(CHILDREN_MAX), pending: None, listener: None }),
        meeting: UnsafeCell::new([0; _]),
        born: AtomicU32::new(0),
        answer: AtomicI32::new(0),
        locked_bytes: AtomicUsize::new(0),
        daemon_tid: AtomicU32::new(0),
        threads_ready: AtomicU32::new(0),
        threads: AtomicU32::new(0),
        threads_failed: AtomicI32::new(0),
        ancestors: [const { AtomicI32::new(-1) }; ANCESTORS_MAX],
        uffd_device: AtomicI32::new(uffd::open_device().map_or(-1, Fd::into_raw)),
        status,
        status_fd: AtomicI32::new(if supervised { -1 } else { status_fd }),
    }));
    if heap.1 > heap.0 {
        machine.add_range(Piece { start: heap.0, end: heap.1.next_multiple_of(4096), flags: Flags::NONE });
    }
    // before there are other threads: one that sleeps in `syscall()` would return into the middle of a patch
    if let Err(function) = hooks::install() {
        fail(&format!(
            "this libc's {} is not recognised, so growth of the program's memory could not be followed: Overspill needs glibc 2.36 or alike on x86-64",
            function.to_string_lossy()
        ));
    }
    if let Err(e) = agent.start_threads() {
        fail(&setup::SetupError::Memory(e).to_string());
    }
    if limit(libc::RLIMIT_AS).is_some() {
        area::trim(KEPT_BYTES);
    }
    status.outcome.store(Outcome::Running as u32, Release);
    AGENT.store(core::ptr::from_ref(agent).cast_mut(), Release);
    Ok(())
}

/// A word of zero, on a page of its own that a fork's child finds empty.
fn page_of_this_process() -> Result<&'static AtomicU32, Errno> {
    let page = sys::map_anonymous(1 << PAGE_SHIFT)?;
    // SAFETY: a fresh mapping of our own, which nobody unmaps; zeroes are a valid value, before and after a fork.
    unsafe {
        sys::madvise(page as usize, 1 << PAGE_SHIFT, libc::MADV_WIPEONFORK)?;
        Ok(&*page.cast::<AtomicU32>())
    }
}

/// Where the program's heap is, and its break. Read before the agent maps anything.
fn heap_range() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let line = maps.lines().find(|l| l.ends_with("[heap]"));
    let parse = |s: &str| usize::from_str_radix(s, 16).unwrap_or(0);
    // SAFETY: brk(0) only asks.
    let brk = unsafe { sys::syscall6(libc::SYS_brk, 0, 0, 0, 0, 0, 0) }.unwrap_or(0);
    match line.and_then(|l| l.split_whitespace().next()).and_then(|r| r.split_once('-')) {
        Some((start, end)) => (parse(start), parse(end)),
        None => (brk, brk),
    }
}

/// How many pages may be managed. Under RLIMIT_AS, or RLIMIT_DATA, a program can have no more than the limit: there are tables for
/// twice that, in case it lies thin. They take about 300 bytes of address space per page, which count too: a seventh of the limit.
fn pages_max() -> u64 {
    let most = 1 << 25;
    let limits = [limit(libc::RLIMIT_AS), limit(libc::RLIMIT_DATA)];
    limits
        .into_iter()
        .flatten()
        .map(|bytes| (bytes >> PAGE_SHIFT) * 2)
        .map(|pages| pages.clamp(1 << 14, most))
        .min()
        .unwrap_or(most)
}

fn allowed_cpus() -> Vec<usize> {
    let set = sys::allowed_cpus();
    let mut cpus: Vec<usize> = (0..1024).filter(|c| set[c / 64] >> (c % 64) & 1 == 1).collect();
    cpus.truncate(16);
    if cpus.is_empty() {
        cpus.push(0);
    }
    cpus
}

/// What a bare thread is to do.
#[derive(Clone, Copy)]
enum Role {
    /// The first: takes the descriptors along, starts the others, becomes the page daemon. In a forked child it sets the pager up
    /// before.
    Daemon(Option<&'static Birth>),
    Clerk,
    Control,
    Handler(usize, bool),
}

struct Job {
    agent: &'static Agent,
    role: Role,
    follower: Follower,
}

extern "C" fn thread_main(arg: *mut c_void) -> ! {
    // SAFETY: a leaked job.
    let Job { agent, role, follower } = unsafe { &*(arg as *const Job) };
    let follower = &mut { *follower };
    let machine = agent.machine;
    let ready = || {
        agent.threads_ready.fetch_add(1, Release);
        futex_wake(&agent.threads_ready, 1);
    };
    let result = match role {
        Role::Daemon(birth) => {
            agent.family().claim();
            match birth {
                None => agent.keep_only_ours(),
                Some(birth) if birth.happen(agent) => {}
                // the process is about to end; what it says goes through this thread's table
                Some(_) => loop {
                    futex_wait(&AtomicU32::new(0), 0, u64::MAX);
                },
            }
            let cpus = allowed_cpus();
            let one = cpus.len() > 1;
            let mut failed = agent.spawn(Role::Clerk, true).err();
            if agent.control.is_some() {
                failed = failed.or(agent.spawn(Role::Control, true).err());
            }
            for cpu in cpus {
                failed = failed.or(agent.spawn(Role::Handler(cpu, one), true).err());
            }
            match failed {
                Some(e) => Err(e),
                None => threads::daemon(machine, agent.engine, follower, ready),
            }
        }
        Role::Clerk => {
            ready();
            agent.clerk();
            Ok(())
        }
        Role::Control => {
            agent.control(follower);
            Ok(())
        }
        Role::Handler(cpu, pin) => {
            threads::handler(machine, agent.engine, agent.cluster_pages, pin.then_some(*cpu), follower, ready)
        }
    };
    if let Err(e) = result {
        agent.threads_failed.store(e, Release);
        ready();
    }
    agent.threads.fetch_sub(1, Relaxed);
    follower.leave(&machine.following);
    end_thread()
}

fn end_thread() -> ! {
    loop {
        // SAFETY: ends this thread only.
        let _ = unsafe { sys::syscall6(libc::SYS_exit, 0, 0, 0, 0, 0, 0) };
    }
}

impl Agent {
    fn spawn(&'static self, role: Role, share_files: bool) -> Result<u32, Errno> {
        let following = &self.machine.following;
        // the clerk sees to it that the others follow, and comes last
        let follower = if let Role::Clerk = role { Follower::none() } else { following.enlist().ok_or(libc::EAGAIN)? };
        let job = Box::leak(Box::new(Job { agent: self, role, follower }));
        self.threads.fetch_add(1, Relaxed);
        // SAFETY: `thread_main` and all it calls use no thread-local storage; the job is leaked.
        let spawned = unsafe { threads::spawn_bare(thread_main, (job as *mut Job).cast(), share_files) };
        if spawned.is_err() {
            self.threads.fetch_sub(1, Relaxed);
            follower.leave(following);
        }
        spawned
    }

    /// Starts the pager's threads with a copy of the caller's descriptors, then closes the pager's in the caller's table.
    fn start_threads(&'static self) -> Result<(), Errno> {
        self.begin_threads(None)?;
        self.await_threads()?;
        sys::set_voice(sys::voice(), self.daemon_tid.load(Relaxed));
        let mut ours = [0i32; DESCRIPTORS_MAX];
        let n = self.descriptors(&mut ours);
        for fd in &ours[..n] {
            let _ = sys::close(*fd);
        }
        Ok(())
    }

    /// Starts the first of the pager's threads.
    fn begin_threads(&'static self, birth: Option<&'static Birth>) -> Result<(), Errno> {
        self.threads_ready.store(0, Relaxed);
        self.threads_failed.store(0, Relaxed);
        self.threads.store(0, Relaxed); // (in a forked child these are its parent's)
        let tid = self.spawn(Role::Daemon(birth), false)?;
        self.daemon_tid.store(tid, Relaxed);
        Ok(())
    }

    /// Until all of them are there.
    fn await_threads(&self) -> Result<(), Errno> {
        let want = 2 + allowed_cpus().len() as u32;
        loop {
            let ready = self.threads_ready.load(Acquire);
            match self.threads_failed.load(Acquire) {
                0 if ready >= want => return Ok(()),
                0 => futex_wait(&self.threads_ready, ready, 1_000_000_000),
                e => return Err(e),
            }
        }
    }

    /// The descriptors of the pager's table.
    fn descriptors(&self, out: &mut [i32; DESCRIPTORS_MAX]) -> usize {
        let map = self.machine.map.read();
        let mut n = 0;
        let mut add = |fd: i32| {
            if fd >= 0 && n < out.len() {
                out[n] = fd;
                n += 1;
            }
        };
        add(map.program.raw());
        add(map.parking.raw());
        map.files.iter().flatten().flat_map(SwapFiles::iter).for_each(|f| add(f.raw()));
        map.pidfd.iter().for_each(|f| add(f.raw()));
        add(self.status_fd.load(Relaxed));
        add(self.machine.quit_event.load(Relaxed));
        add(sys::voice());
        add(self.uffd_device.load(Relaxed));
        self.ancestors.iter().for_each(|f| add(f.load(Relaxed)));
        n
    }

    /// Closes, in the pager's fresh table, everything that is the program's: a pipe must end when the program closes it.
    fn keep_only_ours(&self) {
        let mut ours = [0i32; DESCRIPTORS_MAX];
        let n = self.descriptors(&mut ours);
        Self::keep_only(&mut ours[..n]);
    }

    fn keep_only(ours: &mut [i32]) {
        ours.sort_unstable();
        let mut from = 0u32;
        for fd in ours.iter().map(|fd| *fd as u32).chain([u32::MAX]) {
            if fd > from {
                // SAFETY: this thread's table is its own; none of these are the pager's.
                let _ = unsafe {
                    sys::syscall6(libc::SYS_close_range, from as usize, fd as usize - (fd != u32::MAX) as usize, 0, 0, 0, 0)
                };
            }
            from = fd.wrapping_add(1);
        }
    }

    // ---- what hooks do ----

    /// A new anonymous private range of the program's.
    pub fn new_range(&'static self, piece: Piece) {
        if piece.start < piece.end && !self.stacks.run(move || self.machine.try_native(piece)) {
            self.ask(Request::Add(piece));
        }
    }

    /// The program has a new mapping that is not for the pager.
    pub fn not_ours(&'static self, start: usize, end: usize) {
        if self.stacks.run(move || self.machine.map.read().ranges.first(start, end).is_some()) {
            self.ask(Request::NotOurs { start, end });
        }
    }

    /// The program serves the faults of this range itself from now on.
    pub fn hand_over(&'static self, start: usize, end: usize) {
        if self.is_managed(start, end) && self.stacks.run(move || self.machine.keep_in(start, end)) {
            self.ask(Request::HandOver { start, end });
        }
    }

    /// The native ranges in `start..end` are managed from now on.
    pub fn adopt(&'static self, start: usize, end: usize) {
        if self.stacks.run(move || self.machine.map.read().ranges.overlap(start, end, Kind::Native).is_some()) {
            self.ask(Request::Adopt { start, end });
        }
    }

    /// Whether all of `start..end` is the program's anonymous memory, without a gap.
    pub fn is_known(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || self.machine.map.read().ranges.covers(start, end))
    }

    /// What is in the first range is about to be moved, and to grow by so many bytes, and what is in the second to be unmapped or
    /// replaced: [`Machine::take_native`], [`Machine::begin_remap`].
    pub fn begin_remap(&'static self, ranges: [(usize, usize); 2], grows: usize) -> Remap {
        self.stacks.run(move || {
            let native = ranges.map(|(start, end)| {
                self.machine.take_native(start, end).unwrap_or_else(|| {
                    let _ = self.ask_here(Request::Adopt { start, end }); // it cannot fail
                    Pieces::default()
                })
            });
            Remap { native, managed: self.machine.begin_remap(ranges, grows) }
        })
    }

    /// What follows until this is dropped is to be one call, also for a fork.
    pub fn in_parts(&'static self) -> Parts {
        self.stacks.run(move || self.machine.begin_parts());
        Parts(self)
    }

    /// It was, or the kernel has refused the call.
    pub fn end_remap(&'static self, remap: Remap, done: bool) {
        if remap.managed || remap.native.iter().any(|pieces| !pieces.is_empty()) {
            self.stacks.run(move || {
                if remap.managed {
                    self.machine.end_remap(done);
                }
                for pieces in remap.native.iter().filter(|pieces| !pieces.is_empty()) {
                    if done {
                        self.machine.gone(pieces);
                        continue;
                    }
                    for piece in pieces.iter().filter(|piece| !self.machine.put_back(piece)) {
                        let _ = self.ask_here(Request::Add(*piece)); // it cannot fail
                    }
                }
            });
        }
    }

    /// The part of the first mapping in `start..end` that lies there. None also if that cannot be asked (RLIMIT_NOFILE).
    pub fn mapping(&'static self, start: usize, end: usize) -> Option<(usize, usize)> {
        self.stacks.run(move || {
            let mut found = None;
            let asked = sys::each_mapping(|from, to| {
                if found.is_none() && from < end && start < to {
                    found = Some((from.max(start), to.min(end)));
                }
            });
            found.filter(|_| asked.is_ok())
        })
    }

    /// The mappings that `start..end` is made of, if all of it is managed and they are alike in all that Linux looks at before it
    /// makes two one, but for how their pages were brought in.
    pub fn alike(&'static self, start: usize, end: usize) -> Option<Alike> {
        self.stacks.run(move || {
            let managed = {
                let map = self.machine.map.read();
                map.ranges.covers(start, end) && map.ranges.overlap(start, end, Kind::Native).is_none()
            };
            let (mut alike, mut fits, mut flags) = (Alike { starts: [0; ALIKE_MAX], count: 0 }, managed, [0; FLAGS_LEN]);
            let mut look = |from: usize, to: usize, text: &[u8]| {
                if from >= end || to <= start {
                    return;
                }
                let these = what_sets_apart(text);
                fits &= alike.count < ALIKE_MAX && (alike.count == 0 || these == flags);
                if fits {
                    (alike.starts[alike.count], flags) = (from.max(start), these);
                    alike.count += 1;
                }
            };
            let asked = managed && sys::each_mapping_flags(&mut look).is_ok();
            (asked && fits).then_some(alike)
        })
    }

    /// Whether one mremap(2) moves several mappings: Linux 6.17.
    pub fn kernel_moves_several(&'static self) -> bool {
        self.stacks.run(|| sys::kernel_version() >= (6, 17))
    }

    /// The most that one mmap may populate, in bytes: a quarter of the budget.
    pub fn populatable_bytes(&self) -> usize {
        self.within_reach_bytes() / 4
    }

    /// What this process could have of the budget if it wanted.
    fn within_reach_bytes(&self) -> usize {
        (self.family().within_reach() as usize) << PAGE_SHIFT
    }

    /// Whether some of `start..end` is the pager's own memory.
    pub fn is_the_pagers(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || area::bounds().is_some_and(|(from, to)| start < to && from < end))
    }

    /// Whether the program's anonymous memory in `start..end` fits into the budget besides all that is locked, if it is locked too.
    /// A quarter of the budget is for what is not.
    pub fn may_lock(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || {
            let overlap = |r: &Range| r.end.min(end).saturating_sub(r.start.max(start));
            let more = self.machine.map.read().ranges.iter().map(overlap).sum::<usize>();
            if more == 0 {
                return true;
            }
            let _ = self.ask_here(Request::Locked); // it cannot fail
            let locked = self.locked_bytes.load(Relaxed);
            more.saturating_add(locked) <= self.within_reach_bytes() / 4 * 3
        })
    }

    /// The first of the program's anonymous ranges that ends behind `at`, from there on.
    pub fn next_range(&'static self, at: usize) -> Option<(usize, usize)> {
        self.stacks.run(move || self.machine.map.read().ranges.first(at, usize::MAX).map(|r| (r.start.max(at), r.end)))
    }

    /// The program has unlocked everything, and with it the page of the pager's that must not be swapped by the kernel.
    pub fn lock_keys(&self) {
        self.machine.content.lock_again();
    }

    /// A discard has returned: its pages may be parked again.
    pub fn discarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || {
            if self.machine.map.read().discards.count.load(Relaxed) != 0 {
                self.machine.discard_done(start, end);
            }
        });
    }

    /// [`Machine::wiped_on_fork`].
    pub fn wiped_on_fork(&'static self, start: usize, end: usize, wiped: bool) -> bool {
        self.stacks.run(move || self.machine.wiped_on_fork(start, end, wiped))
    }

    /// MADV_MERGEABLE: equal pages may become one.
    pub fn may_merge(&self) {
        self.machine.shares_pages.store(true, Relaxed);
    }

    /// MADV_GUARD_INSTALL is about to be called: [`Machine::begin_guard`].
    pub fn begin_guard(&'static self, start: usize, end: usize) -> Option<bool> {
        self.stacks.run(move || self.machine.begin_guard(start, end))
    }

    /// It has put guard pages there.
    pub fn guarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.guarded(start, end));
    }

    /// There are none.
    pub fn unguarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.unguarded(start, end));
    }

    /// It has put none there, and others may be there.
    pub fn not_guarded(&'static self, start: usize, end: usize) {
        self.stacks.run(move || self.machine.not_guarded(start, end));
    }

    /// Pages that the kernel may need when it cannot wait for them. An address that no program can have is none of ours.
    pub fn wire(&'static self, at: usize, len: usize) {
        if at != 0 && at < ADDRESSES_END {
            self.stacks.run(move || self.machine.wire_addresses(ObjectId(0), 0, at, at + len));
        }
    }

    /// Has the clerk do something and waits for it.
    pub fn ask(&'static self, request: Request) {
        self.stacks.run(move || _ = self.ask_here(request));
    }

    /// What the pager's threads may do follows what this thread of the program's may do: it has given something up.
    pub fn follow(&'static self, ruleset: Option<i32>) {
        if self.is_its_process() {
            self.stacks.run(move || {
                let _ = self.ask_here_with(|| {
                    // SAFETY: a round is part of a request, and no other begins while the desk is ours.
                    if let Err(e) = unsafe { self.machine.following.rights() }.read() {
                        self.cannot_follow(e);
                    }
                    Request::Follow { tid: sys::gettid(), ruleset }
                });
            });
        }
    }

    /// Whether some of `start..end` is managed.
    pub fn is_managed(&'static self, start: usize, end: usize) -> bool {
        self.stacks.run(move || self.machine.map.read().ranges.overlap(start, end, Kind::Managed).is_some())
    }

    /// Whether this is the pager's process, and not one that only shares its memory (vfork, CLONE_VM).
    pub fn is_its_process(&self) -> bool {
        self.status.pid.load(Relaxed) == sys::getpid()
    }

    /// Whether the program has this thread only.
    pub fn is_only_thread(&self) -> bool {
        sys::thread_count_without_workers() == Ok(self.own_threads() + 1)
    }

    /// How many threads of this process are the pager's.
    pub fn own_threads(&self) -> u32 {
        self.threads.load(Relaxed)
    }

    /// Stacks for hooks.
    pub fn stacks(&self) -> &HookStacks {
        &self.stacks
    }

    /// How the pager's I/O is issued.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The pager goes, and leaves the program to itself, if the kernel has all of its memory: nothing was paged yet. Returns
    /// whether it has gone. => the program has one thread
    pub fn retire(&'static self) -> bool {
        self.stacks.run(move || {
            if self.machine.map.read().ranges.overlap(0, usize::MAX, Kind::Managed).is_some() {
                return false;
            }
            AGENT.store(core::ptr::null_mut(), Release);
            let _ = self.ask_here(Request::Retire);
            let start = sys::now_ns();
            while sys::thread_count() != Ok(1) {
                if sys::now_ns() - start > RETIRE_NS {
                    self.stop("the program was stopped: its pager was to end, as the program confines itself, and did not");
                }
                futex_wait(&AtomicU32::new(0), 0, 100_000);
            }
            true
        })
    }

    /// Ends the program, with a sentence.
    pub fn stop(&self, why: &str) -> ! {
        self.machine.stop_program(why.as_bytes())
    }

    /// A thread of the pager's may do more than the program, and it cannot be helped.
    pub fn cannot_follow(&self, error: Errno) -> ! {
        let mut line = Packet::new();
        let _ = write!(
            line,
            "the program was stopped: it has given rights up, and a thread of its pager could not do the same (error {error}), so whoever takes the \
             program over would still have them"
        );
        self.machine.stop_program(line.bytes())
    }

    /// As [`Agent::ask`]; returns how it ended.
    ///
    /// => on a hook stack
    fn ask_here(&self, request: Request) -> Result<(), Errno> {
        self.ask_here_with(|| request)
    }

    /// => on a hook stack
    fn ask_here_with(&self, request: impl FnOnce() -> Request) -> Result<(), Errno> {
        self.take_desk();
        let request = request();
        // SAFETY: the desk is ours and the clerk is idle.
        unsafe { *self.request.get() = request };
        self.state.store(ASKED, Release);
        futex_wake(&self.state, i32::MAX as u32);
        while self.state.load(Acquire) != ANSWERED {
            futex_wait(&self.state, ASKED, u64::MAX);
        }
        let answer = self.answer.load(Relaxed);
        self.state.store(IDLE, Relaxed);
        self.desk.store(0, Release);
        futex_wake(&self.desk, 1);
        if answer == 0 { Ok(()) } else { Err(answer) }
    }

    /// No lock: a process that shares the memory (CLONE_VM) may be killed while it asks, and would hold it for ever.
    fn take_desk(&self) {
        let me = sys::gettid();
        while let Err(owner) = self.desk.compare_exchange(0, me, Acquire, Relaxed) {
            futex_wait(&self.desk, owner, DESK_LOOK_NS);
            let dead = self.desk.load(Relaxed) == owner && !sys::shares_memory(owner);
            if dead && self.desk.compare_exchange(owner, me, Acquire, Relaxed).is_ok() {
                break;
            }
        }
        // what a dead one has asked for
        while self.state.load(Acquire) == ASKED {
            futex_wait(&self.state, ASKED, u64::MAX);
        }
    }

    // ---- the clerk ----

    fn clerk(&self) {
        while !self.machine.quit.load(Acquire) {
            // SAFETY: this thread is the clerk.
            let clerks = unsafe { &mut *self.clerks.get() };
            let state = self.state.load(Acquire);
            if state != ASKED {
                // a hundredth of a CPU goes to that at most, however many there are
                let pause = WATCH_NS * (1 + clerks.children.len() as u64 / 64);
                futex_wait(&self.state, state, if clerks.children.is_empty() { u64::MAX } else { pause });
            }
            self.watch(clerks);
            if self.state.load(Acquire) != ASKED {
                continue;
            }
            let mut result = Ok(());
            // SAFETY: the asker has written it before it said so, and waits.
            match unsafe { *self.request.get() } {
                Request::Add(piece) => self.machine.add_range(piece),
                Request::NotOurs { start, end } => self.machine.await_unmaps(start, end),
                Request::HandOver { start, end } => self.machine.hand_over(start, end),
                Request::Adopt { start, end } => self.machine.adopt_native_of(start, end),
                Request::LeftEmpty { old, new, len } => self.machine.left_empty(old, new, len),
                Request::Resized { old_len, new, new_len } => self.machine.resized_range(old_len, new, new_len),
                Request::Follow { tid, ruleset } => self.follow_all(ruleset.map(|fd| (tid, fd))),
                Request::Retire => {
                    self.machine.quit.store(true, Release);
                    self.machine.following.wake();
                    self.call();
                }
                Request::Shrink => self.shrink(),
                Request::MakeRoom => self.make_room(),
                Request::Send { socket, tid } => result = self.send_descriptors(clerks, socket, tid),
                Request::Listen => result = self.listen(clerks),
                Request::Child { pid, fork, member } => {
                    let socket = clerks.pending.take().or_else(|| self.meet(clerks, pid));
                    match socket {
                        Some(socket) => clerks.children.push(Child { socket, fork, member }),
                        None => self.child_gone(fork, member),
                    }
                }
                Request::NoChild => (clerks.pending, clerks.listener) = (None, None),
                Request::Locked => self.locked_bytes.store(mappings::fixed().map_or(0, |fixed| fixed.locked as usize), Relaxed),
            }
            self.answer.store(result.err().unwrap_or(0), Relaxed);
            self.state.store(ANSWERED, Release);
            futex_wake(&self.state, i32::MAX as u32);
        }
    }

    // ---- the control socket ----

    /// Wakes all of the pager's threads. => the clerk
    fn call(&self) {
        let machine = self.machine;
        machine.duty.end_company();
        let _ = sys::write(machine.quit_event.load(Relaxed), &1u64.to_ne_bytes());
        machine.duty.call_everyone();
        machine.ring_daemon();
    }

    /// => the clerk
    fn follow_all(&self, landlock: Option<(u32, i32)>) {
        let machine = self.machine;
        // SAFETY: the clerk does one thing after the other, and who asked for it waits.
        let result = unsafe { machine.following.all(landlock, || self.call()) };
        let _ = sys::read(machine.quit_event.load(Relaxed), &mut [0; 8]);
        if let Err(e) = result {
            self.cannot_follow(e);
        }
    }

    /// Whoever has no socket goes on without: nobody can ask it anything.
    fn control(&self, follower: &mut Follower) {
        let first = self.machine.supervised.load(Relaxed);
        if !first {
            // Most forks and many programs are over in no time: they leave no socket behind for others to tidy up.
            follower.wait(&self.machine.following, SOCKET_AFTER_NS);
        }
        let mut file = Packet::new();
        let _ = write!(file, "{}", sys::getpid());
        if first && !self.control.name.is_empty() {
            let _ = write!(file, ".{}", self.control.name);
        }
        let _ = write!(file, ".sock");
        // before it follows: the program may be giving up what it takes to enter the directory
        let listener = control_server::listen(&self.control.directory, file.bytes());
        follower.look(&self.machine.following);
        if let Ok(listener) = listener {
            control_server::serve(self.machine, self.engine, &listener, follower);
        }
    }

    /// The end of children: the slots that they alone could read are free. (What they had of the budget is free already.)
    fn watch(&self, clerks: &mut Clerks) {
        let mut at = 0;
        while let Some(child) = clerks.children.get(at) {
            if !sys::is_readable(child.socket.raw()) {
                at += 1;
                continue;
            }
            let child = clerks.children.swap_remove(at);
            self.child_gone(child.fork, child.member);
        }
    }

    fn child_gone(&self, fork: u64, member: Tag) {
        self.family().bury(member);
        {
            let _map = self.machine.map.read();
            self.machine.core.lock().vm.devices_mut().child_gone(fork);
        }
        self.machine.take_if_alone();
    }

    fn family(&self) -> &'static Family {
        self.machine.family.as_ref().expect("the agent's machine has one")
    }

    /// What either side of a fork has if `whole` does not suffice for both: half of it; of compressed memory that cannot go
    /// anywhere else each has all.
    fn half(map: &Space, core: &Core, whole: u32) -> u32 {
        let fixed = Self::fixed(map, core).min(whole);
        fixed + (whole - fixed) / 2
    }

    fn fixed(map: &Space, core: &Core) -> u32 {
        map.pool.as_ref().map_or(0, |pool| pool.fixed_pages(core.vm.devices()))
    }

    /// Before a fork: what is charged to this process must have room twice in what it has and nobody has.
    fn shrink(&self) {
        let machine = self.machine;
        let family = self.family();
        let start = sys::now_ns();
        let fits = |map: &Space, core: &Core| core.vm.charge_total() <= u64::from(Self::half(map, core, family.for_two()));
        // what others of the family do not use is there at once, and costs nothing
        loop {
            let seen = machine.arrivals.load(Relaxed);
            let charge = {
                let map = machine.map.read();
                let core = machine.core.lock();
                if fits(&map, &core) {
                    return;
                }
                core.vm.charge_total()
            };
            let view = family.view();
            if u64::from(view.mine) >= charge + u64::from(view.fair()) || view.idle_spare == 0 || sys::now_ns() - start > ASK_NS {
                break;
            }
            family.ask(&view);
            machine.await_arrival(seen);
        }
        if machine.core.lock().vm.reserved() > 0 {
            machine.adopt_native(&mut machine.map.write());
        }
        let start = sys::now_ns();
        let (mut least, mut since) = (u64::MAX, start);
        machine.shrinking.store(true, Relaxed);
        machine.starved.store(false, Relaxed); // (not from before)
        loop {
            {
                let map = machine.map.read();
                let mut core = machine.core.lock();
                let half = Self::half(&map, &core, family.for_two());
                let (charge, now) = (core.vm.charge_total(), sys::now_ns());
                if charge < least {
                    (least, since) = (charge, now);
                }
                // devices may be slow, memory is not
                let hopeless = map.pool.is_some() && core.vm.devices().room_past_memory() == 0 && now - since > SHRINK_MEMORY_NS;
                // the daemon frees more than it must, so that the aim is below half
                let aim = half.saturating_sub(core.vm.free_high());
                core.vm.set_aim(aim.max(half / 2));
                if core.vm.devices().room_past_memory() > 0 {
                    map.pool.iter().for_each(|pool| pool.set_budget(aim)); // what is above three quarters of it goes on
                }
                if charge <= half as u64 || hopeless || now - start > SHRINK_NS || Self::is_all_done(machine, now) {
                    family.apply(&map, &mut core);
                    machine.shrinking.store(false, Relaxed);
                    return;
                }
            }
            machine.ring_daemon();
            let seen = machine.arrivals.load(Relaxed);
            machine.await_arrival(seen);
        }
    }

    /// Whether the page daemon has tried everything, and nothing is in flight: what is left stays (locked, pinned, wired), or swap
    /// is full or fails. Devices that are only slow are not waited for in vain.
    fn is_all_done(machine: &Machine, now: u64) -> bool {
        let since = machine.stuck_since.load(Relaxed);
        since != 0 && (machine.starved.load(Relaxed) || now.saturating_sub(since) > STUCK_NS)
    }

    /// Takes the inherited device with the least on it off, if there are as many devices as there can be. If that fails the child
    /// will say so.
    fn make_room(&self) {
        let least = {
            let core = self.machine.core.lock();
            let devices = core.vm.devices();
            let stored = |id: &DeviceId| devices.device_use(*id).map_or(0, |used| used.stored);
            if devices.iter().count() < DEVICES_MAX || self.child_device.is_none() {
                return;
            }
            devices.iter().filter(|id| devices.is_inherited(*id)).min_by_key(stored)
        };
        let worker = least.and_then(|id| Worker::new(self.machine, self.engine, id).ok());
        let Some(mut worker) = worker else { return };
        while worker.step(self.machine) == State::Busy {}
        worker.end(self.machine);
    }

    /// What a child needs of the pager's descriptors is on its way when this returns. In the order in which [`Birth::happen`] takes
    /// it.
    fn send_descriptors(&self, clerks: &mut Clerks, socket: i32, tid: u32) -> Result<(), Errno> {
        if clerks.children.len() == CHILDREN_MAX {
            return Err(libc::EAGAIN);
        }
        let socket = descriptors::with_room(|| sys::fd_of(tid, socket))?;
        self.send_through(&socket)?;
        clerks.pending = Some(socket);
        Ok(())
    }

    fn send_through(&self, socket: &Fd) -> Result<(), Errno> {
        let map = self.machine.map.read();
        let mut fds = [0; PACK_MAX];
        let files = map.files.iter().flatten().flat_map(SwapFiles::iter).map(|file| file.raw());
        let others = self.ancestors.iter().chain([&self.uffd_device]).map(|fd| fd.load(Relaxed)).filter(|fd| *fd >= 0);
        let mut n = 0;
        for fd in files.chain(others).chain([sys::voice()].into_iter().filter(|fd| *fd >= 0)) {
            fds[n] = fd;
            n += 1;
        }
        drop(map);
        let mut left = 1000;
        loop {
            match descriptors::send(socket, &fds[..n]) {
                // others of this user's have too many on their way for this moment
                Err(libc::ETOOMANYREFS) if left > 0 => futex_wait(&AtomicU32::new(0), 0, 1_000_000),
                result => return result,
            }
            left -= 1;
        }
    }

    /// The program's table is full, and its limit cannot be raised; or a filter forbids `pidfd_getfd`. So the child will come by a
    /// socket of its own.
    fn listen(&self, clerks: &mut Clerks) -> Result<(), Errno> {
        let (listener, name) = descriptors::with_room(descriptors::listen)?;
        clerks.listener = Some(listener);
        // SAFETY: only the forking thread, which waits for this, and its child look at it.
        unsafe { *self.meeting.get() = name };
        Ok(())
    }

    /// Waits for the child there. `None` if it has ended before.
    fn meet(&self, clerks: &mut Clerks, pid: u32) -> Option<Fd> {
        let listener = clerks.listener.take()?;
        let child = descriptors::with_room(|| sys::pidfd_open(pid)).ok()?;
        loop {
            if let Some(socket) = descriptors::with_room(|| descriptors::accept_from(&listener, pid)).ok()? {
                return self.send_through(&socket).is_ok().then_some(socket);
            }
            if sys::is_readable(child.raw()) {
                return None;
            }
            futex_wait(&AtomicU32::new(0), 0, 1_000_000);
        }
    }

    // ---- fork ----

    /// The program forks.
    pub fn fork(&'static self, mut call: Fork) -> isize {
        self.stacks.run(move || {
            let result = self.fork_here(&mut call);
            match result {
                0 => call.tell_child(),
                1.. => call.tell_parent(),
                _ => {}
            }
            result
        })
    }

    fn fork_here(&'static self, call: &mut Fork) -> isize {
        let machine = self.machine;
        let _ = self.ask_here(Request::MakeRoom);
        // One fork at a time, and no device comes or goes from here on. Parent and child both give it back when this function ends.
        let _swapping = machine.swapping.lock();
        let _ = self.ask_here(Request::Shrink);
        // What the child needs of the pager's descriptors waits in a socket, which the child inherits in this thread's table.
        let sent = descriptors::with_room(descriptors::socket_pair).and_then(|[ours, childs]| {
            self.ask_here(Request::Send { socket: ours.raw(), tid: sys::gettid() })?;
            Ok(Some(childs))
        });
        let sent = match sent {
            Err(libc::EMFILE | libc::EPERM | libc::EACCES | libc::ENOSYS) => self.ask_here(Request::Listen).map(|()| None),
            sent => sent,
        };
        let family = self.family();
        let (childs, member) = match sent.and_then(|childs| Ok((childs, family.reserve().ok_or(libc::EAGAIN)?))) {
            Ok(both) => both,
            Err(e) => {
                let _ = self.ask_here(Request::NoChild);
                return -(e as isize);
            }
        };

        machine.await_remaps();
        // The freeze: both locks held, no page busy, no write in flight.
        machine.frozen.store(1, SeqCst);
        let (mut map, mut core) = loop {
            let map = machine.map.write();
            let core = machine.core.lock();
            if core.vm.is_quiescent() {
                break (map, core);
            }
            drop(core);
            drop(map);
            machine.ring_daemon();
            futex_wait(&AtomicU32::new(0), 0, 50_000);
        };
        // The child has what this process has, and some more: an equal part of the whole if that is to be had, else as much as
        // this process.
        let (charge, whole) = (core.vm.charge_total() as u32, family.for_two());
        let spare = whole.saturating_sub(charge.saturating_mul(2)) / 2;
        let fair = family.total() / (family.view().members + 1);
        let (pages, excess) = match spare {
            0 => (Self::half(&map, &core, whole) - Self::fixed(&map, &core), Self::fixed(&map, &core)),
            _ => (charge + spare.min(fair.saturating_sub(charge).max(2 * core.vm.free_high())), 0),
        };
        family.endow(member, pages.max(family.least()), charge);
        let fork = core.vm.devices_mut().fork_parent();
        core.vm.counters().forks.add(1);
        machine.shares_pages.store(true, Relaxed); // in the child, too
        // Nobody else may hold these in the child, which nobody else has survived.
        let arena = crate::ARENA.hold();
        // In the child this thread goes on alone with copies of everything, all locks held.
        let r = call.make();
        drop(arena);
        match r {
            Ok(0) => {
                family.forked(member, excess);
                family.apply(&map, &mut core);
                self.alone(&mut map, &mut core);
                let _room = descriptors::room_for(DESCRIPTORS_AT_START);
                let birth = Birth::new(&mut map, &mut core, childs.as_ref());
                self.born.store(0, Relaxed);
                // SAFETY: the thread that is started is done with it when `wait` returns; before that this function does not.
                let begun = self.begin_threads(Some(unsafe { &*core::ptr::from_ref(&birth) }));
                drop(childs); // the thread has its own
                let result = begun.map_err(NoPager::Os).and_then(|()| birth.wait(self));
                if result.is_ok() {
                    drop(core);
                    drop(map);
                }
                if let Err(why) = result.and_then(|()| Ok(self.await_threads()?)) {
                    why.say();
                    sys::exit_group(125);
                }
                family.tell_born();
                0
            }
            _ => {
                if r.is_err() {
                    core.vm.devices_mut().child_gone(fork);
                    family.bury(member);
                }
                family.apply(&map, &mut core);
                drop(core);
                drop(map);
                self.thaw();
                if r.is_ok() && call.shares_files() {
                    let _ = childs.map(Fd::into_raw); // it is the child's table, too, and the child closes it when it has it elsewhere
                } else {
                    drop(childs);
                }
                let _ = self.ask_here(r.map_or(Request::NoChild, |pid| Request::Child { pid: pid as u32, fork, member }));
                match r {
                    Ok(pid) => {
                        family.await_birth(member);
                        pid as isize
                    }
                    Err(e) => -(e as isize),
                }
            }
        }
    }

    /// Handlers go on after a fork.
    fn thaw(&self) {
        self.machine.frozen.store(0, SeqCst);
        futex_wake(&self.machine.frozen, i32::MAX as u32);
        self.machine.forked();
    }

    /// In the child: what needs no descriptor. What belongs to the parent's threads is reset.
    fn alone(&self, map: &mut Space, core: &mut Core) {
        let machine = self.machine;
        self.here.store(1, Relaxed);
        machine.map.forked();
        self.desk.store(0, Relaxed); // whoever had it is not here
        machine.frozen.store(0, Relaxed);
        machine.forking.store(0, Relaxed);
        machine.following.forked();
        machine.daemon_sleeps.store(false, Relaxed);
        machine.waiters.store(0, Relaxed);
        machine.starved.store(false, Relaxed);
        machine.stuck_since.store(0, Relaxed);
        machine.shrinking.store(false, Relaxed); // (for the fork of another thread)
        machine.duty.reset();
        machine.retired.store(0, Relaxed);
        if let Some(record) = &machine.record {
            record.stop();
            core.vm.set_mapped_max(u32::MAX);
        }
        core.vm.uncharge(machine.swapoff_charge.swap(0, Relaxed));
        core.vm.count_afresh();
        self.stacks.only_mine();
        self.state.store(IDLE, Relaxed);
        // SAFETY: this is the process's only thread; the old descriptors are numbers of the parent's pager and are not ours to
        // close.
        let clerks = unsafe { &mut *self.clerks.get() };
        clerks.children.drain(..).for_each(core::mem::forget);
        core::mem::forget((clerks.pending.take(), clerks.listener.take()));
        core::mem::forget(map.pidfd.take());
        map.discards = overspill_linux::space::Discards::new();
        core.load.forked();
    }

    /// In the child, in its first pager thread: everything that belongs to the parent's process is replaced.
    fn become_child(&self, map: &mut Space, core: &mut Core, socket: Fd) -> Result<(), NoPager> {
        let machine = self.machine;
        let received = Inherited::receive(self, map, &socket);
        let (voice, received) = received.map_or_else(|e| (None, Err(e)), |mut share| (share.voice.take(), Ok(share)));
        sys::set_voice(voice.map_or(-1, Fd::into_raw), sys::gettid());
        let share = received?;
        map.pidfd = sys::pidfd_open(sys::getpid()).ok();
        self.own_status(core.vm.limit())?;
        core.vm.set_reserved(core.vm.reserved()); // so that the new block shows what is charged
        machine.quit_event.store(sys::event()?.into_raw(), Relaxed);
        let device = share.uffd_device;
        let (program, parking) = setup::open_uffds(Delivery::Threads, device.as_ref())?;
        self.uffd_device.store(device.map_or(-1, Fd::into_raw), Relaxed);
        core::mem::forget(core::mem::replace(&mut map.program, program));
        core::mem::forget(core::mem::replace(&mut map.parking, parking));
        machine.parking.register(&map.parking)?;
        Self::inherit_devices(map, core, share.files)?;
        for (slot, fd) in self.ancestors.iter().zip(share.ancestors) {
            slot.store(fd.map_or(-1, Fd::into_raw), Relaxed);
        }
        let free = self.ancestors.iter().find(|fd| fd.load(Relaxed) < 0).ok_or(NoPager::Generations)?;
        free.store(socket.into_raw(), Relaxed);
        let devices = core.vm.devices_mut();
        machine.content.forked(devices.stored() > 0)?;
        if let Some(spec) = &self.child_device {
            // behind its copy of the compressed device, if its parent's files were
            let priority = if map.pool.is_some() { spec.priority.unwrap_or(0) } else { 0 };
            let files = Self::new_swap_files(spec)?;
            let device = devices::add_files(devices, &files, priority).map_err(|_| NoPager::Devices)?;
            map.files[device.0 as usize] = Some(files);
            map.names[device.0 as usize].set(spec.name().as_encoded_bytes());
        }
        if let Some(pool) = &map.pool {
            pool.set_budget(core.vm.limit());
            pool.refill(&mut core.vm);
        }
        machine.inherit_ranges(map, core)?;
        machine.wipe(map, core);
        Ok(())
    }

    /// The devices of files become read-only; those on which nothing is stored are left.
    fn inherit_devices(map: &mut Space, core: &mut Core, files: Files) -> Result<(), NoPager> {
        let devices = core.vm.devices_mut();
        devices.inherit();
        for (at, fds) in files.into_iter().enumerate() {
            let Some(theirs) = map.files[at].take() else { continue };
            let id = DeviceId(at as u16);
            if devices.device_use(id).is_some_and(|used| used.stored == 0) {
                theirs.forget();
                devices.remove(id);
                map.names[at].set(b"");
            } else {
                map.files[at] = Some(theirs.reopened(fds)?);
            }
        }
        Ok(())
    }

    /// Other files in the same places. A place that is a file's name may be in use for a moment by a sibling that does the same.
    fn new_swap_files(spec: &DeviceSpec) -> Result<SwapFiles, Errno> {
        for _ in 0..1000 {
            match SwapFiles::open(spec) {
                Err((libc::EEXIST, _)) => futex_wait(&AtomicU32::new(0), 0, 1_000_000),
                result => return result.map_err(|(e, _)| e),
            }
        }
        Err(libc::EEXIST)
    }

    /// A status block of its own, at the address of the parent's.
    fn own_status(&self, limit_pages: u32) -> Result<(), Errno> {
        let old = self.status;
        let (policy, engine, limit) = (copy(&old.policy), copy(&old.engine), limit_pages as u64 * 4096);
        let at = old as *const Status as usize;
        let len = size_of::<Status>().next_multiple_of(4096);
        // SAFETY: a memory file of our own replaces the shared block in this process; same length, same layout, zeroed.
        unsafe {
            let fd = Fd::new(sys::syscall6(
                libc::SYS_memfd_create,
                c"overspill-status".as_ptr() as usize,
                (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize,
                0,
                0,
                0,
                0,
            )?);
            sys::syscall6(libc::SYS_ftruncate, fd.raw() as usize, len, 0, 0, 0, 0)?;
            // who reads it looks whether it can shrink under him: without the seals a descendant could not be asked anything
            let seals = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) as usize;
            sys::syscall6(libc::SYS_fcntl, fd.raw() as usize, libc::F_ADD_SEALS as usize, seals, 0, 0, 0)?;
            let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
            sys::syscall6(libc::SYS_mmap, at, len, prot, (libc::MAP_SHARED | libc::MAP_FIXED) as usize, fd.raw() as usize, 0)?;
            self.status_fd.store(fd.into_raw(), Relaxed);
        }
        self.status.init(sys::getpid());
        self.status.policy.set(&policy);
        self.status.engine.set(&engine);
        self.status.swap.set(self.child_device.as_ref().map_or(&b"compressed"[..], |d| d.name().as_encoded_bytes()));
        self.status.start_ns.store(sys::now_ns(), Relaxed);
        self.status.outcome.store(Outcome::Running as u32, Release);
        self.status.counters.memory_limit_bytes.set(limit);
        self.status.counters.family_budget_bytes.set(u64::from(self.family().total()) << PAGE_SHIFT);
        self.machine.supervised.store(false, Relaxed);
        Ok(())
    }
}

/// Why a forked child has no pager.
enum NoPager {
    /// An error of the system.
    Os(Errno),
    /// Too many forks in a row.
    Generations,
    /// No room for its device beside those that it inherits.
    Devices,
}

impl From<Errno> for NoPager {
    fn from(errno: Errno) -> Self {
        NoPager::Os(errno)
    }
}

impl NoPager {
    /// A sentence on standard error. Does not allocate.
    fn say(&self) {
        let mut line = Packet::new();
        let _ = match self {
            NoPager::Os(errno) => write!(
                line,
                "the pager could not be set up in a forked child (no userfaultfd, swap space or memory for it: error {errno}), so the \
                 child was ended"
            ),
            NoPager::Generations => write!(
                line,
                "a child of {ANCESTORS_MAX} generations of forks without an exec forked once more, and more than {ANCESTORS_MAX} there \
                 cannot be, so the new child was ended: have one of them exec"
            ),
            NoPager::Devices => write!(
                line,
                "a forked child would have more than {DEVICES_MAX} swap devices, as each generation of forks without an exec adds one, so \
                 it was ended: start with fewer --swap devices, or have one of the generations exec"
            ),
        };
        sys::complain(line.bytes());
    }
}

/// The files of each device.
type Files = [[Option<Fd>; FILES_MAX]; DEVICES_MAX];

/// By ancestor.
type Ancestors = [Option<Fd>; ANCESTORS_MAX];

/// What a child is given of its parent's descriptors.
struct Inherited {
    files: Files,
    ancestors: Ancestors,
    uffd_device: Option<Fd>,
    voice: Option<Fd>,
}

impl Inherited {
    /// As [`Agent::send_descriptors`] has sent it.
    fn receive(agent: &Agent, map: &Space, socket: &Fd) -> Result<Self, Errno> {
        let mut fds = [const { None }; PACK_MAX];
        let files = || map.files.iter().map(|files| files.iter().flat_map(SwapFiles::iter).count());
        let held = |fd: &AtomicI32| fd.load(Relaxed) >= 0;
        let others = agent.ancestors.iter().chain([&agent.uffd_device]).filter(|fd| held(fd)).count();
        descriptors::receive(socket, &mut fds[..files().sum::<usize>() + others + usize::from(sys::voice() >= 0)])?;
        let mut got = fds.into_iter();
        let mut next = || got.next().flatten();
        let mut share = Inherited {
            files: [const { [const { None }; FILES_MAX] }; DEVICES_MAX],
            ancestors: [const { None }; ANCESTORS_MAX],
            uffd_device: None,
            voice: None,
        };
        for (device, count) in share.files.iter_mut().zip(files()) {
            device[..count].iter_mut().for_each(|fd| *fd = next());
        }
        for (fd, _) in share.ancestors.iter_mut().zip(&agent.ancestors).filter(|(_, theirs)| held(theirs)) {
            *fd = next();
        }
        if held(&agent.uffd_device) {
            share.uffd_device = next();
        }
        share.voice = next();
        Ok(share)
    }
}

/// How a forked child gets its pager: the thread that forked holds all locks and waits while the first pager thread, which has a
/// descriptor table of its own, does the work.
struct Birth {
    map: *mut Space,
    core: *mut Core,
    /// In the program's table and, as a copy, in the new one; `None`: there is none, and the clerk is to be met.
    socket: Option<i32>,
    result: UnsafeCell<Result<(), NoPager>>,
}

// SAFETY: the pointers and the result are the new thread's until the agent's `born` says otherwise, and its starter's from then on.
unsafe impl Sync for Birth {}

impl Birth {
    fn new(map: &mut Space, core: &mut Core, socket: Option<&Fd>) -> Self {
        Birth { map, core, socket: socket.map(Fd::raw), result: UnsafeCell::new(Ok(())) }
    }

    /// In the new thread. Returns whether there is a pager now. Nothing of this may be used afterwards.
    fn happen(&self, agent: &Agent) -> bool {
        let socket = match self.socket {
            Some(socket) => {
                Agent::keep_only(&mut [socket]);
                Ok(Fd::new(socket as usize))
            }
            None => {
                Agent::keep_only(&mut []);
                // SAFETY: the parent's clerk has written it before the fork.
                descriptors::connect(unsafe { &*agent.meeting.get() })
            }
        };
        // SAFETY: the starter holds both locks, and uses neither value until this is done.
        let (map, core) = unsafe { (&mut *self.map, &mut *self.core) };
        let result = socket.map_err(NoPager::Os).and_then(|socket| agent.become_child(map, core, socket));
        let ok = result.is_ok();
        // SAFETY: as above.
        unsafe { *self.result.get() = result };
        agent.born.store(1, Release);
        futex_wake(&agent.born, 1);
        ok
    }

    /// Until it has happened.
    fn wait(&self, agent: &Agent) -> Result<(), NoPager> {
        while agent.born.load(Acquire) == 0 {
            futex_wait(&agent.born, 0, u64::MAX);
        }
        // SAFETY: the other thread is done with it. Acquire above pairs with the Release in `happen`.
        core::mem::replace(unsafe { &mut *self.result.get() }, Ok(()))
    }
}

fn copy<const N: usize>(text: &overspill_vm::status::Text<N>) -> [u8; 64] {
    let mut out = [0; 64];
    text.copy_to(&mut out);
    out
}
