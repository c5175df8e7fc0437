//! Stacks of the agent's for hooks: the program's stack is paged, and a page of it must not be missed while a lock is held.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::*};
use overspill_linux::sys;

/// Stacks for hooks.
pub struct HookStacks {
    base: usize,
    taken: AtomicU64,
}

const HOOK_STACKS: usize = 64;
const HOOK_STACK: usize = 32 << 10;

impl HookStacks {
    /// Maps them.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new() -> Result<Self, i32> {
        Ok(HookStacks { base: sys::map_anonymous(HOOK_STACKS * HOOK_STACK)? as usize, taken: AtomicU64::new(0) })
    }

    fn take(&self) -> usize {
        loop {
            let taken = self.taken.load(Relaxed);
            let free = (!taken).trailing_zeros() as usize;
            if free < HOOK_STACKS {
                if self.taken.compare_exchange(taken, taken | 1 << free, Acquire, Relaxed).is_ok() {
                    return free;
                }
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// After a fork, in the child: only the caller's stack is in use.
    pub fn only_mine(&self) {
        let sp: usize;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
        self.taken.store(1 << ((sp - self.base) / HOOK_STACK), Relaxed);
    }

    /// Runs `f` on a hook stack with all signals blocked. What `f` has captured is copied there, and it can capture nothing of the
    /// caller's by reference (`'static`): that would be a reference to the program's stack, and a page of that must not be missed while
    /// a lock is held. (One was: a thread that unmapped held `map` shared over the miss, and the handler that was to read its message
    /// waited for `map`, exclusive, for ever.)
    pub fn run<R>(&self, f: impl FnOnce() -> R + 'static) -> R {
        let mask = sys::block_signals();
        let index = self.take();
        let top = self.base + (index + 1) * HOOK_STACK;
        let mut call = Call { f: Some(f), result: None };
        let enter = entry_of(&call);
        // SAFETY: the new stack is ours alone and aligned; `enter` gets a pointer that lives over the call and returns normally, or in
        // a forked child returns on that process's copy of the same stack.
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
        self.taken.fetch_and(!(1 << index), Release);
        sys::restore_signals(mask);
        call.result.expect("the call has run")
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
