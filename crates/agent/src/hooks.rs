//! Following the program's own system calls for memory, from inside libc.
//!
//! malloc grows by libc-internal calls that no symbol interposition sees. So the agent patches the system call *sites* of a few libc
//! functions: `mov eax, nr; syscall` is seven bytes, which become a jump to a stub; the stub calls [`on_syscall`] and jumps back
//! behind the site. This sees malloc's brk and mmap, and `_Fork`'s clone at the very instant of the fork.
//!
//! Hooks run in the program's threads, in the middle of libc. They must not use the program's stack while they hold a pager lock (its
//! pages are paged), so they switch to a stack of the agent's with all signals blocked. They have the program's descriptor table, so
//! whatever needs a descriptor of the pager's is done by the clerk thread.

use crate::agent::{self, Request};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, Ordering::*};
use overspill_linux::sys;

/// The system calls that are followed, with the libc functions that make them.
const SITES: &[(&core::ffi::CStr, i32)] = &[
    (c"mmap", libc::SYS_mmap as i32),
    (c"munmap", libc::SYS_munmap as i32),
    (c"mremap", libc::SYS_mremap as i32),
    (c"brk", libc::SYS_brk as i32),
    (c"madvise", libc::SYS_madvise as i32),
    (c"mlock", libc::SYS_mlock as i32),
    (c"mlockall", libc::SYS_mlockall as i32),
    (c"_Fork", libc::SYS_clone as i32),
];
/// A site lies within this many bytes of its function's start.
const SITE_WITHIN: usize = 160;
/// `mov eax, imm32; syscall`.
const SITE_LEN: usize = 7;
/// Bytes of a stub.
const STUB_LEN: usize = 32;

// What a site's stub jumps to: eax = system call, rcx = where to go on; arguments in the system call's registers. Everything but rax,
// rcx, r11 is preserved, as the kernel does (vector registers too: libc's code around the site does not expect them to change).
global_asm!(
    ".globl overspill_hook_common",
    ".hidden overspill_hook_common",
    "overspill_hook_common:",
    "lea rsp, [rsp - 128]", // the red zone of a leaf function
    "push rcx",
    "push r9",
    "push r8",
    "push r10",
    "push rdx",
    "push rsi",
    "push rdi",
    "mov rsi, rsp",
    "mov edi, eax",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    "sub rsp, 256",
    "movaps [rsp], xmm0",
    "movaps [rsp + 16], xmm1",
    "movaps [rsp + 32], xmm2",
    "movaps [rsp + 48], xmm3",
    "movaps [rsp + 64], xmm4",
    "movaps [rsp + 80], xmm5",
    "movaps [rsp + 96], xmm6",
    "movaps [rsp + 112], xmm7",
    "movaps [rsp + 128], xmm8",
    "movaps [rsp + 144], xmm9",
    "movaps [rsp + 160], xmm10",
    "movaps [rsp + 176], xmm11",
    "movaps [rsp + 192], xmm12",
    "movaps [rsp + 208], xmm13",
    "movaps [rsp + 224], xmm14",
    "movaps [rsp + 240], xmm15",
    "call {hook}",
    "movaps xmm0, [rsp]",
    "movaps xmm1, [rsp + 16]",
    "movaps xmm2, [rsp + 32]",
    "movaps xmm3, [rsp + 48]",
    "movaps xmm4, [rsp + 64]",
    "movaps xmm5, [rsp + 80]",
    "movaps xmm6, [rsp + 96]",
    "movaps xmm7, [rsp + 112]",
    "movaps xmm8, [rsp + 128]",
    "movaps xmm9, [rsp + 144]",
    "movaps xmm10, [rsp + 160]",
    "movaps xmm11, [rsp + 176]",
    "movaps xmm12, [rsp + 192]",
    "movaps xmm13, [rsp + 208]",
    "movaps xmm14, [rsp + 224]",
    "movaps xmm15, [rsp + 240]",
    "mov rsp, rbp",
    "pop rbp",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop r10",
    "pop r8",
    "pop r9",
    "pop rcx",
    "lea rsp, [rsp + 128]",
    "jmp rcx",
    hook = sym on_syscall,
);

unsafe extern "C" {
    fn overspill_hook_common();
}

/// Patches the sites.
///
/// # Errors
/// The function whose site was not recognised, or that could not be patched. Sites before it stay patched (and harmless).
pub fn install() -> Result<(), &'static core::ffi::CStr> {
    let mut functions = [0usize; SITES.len()];
    for ((name, _), at) in SITES.iter().zip(&mut functions) {
        // SAFETY: looks a name up.
        *at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        if *at == 0 {
            return Err(name);
        }
    }
    let stubs = near(functions[0]).ok_or(SITES[0].0)?;
    for (i, ((name, nr), function)) in SITES.iter().zip(functions).enumerate() {
        let site = find_site(function, *nr).ok_or(*name)?;
        let stub = stubs + i * STUB_LEN;
        write_stub(stub, *nr, site + SITE_LEN);
        let distance = stub as isize - (site as isize + 5);
        let Ok(distance) = i32::try_from(distance) else { return Err(name) };
        let mut patch = [0xE9, 0, 0, 0, 0, 0x66, 0x90]; // jmp stub; two-byte nop
        patch[1..5].copy_from_slice(&distance.to_le_bytes());
        write_text(site, &patch).ok_or(*name)?;
    }
    // SAFETY: the stubs are complete; they need not be written again.
    let _ = unsafe { sys::syscall6(libc::SYS_mprotect, stubs, 4096, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0, 0) };
    Ok(())
}

fn find_site(function: usize, nr: i32) -> Option<usize> {
    let mut pattern = [0xB8, 0, 0, 0, 0, 0x0F, 0x05];
    pattern[1..5].copy_from_slice(&nr.to_le_bytes());
    // SAFETY: libc's text around one of its functions is mapped and readable; a page beyond it would be libc's too.
    let text = unsafe { core::slice::from_raw_parts(function as *const u8, SITE_WITHIN) };
    text.windows(SITE_LEN).position(|w| w == pattern).map(|at| function + at)
}

/// A page for stubs within reach of a 32-bit jump from `text`.
fn near(text: usize) -> Option<usize> {
    let base = text & !0xFFFF;
    for step in 1..0x4000usize {
        for at in [base.checked_sub(step << 16), base.checked_add(step << 16)].into_iter().flatten() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: NOREPLACE: overlaps nothing.
            if unsafe { sys::syscall6(libc::SYS_mmap, at, 4096, prot as usize, flags as usize, usize::MAX, 0) } == Ok(at) {
                return Some(at);
            }
        }
    }
    None
}

fn write_stub(stub: usize, nr: i32, resume: usize) {
    let mut code = [0x90u8; STUB_LEN];
    code[0] = 0xB8; // mov eax, nr
    code[1..5].copy_from_slice(&nr.to_le_bytes());
    code[5..7].copy_from_slice(&[0x48, 0xB9]); // movabs rcx, resume
    code[7..15].copy_from_slice(&resume.to_le_bytes());
    code[15..17].copy_from_slice(&[0x49, 0xBB]); // movabs r11, common
    code[17..25].copy_from_slice(&(overspill_hook_common as *const () as usize).to_le_bytes());
    code[25..28].copy_from_slice(&[0x41, 0xFF, 0xE3]); // jmp r11
    // SAFETY: the stub page is ours, writable, and long enough.
    unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), stub as *mut u8, STUB_LEN) };
}

/// Writes program text through /proc/self/mem, which needs no writable and executable mapping.
fn write_text(at: usize, bytes: &[u8]) -> Option<()> {
    let mem = sys::open(b"/proc/self/mem\0", libc::O_RDWR | libc::O_CLOEXEC, 0).ok()?;
    // SAFETY: replaces seven bytes of libc's text that were checked to be one site, in our own copy of the page, while the process has
    // one thread.
    let n = unsafe { sys::syscall6(libc::SYS_pwrite64, mem.raw() as usize, bytes.as_ptr() as usize, bytes.len(), at, 0, 0) };
    (n == Ok(bytes.len())).then_some(())
}

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

const PAGE: usize = 4096;

fn up(n: usize) -> usize {
    n.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

/// A followed system call of the program's.
unsafe extern "C" fn on_syscall(nr: i32, args: &[usize; 6]) -> isize {
    let mut a = *args;
    // What the kernel will refuse is not followed: addresses within a page.
    let refused = match nr as libc::c_long {
        libc::SYS_munmap | libc::SYS_mremap => !a[0].is_multiple_of(PAGE),
        libc::SYS_mmap => a[3] as i32 & libc::MAP_FIXED != 0 && !a[0].is_multiple_of(PAGE),
        _ => false,
    };
    let Some(agent) = agent::get().filter(|_| !refused) else {
        // SAFETY: the program's own call.
        return unsafe { raw(nr, &a) };
    };
    match nr as libc::c_long {
        libc::SYS_mmap => {
            let flags = a[3] as i32;
            let anonymous = flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
            let wanted = anonymous && flags & (libc::MAP_HUGETLB | libc::MAP_GROWSDOWN) == 0;
            if !wanted && flags & libc::MAP_FIXED == 0 {
                // SAFETY: the program's own call; it makes a mapping that the pager does not manage, over nothing.
                return unsafe { raw(nr, &a) };
            }
            let over = flags & libc::MAP_FIXED != 0 && agent.forget_native(a[0], a[0].wrapping_add(up(a[1])));
            if anonymous && a[1] > agent.lockable_bytes() {
                // As with mlock below, and what is populated could be more than the budget before the pager knows of it.
                a[3] &= !(libc::MAP_POPULATE | libc::MAP_LOCKED) as usize;
            }
            // SAFETY: the program's own call.
            let r = unsafe { raw(nr, &a) };
            if wanted && r > 0 {
                agent.new_range(r as usize, r as usize + up(a[1]));
            } else if over && r < 0 {
                agent.new_range(a[0], a[0] + up(a[1])); // still there
            }
            r
        }
        libc::SYS_munmap => {
            let native = agent.forget_native(a[0], a[0].wrapping_add(up(a[1])));
            // SAFETY: the program's own call.
            let r = unsafe { raw(nr, &a) };
            if native && r != 0 {
                agent.new_range(a[0], a[0] + up(a[1])); // still there
            }
            r
        }
        libc::SYS_mremap => {
            let native = agent.forget_native(a[0], a[0].wrapping_add(up(a[1])));
            // SAFETY: the program's own call.
            let r = unsafe { raw(nr, &a) };
            match (native, r > 0) {
                (true, true) => agent.new_range(r as usize, r as usize + up(a[2])),
                (true, false) => agent.new_range(a[0], a[0] + up(a[1])),
                (false, true) => agent.ask(Request::Resized { old_len: up(a[1]), new: r as usize, new_len: up(a[2]) }),
                (false, false) => {}
            }
            if r > 0 && a[3] as i32 & libc::MREMAP_DONTUNMAP != 0 {
                agent.left_empty(a[0], a[0] + up(a[1]));
            }
            r
        }
        libc::SYS_brk => {
            let before = up(agent.heap_end.load(Relaxed));
            if a[0] != 0 && up(a[0]) < before {
                agent.forget_native(up(a[0]), before);
            }
            // SAFETY: the program's own call.
            let r = unsafe { raw(nr, &a) };
            let after = up(r as usize);
            agent.heap_end.store(r as usize, Relaxed);
            if after > before {
                agent.new_range(before, after);
            }
            r
        }
        libc::SYS_madvise => {
            // SAFETY: the program's own call.
            let r = unsafe { raw(nr, &a) };
            let end = a[0].wrapping_add(up(a[1]));
            match a[2] as i32 {
                libc::MADV_DONTNEED | libc::MADV_FREE => agent.discarded(a[0], end),
                advice @ (libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK) => {
                    let heard = r != 0 || agent.wipe_on_fork(a[0], end, advice == libc::MADV_WIPEONFORK);
                    // else the kernel wipes what is mapped, and the program is told that it cannot rely on it
                    return if heard { r } else { -(libc::ENOMEM as isize) };
                }
                _ => {}
            }
            r
        }
        // Locked pages cannot be evicted. More of them than the budget bears would be given out above it, page by page, for ever; and
        // mlockall would populate the pager's own sparse tables. A program that is refused goes on unlocked.
        libc::SYS_mlock if a[1] > agent.lockable_bytes() => -(libc::EPERM as isize),
        libc::SYS_mlockall => -(libc::EPERM as isize),
        libc::SYS_clone if a[0] & libc::CLONE_VM as usize == 0 => agent.fork(nr, &a),
        // SAFETY: the program's own call.
        _ => unsafe { raw(nr, &a) },
    }
}

// ---- stacks ----

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

// ---- threads ----

// A new thread begins here: its descriptor is wired before its own start routine runs, which is reached by a jump so that no frame
// of the agent's is on its stack.
global_asm!(
    ".globl overspill_thread_entry",
    ".hidden overspill_thread_entry",
    "overspill_thread_entry:",
    "sub rsp, 24",
    "mov rsi, rsp",
    "call {begin}",
    "mov rax, [rsp]",
    "mov rdi, [rsp + 8]",
    "add rsp, 24",
    "jmp rax",
    begin = sym thread_begin,
);

unsafe extern "C" {
    fn overspill_thread_entry(start: *mut libc::c_void) -> *mut libc::c_void;
}

/// Bytes of glibc's thread descriptor that the kernel or an ending thread may look at, rounded up.
const DESCRIPTOR_BYTES: usize = 0xA00;

unsafe extern "C" fn thread_begin(start: *mut [usize; 2], out: &mut [usize; 2]) {
    // SAFETY: `pthread_create` below passed the pointer to this thread alone.
    *out = unsafe { *start };
    let descriptor: usize;
    // SAFETY: fs:16 holds the thread descriptor's address in every thread of libc's.
    unsafe { asm!("mov {}, fs:[16]", out(reg) descriptor, options(nostack, readonly, preserves_flags)) };
    if let Some(agent) = agent::get() {
        agent.starts_free(start);
        agent.wire_descriptor(descriptor, DESCRIPTOR_BYTES);
    }
}

type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    unsafe extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    *mut libc::c_void,
) -> i32;

/// Interposes pthread_create: the page with a thread's descriptor (its tid word, which the kernel clears at its end without waiting
/// for a page) must never be paged, or a join would hang for ever.
///
/// # Safety
/// As pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    start: unsafe extern "C" fn(*mut libc::c_void) -> *mut libc::c_void,
    arg: *mut libc::c_void,
) -> i32 {
    // SAFETY: looks a name up; libc's function has this type.
    let real: Option<PthreadCreate> = unsafe {
        let p = libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr());
        (!p.is_null()).then(|| core::mem::transmute::<*mut libc::c_void, PthreadCreate>(p))
    };
    let Some(real) = real else { return libc::EAGAIN };
    if let Some(agent) = agent::get()
        && let Some(pack) = agent.starts_take([start as usize, arg as usize])
    {
        // SAFETY: the caller's arguments; the entry jumps to the caller's start routine.
        let r = unsafe { real(thread, attr, overspill_thread_entry, pack.cast()) };
        if r != 0 {
            agent.starts_free(pack);
        }
        return r;
    }
    // SAFETY: the caller's arguments.
    unsafe { real(thread, attr, start, arg) }
}
