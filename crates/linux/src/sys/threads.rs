//! The calling thread, other threads of this process, and CPUs.

use super::{Errno, open, read_file, stat, sys};

/// How many threads this process has.
pub fn thread_count() -> Result<u32, Errno> {
    Ok((task_directory()?.st_nlink as u32).saturating_sub(2)) // a directory for each thread, "." and ".."
}

/// The directory of this process's threads.
pub fn task_directory() -> Result<libc::stat, Errno> {
    stat(c"/proc/self/task")
}

/// How many threads this process has, without io_uring's workers, which belong to the kernel and come and go.
pub fn thread_count_without_workers() -> Result<u32, Errno> {
    let tasks = open(b"/proc/self/task\0", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    let mut count = 0;
    let mut entries = [0u8; 4096];
    loop {
        // SAFETY: the kernel writes within the buffer.
        let n = unsafe { sys!(libc::SYS_getdents64, tasks.raw(), entries.as_mut_ptr(), entries.len()) }?;
        if n == 0 {
            return Ok(count);
        }
        let mut at = 0;
        while at < n {
            // struct linux_dirent64: inode, offset, this entry's length, type, name
            let len = usize::from(u16::from_le_bytes([entries[at + 16], entries[at + 17]]));
            let name = entries[at + 19..at + len].split(|byte| *byte == 0).next().unwrap_or_default();
            at += len;
            let Some(tid) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) else { continue };
            let mut comm = [0; 16];
            count += u32::from(match read_file(&task_path(tid, format_args!("comm")), &mut comm) {
                Ok(comm) => !comm.starts_with(b"iou-"),
                Err(e) => !matches!(e, libc::ENOENT | libc::ESRCH), // it has ended since it was listed
            });
        }
    }
}

/// If the process's first thread has ended, and others go on, how it has ended: as wait(2) tells it. (The kernel keeps the thread,
/// as a zombie, until the others have ended too.)
pub fn end_of_first_thread() -> Option<i32> {
    let mut text = [0; 1024];
    let text = core::str::from_utf8(read_file(b"/proc/self/stat\0", &mut text).ok()?).ok()?;
    let (_, fields) = text.rsplit_once(')')?; // a name may hold anything
    let mut fields = fields.split_ascii_whitespace();
    (fields.next() == Some("Z")).then(|| fields.last().and_then(|code| code.parse().ok()).unwrap_or(0))
}

/// Ends the process as wait(2) is to tell it: by exit_group(2), or by a signal that nothing handles or blocks.
pub fn end_as(how: i32) -> ! {
    let (signal, none) = (how & 0x7F, 0u64);
    if signal != 0 {
        // struct kernel_sigaction: handler (SIG_DFL), flags, restorer, mask
        let default = [0u64; 4];
        // SAFETY: the kernel reads the words, which live over the calls; the process ends.
        unsafe {
            let _ = sys!(libc::SYS_rt_sigaction, signal, &raw const default, 0, 8);
            let _ = sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8);
            let _ = sys!(libc::SYS_tgkill, getpid(), gettid(), signal);
        }
    }
    super::exit_group(how >> 8 & 0xFF)
}

/// Process id.
pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_getpid) }.unwrap_or(0) as u32
}

/// Thread id.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_gettid) }.unwrap_or(0) as u32
}

/// The calling thread's pointer to its thread-local storage: a number that differs for each thread. Without a system call.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: the word at the thread pointer is its own address, in libc's threads and in ours.
    unsafe { core::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

/// Blocks every signal for the calling thread; returns the mask to restore.
pub fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    // SAFETY: both masks are live 8-byte words, the kernel's sigset size.
    let _ = unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &all as *const u64, &mut old as *mut u64, 8) };
    old
}

/// Restores a mask from [`block_signals`].
pub fn restore_signals(old: u64) {
    // SAFETY: as above.
    let _ = unsafe { sys!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &old as *const u64, 0, 8) };
}

/// Takes away `signal`, which the kernel has sent to the calling thread while it was blocked there, if it has.
pub fn take_signal(signal: i32) {
    let (set, at_once) = (1u64 << (signal - 1), libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: reads the set and the time, which live over the call.
    let _ = unsafe { sys!(libc::SYS_rt_sigtimedwait, &raw const set, 0, &raw const at_once, 8) };
}

/// Asks the scheduler for the shortest slices for the calling thread (Linux 6.12: sched_runtime of SCHED_OTHER). The thread gets no
/// more CPU time, but gets it sooner when it wakes on a busy machine. Needs no privilege. A refusal costs speed only; older kernels
/// ignore it.
pub fn take_short_slices() {
    set_short_slices(|policy| matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH).then_some(policy));
}

/// Makes the calling thread give way to every ordinary thread (SCHED_IDLE), for slices as short as those. (With usual ones it would
/// get the CPU for milliseconds, and wait for a second before.) A refusal is ignored.
pub fn give_way_for_good() {
    set_short_slices(|_| Some(libc::SCHED_IDLE));
}

/// Whether the calling thread has ordinary scheduling and, from now on, slices as short as that.
pub fn has_short_slices() -> bool {
    take_short_slices();
    scheduling().is_some_and(|attr| attr.policy as i32 == libc::SCHED_OTHER && attr.runtime == SHORTEST_NS)
}

/// The shortest slice that the kernel accepts, in nanoseconds.
const SHORTEST_NS: u64 = 100_000;

/// `struct sched_attr` of linux/sched/types.h, its first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// How the calling thread is scheduled.
fn scheduling() -> Option<SchedAttr> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel writes at most as many bytes as the structure has.
    unsafe { sys!(libc::SYS_sched_getattr, 0, &mut attr as *mut _, size_of::<SchedAttr>(), 0) }.ok().map(|_| attr)
}

/// Sets the scheduling policy of the calling thread to what `policy` makes of it, if anything, and its slices to the shortest.
fn set_short_slices(policy: impl FnOnce(i32) -> Option<i32>) {
    let Some(attr) = scheduling() else { return };
    let Some(policy) = policy(attr.policy as i32) else { return };
    let attr = SchedAttr { size: size_of::<SchedAttr>() as u32, policy: policy as u32, runtime: SHORTEST_NS, ..attr };
    // SAFETY: the kernel reads the structure; all but these stays as it was.
    let _ = unsafe { sys!(libc::SYS_sched_setattr, 0, &attr as *const _, 0) };
}

/// Binds the calling thread to these CPUs, a bit set of 1024. A refusal costs speed only.
pub fn set_affinity(set: &[u64; 16]) {
    set_affinity_of(0, set);
}

/// As [`set_affinity`], for a thread of this process.
pub fn set_affinity_of(tid: u32, set: &[u64; 16]) {
    // SAFETY: the set is live, 128 bytes.
    let _ = unsafe { sys!(libc::SYS_sched_setaffinity, tid, 128, set.as_ptr()) };
}

/// Makes a thread of this process (0: the calling one) give way to every ordinary thread (SCHED_IDLE), or makes it an ordinary one
/// again, which takes what [`may_be_ordinary_again`] checks. A refusal is ignored.
pub fn give_way(tid: u32, on: bool) {
    let priority = 0i32;
    let policy = if on { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: the kernel reads the parameter, which lives over the call.
    let _ = unsafe { sys!(libc::SYS_sched_setscheduler, tid, policy, &priority as *const _) };
}

/// Whether the calling thread has ordinary scheduling, and could return to it after SCHED_IDLE: by CAP_SYS_NICE, or by a limit of
/// niceness that allows it. (The kernel asks for the same right as for a lower nice value, so this tries one and takes it back.)
pub fn may_be_ordinary_again() -> bool {
    // SAFETY: these calls touch no memory.
    unsafe {
        if sys!(libc::SYS_sched_getscheduler, 0) != Ok(libc::SCHED_OTHER as usize) {
            return false; // the user chose another policy, which must not be lost
        }
        let Ok(twenty_minus_nice) = sys!(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) else { return false };
        let nice = 20 - twenty_minus_nice as i32;
        let may = nice > -20 && sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, nice - 1).is_ok();
        may && sys!(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, nice).is_ok()
    }
}

/// Keeps the calling thread's I/O at ordinary priority, whatever its scheduling policy. A refusal costs speed only.
pub fn keep_io_priority() {
    const WHO_PROCESS: i32 = 1;
    const BEST_EFFORT_4: i32 = 2 << 13 | 4;
    // SAFETY: touches no memory.
    let _ = unsafe { sys!(libc::SYS_ioprio_set, WHO_PROCESS, 0, BEST_EFFORT_4) };
}

/// The path `/proc/self/task/TID/` followed by `what`, with zeroes behind it, for [`open`]. Does not allocate.
///
/// # Panics
/// If the path is longer than 63 bytes.
pub fn task_path(tid: u32, what: core::fmt::Arguments<'_>) -> [u8; 64] {
    let mut path = [0; 64];
    std::io::Write::write_fmt(&mut &mut path[..63], format_args!("/proc/self/task/{tid}/{what}")).expect("a short path");
    path
}

/// The CPU on which the calling thread runs.
pub fn current_cpu() -> Option<usize> {
    let mut cpu = 0u32;
    // SAFETY: the kernel writes one word, which lives over the call.
    unsafe { sys!(libc::SYS_getcpu, &mut cpu as *mut u32, 0, 0) }.ok().map(|_| cpu as usize)
}

/// The CPU that a thread of this process runs on, or ran on last, if [`only_cpu`] has a bit for it. Takes some 30 us.
pub fn cpu_of(tid: u32) -> Option<usize> {
    let parse = |cpu: &[u8]| core::str::from_utf8(cpu).ok()?.parse().ok();
    stat_field(tid, 39, parse).filter(|cpu| *cpu < 1024)
}

/// Whether a thread of this process runs, or waits for nothing but a CPU. `true` if that cannot be found out. Takes some 30 us.
pub fn wants_cpu(tid: u32) -> bool {
    stat_field(tid, 3, |state| Some(state == b"R")).unwrap_or(true)
}

/// Reads a field of a thread's stat by `read_field`: [`field_of_stat`].
fn stat_field<T>(tid: u32, field: usize, read_field: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
    let mut text = [0; 1024];
    read_field(field_of_stat(read_file(&task_path(tid, format_args!("stat")), &mut text).ok()?, field)?)
}

/// A field of the stat of a process or a thread, numbered as in proc_pid_stat(5), from the third on.
pub fn field_of_stat(stat: &[u8], field: usize) -> Option<&[u8]> {
    // the second field, the name, may have any characters, but ends with the last parenthesis
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    stat[name_ends..].split(|byte| *byte == b' ').nth(field - 2)
}

/// A bit set of one CPU. => `cpu` is below 1024
pub fn only_cpu(cpu: usize) -> [u64; 16] {
    let mut set = [0u64; 16];
    set[cpu / 64] = 1 << (cpu % 64);
    set
}

/// A bit set of CPUs without one of them. => `cpu` is below 1024
pub fn without_cpu(mut set: [u64; 16], cpu: usize) -> [u64; 16] {
    set[cpu / 64] &= !(1 << (cpu % 64));
    set
}

/// The CPUs that the calling thread may run on, as a bit set of 1024.
pub fn allowed_cpus() -> [u64; 16] {
    let mut set = [0u64; 16];
    // SAFETY: the set is writable, 128 bytes.
    let _ = unsafe { sys!(libc::SYS_sched_getaffinity, 0, 128, set.as_mut_ptr()) };
    set
}

/// Lets another thread that waits for this CPU have it.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { sys!(libc::SYS_sched_yield) };
}

/// The CPUs of a bit set.
pub fn cpus_of(set: &[u64; 16]) -> impl Iterator<Item = usize> {
    (0..1024).filter(|cpu| set[cpu / 64] >> (cpu % 64) & 1 == 1)
}

/// How many CPUs a bit set has.
pub fn count_cpus(set: &[u64; 16]) -> u32 {
    set.iter().map(|word| word.count_ones()).sum()
}
