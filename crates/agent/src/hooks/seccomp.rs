//! Filters of system calls that the program installs for itself (seccomp(2)).
//!
//! A single thread outside of a sandbox is a way out of it. So the pager's threads come under the program's filter, too, if they
//! can work under it. To find out, the filter is run over the calls that they make, as the kernel would run it. If they can, the
//! kernel is asked to install it on all threads at once (SECCOMP_FILTER_FLAG_TSYNC), which for a program of one thread is what it
//! wants. If they cannot:
//!
//! ```text
//!   everything still fits the budget, one thread   the pager ends ([`Agent::leave`]), and the program goes on without it
//!   otherwise                                      the program is stopped with a message: a page that is out could not come back
//! ```
//!
//! Neither is done if the kernel would refuse the filter anyway ([`rehearsal`]).
//!
//! A filter on one of several threads applies to that thread only, because the program's other threads are outside of it as well.

use super::sites::Verdict;
use super::{limits, raw, rehearsal};
use crate::agent::Agent;
use overspill_linux::io::Engine;
use overspill_linux::mappings::{PAGEMAP_SCAN, PROCMAP_QUERY};
use overspill_linux::sys;

const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;
const TSYNC: usize = 1 << 0;
const NEW_LISTENER: usize = 1 << 3;
const TSYNC_ESRCH: usize = 1 << 4;
/// It takes NEW_LISTENER.
const WAIT_KILLABLE: usize = 1 << 5;
/// The longest filter that the kernel takes, in instructions.
const FILTER_MAX: usize = 4096;
const PAGE: usize = 4096;

/// The action in a filter's answer: its upper half.
const ACTION: u32 = 0xFFFF_0000;
const ALLOW: u32 = 0x7FFF_0000;
const LOG: u32 = 0x7FFC_0000;
const ERRNO: u32 = 0x0005_0000;

/// seccomp(2), or prctl(2) of PR_SET_SECCOMP.
pub fn seccomp(agent: &'static Agent, nr: i32, a: [usize; 6]) -> Verdict {
    let (mode, flags, program) = match nr as libc::c_long {
        libc::SYS_seccomp => (a[0], a[1], a[2]),
        _ if a[1] == libc::SECCOMP_MODE_STRICT as usize => (SET_MODE_STRICT, 0, 0),
        _ if a[1] == libc::SECCOMP_MODE_FILTER as usize => (SET_MODE_FILTER, 0, a[2]),
        _ => return Verdict::pass(),
    };
    if mode > SET_MODE_FILTER {
        return Verdict::pass();
    }
    if mode == SET_MODE_STRICT && (flags != 0 || program != 0) {
        return Verdict::pass(); // libseccomp asks so whether the kernel has this call
    }
    let filter = match mode {
        SET_MODE_STRICT => None,
        _ => match read_filter(program) {
            Some(filter) => Some(filter),
            None => return Verdict::pass(), // the kernel refuses it
        },
    };
    if !filter.is_some_and(|filter| allows(filter, libc::SYS_prlimit64, [0; 3])) {
        limits::leave_alone();
    }
    let alone = agent.is_only_thread();
    if !alone && flags & TSYNC == 0 {
        return Verdict::pass();
    }
    if !filter.is_some_and(|filter| can_live(filter, agent.engine())) {
        if is_refused(filter, nr, a) || alone && agent.leave(Some(LEFT)) {
            return Verdict::pass();
        }
        agent.stop(
            "the program was stopped: it puts itself under a seccomp filter under which its pager's threads cannot live (they need userfaultfd's \
             ioctls, io_uring or pread and pwritev, futex and madvise), and there is memory of it in swap; run it without Overspill, or allow \
             these calls",
        )
    }
    let all = match flags & (TSYNC | NEW_LISTENER) {
        0 => TSYNC,
        NEW_LISTENER => TSYNC | TSYNC_ESRCH,
        _ => 0, // the program wants all threads itself
    };
    agent.leave_kin(); // it may have all its rights, and a filter instead
    // SAFETY: the program's own call, on all threads.
    let r = unsafe { raw(libc::SYS_seccomp as i32, &[SET_MODE_FILTER, flags | all, program, 0, 0, 0]) };
    if r > 0 && all == TSYNC {
        agent.cannot_follow(libc::ESRCH); // `r` is the id of a thread that is under another filter
    }
    if r >= 0 {
        rehearsal::forbid();
    }
    Verdict::done(r)
}

/// For the user, when the pager ends.
const LEFT: &str = "it put itself under a seccomp filter under which the pager cannot live";

/// Whether the kernel would refuse strict mode or this filter.
fn is_refused(filter: Option<&[Instruction]>, nr: i32, mut a: [usize; 6]) -> bool {
    if nr as libc::c_long == libc::SYS_seccomp {
        a[1] &= !(NEW_LISTENER | WAIT_KILLABLE); // nobody would listen to the process that tries
    }
    let group = filter.is_some_and(|filter| !allows(filter, libc::SYS_exit, [0; 3]));
    rehearsal::is_refused(nr, &a, true, if group { libc::SYS_exit_group } else { libc::SYS_exit })
}

/// The action that the filter tells for a call.
fn says(filter: &[Instruction], nr: libc::c_long, arguments: [u64; 3]) -> u32 {
    run(filter, nr as u32, arguments).unwrap_or(0) & ACTION
}

/// Whether the filter lets a call pass.
fn allows(filter: &[Instruction], nr: libc::c_long, arguments: [u64; 3]) -> bool {
    matches!(says(filter, nr, arguments), ALLOW | LOG)
}

/// One instruction of a filter: linux/filter.h's sock_filter.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    k: u32,
}

/// linux/filter.h's sock_fprog.
#[repr(C)]
struct Program {
    len: u16,
    filter: *const Instruction,
}

/// The program's filter, in place; `None` if nothing is mapped there.
fn read_filter(at: usize) -> Option<&'static [Instruction]> {
    if !at.is_multiple_of(8) || !is_mapped(at, size_of::<Program>()) {
        return None;
    }
    // SAFETY: mapped, and the program passes it as this structure.
    let program = unsafe { &*(at as *const Program) };
    let (filter, len) = (program.filter as usize, program.len as usize);
    let good = (1..=FILTER_MAX).contains(&len) && filter.is_multiple_of(4) && is_mapped(filter, len * size_of::<Instruction>());
    // SAFETY: `len` instructions are mapped. The program waits for its call; if another of its threads writes there meanwhile, it
    // changes what the kernel would read, too.
    good.then(|| unsafe { core::slice::from_raw_parts(filter as *const Instruction, len) })
}

fn is_mapped(at: usize, len: usize) -> bool {
    let mut seen = [0u8; FILTER_MAX * size_of::<Instruction>() / PAGE + 2];
    let start = at & !(PAGE - 1);
    // SAFETY: the kernel writes a byte for each page, for which there is room.
    at != 0 && unsafe { sys::syscall6(libc::SYS_mincore, start, at + len - start, seen.as_mut_ptr() as usize, 0, 0, 0) }.is_ok()
}

/// userfaultfd's ioctls: REGISTER, UNREGISTER, WAKE, COPY, MOVE, POISON.
const IOCTLS: [u64; 6] = [0xC020_AA00, 0x8010_AA01, 0x8010_AA02, 0xC028_AA03, 0xC028_AA05, 0xC020_AA08];
/// The same: ZEROPAGE, WRITEPROTECT, RWPROTECT. Without them, guarded pages and pages that are not writable stay in memory, and
/// pages in use are found by soft faults. And two of /proc's files, which have slower substitutes.
const IOCTLS_BORNE: [u64; 5] = [0xC020_AA04, 0xC018_AA06, 0xC018_AA09, PROCMAP_QUERY, PAGEMAP_SCAN];

/// Whether the pager's threads, and the hooks in the program's threads, can work under the filter.
fn can_live(filter: &[Instruction], engine: Engine) -> bool {
    let allows = |nr, arguments| allows(filter, nr, arguments);
    // for these calls an error is good enough: it costs speed or comfort only
    let bears = |nr, arguments| matches!(says(filter, nr, arguments), ALLOW | LOG | ERRNO);
    let io: &[libc::c_long] = match engine {
        Engine::Psync => &[libc::SYS_pread64, libc::SYS_pwritev],
        _ => &[libc::SYS_io_uring_enter],
    };
    let needed = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_close,
        libc::SYS_ppoll,
        libc::SYS_mincore,
        libc::SYS_fallocate,
        libc::SYS_rt_sigprocmask,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let borne = [
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_pread64,
        libc::SYS_pselect6,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_getcpu,
        libc::SYS_fdatasync,
        libc::SYS_fadvise64,
        libc::SYS_unlinkat,
        libc::SYS_sendmsg,
        libc::SYS_openat,
        libc::SYS_newfstatat,
        libc::SYS_fstat,
        libc::SYS_lseek,
        libc::SYS_msync,
        libc::SYS_process_madvise,
        libc::SYS_clock_gettime,
        libc::SYS_set_robust_list,
        libc::SYS_sched_yield,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_getscheduler,
        libc::SYS_sched_setattr,
        libc::SYS_sched_getattr,
        libc::SYS_getpriority,
        libc::SYS_setpriority,
        libc::SYS_accept4,
        libc::SYS_getsockopt,
        libc::SYS_recvmsg,
        libc::SYS_sendto,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
        libc::SYS_dup3,
        libc::SYS_prctl,
        libc::SYS_capget,
        libc::SYS_capset,
        libc::SYS_process_vm_readv,
    ];
    IOCTLS.iter().all(|ioctl| allows(libc::SYS_ioctl, [0, *ioctl, 0]))
        && [libc::FUTEX_WAIT, libc::FUTEX_WAKE]
            .iter()
            .flat_map(|op| [op | libc::FUTEX_PRIVATE_FLAG, *op])
            .all(|op| allows(libc::SYS_futex, [0, op as u64, 0]))
        && [libc::MADV_DONTNEED, libc::MADV_POPULATE_WRITE]
            .iter()
            .all(|advice| allows(libc::SYS_madvise, [PAGE as u64, PAGE as u64, *advice as u64]))
        && io.iter().chain(&needed).all(|nr| allows(*nr, [0; 3]))
        && IOCTLS_BORNE.iter().all(|ioctl| bears(libc::SYS_ioctl, [0, *ioctl, 0]))
        && bears(libc::SYS_futex, [0, (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as u64, 0])
        && borne.iter().all(|nr| bears(*nr, [0; 3]))
}

/// Runs the filter over a call, as the kernel does, and returns its answer. `None` if the kernel would not take the filter.
fn run(filter: &[Instruction], nr: u32, arguments: [u64; 3]) -> Option<u32> {
    const ARCHITECTURE: u32 = 0xC000_003E; // AUDIT_ARCH_X86_64
    // struct seccomp_data: nr, arch, instruction pointer, six arguments
    let mut data = [0u32; 16];
    (data[0], data[1]) = (nr, ARCHITECTURE);
    for (i, argument) in arguments.iter().enumerate() {
        (data[4 + 2 * i], data[5 + 2 * i]) = (*argument as u32, (argument >> 32) as u32);
    }
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0usize;
    // jumps go forward only, so the loop ends
    loop {
        let Instruction { code, jump_true, jump_false, k } = *filter.get(at)?;
        at += 1;
        let (class, operand) = (code & 7, if code & 8 != 0 { x } else { k });
        match class {
            // load into A or X: a word of the data, a constant, a word of memory, the data's length
            0 | 1 => {
                let value = match code & 0xE0 {
                    0x00 => k,
                    0x20 if class == 0 && k.is_multiple_of(4) => *data.get(k as usize / 4)?,
                    0x60 => *memory.get(k as usize)?,
                    0x80 => size_of_val(&data) as u32,
                    _ => return None,
                };
                *(if class == 0 { &mut a } else { &mut x }) = value;
            }
            2 => *memory.get_mut(k as usize)? = a,
            3 => *memory.get_mut(k as usize)? = x,
            4 => {
                a = match code & 0xF0 {
                    0x00 => a.wrapping_add(operand),
                    0x10 => a.wrapping_sub(operand),
                    0x20 => a.wrapping_mul(operand),
                    0x30 => a.checked_div(operand)?,
                    0x40 => a | operand,
                    0x50 => a & operand,
                    0x60 => a.checked_shl(operand).unwrap_or(0),
                    0x70 => a.checked_shr(operand).unwrap_or(0),
                    0x80 => a.wrapping_neg(),
                    0xA0 => a ^ operand,
                    _ => return None,
                }
            }
            5 if code & 0xF0 == 0 => at = at.checked_add(k as usize)?,
            5 => {
                let holds = match code & 0xF0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { jump_true } else { jump_false });
            }
            6 => return Some(if code & 0x18 == 0x10 { a } else { k }),
            _ if code & 0xF8 == 0 => x = a,
            _ => a = x,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn statement(code: u16, k: u32) -> Instruction {
        Instruction { code, jump_true: 0, jump_false: 0, k }
    }

    fn equal(k: u32, jump_true: u8, jump_false: u8) -> Instruction {
        Instruction { code: 0x15, jump_true, jump_false, k }
    }

    /// A filter with one answer for these calls, and another for all others.
    fn filter(calls: &[libc::c_long], to_them: u32, to_others: u32) -> Vec<Instruction> {
        let mut filter = vec![statement(0x20, 0)];
        for (i, nr) in calls.iter().enumerate() {
            filter.push(equal(*nr as u32, (calls.len() - i) as u8, 0));
        }
        filter.extend([statement(6, to_others), statement(6, to_them)]);
        filter
    }

    #[test]
    fn filters_that_threads_can_live_under() {
        let (kill, refuse) = (0, ERRNO | libc::EPERM as u32);
        let lives = |filter: &[Instruction]| can_live(filter, Engine::Uring);
        assert!(lives(&filter(&[libc::SYS_mount, libc::SYS_ptrace, libc::SYS_execve], kill, ALLOW)));
        assert!(lives(&filter(&[libc::SYS_openat, libc::SYS_prctl], refuse, ALLOW)), "it goes on without these");
        // the page daemon would be killed, and threads that wait for its frames would wait for ever
        for call in [libc::SYS_openat, libc::SYS_getcpu, libc::SYS_pread64] {
            assert!(lives(&filter(&[call], refuse, ALLOW)) && !lives(&filter(&[call], kill, ALLOW)));
        }
        for request in [PROCMAP_QUERY, PAGEMAP_SCAN] {
            let answers = |answer| {
                let (is_ioctl, is_this) = (equal(libc::SYS_ioctl as u32, 0, 2), equal(request as u32, 1, 0));
                [statement(0x20, 0), is_ioctl, statement(0x20, 24), is_this, statement(6, ALLOW), statement(6, answer)]
            };
            assert!(lives(&answers(refuse)) && !lives(&answers(kill)));
        }
        assert!(!lives(&filter(&[libc::SYS_ioctl], refuse, ALLOW)));
        assert!(!lives(&filter(&[libc::SYS_read, libc::SYS_write, libc::SYS_exit_group], ALLOW, kill)));
        let no_pread = filter(&[libc::SYS_pread64], refuse, ALLOW);
        assert!(lives(&no_pread) && !can_live(&no_pread, Engine::Psync));
        assert!(!lives(&[statement(0x20, 0)]), "it has no end");
        assert!(!lives(&filter(&[libc::SYS_futex], 0x7FC0_0000, ALLOW)), "who is asked may be waiting for us");
    }

    /// With a check of the architecture, a jump over several instructions, and part of an argument, as libseccomp makes them.
    #[test]
    fn a_filter_is_run_as_the_kernel_runs_it() {
        let terminal_only = [
            statement(0x20, 4),
            equal(0xC000_003E, 0, 5),
            statement(0x20, 0),
            equal(libc::SYS_ioctl as u32, 0, 2),
            statement(0x20, 24), // the low half of the second argument
            equal(0x5401, 0, 1),
            statement(6, ALLOW),
            statement(6, 0),
        ];
        assert_eq!(run(&terminal_only, libc::SYS_ioctl as u32, [0, 0x5401, 0]), Some(ALLOW));
        assert_eq!(run(&terminal_only, libc::SYS_ioctl as u32, [0, IOCTLS[3], 0]), Some(0));
        assert_eq!(run(&terminal_only, libc::SYS_read as u32, [0; 3]), Some(ALLOW));
        let arithmetic = [
            statement(0x20, 16),   // A = the low half of the first argument
            statement(0x02, 3),    // M[3] = A
            statement(0x54, 0xF0), // A &= 0xF0
            statement(0x74, 4),    // A >>= 4
            statement(0x07, 0),    // X = A
            statement(0x60, 3),    // A = M[3]
            statement(0x0C, 0),    // A += X
            statement(0x16, 0),    // return A
        ];
        assert_eq!(run(&arithmetic, 0, [0x35, 0, 0]), Some(0x38));
    }
}
