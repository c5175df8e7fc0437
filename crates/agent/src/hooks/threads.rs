//! Starts and ends of threads, and the number of threads that a program sees.
//!
//! When a thread ends, the kernel clears its tid word (CLONE_CHILD_CLEARTID), but does not wait for a missing page. If the page
//! were out, a thread that joins would sleep for ever. So the page is wired before the thread exists, in the system call that makes
//! it. pthread_create, thrd_create and libc's own threads (timers, aio, getaddrinfo_a) use clone3; others use clone. The page stays
//! wired until it is unmapped: libc keeps a stack for the next thread, which wires the same page again.
//!
//! The kernel writes to a thread's `struct rseq` whenever the thread goes on after it was preempted, also inside a hook. If it were
//! out, a thread that holds a lock of the pager's would wait for its own page. So it is wired, too.

use crate::agent::{self, Agent};
use crate::symbols::table_of_addresses;
use overspill_linux::sys;

table_of_addresses!("overspill_rseq", "__rseq_offset", "__rseq_size");

/// How far from the thread pointer a thread's `struct rseq` is, and its size, which is 0 if there is none.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rseq(Option<&'static isize>, Option<&'static u32>);

unsafe extern "C" {
    static overspill_rseq: Rseq;
}

/// Bytes of glibc's thread descriptor, from the thread pointer on, that the kernel or an ending thread may read (tid, robust list),
/// rounded up. (The last of them may lie above its stack.)
const DESCRIPTOR_BYTES: usize = 0xA00;
/// Bytes of a `struct rseq`: at least these.
const RSEQ_BYTES: usize = 32;
/// Bytes of a `struct robust_list_head`.
const ROBUST_HEAD_BYTES: usize = 24;

/// The arguments of clone3(2) that every kernel with this call knows (CLONE_ARGS_SIZE_VER0).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CloneArgs {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
}

impl CloneArgs {
    /// Those of a clone3; `None` if the kernel will refuse it.
    pub fn read(a: &[usize; 6]) -> Option<Self> {
        if a[1] < size_of::<CloneArgs>() {
            return None;
        }
        // SAFETY: eight words, of which any value is one.
        unsafe { sys::read_own_value(a[0]) }.ok()
    }
    /// Those of a clone(2).
    pub fn of_clone(a: &[usize; 6]) -> Self {
        CloneArgs { flags: a[0] as u64, child_tid: a[3] as u64, tls: a[4] as u64, ..CloneArgs::default() }
    }
}

/// To be called before a thread or process is made that shares this memory.
pub fn begins(agent: &'static Agent, args: &CloneArgs) {
    if args.flags & libc::CLONE_SETTLS as u64 != 0 {
        agent.wire(args.tls as usize, DESCRIPTOR_BYTES);
        // SAFETY: two addresses or 0, from the dynamic loader. libc's variables there have these types, and do not change.
        if let Rseq(Some(offset), Some(1..)) = unsafe { overspill_rseq } {
            agent.wire((args.tls as usize).wrapping_add_signed(*offset), RSEQ_BYTES);
        }
    }
    if args.flags & libc::CLONE_CHILD_CLEARTID as u64 != 0 {
        agent.wire(args.child_tid as usize, size_of::<u32>());
    }
}

/// set_tid_address(2): wires the word that is cleared when this thread ends.
pub fn tid_address(agent: &'static Agent, at: usize) {
    agent.wire(at, size_of::<u32>());
}

/// set_robust_list(2): wires the head of the list that the kernel reads when this thread ends.
pub fn robust_list(agent: &'static Agent, at: usize) {
    agent.wire(at, ROBUST_HEAD_BYTES);
}

/// rseq(2): wires what the kernel writes to.
pub fn rseq(agent: &'static Agent, at: usize, len: usize) {
    agent.wire(at, len.clamp(RSEQ_BYTES, DESCRIPTOR_BYTES));
}

/// exit(2), by `syscall()` or at the end of a function that clone() was given. With the program's last thread the process must end;
/// the pager's own threads would keep it alive.
pub fn exits(agent: &'static Agent, status: i32) -> ! {
    extern "C" fn whole_process(status: i32) {
        if agent::get().is_some_and(Agent::is_only_thread) {
            sys::exit_group(status);
        }
    }
    agent.stacks().exit(status, whole_process)
}

/// newfstatat(2). Programs count their threads by the links of /proc/self/task. (Chromium's zygote ends if it finds more than one.)
/// So the pager's threads are subtracted.
pub fn count(agent: &Agent, nr: i32, a: [usize; 6]) -> isize {
    // SAFETY: the program's own call.
    let result = unsafe { super::raw(nr, &a) };
    if result != 0 {
        return result;
    }
    // SAFETY: the kernel has just written a whole one there.
    let stat = unsafe { &mut *(a[2] as *mut libc::stat) };
    if stat.st_mode & libc::S_IFMT == libc::S_IFDIR
        && stat.st_size == 0 // as in all of /proc
        && let Ok(tasks) = sys::task_directory()
        && (tasks.st_dev, tasks.st_ino) == (stat.st_dev, stat.st_ino)
    {
        stat.st_nlink = stat.st_nlink.saturating_sub(agent.own_threads().into());
    }
    0
}

const _: () = assert!(size_of::<CloneArgs>() == 64);
