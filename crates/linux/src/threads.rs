//! The page daemon's thread, and threads that libc does not know of.
//!
//! The agent makes its threads by a bare clone. libc would allocate them from the heap, which is paged. It would give up its fast
//! paths for single-threaded programs, and expect the threads to answer its broadcasts. The agent's threads share everything with
//! the program except the descriptor table. So a program that closes all unknown descriptors cannot close the pager's, and it sees
//! the same numbers as without Overspill.

use crate::area;
use crate::credentials::Follower;
use crate::daemon::Daemon;
use crate::family::sharing::Sharing;
use crate::io::Engine;
use crate::machine::Machine;
use crate::same_cpu::Stays;
use crate::sys::{self, Errno};
use core::arch::asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Runs the page daemon until the machine quits.
///
/// # Errors
/// If its I/O cannot be set up.
pub fn daemon(machine: &Machine, engine: Engine, follower: &mut Follower, ready: impl FnOnce()) -> Result<(), Errno> {
    let mut daemon = Daemon::sharing(machine, engine, Sharing::default())?;
    ready();
    let mut stays = Stays::on();
    sys::take_short_slices(); // what it gives up when it offers its CPU is a slice
    daemon.run(machine, |machine| {
        follower.look(&machine.host.following);
        stays.update(&machine.host.wake_policy);
    });
    Ok(())
}

/// [`Engine::resolve`] in a bare thread, which has ended when this returns. So the kernel interrupts nobody for the ring.
///
/// # Errors
/// As [`Engine::resolve`].
pub fn resolve(engine: Engine) -> Result<Engine, Errno> {
    struct Job {
        engine: Engine,
        result: Result<Engine, Errno>,
        alive: AtomicU32,
    }
    extern "C" fn main(arg: *mut c_void) -> ! {
        let job: *mut Job = arg.cast();
        // SAFETY: the job below; its owner leaves these fields alone until this thread has ended.
        unsafe { (*job).result = (*job).engine.resolve() };
        end()
    }
    // If no thread can be made, the pager's own will fail, and say why.
    let without = Ok(if engine == Engine::Uring { Engine::Uring } else { Engine::Psync });
    let Ok(memory) = Memory::new() else { return without };
    let mut job = Job { engine, result: without, alive: AtomicU32::new(1) };
    let arg = &raw mut job;
    // SAFETY: `main` and what it calls (system calls, and the pager's area) use no thread-local storage, and do not unwind. The job
    // and the memory stay until the kernel has set the word to 0, which is the last that the thread does with them.
    unsafe {
        let alive = &(*arg).alive;
        if spawn_in(&memory, main, arg.cast(), true, Some(alive)).is_ok() {
            while alive.load(Acquire) != 0 {
                sys::futex_wait_shared(alive, 1, u64::MAX);
            }
        }
        memory.unmap();
        (*arg).result
    }
}

/// Ends this thread, and no other.
pub fn end() -> ! {
    loop {
        // SAFETY: touches no memory.
        let _ = unsafe { sys::syscall6(libc::SYS_exit, 0, 0, 0, 0, 0, 0) };
    }
}

/// Bytes of a bare thread's stack, and of the guard below it, which ends a thread that overflows its stack.
const STACK: usize = 256 << 10;
const GUARD: usize = 4096;
/// Bytes of its thread-local block: below the thread pointer, beyond libc's errno, and above it, for the head of the thread
/// descriptor.
const TLS_BELOW: usize = 48 << 10;
const TLS_ABOVE: usize = 16 << 10;

/// How far errno lies below the thread pointer, in whole pages. The program's own thread-locals lie in between, of any size.
fn errno_below() -> usize {
    // SAFETY: only returns an address.
    let errno = unsafe { libc::__errno_location() } as usize;
    sys::thread_pointer().saturating_sub(errno).next_multiple_of(4096)
}

/// Starts `entry(arg)`, which never returns, in a thread that libc does not know. All signals are blocked in it.
///
/// `share_files`: use the caller's descriptor table; else a copy of it.
///
/// # Errors
/// As clone(2), mmap(2).
///
/// # Safety
/// `entry` must not use Rust's or libc's thread-local storage beyond errno, must not unwind, and `arg` must stay valid for it.
pub unsafe fn spawn_bare(entry: extern "C" fn(*mut c_void) -> !, arg: *mut c_void, share_files: bool) -> Result<u32, Errno> {
    // SAFETY: the caller's promise; the memory is never given back.
    Ok(unsafe { spawn_in(&Memory::new()?, entry, arg, share_files, None)? })
}

/// The memory of a bare thread: its stack, and its thread-local block with so many bytes below the thread pointer.
struct Memory {
    stack: *mut u8,
    tls: *mut u8,
    below: usize,
}

impl Memory {
    fn new() -> Result<Self, Errno> {
        let below = TLS_BELOW + errno_below();
        Ok(Memory { stack: area::map_anonymous(GUARD + STACK)?, tls: area::map_anonymous(below + TLS_ABOVE)?, below })
    }

    /// # Safety
    /// The thread has ended.
    unsafe fn unmap(self) {
        // SAFETY: the mappings that `new` made; nobody else has them.
        unsafe {
            area::unmap(self.stack, GUARD + STACK);
            area::unmap(self.tls, self.below + TLS_ABOVE);
        }
    }
}

/// As [`spawn_bare`]. When the thread has ended and no longer uses its memory, the kernel sets `alive` to 0 and wakes its sleepers.
///
/// # Safety
/// As [`spawn_bare`]. `memory` and `alive` stay until the thread has ended.
unsafe fn spawn_in(
    memory: &Memory,
    entry: extern "C" fn(*mut c_void) -> !,
    arg: *mut c_void,
    share_files: bool,
    alive: Option<&AtomicU32>,
) -> Result<u32, Errno> {
    let Memory { stack, tls, below } = *memory;
    // SAFETY: the lowest page of our own fresh mapping.
    unsafe { sys::syscall6(libc::SYS_mprotect, stack as usize, GUARD, libc::PROT_NONE as usize, 0, 0, 0)? };
    // SAFETY: both are our own fresh mappings. The block's head holds what code compiled for x86-64 ELF reads relative to fs: the
    // self pointers (0, 16), the dynamic thread vector (8, the caller's: only a dying thread's panic looks at it), the stack
    // protector's canary (40) and the pointer guard (48), copied from the calling thread.
    unsafe {
        let head = tls.add(below) as *mut usize;
        let (dtv, canary, guard): (usize, usize, usize);
        asm!("mov {}, fs:[8]", "mov {}, fs:[40]", "mov {}, fs:[48]", out(reg) dtv, out(reg) canary, out(reg) guard,
             options(nostack, readonly, preserves_flags));
        head.write(head as usize);
        head.add(1).write(dtv);
        head.add(2).write(head as usize);
        head.add(5).write(canary);
        head.add(6).write(guard);
        let top = stack.add(GUARD + STACK) as *mut usize;
        top.sub(1).write(entry as usize);
        top.sub(2).write(arg as usize);
    }
    // (not CLONE_SYSVSEM: it would give the program a list of semaphores to undo, which it can tell from having none)
    let flags = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SETTLS;
    let flags = flags | if share_files { libc::CLONE_FILES } else { 0 };
    let flags = flags | if alive.is_some() { libc::CLONE_CHILD_CLEARTID } else { 0 };
    let mask = sys::block_signals();
    let ret: isize;
    // SAFETY: the child starts on its own stack with `arg` and `entry` on top of it and never returns into this frame.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rdi",
            "pop rax",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") flags as usize,
            in("rsi") stack as usize + GUARD + STACK - 16,
            in("rdx") 0usize,
            in("r10") alive.map_or(core::ptr::null_mut(), AtomicU32::as_ptr),
            in("r8") tls as usize + below,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    sys::restore_signals(mask);
    if ret < 0 { Err(-ret as Errno) } else { Ok(ret as u32) }
}
