//! Touches of memory that may end in a signal.

use core::arch::asm;
use overspill_linux::sys::syscall6;
use overspill_simkernel::call::Outcome;

/// A mark in a register of the touching thread, by which the handler recognises a touch.
const TOUCHES: u64 = 0x746f_7563_6865_7320;

/// Installs a handler for SIGBUS and SIGSEGV at a touch. The handler skips the instruction, whose length is in a register, and
/// leaves the signal's number in another register. Any other such signal is as fatal as ever.
pub fn install() {
    // SAFETY: the handler uses nothing of libc's but `sigaction`, which is async-signal-safe; zeroes are a valid structure.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGBUS, libc::SIGSEGV] {
            assert_eq!(libc::sigaction(signal, &action, core::ptr::null_mut()), 0);
        }
    }
}

extern "C" fn on_signal(signal: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands over the interrupted thread's registers, which are ours to change.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        if registers[libc::REG_R8 as usize] as u64 == TOUCHES {
            registers[libc::REG_RIP as usize] += registers[libc::REG_RDX as usize];
            registers[libc::REG_RCX as usize] = i64::from(signal);
            return;
        }
        // not a touch: the default action, when the instruction is repeated
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, core::ptr::null_mut());
    }
}

/// Reads a byte.
pub fn read(at: usize) -> Outcome {
    let (mut byte, mut signal) = (0u8, 0u64);
    // SAFETY: one instruction, of two bytes, which reads from the lab's memory or raises a signal.
    unsafe {
        asm!("mov al, byte ptr [rdi]", inout("al") byte, in("rdi") at, in("rdx") 2u64, in("r8") TOUCHES, inout("rcx") signal, options(nostack));
    }
    if signal == 0 { Outcome::Ok(byte as usize) } else { Outcome::Signal(signal as i32) }
}

/// Writes a byte.
pub fn write(at: usize, byte: u8) -> Outcome {
    let mut signal = 0u64;
    // SAFETY: one instruction, of two bytes, which writes to the lab's memory or raises a signal.
    unsafe {
        asm!("mov byte ptr [rdi], al", in("al") byte, in("rdi") at, in("rdx") 2u64, in("r8") TOUCHES, inout("rcx") signal, options(nostack));
    }
    if signal == 0 { Outcome::Ok(0) } else { Outcome::Signal(signal as i32) }
}

/// Has the kernel read a byte: write(2) into a pipe.
pub fn read_in_kernel(at: usize) -> Outcome {
    let mut ends = [0i32; 2];
    let mut byte = 0u8;
    // SAFETY: the kernel writes two numbers and one byte, which are live, and reads the lab's memory if it can.
    let result = unsafe {
        syscall6(libc::SYS_pipe2, ends.as_mut_ptr() as usize, 0, 0, 0, 0, 0).expect("a pipe");
        let written = syscall6(libc::SYS_write, ends[1] as usize, at, 1, 0, 0, 0);
        if written.is_ok() {
            let _ = syscall6(libc::SYS_read, ends[0] as usize, &raw mut byte as usize, 1, 0, 0, 0);
        }
        for end in ends {
            let _ = syscall6(libc::SYS_close, end as usize, 0, 0, 0, 0, 0);
        }
        written
    };
    result.map_or_else(Outcome::Err, |_| Outcome::Ok(byte as usize))
}
