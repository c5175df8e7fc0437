//! The server's side of the control socket: one thread per process, which waits in ppoll for requests.
//!
//! The helper thread cannot do this work. It waits on a futex, which the program's threads wake: they have another descriptor table
//! and could not write to one that it polls. And a swapoff may take long, while a fork must not wait for the helper thread. In the
//! agent the server is a bare thread with the pager's descriptor table. So the socket is invisible to the program, and gone at
//! exec.
//!
//! The server holds locks only for one call into the machine, and allocates nothing. It hangs up on a client that does not read its
//! answers.

use crate::control::{self, Kind, PACKET_MAX, Packet, Request};
use crate::credentials::Follower;
use crate::device_spec::FILES_MAX;
use crate::devices::{self, Backing, Description};
use crate::io::Engine;
use crate::machine::Machine;
use crate::same_cpu::Stays;
use crate::swap_file::SwapFiles;
use crate::swapoff::{self, State, Unreadable, Worker};
use crate::sys::{self, Errno, Fd, futex_wait, sys};
use core::fmt::Write;
use core::mem::size_of;
use core::sync::atomic::AtomicU32;
use overspill_vm::policy::SpecError;

/// The most clients at a time.
const CLIENTS_MAX: usize = 8;
/// The server hangs up on a client that has not asked anything for this long, in nanoseconds.
const IDLE_NS: u64 = 10_000_000_000;
/// The interval at which a client is told how far its swapoff is, in nanoseconds.
const PROGRESS_NS: u64 = 100_000_000;
/// After a client could not be let in, nobody is for so long, in nanoseconds.
const LISTENS_AGAIN_NS: u64 = 1_000_000_000;

/// A control socket that is bound and listens.
#[derive(Debug)]
pub struct Listener {
    socket: Fd,
    owner: u32,
}

/// Binds `file` in `directory`, which must be private to this user. Replaces the socket of an earlier process with this id.
///
/// # Errors
/// EPERM if the directory is not the user's own with mode 0700; as open(2), socket(2), bind(2).
pub fn listen(directory: &[u8], file: &[u8]) -> Result<Listener, Errno> {
    let owner = effective_uid();
    let mut path = [0u8; 4200];
    path.get_mut(..directory.len()).ok_or(libc::ENAMETOOLONG)?.copy_from_slice(directory);
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let directory = sys::open(&path[..directory.len() + 1], flags, 0)?;
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the structure has room for what fstat writes, and all-zero bytes are a valid one.
    let stat = unsafe {
        sys!(libc::SYS_fstat, directory.raw(), stat.as_mut_ptr())?;
        stat.assume_init()
    };
    if stat.st_uid != owner || stat.st_mode & 0o077 != 0 {
        return Err(libc::EPERM);
    }
    // The address goes through the directory's descriptor: an address has at most 107 bytes, and so it is surely the directory that
    // was checked.
    let mut address = Packet::new();
    let _ = write!(address, "/proc/thread-self/fd/{}/", directory.raw());
    address.put(file);
    let mut name = [0u8; 256];
    name.get_mut(..file.len()).ok_or(libc::ENAMETOOLONG)?.copy_from_slice(file);
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the calls read the name and the address, which live over them, and no other memory.
    unsafe {
        let socket = Fd::new(sys!(libc::SYS_socket, libc::AF_UNIX, kind, 0)?);
        // The kernel gives the file the mode of the socket, so others cannot connect at any moment.
        sys!(libc::SYS_fchmod, socket.raw(), 0o600)?;
        let _ = sys!(libc::SYS_unlinkat, directory.raw(), name.as_ptr(), 0);
        let mut unix = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
        let text = address.bytes();
        if text.len() >= unix.sun_path.len() {
            return Err(libc::ENAMETOOLONG);
        }
        for (to, from) in unix.sun_path.iter_mut().zip(text) {
            *to = *from as libc::c_char;
        }
        sys!(libc::SYS_bind, socket.raw(), &raw const unix, size_of::<libc::sockaddr_un>())?;
        sys!(libc::SYS_listen, socket.raw(), CLIENTS_MAX)?;
        Ok(Listener { socket, owner })
    }
}

fn effective_uid() -> u32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_geteuid) }.unwrap_or(0) as u32
}

struct Client {
    socket: Fd,
    since: u64,
}

/// What has arrived from a client.
enum Received {
    Nothing,
    End,
    /// A packet of this many bytes.
    Packet(usize),
    TooLong,
}

/// A swapoff under way, and the client that asked for it; `None` if the pager empties a failed device by itself.
struct Job {
    client: Option<usize>,
    worker: Worker,
    told: u64,
}

/// Serves until the machine quits; without a listener no commands, only failed devices. Calls `look` once a second at least, except
/// during a swapoff.
pub fn serve(machine: &Machine, engine: Engine, listener: Option<&Listener>, follower: &mut Follower, look: impl Fn()) {
    let mut clients = [const { None::<Client> }; CLIENTS_MAX];
    let mut job = None;
    let mut listens_at = 0;
    let mut stays = Stays::off(); // a swapoff on the same-CPU handler's CPU would keep faults waiting
    while !machine.shutdown.has_begun() {
        follower.look(&machine.host.following);
        stays.update(&machine.host.wake_policy);
        let mut polls = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; CLIENTS_MAX + 2];
        let now = sys::now_ns();
        polls[CLIENTS_MAX].fd = listener.filter(|_| now >= listens_at).map_or(-1, |listener| listener.socket.raw());
        polls[CLIENTS_MAX + 1].fd = machine.shutdown.event();
        for (poll, client) in polls.iter_mut().zip(&clients) {
            poll.fd = client.as_ref().map_or(-1, |c| c.socket.raw());
        }
        // with a job do not wait: its steps wait by themselves; else look for failed devices once a second
        sys::poll(&mut polls, Some(if job.is_none() { 1_000_000_000 } else { 0 }));
        let now = sys::now_ns();
        for (i, poll) in polls[..CLIENTS_MAX].iter().enumerate() {
            let Some(client) = &mut clients[i] else { continue };
            let works = job.as_ref().is_some_and(|j: &Job| j.client == Some(i));
            let keep = match poll.revents {
                0 => works || now - client.since < IDLE_NS,
                _ => answer(machine, engine, client, i, &mut job, follower),
            };
            if !keep {
                if works && let Some(job) = job.take() {
                    job.worker.end(machine);
                }
                clients[i] = None;
            }
        }
        if let Some(listener) = listener
            && polls[CLIENTS_MAX].revents != 0
        {
            // If a client cannot be let in, because the program may open no more files, it would be seen again at once.
            listens_at = if accept(listener, &mut clients, now).is_ok() { 0 } else { now + LISTENS_AGAIN_NS };
        }
        if job.is_none() {
            look();
            job = failed_device(machine, engine);
        }
        if let Some(running) = &mut job
            && !work(machine, running, &clients, now)
            && let Some(job) = job.take()
        {
            job.worker.end(machine);
        }
    }
    if let Some(job) = job {
        job.worker.end(machine);
    }
}

/// Begins a swapoff of a device that has failed too often, if there is one. If there is no room for its pages, or they cannot be
/// read, they stay.
fn failed_device(machine: &Machine, engine: Engine) -> Option<Job> {
    let worker = Worker::new(machine, engine, machine.failed_devices.take()?, Unreadable::Stay).ok()?;
    Some(Job { client: None, worker, told: 0 })
}

/// Does a step of the swapoff, and tells the client how far it is. Returns whether the swapoff goes on.
fn work(machine: &Machine, job: &mut Job, clients: &[Option<Client>; CLIENTS_MAX], now: u64) -> bool {
    let state = job.worker.step(machine);
    let client = job.client.and_then(|i| clients[i].as_ref());
    let mut packet = Packet::new();
    let _ = match state {
        State::Busy if now.saturating_sub(job.told) < PROGRESS_NS => return true,
        State::Busy => write!(packet, "progress{}", job.worker.progress()),
        State::Done => write!(packet, "ok{}", job.worker.progress()),
        State::Failed(why) => write!(packet, "error {why}"),
    };
    job.told = now;
    let heard = client.is_none_or(|client| send(client, &packet));
    // a client that does not take the message has gone, or soon will
    state == State::Busy && heard
}

/// Lets a client in, or says why not.
///
/// # Errors
/// As accept(2).
fn accept(listener: &Listener, clients: &mut [Option<Client>; CLIENTS_MAX], now: u64) -> Result<(), Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    let socket = unsafe { sys!(libc::SYS_accept4, listener.socket.raw(), 0, 0, flags) }?;
    let client = Client { socket: Fd::new(socket), since: now };
    if !sys::peer(client.socket.raw()).is_ok_and(|peer| [listener.owner, 0].contains(&peer.uid)) {
        refuse(&client, format_args!("this process belongs to user {}; ask as that user or as root", listener.owner));
    } else if let Some(free) = clients.iter_mut().find(|c| c.is_none()) {
        *free = Some(client);
        return Ok(());
    } else {
        refuse(&client, format_args!("{CLIENTS_MAX} others are asking this process already; try again"));
    }
    // Read what the client has already sent: if a socket is closed with unread data, the client does not get the answer.
    let mut packet = [0u8; PACKET_MAX];
    while let (Received::Packet(_) | Received::TooLong, _) = receive(&client, &mut packet) {}
    Ok(())
}

/// Reads one packet and answers it. Returns whether the client stays.
fn answer(
    machine: &Machine,
    engine: Engine,
    client: &mut Client,
    index: usize,
    job: &mut Option<Job>,
    follower: &mut Follower,
) -> bool {
    let now = sys::now_ns();
    client.since = now;
    let mut packet = [0u8; PACKET_MAX];
    let (received, files) = receive(client, &mut packet);
    let len = match received {
        Received::Nothing => return true,
        Received::End => return false,
        Received::TooLong => return refuse(client, format_args!("the request is longer than {PACKET_MAX} bytes")),
        Received::Packet(len) => len,
    };
    match control::parse_request(&packet[..len]) {
        Err(error) => refuse(client, format_args!("{error}")),
        Ok(Request::Swaps) => {
            let packet = |d: Description| control::device_packet(d.kind.name(), d.state, d.priority, &d.figures, d.name.bytes());
            devices::each(machine).all(|device| send(client, &packet(device))) && send(client, &ok())
        }
        Ok(Request::Swapon { kind, bytes, priority, align, algorithm, name }) => {
            let backing = match (kind, files) {
                (Kind::Compressed, _) if (1..4096).contains(&bytes) => {
                    return refuse(client, format_args!("compressed memory of less than a page is none"));
                }
                (Kind::Compressed, _) => match Backing::memory(machine, (bytes > 0).then_some(bytes & !4095), algorithm) {
                    Ok(memory) => memory,
                    Err(e) => return refuse(client, format_args!("there is no address space for so much (error {e})")),
                },
                (_, [None, ..]) => return refuse(client, format_args!("no descriptor came with the request")),
                (_, files) => match SwapFiles::from_fds(files.into_iter().flatten(), bytes, kind, align) {
                    Ok(files) => Backing::Files(files),
                    Err(_) => return refuse(client, format_args!("what came with the request is not a {}", kind.name())),
                },
            };
            let added = devices::add(machine, backing, name, priority, || {
                follower.look(&machine.host.following); // a fork may wait for a thread that waits for this one to follow
                match job {
                    Some(job) => _ = job.worker.step(machine), // its end is answered again in `work`
                    None => futex_wait(&AtomicU32::new(0), 0, 1_000_000),
                }
            });
            match added {
                Ok(_) => send(client, &ok()),
                Err(why) => refuse(client, format_args!("{why}")),
            }
        }
        Ok(Request::Swapoff(name)) => {
            if job.as_ref().is_some_and(|job| job.client.is_some()) {
                return refuse(client, format_args!("another swapoff is under way in this process; try again when it has ended"));
            }
            let Some(device) = devices::find(machine, name) else {
                return refuse(client, format_args!("this process has no such swap device; `overspill swaps` shows those it has"));
            };
            if let Some(Job { worker, .. }) = job.take() {
                let failed = worker.device();
                worker.end(machine);
                if failed != device {
                    machine.failed_devices.add(failed); // its turn comes again when this swapoff has ended
                }
            }
            match Worker::new(machine, engine, device, Unreadable::Lost) {
                Ok(worker) => {
                    *job = Some(Job { client: Some(index), worker, told: now });
                    true
                }
                Err(why) => refuse(client, format_args!("{why}")),
            }
        }
        Ok(Request::Policy(text)) => match text.parse() {
            Ok(spec) => {
                machine.set_policy(&spec);
                send(client, &ok())
            }
            Err(why) => {
                let why: SpecError = why;
                refuse(client, format_args!("{why}"))
            }
        },
        Ok(Request::Cancel) => match job.take_if(|j| j.client == Some(index)) {
            Some(job) => {
                job.worker.end(machine);
                refuse(client, format_args!("{}", swapoff::Failure::Cancelled))
            }
            None => refuse(client, format_args!("no swapoff of yours is under way in this process")),
        },
    }
}

fn ok() -> Packet {
    let mut packet = Packet::new();
    packet.put(b"ok");
    packet
}

fn refuse(client: &Client, why: core::fmt::Arguments<'_>) -> bool {
    let mut packet = Packet::new();
    let _ = write!(packet, "error {why}");
    send(client, &packet)
}

/// Sends a packet without waiting. Returns whether the client took it.
fn send(client: &Client, packet: &Packet) -> bool {
    let bytes = packet.bytes();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: reads the packet only.
    unsafe { sys!(libc::SYS_sendto, client.socket.raw(), bytes.as_ptr(), bytes.len(), flags, 0, 0) }.is_ok()
}

/// Receives one packet and the descriptors that came with it, in order. (The kernel closes those for which there is no room.)
fn receive(client: &Client, packet: &mut [u8; PACKET_MAX]) -> (Received, [Option<Fd>; FILES_MAX]) {
    #[repr(C, align(8))]
    struct Ancillary {
        head: libc::cmsghdr,
        files: [i32; FILES_MAX],
    }
    let mut iov = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    // SAFETY: all-zero bytes are valid for both structures: integers and null pointers.
    let (mut ancillary, mut message) = unsafe { (core::mem::zeroed::<Ancillary>(), core::mem::zeroed::<libc::msghdr>()) };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut ancillary).cast();
    message.msg_controllen = size_of::<Ancillary>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes within the packet and the ancillary structure, which live over the call.
    let result = unsafe { sys!(libc::SYS_recvmsg, client.socket.raw(), &raw mut message, flags) };
    let mut files = [const { None }; FILES_MAX];
    let head = &ancillary.head;
    if result.is_ok()
        && message.msg_controllen >= size_of::<libc::cmsghdr>()
        && (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
    {
        let count = (head.cmsg_len - size_of::<libc::cmsghdr>()) / size_of::<i32>();
        for (file, &fd) in files.iter_mut().zip(ancillary.files.iter().take(count)) {
            *file = Some(Fd::new(fd as usize));
        }
    }
    let received = match result {
        Ok(0) => Received::End,
        Ok(_) if message.msg_flags & libc::MSG_TRUNC != 0 => Received::TooLong,
        Ok(n) => Received::Packet(n),
        Err(libc::EAGAIN | libc::EINTR) => Received::Nothing,
        Err(_) => Received::End,
    };
    (received, files)
}
