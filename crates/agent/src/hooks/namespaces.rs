//! Namespaces that the kernel lets only a process of one thread enter.
//!
//! The pager's threads count as the program's. So while nothing of the program's is paged the pager goes before such a call
//! ([`Agent::leave`]), and the program is on its own from there on, as it is when it execs: what is started then has a pager
//! again, if it may have a userfaultfd. A program that is being paged is refused with EINVAL by the kernel.

use crate::agent::Agent;
use overspill_linux::sys;

/// NS_GET_NSTYPE of linux/nsfs.h.
const GET_TYPE: usize = 0xB703;
/// CLONE_NEWTIME, which libc leaves out.
const NEW_TIME: i32 = 0x80;

/// unshare(2) or setns(2) is about to be called.
pub fn enters(agent: &'static Agent, nr: i32, a: [usize; 6]) {
    let needs_one_thread = match nr as libc::c_long {
        libc::SYS_unshare => a[0] as i32 & libc::CLONE_NEWUSER != 0,
        _ => {
            // SAFETY: the program's descriptor; the answer is a number.
            let kind = || unsafe { sys::syscall6(libc::SYS_ioctl, a[0], GET_TYPE, 0, 0, 0, 0) }.unwrap_or(0);
            let kinds = if a[1] == 0 { kind() } else { a[1] };
            // (a file-system namespace: the root directory, which threads share, is another one's there)
            kinds as i32 & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | NEW_TIME) != 0
        }
    };
    if needs_one_thread && agent.is_only_thread() {
        agent.leave();
    }
}
