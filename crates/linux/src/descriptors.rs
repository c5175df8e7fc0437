//! Sends descriptors from the pager's table to a forked child, over a socket.
//!
//! Parent and child share nothing else. Opening the files anew through `/proc` may fail, because the program may have changed its
//! user, root or process id namespace. Nothing here allocates.

use crate::sys::{Errno, Fd, sys};
use core::mem::{MaybeUninit, size_of};

/// The most descriptors in one message: Linux's SCM_MAX_FD.
pub const PACK_MAX: usize = 253;
/// The soft limit of descriptors is raised by this much for a moment.
const MORE: u64 = 64;

/// A pair of connected sockets. When no process has one of them open any more, the other becomes readable (`sys::is_readable`).
///
/// # Errors
/// As socketpair(2).
pub fn socket_pair() -> Result<[Fd; 2], Errno> {
    let mut pair = [0i32; 2];
    // SAFETY: writes two numbers.
    unsafe { sys!(libc::SYS_socketpair, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) }?;
    Ok(pair.map(|fd| Fd::new(fd as usize)))
}

/// The name that the kernel gave to a socket without a file.
pub type Name = [u8; 6];

#[repr(C)]
struct Address {
    family: libc::sa_family_t,
    name: Name,
}

/// A listening socket without a file. A process that knows its name can connect. Others can, too: see [`accept_from`].
///
/// # Errors
/// As socket(2), bind(2), listen(2).
pub fn listen() -> Result<(Fd, Name), Errno> {
    let mut address = Address { family: libc::AF_UNIX as _, name: [0; 6] };
    let mut len = size_of::<libc::sa_family_t>() as u32; // the family alone: the kernel gives a name
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the kernel reads and writes the address and its length, which live over the calls.
    unsafe {
        let listener = Fd::new(sys!(libc::SYS_socket, libc::AF_UNIX, kind, 0)?);
        sys!(libc::SYS_bind, listener.raw(), &raw const address, len)?;
        len = size_of::<Address>() as u32;
        sys!(libc::SYS_getsockname, listener.raw(), &raw mut address, &raw mut len)?;
        sys!(libc::SYS_listen, listener.raw(), 16)?;
        Ok((listener, address.name))
    }
}

/// The connection from process `pid`, if there is one. Connections from others are closed.
///
/// # Errors
/// As accept4(2).
pub fn accept_from(listener: &Fd, pid: u32) -> Result<Option<Fd>, Errno> {
    loop {
        // SAFETY: no address is asked for.
        let socket = match unsafe { sys!(libc::SYS_accept4, listener.raw(), 0, 0, libc::SOCK_CLOEXEC) } {
            Ok(socket) => Fd::new(socket),
            Err(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as u32;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: the kernel writes the structure and its length, which live over the call.
        unsafe { sys!(libc::SYS_getsockopt, socket.raw(), level, option, &raw mut peer, &raw mut len) }?;
        if peer.pid as u32 == pid {
            return Ok(Some(socket));
        }
    }
}

/// Connects to a socket of [`listen`].
///
/// # Errors
/// As connect(2).
pub fn connect(name: &Name) -> Result<Fd, Errno> {
    let address = Address { family: libc::AF_UNIX as _, name: *name };
    // SAFETY: the kernel reads the address, which lives over the call.
    unsafe {
        let socket = Fd::new(sys!(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)?);
        sys!(libc::SYS_connect, socket.raw(), &raw const address, size_of::<Address>())?;
        Ok(socket)
    }
}

#[repr(C, align(8))]
struct Ancillary {
    head: libc::cmsghdr,
    fds: [i32; PACK_MAX],
}

/// Runs `f` with a message of one byte and room for `count` descriptors, and returns what it does.
fn with_message<T>(ancillary: &mut Ancillary, count: usize, f: impl FnOnce(*mut libc::msghdr) -> T) -> T {
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: all-zero bytes are a valid header: integers and null pointers.
    let mut message = unsafe { MaybeUninit::<libc::msghdr>::zeroed().assume_init() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = core::ptr::from_mut(ancillary).cast();
    message.msg_controllen = size_of::<libc::cmsghdr>() + (count * size_of::<i32>()).next_multiple_of(size_of::<usize>());
    f(&raw mut message)
}

/// Sends copies of these descriptors, at most [`PACK_MAX`].
///
/// # Errors
/// As sendmsg(2): ETOOMANYREFS if this user's processes have too many under way.
pub fn send(socket: &Fd, fds: &[i32]) -> Result<(), Errno> {
    let head = libc::cmsghdr {
        cmsg_len: size_of::<libc::cmsghdr>() + size_of_val(fds),
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    let mut ancillary = Ancillary { head, fds: [-1; PACK_MAX] };
    ancillary.fds.get_mut(..fds.len()).ok_or(libc::E2BIG)?.copy_from_slice(fds);
    with_message(&mut ancillary, fds.len(), |message| {
        if fds.is_empty() {
            // SAFETY: a live structure; without descriptors there is no ancillary message at all.
            unsafe { ((*message).msg_control, (*message).msg_controllen) = (core::ptr::null_mut(), 0) };
        }
        // SAFETY: the kernel reads the structures, which live over the call.
        unsafe { sys!(libc::SYS_sendmsg, socket.raw(), message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }.map(drop)
    })
}

/// Receives what [`send`] has sent or will send, in order: exactly `out.len()` descriptors.
///
/// # Errors
/// As recvmsg(2); EMFILE if there was no room for all.
pub fn receive(socket: &Fd, out: &mut [Option<Fd>]) -> Result<(), Errno> {
    let head = libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 };
    let mut ancillary = Ancillary { head, fds: [-1; PACK_MAX] };
    with_message(&mut ancillary, PACK_MAX, |message| {
        // SAFETY: the kernel writes within the structures, which live over the call.
        unsafe { sys!(libc::SYS_recvmsg, socket.raw(), message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    let head = &ancillary.head;
    let mut count = 0;
    if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        count = (head.cmsg_len - size_of::<libc::cmsghdr>()) / size_of::<i32>();
    }
    let mut got = ancillary.fds[..count].iter().map(|fd| Fd::new(*fd as usize));
    out.iter_mut().for_each(|out| *out = got.next());
    if out.iter().any(Option::is_none) || got.next().is_some() { Err(libc::EMFILE) } else { Ok(()) }
}

/// Raises the limit of descriptors as long as this lives.
pub struct MoreDescriptors {
    before: libc::rlimit,
    now: libc::rlimit,
}

fn limit(new: Option<&libc::rlimit>) -> Result<libc::rlimit, Errno> {
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads one structure and writes the other, which both live over the call.
    unsafe { sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, new, &raw mut old) }?;
    Ok(old)
}

impl MoreDescriptors {
    fn new(at_least: u64) -> Option<Self> {
        let before = limit(None).ok()?;
        let want = at_least.max(before.rlim_cur.saturating_add(MORE));
        let soft = libc::rlimit { rlim_cur: want.min(before.rlim_max), ..before };
        let hard = libc::rlimit { rlim_cur: want, rlim_max: want.max(before.rlim_max) };
        // above the hard limit only with CAP_SYS_RESOURCE
        let now = [hard, soft].into_iter().find(|new| new.rlim_cur > before.rlim_cur && limit(Some(new)).is_ok())?;
        Some(MoreDescriptors { before, now })
    }
}

impl Drop for MoreDescriptors {
    fn drop(&mut self) {
        // unless the program has set it meanwhile
        if limit(None).is_ok_and(|is| (is.rlim_cur, is.rlim_max) == (self.now.rlim_cur, self.now.rlim_max)) {
            let _ = limit(Some(&self.before));
        }
    }
}

/// Makes the call. If the table of descriptors is full (EMFILE), raises the limit if that is allowed, and makes the call again.
///
/// # Errors
/// Those of the call.
pub fn with_room<T>(call: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match call() {
        Err(libc::EMFILE) => {
            let _more = MoreDescriptors::new(0);
            call()
        }
        result => result,
    }
}

/// Raises the limit to at least `count`, if that is allowed, until the returned value is dropped. => no other thread sets limits
/// meanwhile
pub fn room_for(count: u64) -> Option<MoreDescriptors> {
    if limit(None).is_ok_and(|is| is.rlim_cur < count) { MoreDescriptors::new(count) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn many_descriptors_arrive_in_order_and_so_does_the_end() {
        let [ours, theirs] = socket_pair().expect("sockets");
        let files: Vec<Fd> = (0..200).map(|_| sys::open(b"/dev/null\0", libc::O_RDONLY, 0).expect("a file")).collect();
        let numbers: Vec<i32> = files.iter().map(Fd::raw).collect();
        send(&ours, &numbers).expect("sent");
        let mut got = [const { None }; 200];
        receive(&theirs, &mut got).expect("received");
        assert!(got.iter().all(Option::is_some));
        send(&ours, &[]).expect("sent");
        receive(&theirs, &mut []).expect("received nothing");
        send(&ours, &numbers[..2]).expect("sent");
        assert_eq!(receive(&theirs, &mut got[..1]), Err(libc::EMFILE));
        assert!(!sys::is_readable(ours.raw()));
        drop(theirs);
        // another test has a copy of this process's table for a while, and the other end in it
        let mut poll = libc::pollfd { fd: ours.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the structure lives over the call.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 10_000) }, 1);
        assert!(sys::is_readable(ours.raw()));
    }

    #[test]
    fn one_process_is_let_in_by_name() {
        let (listener, name) = listen().expect("a listener");
        assert!(accept_from(&listener, sys::getpid()).expect("none yet").is_none());
        let client = connect(&name).expect("it listens");
        assert!(accept_from(&listener, sys::getpid() + 1).expect("another").is_none());
        assert!(receive(&client, &mut [const { None }; 1]).is_err(), "sent away");
        let client = connect(&name).expect("it listens");
        let server = accept_from(&listener, sys::getpid()).expect("it").expect("is here");
        send(&server, &[client.raw()]).expect("sent");
        receive(&client, &mut [const { None }; 1]).expect("received");
    }

    #[test]
    fn a_descriptor_of_another_table_is_the_same_open_file() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: this thread gets a table of its own, and has opened nothing for others.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
            let [a, b] = socket_pair().expect("sockets");
            tell.send((sys::gettid(), a.raw(), b.raw())).expect("asked for");
            let _ = wait.recv();
            drop((a, b));
        });
        let (tid, a, b) = told.recv().expect("told");
        let a = sys::fd_of(tid, a);
        let b = sys::fd_of(tid, b);
        drop(done);
        thread.join().expect("ended");
        match (a, b) {
            (Ok(a), Ok(b)) => {
                send(&a, &[]).expect("sent");
                receive(&b, &mut []).expect("received");
            }
            (Err(libc::EBADF), _) => println!("not run: this kernel has no pidfds of threads"),
            (a, b) => panic!("{a:?} {b:?}"),
        }
    }
}
