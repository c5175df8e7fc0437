//! Makes `clone` and `clone3` without CLONE_VM while the pager's locks are held.
//!
//! In such a call the kernel reads and writes the program's memory: the structure of arguments, and places for thread ids. A page
//! of that memory may be out, and no thread would bring it in. Worse, the kernel could write an id into a page that is missing in
//! the child, which has no pager yet, and the page's content would be lost. So the memory is read before the call and written after
//! it, when no lock is held.

use core::ffi::c_int;
use overspill_linux::sys::{self, Errno};

/// `struct clone_args`, in 64-bit words.
#[derive(Clone, Copy)]
struct Words([u64; WORDS]);

const WORDS: usize = 11;
/// The kernel wants the whole structure with it.
const CLONE_INTO_CGROUP: usize = 1 << 33;
/// The longest structure that the kernel takes, in bytes. What it does not know must be zero.
const LONGEST: usize = 4096;
const PIDFD: usize = 1;
const CHILD_TID: usize = 2;
const PARENT_TID: usize = 3;
const STACK: usize = 5;
const STACK_SIZE: usize = 6;
const SET_TID: usize = 8;
const SET_TID_SIZE: usize = 9;
/// MAX_PID_NS_LEVEL
const SET_TID_MAX: usize = 32;

/// A call that makes a process.
pub struct Fork {
    flags: usize,
    /// The arguments of `clone`.
    args: [usize; 6],
    /// Of `clone3`: its structure, and the ids that the child should get.
    words: Option<Words>,
    set_tid: [i32; SET_TID_MAX],
    /// Where the program wants the child's id in its own memory, in the child's, and the pidfd; 0: nowhere.
    to_parent: usize,
    to_child: usize,
    to_pidfd: usize,
    /// The id and the pidfd that the kernel has stored.
    told: [c_int; 2],
}

/// The address, or 0 if nothing is mapped there: the kernel ignores such an address, so this must, too.
fn reachable(at: usize) -> usize {
    if sys::read_own(at, &mut [0; size_of::<c_int>()]).is_ok() { at } else { 0 }
}

impl Fork {
    /// From the arguments of `fork` or `clone`. Also returns the child's stack; 0: the caller's.
    pub fn clone(mut args: [usize; 6]) -> (Self, usize) {
        let flags = args[0];
        let stack = core::mem::take(&mut args[1]);
        let to = |flag: c_int, at: usize| if flags & flag as usize != 0 { at } else { 0 };
        let fork = Fork {
            flags,
            args,
            words: None,
            set_tid: [0; SET_TID_MAX],
            to_parent: reachable(to(libc::CLONE_PARENT_SETTID, args[2])),
            to_child: reachable(to(libc::CLONE_CHILD_SETTID, args[3])),
            to_pidfd: reachable(to(libc::CLONE_PIDFD, args[2])),
            told: [0; 2],
        };
        (fork, stack)
    }

    /// From the arguments of `clone3`. `None` if it shares memory, or if the kernel will refuse it.
    pub fn clone3(at: usize, len: usize) -> Option<(Self, usize)> {
        let mut bytes = [0u8; WORDS * 8];
        if !(64..=LONGEST).contains(&len) {
            return None;
        }
        let known = len.min(bytes.len());
        sys::read_own(at, &mut bytes[..known]).ok()?;
        for from in (known..len).step_by(64) {
            let mut unknown = [0u8; 64];
            sys::read_own(at + from, &mut unknown[..(len - from).min(64)]).ok().filter(|()| unknown == [0; 64])?;
        }
        let mut words = [0u64; WORDS];
        words.iter_mut().zip(bytes.as_chunks().0).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        let flags = words[0] as usize;
        let (stack, stack_size) = (core::mem::take(&mut words[STACK]), core::mem::take(&mut words[STACK_SIZE]));
        let ids = words[SET_TID_SIZE] as usize;
        let in_a_cgroup = flags & CLONE_INTO_CGROUP != 0;
        if in_a_cgroup && len < bytes.len()
            || flags & libc::CLONE_VM as usize != 0
            || (stack == 0) != (stack_size == 0)
            || ids > SET_TID_MAX
        {
            return None;
        }
        let mut bytes = [0u8; SET_TID_MAX * 4];
        if ids > 0 {
            sys::read_own(words[SET_TID] as usize, &mut bytes[..ids * 4]).ok()?;
        }
        let mut set_tid = [0; SET_TID_MAX];
        set_tid.iter_mut().zip(bytes.as_chunks().0).for_each(|(id, bytes)| *id = i32::from_ne_bytes(*bytes));
        let to = |flag: c_int, word: usize| if flags & flag as usize != 0 { words[word] as usize } else { 0 };
        if flags & libc::CLONE_PIDFD as usize != 0 && reachable(words[PIDFD] as usize) == 0 {
            return None;
        }
        let fork = Fork {
            flags,
            args: [0; 6],
            words: Some(Words(words)),
            set_tid,
            to_parent: reachable(to(libc::CLONE_PARENT_SETTID, PARENT_TID)),
            to_child: reachable(to(libc::CLONE_CHILD_SETTID, CHILD_TID)),
            to_pidfd: to(libc::CLONE_PIDFD, PIDFD),
            told: [0; 2],
        };
        Some((fork, (stack + stack_size) as usize))
    }

    /// Whether parent and child will have one table of descriptors.
    pub fn shares_files(&self) -> bool {
        self.flags & libc::CLONE_FILES as usize != 0
    }

    /// Whether the caller waits until the child has ended or called exec. The kernel does not get this flag: the pager's locks are
    /// held over the call.
    pub fn suspends(&self) -> bool {
        self.flags & libc::CLONE_VFORK as usize != 0
    }

    /// Makes the call. Touches nothing but `self` and the stack.
    pub fn make(&mut self) -> Result<usize, Errno> {
        let [pid, pidfd] = self.told.each_mut().map(|told| core::ptr::from_mut(told) as usize);
        let flags = self.flags & !((libc::CLONE_CHILD_SETTID | libc::CLONE_VFORK) as usize);
        match &mut self.words {
            None => {
                let mut a = self.args;
                a[0] = flags;
                match (self.to_parent, self.to_pidfd) {
                    (0, 0) => {}
                    (0, _) => a[2] = pidfd,
                    (_, _) => a[2] = pid,
                }
                // SAFETY: the program's own fork; the kernel writes to `told`.
                unsafe { sys::syscall6(libc::SYS_clone, a[0], a[1], a[2], a[3], a[4], a[5]) }
            }
            Some(Words(words)) => {
                words[0] = flags as u64;
                for (word, wanted, at) in [(PARENT_TID, self.to_parent, pid), (PIDFD, self.to_pidfd, pidfd)] {
                    words[word] = if wanted != 0 { at as u64 } else { words[word] };
                }
                if words[SET_TID_SIZE] != 0 {
                    words[SET_TID] = self.set_tid.as_ptr() as u64;
                }
                // SAFETY: as above; the structure and the ids live over the call.
                unsafe { sys::syscall6(libc::SYS_clone3, words.as_ptr() as usize, size_of::<Words>(), 0, 0, 0, 0) }
            }
        }
    }

    /// In the parent: stores the ids for the program. => no lock held
    pub fn tell_parent(&self) {
        store(self.to_parent, self.told[0]);
        store(self.to_pidfd, self.told[1]);
    }

    /// The same in the child.
    pub fn tell_child(&self) {
        store(self.to_child, sys::gettid() as c_int);
    }
}

fn store(at: usize, number: c_int) {
    if at != 0 {
        // SAFETY: the program's own pointer to a place for a number. (With a bad pointer the kernel would store nothing, and this
        // crashes; no sensible program passes one.)
        unsafe { (at as *mut c_int).write_volatile(number) };
    }
}
