//! The agent's stacks for hooks. The program's stack is paged, and no page of it may be missing while a lock is held.
//!
//! There are a few stacks, for any number of threads. A thread that finds none free sleeps until one is given back. So the stacks
//! also limit contention: hundreds of threads that map and unmap do not all wait for the pager's locks, where each release would
//! wake all of them.
//!
//! No thread sleeps here for ever. A thread that has a stack waits for locks, for the helper thread's answer, and for the page
//! daemon and the handlers (in a fork, and when it touches a page that it wires). The pager's threads have stacks of their own and
//! never come here. Every lock is held by one of them, or by a thread that has a hook stack already: a thread holds no lock while
//! it asks for a stack. (Hooks do not nest: signals are blocked, and a hook makes its own system calls unhooked.) So no thread with
//! a stack ever waits for a thread that sleeps here.

use core::arch::asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use overspill_linux::area;
use overspill_linux::sys::{self, futex_wait, futex_wake};

/// Stacks for hooks.
pub struct HookStacks {
    base: usize,
    /// A bit for each that is in use.
    taken: AtomicU64,
    /// Counts the stacks that were given back. A futex, on which threads sleep that find none.
    returned: AtomicU32,
    /// The number of threads that sleep on it.
    sleepers: AtomicU32,
}

const HOOK_STACKS: usize = 64;
const HOOK_STACK: usize = 32 << 10;

impl HookStacks {
    /// Maps them.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new() -> Result<Self, i32> {
        let base = area::map_anonymous(HOOK_STACKS * HOOK_STACK)? as usize;
        Ok(HookStacks { base, taken: AtomicU64::new(0), returned: AtomicU32::new(0), sleepers: AtomicU32::new(0) })
    }

    fn try_take(&self) -> Option<usize> {
        let take = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
        let before = self.taken.fetch_update(SeqCst, SeqCst, take).ok()?;
        Some(before.trailing_ones() as usize)
    }

    fn take(&self) -> usize {
        if let Some(index) = self.try_take() {
            return index;
        }
        // SeqCst throughout: either the sleeper sees the stack that was given back, or the thread that gave it back sees the
        // sleeper.
        self.sleepers.fetch_add(1, SeqCst);
        let index = loop {
            let returned = self.returned.load(SeqCst);
            match self.try_take() {
                Some(index) => break index,
                None => futex_wait(&self.returned, returned, u64::MAX),
            }
        };
        self.sleepers.fetch_sub(1, SeqCst);
        index
    }

    fn give_back(&self, index: usize) {
        self.taken.fetch_and(!(1 << index), SeqCst);
        if self.sleepers.load(SeqCst) != 0 {
            self.returned.fetch_add(1, SeqCst);
            futex_wake(&self.returned, 1);
        }
    }

    /// After a fork, in the child: only the caller's stack is in use.
    pub fn only_mine(&self) {
        let sp: usize;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
        self.taken.store(1 << ((sp - self.base) / HOOK_STACK), Relaxed);
        self.sleepers.store(0, Relaxed);
    }

    /// Runs `f` on a hook stack with all signals blocked. The captures of `f` are copied there. It cannot capture by reference
    /// (`'static`), because a reference to the program's stack could miss a page while a lock is held. (That happened: a thread
    /// that unmapped held `map` shared and missed a page, and the handler that had to read its message waited for `map`, exclusive,
    /// for ever.)
    pub fn run<R>(&self, f: impl FnOnce() -> R + 'static) -> R {
        let mask = sys::block_signals();
        let result = self.run_held(f);
        sys::restore_signals(mask);
        result
    }

    /// The same. => the caller has blocked all signals
    pub fn run_held<R>(&self, f: impl FnOnce() -> R + 'static) -> R {
        let index = self.take();
        let top = self.base + (index + 1) * HOOK_STACK;
        let mut call = Call { f: Some(f), result: None };
        let enter = entry_of(&call);
        // SAFETY: the new stack is aligned and used by this thread alone. `enter` gets a pointer that lives over the call. It
        // returns normally, or in a forked child on that process's copy of the same stack.
        unsafe {
            asm!(
                "mov r12, rsp",
                "mov rsp, {top}",
                "call {enter}",
                "mov rsp, r12",
                top = in(reg) top,
                enter = in(reg) enter,
                in("rdi") &raw mut call,
                out("r12") _,
                clobber_abi("C"),
            );
        }
        self.give_back(index);
        call.result.expect("the call has run")
    }

    /// Runs `before` on a hook stack, and then ends this thread with that status. From there on the thread's own stack is not
    /// touched, because other threads may already take it for free.
    pub fn exit(&self, status: i32, before: extern "C" fn(i32)) -> ! {
        sys::block_signals();
        let index = self.take();
        let top = self.base + (index + 1) * HOOK_STACK;
        // SAFETY: the stack is aligned, and used by this thread alone until its bit is cleared; from there on only registers are
        // used. `before` preserves r12 to r14.
        unsafe {
            asm!(
                "mov rsp, {top}",
                "mov edi, r13d",
                "call {before}",
                "lock btr qword ptr [r12 + {taken}], r14",
                "cmp dword ptr [r12 + {sleepers}], 0",
                "je 2f",
                "lock inc dword ptr [r12 + {returned}]",
                "mov eax, {futex}",
                "lea rdi, [r12 + {returned}]",
                "mov esi, {wake}",
                "mov edx, 1",
                "syscall",
                "2:",
                "mov eax, {exit}",
                "mov edi, r13d",
                "syscall",
                "ud2",
                top = in(reg) top,
                before = in(reg) before,
                in("r12") self,
                in("r13") status,
                in("r14") index,
                taken = const offset_of!(HookStacks, taken),
                sleepers = const offset_of!(HookStacks, sleepers),
                returned = const offset_of!(HookStacks, returned),
                futex = const libc::SYS_futex,
                wake = const libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                exit = const libc::SYS_exit,
                options(noreturn),
            );
        }
    }
}

struct Call<R, F> {
    f: Option<F>,
    result: Option<R>,
}

/// The entry for a call of this type.
fn entry_of<R, F: FnOnce() -> R>(_: &Call<R, F>) -> extern "C" fn(*mut Call<R, F>) {
    enter::<R, F>
}

extern "C" fn enter<R, F: FnOnce() -> R>(call: *mut Call<R, F>) {
    // SAFETY: `run` passes a live, exclusive pointer.
    let call = unsafe { &mut *call };
    call.result = call.f.take().map(|f| f());
}
