//! Namespaces that only a process of one thread may enter.
//!
//! The kernel counts the pager's threads as the program's. So while nothing of the program is paged, the pager ends before such a
//! call ([`Agent::leave`]), and the program goes on without it. Programs that it starts have a pager again, if they may have a
//! userfaultfd. The pager stays if the kernel would refuse the call in any case ([`rehearsal`]). If something is paged, the kernel
//! refuses the call with EINVAL.

use super::rehearsal;
use crate::agent::Agent;
use overspill_linux::sys;

/// NS_GET_NSTYPE of linux/nsfs.h.
const GET_TYPE: usize = 0xB703;
/// CLONE_NEWTIME, which libc leaves out.
const NEW_TIME: i32 = 0x80;

/// To be called before unshare(2) or setns(2).
pub fn enters(agent: &'static Agent, nr: i32, a: [usize; 6]) {
    let needs_one_thread = match nr as libc::c_long {
        libc::SYS_unshare => a[0] as i32 & libc::CLONE_NEWUSER != 0,
        _ => {
            // SAFETY: the program's descriptor; the answer is a number.
            let kind = || unsafe { sys::syscall6(libc::SYS_ioctl, a[0], GET_TYPE, 0, 0, 0, 0) }.unwrap_or(0);
            let kinds = if a[1] == 0 { kind() } else { a[1] };
            // (a mount namespace has another root directory, which threads share)
            kinds as i32 & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | NEW_TIME) != 0
        }
    };
    if !needs_one_thread || !agent.is_only_thread() || agent.manages() {
        return;
    }
    if rehearsal::is_refused(nr, &a, false, libc::SYS_exit) {
        agent.machine().may_share_pages(); // each page counts as shared until it is written
    } else {
        agent.leave(None);
    }
}
