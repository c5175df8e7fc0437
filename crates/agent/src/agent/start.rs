//! The start: reads the environment, sets the machine up, and adopts the heap. If it cannot, it says so in one message.

use super::fork::ANCESTORS_MAX;
use super::helper::{CHILDREN_MAX, IDLE, Request};
use super::threads::allowed_cpus;
use super::{AGENT, Agent, ControlPlace, HelperState, get};
use crate::hooks::{self, HookStacks, Text};
use crate::symbols::table_of_addresses;
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use overspill_linux::control::Packet;
use overspill_linux::device_spec::{self, DeviceSpec, Medium};
use overspill_linux::family::Family;
use overspill_linux::family::shares::MEMBERS_MAX;
use overspill_linux::io::Engine;
use overspill_linux::machine::Delivery;
use overspill_linux::mremap::Hook as _;
use overspill_linux::native::Piece;
use overspill_linux::ranges::Flags;
use overspill_linux::record::Recorder;
use overspill_linux::sanitizers::SANITIZERS;
use overspill_linux::setup::{self, Options, SetupError};
use overspill_linux::status_file::StatusFile;
use overspill_linux::sys::{self, Errno, Fd};
use overspill_linux::{area, threads, uffd};
use overspill_vm::status::{Outcome, Status};
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};
use std::io::Write as _;
use std::os::fd::AsRawFd;

/// The most members of a family if address space is limited: their entries take 256 KiB.
const MEMBERS_FEW: usize = 1 << 12;

pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The state of an agent that starts, for [`no_memory`].
struct Starting {
    now: AtomicBool,
    /// Null as long as there is none.
    status: AtomicPtr<Status>,
    supervised: AtomicBool,
}

static STARTING: Starting =
    Starting { now: AtomicBool::new(false), status: AtomicPtr::new(core::ptr::null_mut()), supervised: AtomicBool::new(false) };

/// To be called when the arena cannot get `bytes` bytes. While the agent starts, this ends the process, with the limits that are
/// most likely the cause; std would only name the bytes and abort. Nothing here allocates.
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
pub(super) fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::getrlimit(resource, &mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Ignores SIGXFSZ until it is dropped. Then a write that `ulimit -f` forbids fails with EFBIG, which can be reported. The pager's
/// threads have the signal blocked.
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

/// Ends the process of an agent that cannot start, with a message.
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

/// Reports a panic, which is a bug of Overspill's, and ends the program. A pager thread has no standard error of its own, so the
/// text goes where `overspill run` finds it. Nothing here allocates, because the thread that panicked may hold any lock.
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

table_of_addresses!("overspill_sanitizers", "__asan_init", "__hwasan_init", "__tsan_init", "__msan_init", "__lsan_init");

unsafe extern "C" {
    /// Those of [`SANITIZERS`].
    static overspill_sanitizers: [usize; SANITIZERS.len()];
}

/// The constructor. Does nothing without `OVERSPILL_MEMORY`.
pub fn start() {
    // SAFETY: the table below, which the dynamic loader has filled.
    if unsafe { overspill_sanitizers }.iter().any(|at| *at != 0) {
        return; // (`overspill run` refuses such a program, and a descendant is left alone)
    }
    if variable("LD_PRELOAD").is_some_and(|libraries| libraries.contains("/vgpreload_")) {
        return; // Valgrind runs the program, and knows neither userfaultfd nor the pager's threads
    }
    let Some(memory) = variable("OVERSPILL_MEMORY") else { return };
    STARTING.now.store(true, Release);
    reserve_area(memory.parse().unwrap_or(0));
    let _quiet = NoFileSizeSignal::new();
    serve(&memory);
    STARTING.now.store(false, Release);
}

/// Where address space is limited, makes the stack grow now by as much as the start may need. Later the tables may have taken the
/// rest, and the process would crash instead of saying so. If there is no room even now, it says so at once.
#[inline(never)] // or the frames of all that follows would lie on top of it
fn grow_stack() {
    const DEPTH: usize = 128 << 10; // it takes some 50 KiB
    let is_short = |resource| limit(resource).is_some_and(|bytes| bytes < 1 << 20);
    if limit(libc::RLIMIT_AS).is_none() || is_short(libc::RLIMIT_STACK) {
        return;
    }
    match area::map_anonymous(DEPTH) {
        // SAFETY: the mapping just made, which nobody has seen.
        Ok(room) => unsafe { area::unmap(room, DEPTH) },
        Err(_) => no_memory(DEPTH),
    }
    core::hint::black_box([0u8; DEPTH]);
}

/// Reserves address space for the pager's own mappings: tables (7 GiB), the parking area (the budget), and room for a compressed
/// device or many forks.
fn reserve_area(memory_bytes: usize) {
    let wanted = (16 << 30) + memory_bytes.saturating_mul(4).min(16 << 40);
    area::reserve(limit(libc::RLIMIT_AS).map_or(wanted, |limit| wanted.min(limit as usize / 2)));
}

/// How much the pager may still map where address space is limited: for the threads of forked children, and for new devices.
const KEPT_BYTES: usize = 16 << 20;

/// Starts the pager. `memory` is the budget in bytes.
pub(super) fn serve(memory: &str) {
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
    let Some(file) = given.or_else(own) else {
        // a descendant: a seccomp filter may forbid memfd_create
        return go_without(-1, "no memory file could be made for the pager's counters");
    };
    let mut status_fd = file.as_raw_fd();
    let status = file.leak();
    // The program was paged before it called exec; or it is an emulator, which is paged, and this is the program in it.
    let again = supervised && status.outcome.load(Acquire) != Outcome::NotStarted as u32;
    let is_after_exec = again && sys::thread_count() == Ok(1); // the threads of an emulator's pager are there
    if is_after_exec {
        status.counters.clear_levels();
    }
    if supervised {
        let _ = sys::close(status_fd); // `overspill run` holds it, and the program's table stays as it would be
        status_fd = -1;
    }
    STARTING.supervised.store(supervised, Relaxed);
    STARTING.status.store(core::ptr::from_ref(status).cast_mut(), Release);
    grow_stack();
    match serve_with(memory, status, status_fd, supervised, again) {
        Ok(()) => {}
        Err(why) if supervised && !again => refuse(Some(status), supervised, &why),
        Err(why) => {
            if is_after_exec {
                status.message.set(why.as_bytes());
                status.outcome.store(Outcome::Left as u32, Release);
            }
            go_without(status_fd, &why);
        }
    }
}

/// Lets a program that is not the first one, and whose pager cannot start, go on without one. So do its own descendants, without a
/// message.
fn go_without(status_fd: i32, why: &str) {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    sys::complain(format!("process {} ({}) runs without paging: {why}", sys::getpid(), name.trim_end()).as_bytes());
    for fd in [status_fd, sys::voice()].into_iter().filter(|fd| *fd >= 0) {
        let _ = sys::close(fd);
    }
    // SAFETY: the process has only this thread yet, so no other reads the environment.
    unsafe { std::env::remove_var("OVERSPILL_MEMORY") };
}

/// Keeps a copy of standard error for the pager's messages, unless descriptor 2 may be a data file. In a descendant it is used if
/// it is the file that `overspill run` had there, or a pipe, terminal or socket.
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

/// Sets up and starts the pager. Failures that show before the program's memory is touched are returned as errors.
fn serve_with(memory: &str, status: &'static Status, status_fd: i32, supervised: bool, again: bool) -> Result<(), String> {
    let fail = |message: &str| -> ! { refuse(Some(status), supervised, message) };
    let Ok(memory_bytes) = memory.parse::<u64>() else { return Err("OVERSPILL_MEMORY is not a number of bytes".into()) };
    let text = match Text::open() {
        Ok(text) => text,
        Err(libc::EACCES | libc::EPERM) => {
            return Err(
                "it may be executed but not read, and the system does not let the agent change what such a program does".into()
            );
        }
        Err(e) => return Err(format!("/proc/self/mem could not be opened: {}", std::io::Error::from_raw_os_error(e))),
    };
    // (proot lets its programs see the mappings of another process as theirs)
    let sites = hooks::Sites::find().map_err(|function| {
        format!(
            "this libc's {} is not recognised, so growth of the program's memory could not be followed: Overspill needs glibc 2.36 or alike on x86-64",
            function.to_string_lossy()
        )
    })?;
    let policy = variable("OVERSPILL_POLICY");
    let policy = match policy.as_deref().unwrap_or(overspill_vm::policy::DEFAULT).parse() {
        Ok(policy) => policy,
        Err(e) => return Err(format!("OVERSPILL_POLICY: {e}")),
    };
    let engine = variable("OVERSPILL_ENGINE");
    let Some(engine) = Engine::from_name(engine.as_deref().unwrap_or("auto")) else {
        return Err("OVERSPILL_ENGINE is none of auto, io_uring, psync".into());
    };
    let engine = match threads::resolve(engine) {
        Ok(engine) => engine,
        Err(e) => return Err(SetupError::Engine(e).to_string()),
    };
    let swap = std::env::var_os("OVERSPILL_SWAP").filter(|v| !v.is_empty()).unwrap_or_else(|| "file:/tmp".into());
    let mut swap = match device_spec::parse_list(&swap) {
        Ok(devices) => devices,
        Err(e) => return Err(format!("OVERSPILL_SWAP {e}")),
    };
    device_spec::settle_priorities(&mut swap, core::iter::empty());
    let file = swap.iter().find(|d| matches!(d.medium, Medium::File(_)));
    let only_memory = swap.iter().all(|d| matches!(d.medium, Medium::Compressed(_)));
    let default = || (!only_memory).then(|| DeviceSpec::file(std::env::temp_dir()));
    let child_device = file.cloned().or_else(default);
    // Only the process that `overspill trace record` started is recorded, and none of its descendants.
    let record = match variable("OVERSPILL_RECORD").filter(|_| supervised).map(|path| Recorder::open(path.as_ref())) {
        Some(Err(e)) => return Err(format!("the recording could not be begun: {e}")),
        opened => opened.and_then(Result::ok),
    };
    let control = ControlPlace::new(supervised);
    let cpus = allowed_cpus();
    let encrypt = variable("OVERSPILL_ENCRYPT").as_deref() != Some("no");
    let heap = heap_range();
    let made = loop {
        let options = Options {
            memory_bytes,
            swap: &swap,
            policy,
            engine,
            delivery: Delivery::Threads,
            load_control: record.is_none() && variable("OVERSPILL_LOAD_CONTROL").as_deref() != Some("no"),
            follow_pointers: record.is_none() && variable("OVERSPILL_FOLLOW_POINTERS").as_deref() != Some("no"),
            whole_program: true,
            encrypt,
            pages_max: pages_max(),
            objects_max: 1,
            // Readahead would hide references.
            ahead_pages_max: record.is_some().then_some(1),
            decisions_max: 0,
        };
        let made = setup::machine(&options, status);
        // One process has a block device. Its descendants use the others, or a file of their own. So does this program if it was
        // paged before its exec, and a forked child still has the device.
        let refused = match &made {
            Err(SetupError::Swap(_, place)) if !supervised || again => swap.iter().position(|device| is_block_at(device, place)),
            _ => None,
        };
        let Some(refused) = refused else { break made };
        swap.remove(refused);
        if swap.is_empty() || device_spec::has_place(&swap).is_err() {
            swap.extend(child_device.clone());
            device_spec::settle_priorities(&mut swap, core::iter::empty());
        }
    };
    let machine = match made {
        Ok(mut machine) => {
            machine.host.record = record;
            machine.host.halt_polls = variable("OVERSPILL_HALT_POLL").as_deref() != Some("no");
            let core = machine.core.lock();
            let pages = core.vm.limit();
            let buffers = core.vm.charge_total() as u32 + setup::buffers_max(pages, cpus.len(), encrypt);
            drop(core);
            let has_space = limit(libc::RLIMIT_AS).is_none();
            let common = variable("OVERSPILL_FAMILY").and_then(|path| Family::join(path.as_ref(), pages, buffers, has_space));
            let own = || Family::new(pages, buffers, if has_space { MEMBERS_MAX } else { MEMBERS_FEW });
            match common.map_or_else(own, Ok) {
                Ok(family) => machine.host.family = Some(family),
                Err(e) => return Err(SetupError::Memory(e).to_string()),
            }
            status.counters.family_budget_bytes.set(u64::from(pages) << PAGE_SHIFT);
            status.counters.family_members.set(1);
            Box::leak(Box::new(machine))
        }
        Err(e) => return Err(e.to_string()),
    };
    machine.set_supervised(supervised);
    match sys::event() {
        Ok(event) => machine.shutdown.set_event(event.into_raw()),
        Err(e) => fail(&SetupError::Memory(e).to_string()),
    }
    if let Some(record) = &machine.host.record {
        machine.core.lock().vm.set_mapped_max(record.mapped_pages_max());
    }
    let here = page_of_this_process().unwrap_or_else(|e| fail(&SetupError::Memory(e).to_string()));
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
        slot: AtomicU32::new(0),
        request_state: AtomicU32::new(IDLE),
        request: UnsafeCell::new(Request::Locked),
        spinner: UnsafeCell::default(),
        helper: UnsafeCell::new(HelperState { children: Vec::with_capacity(CHILDREN_MAX), pending: None, listener: None }),
        meeting: UnsafeCell::new(Default::default()),
        born: AtomicU32::new(0),
        answer: AtomicI32::new(0),
        huge_pages: AtomicI32::new(-1),
        locked_bytes: AtomicUsize::new(0),
        daemon_tid: AtomicU32::new(0),
        threads_ready: AtomicU32::new(0),
        threads: AtomicU32::new(0),
        threads_failed: AtomicI32::new(0),
        ancestors: [const { AtomicI32::new(-1) }; ANCESTORS_MAX],
        uffd_device: AtomicI32::new(uffd::open_device().map_or(-1, Fd::into_raw)),
        status,
        status_fd: AtomicI32::new(status_fd),
    }));
    // before there are other threads: a thread that sleeps in `syscall()` would return into the middle of a patch
    if let Err(function) = sites.patch(text) {
        fail(&format!("the pager could not change libc's {} in memory", function.to_string_lossy()));
    }
    if let Err(e) = agent.start_threads() {
        fail(&SetupError::Memory(e).to_string());
    }
    agent.family().arrive(machine);
    // Not before faults are served, because libc has just used the program's allocator. (Without randomisation of addresses the
    // heap lies next to the static arrays, and may be one mapping with them.)
    let (start, end) = static_range();
    for (start, end) in [(start, end.min(heap.0)), (heap.0, heap.1.next_multiple_of(PAGE_SIZE))] {
        agent.new_range(Piece { start, end, flags: Flags::NONE });
    }
    if limit(libc::RLIMIT_AS).is_some() {
        area::trim(KEPT_BYTES);
    }
    hooks::count_own(KEPT_BYTES);
    status.outcome.store(Outcome::Running as u32, Release);
    AGENT.store(core::ptr::from_ref(agent).cast_mut(), Release);
    Ok(())
}

/// Whether this is a block device, or several, one of which is at `place`.
fn is_block_at(device: &DeviceSpec, place: &str) -> bool {
    matches!(device.medium, Medium::Block { .. }) && device.names().any(|name| name.to_string_lossy() == place)
}

/// A word of zero, on a page of its own that a fork's child finds empty.
fn page_of_this_process() -> Result<&'static AtomicU32, Errno> {
    let page = area::map_anonymous(1 << PAGE_SHIFT)?;
    // SAFETY: a fresh mapping of our own, which nobody unmaps; zeroes are a valid value, before and after a fork.
    unsafe {
        sys::madvise(page as usize, 1 << PAGE_SHIFT, libc::MADV_WIPEONFORK)?;
        Ok(&*page.cast::<AtomicU32>())
    }
}

/// The bounds of the program's heap; the end is its break. To be called before the agent maps anything.
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

/// The fewest bytes of a program's variables that are paged.
const STATIC_MIN: u64 = 1 << 20;

/// The program's variables that begin as zeroes (.bss), if they take [`STATIC_MIN`] bytes. Those of libraries are not looked for.
/// The first page is left out: the linker puts libc's variables there that the program uses (copy relocations).
fn static_range() -> (usize, usize) {
    /// Takes the first object, which is the program.
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> i32 {
        // SAFETY: what the dynamic loader says of a loaded object, and the pair below.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<(usize, usize)>()) };
        // SAFETY: the object's headers, which are mapped for as long as it is.
        let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_W != 0) {
            let at = info.dlpi_addr as usize + header.p_vaddr as usize;
            let page_after = |bytes: u64| (at + bytes as usize).next_multiple_of(PAGE_SIZE);
            if header.p_memsz - header.p_filesz >= STATIC_MIN {
                *found = (page_after(header.p_filesz) + PAGE_SIZE, page_after(header.p_memsz));
            }
        }
        1
    }
    let mut found = (0, 0);
    // SAFETY: the function above, and a place for what it finds.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// How many pages may be managed. Under RLIMIT_AS or RLIMIT_DATA a program cannot have more than the limit. The tables are for
/// twice that, because its memory may lie scattered. They take about 300 bytes of address space per page, which count against the
/// limit, too: a seventh of it.
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
