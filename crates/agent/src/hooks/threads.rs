//! Starts of threads: the page with a thread's descriptor must never be paged.

use crate::agent;
use core::arch::{asm, global_asm};

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
