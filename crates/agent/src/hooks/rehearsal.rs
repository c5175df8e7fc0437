//! Asks the kernel whether it would refuse a call, before something is given up for it: a process is made that makes the call and
//! ends.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use overspill_linux::sys;

/// The program has a filter of its own, which may forbid to make a process.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// To be called when the program has put itself under a filter.
pub fn forbid() {
    CONFINED.store(true, Relaxed);
}

/// Whether the program has done so.
pub fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

/// Whether the kernel refuses this call. `shares`: the process that tries has this one's memory, or else a copy, which it may have
/// only if nothing of it is managed (the pager would not know of the child). It ends by the system call `exit`. If no process can
/// be made, the answer is no. So it is if the next process would be the first of a new process id namespace, which ends with it.
pub fn is_refused(nr: i32, a: &[usize; 6], shares: bool, exit: libc::c_long) -> bool {
    let namespace = |path: &core::ffi::CStr| sys::stat(path).map(|stat| stat.st_ino);
    if CONFINED.load(Relaxed) || namespace(c"/proc/self/ns/pid") != namespace(c"/proc/self/ns/pid_for_children") {
        return false;
    }
    let flags = if shares { libc::CLONE_VM | libc::CLONE_VFORK } else { libc::CLONE_VFORK };
    let no_core = libc::rlimit { rlim_cur: 1, rlim_max: 1 }; // (not 0, which is no limit for a program that gets core dumps)
    let mask = sys::block_signals(); // no handler of the program's may run in that process
    let child: isize;
    // SAFETY: the child uses registers only, not the stack that it has in common with this thread, which the kernel suspends until
    // the child has ended. The call concerns the child, whose descriptors, credentials and namespaces are its own, and reads what
    // the program has passed. The exit status is the error, or 0; a child that may not exit is killed, which is no error either.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 3f",
            "mov eax, {setrlimit}",
            "mov edi, {core}",
            "mov rsi, r10",
            "syscall",
            "mov rax, r12",
            "mov rdi, r13",
            "mov rsi, r14",
            "mov rdx, r15",
            "syscall",
            "xor edi, edi",
            "test rax, rax",
            "jns 2f",
            "sub edi, eax",
            "2:",
            "mov rax, r9",
            "syscall",
            "ud2",
            "3:",
            setrlimit = const libc::SYS_setrlimit,
            core = const libc::RLIMIT_CORE,
            inlateout("rax") libc::SYS_clone as isize => child,
            in("rdi") flags, in("rsi") 0usize, in("rdx") 0usize, in("r10") &raw const no_core, in("r8") 0usize, in("r9") exit,
            in("r12") nr as usize, in("r13") a[0], in("r14") a[1], in("r15") a[2],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    let mut status = 0i32;
    let wait = |status: &mut i32| {
        // SAFETY: the kernel writes the number, which lives over the call.
        unsafe { sys::syscall6(libc::SYS_wait4, child as usize, &raw mut *status as usize, libc::__WALL as usize, 0, 0, 0) }
    };
    let ended = child > 0 && wait(&mut status) == Ok(child as usize);
    sys::restore_signals(mask);
    ended && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0
}
