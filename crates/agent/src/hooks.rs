//! Follows the program's own system calls, from inside libc.
//!
//! malloc grows by calls inside libc that symbol interposition does not see. So the agent patches the system call *sites* of some
//! libc functions ([`sites`]): a site becomes a jump to a stub, which calls [`on_syscall`]. It sees malloc's brk and mmap,
//! `_Fork`'s clone, and the calls that a program makes by `syscall()`.
//!
//! ```text
//!   sites.rs     patching; how the code goes on behind a site
//!   stacks.rs    stacks to run on
//!   memory.rs    mmap, munmap, mremap, brk, madvise, process_madvise
//!   locks.rs     mlock, mlock2, mlockall, and their inverses
//!   threads.rs   starts, ends and number of threads
//!     credentials.rs, seccomp.rs   rights that the program gives up
//!   namespaces.rs   namespaces that only a process of one thread may enter
//!   rehearsal.rs    whether the kernel would refuse a call for which the pager would end
//!   limits.rs    limits of address space
//!   forks.rs     clone and clone3 that make processes
//! ```
//!
//! Hooks run in the program's threads, in the middle of libc. They must not use the program's stack while they hold a pager lock,
//! because that stack is paged. So they switch to a stack of the agent's, with all signals blocked. They have the program's
//! descriptor table, so the helper thread does everything that needs a descriptor of the pager's.

mod credentials;
mod forks;
mod limits;
mod locks;
mod memory;
mod namespaces;
pub mod rehearsal;
mod seccomp;
mod sites;
mod stacks;
mod threads;

use crate::agent::{self, Agent};
pub use forks::Fork;
pub use limits::count_own;
use overspill_linux::sys;
use sites::{How, Verdict};
pub use sites::{Sites, Text};
pub use stacks::HookStacks;
use threads::CloneArgs;

/// The system call as the kernel would answer it.
///
/// # Safety
/// As the call.
unsafe fn raw(nr: i32, a: &[usize; 6]) -> isize {
    // SAFETY: the program's own call.
    match unsafe { sys::syscall6(nr as libc::c_long, a[0], a[1], a[2], a[3], a[4], a[5]) } {
        Ok(n) => n as isize,
        Err(e) => -(e as isize),
    }
}

/// Handles a system call at a patched site. A call that is not followed is made at the site.
unsafe extern "C" fn on_syscall(nr: i32, args: &[usize; 6]) -> Verdict {
    let a = *args;
    if nr as libc::c_long == libc::SYS_ioctl && !memory::is_userfaultfds(a[1]) {
        return Verdict::pass();
    }
    // SAFETY: the program's own call.
    if let Some(result) = unsafe { limits::follow(nr, a) } {
        return Verdict::done(result);
    }
    let makes_process = matches!(nr as libc::c_long, libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork);
    // Another process that shares the memory (vfork, CLONE_VM) must not take a lock of the pager's: if it is killed, nothing would
    // release the lock.
    let followed = |agent: &&Agent| !memory::is_refused(nr, &a) && (makes_process || agent.is_its_process());
    let Some(agent) = agent::get().filter(followed) else { return Verdict::pass() };
    Verdict::done(match nr as libc::c_long {
        libc::SYS_mmap => memory::mmap(agent, nr, a),
        libc::SYS_munmap => memory::munmap(agent, a),
        libc::SYS_mremap => memory::mremap(agent, a),
        libc::SYS_brk => memory::brk(agent, nr, a),
        libc::SYS_madvise => memory::madvise(agent, a),
        libc::SYS_process_madvise => return memory::process_madvise(agent, nr, a),
        libc::SYS_mlock | libc::SYS_mlock2 => locks::mlock(agent, nr, a),
        libc::SYS_mlockall => locks::mlockall(agent, nr, a),
        libc::SYS_munlock => locks::munlock(agent, nr, a),
        libc::SYS_munlockall => locks::munlockall(agent, nr, a),
        libc::SYS_clone if a[0] & libc::CLONE_VM as usize == 0 => return fork(agent, Fork::clone(a)),
        libc::SYS_clone => return begins(agent, Some(CloneArgs::of_clone(&a))),
        libc::SYS_clone3 => match Fork::clone3(a[0], a[1]) {
            Some(call) => return fork(agent, call),
            None => return begins(agent, CloneArgs::read(&a)),
        },
        libc::SYS_set_tid_address => {
            threads::tid_address(agent, a[0]);
            return Verdict::pass();
        }
        libc::SYS_set_robust_list => {
            threads::robust_list(agent, a[0]);
            return Verdict::pass();
        }
        libc::SYS_rseq => {
            threads::rseq(agent, a[0], a[1]);
            return Verdict::pass();
        }
        libc::SYS_fork => return fork(agent, Fork::clone([libc::SIGCHLD as usize, 0, 0, 0, 0, 0])),
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
        | libc::SYS_capset
        | libc::SYS_landlock_restrict_self => credentials::give_up(agent, nr, a),
        libc::SYS_prctl if credentials::is_less(a[0]) => credentials::give_up(agent, nr, a),
        libc::SYS_seccomp => return seccomp::seccomp(agent, nr, a),
        libc::SYS_prctl if a[0] as i32 == libc::PR_SET_SECCOMP => return seccomp::seccomp(agent, nr, a),
        libc::SYS_ioctl if memory::awaits_forks(&a) => -(libc::EPERM as isize),
        libc::SYS_ioctl => {
            memory::userfaultfd(agent, &a);
            return Verdict::pass();
        }
        libc::SYS_unshare | libc::SYS_setns => {
            namespaces::enters(agent, nr, a);
            return Verdict::pass();
        }
        libc::SYS_exit => threads::exits(agent, a[0] as i32),
        libc::SYS_newfstatat => threads::count(agent, nr, a),
        _ => return Verdict::pass(),
    })
}

/// `clone` or `clone3` with CLONE_VM. The call is made at its site, because in the new thread it returns on another stack.
fn begins(agent: &'static Agent, args: Option<CloneArgs>) -> Verdict {
    if let Some(args) = args.filter(|args| args.flags & libc::CLONE_VM as u64 != 0) {
        threads::begins(agent, &args);
    }
    Verdict::pass()
}

/// A call that makes a process. The child goes on with a copy of the hook's stack. If the program gave the child a stack, it gets
/// that when the hook returns.
fn fork(agent: &'static Agent, (call, stack): (Fork, usize)) -> Verdict {
    let result = agent.fork(call);
    if result == 0 {
        locks::forked();
        limits::forked();
    }
    match result {
        0 if stack != 0 => Verdict { result: 0, how: How::on_stack(stack) },
        result => Verdict::done(result),
    }
}
