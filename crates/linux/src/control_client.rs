//! The client's side of the control socket: finds the socket of a process, sends a request, and reads the answers. See
//! [`crate::control`].

use crate::control::{self, PACKET_MAX, Packet, Reply, Request};
use crate::device_spec::FILES_MAX;
use crate::sys;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a process may take to answer. It answers at once unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the end of a process may take after it has closed its socket, which it does early.
const END: Duration = Duration::from_secs(2);

/// Why a request failed. `Display` gives one message.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// The directory of the sockets belongs to somebody else, or others can enter it.
    Directory(PathBuf, String),
    /// Nothing of that name runs.
    NoSuchName(String),
    /// Several programs of that name run.
    Ambiguous(String, Vec<u32>),
    /// The process has no socket.
    NoSocket(u32),
    /// The socket is somebody else's.
    NotPermitted(u32),
    /// Another error of the socket.
    Io(u32, io::Error),
    /// No answer came in time, or one that cannot be read.
    NoAnswer(u32),
    /// There is no such process any more.
    Ended(u32),
    /// The process is still there, but has closed its socket without an answer.
    Closed(u32),
    /// The process refused.
    Refused(String),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Directory(path, why) => {
                write!(
                    f,
                    "the directory of control sockets {} {why}; set XDG_RUNTIME_DIR to a directory of your own",
                    path.display()
                )
            }
            ControlError::NoSuchName(name) => {
                write!(
                    f,
                    "no program of yours with the name {name:?} runs under Overspill; give it one with `overspill run --name`"
                )
            }
            ControlError::Ambiguous(name, pids) => {
                let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
                write!(f, "several programs have the name {name:?}; use one of the process ids {}", pids.join(", "))
            }
            ControlError::NoSocket(pid) => {
                write!(f, "process {pid} has no control socket, so it cannot be asked to change anything")
            }
            ControlError::NotPermitted(pid) => write!(f, "process {pid} belongs to another user; try as its owner or as root"),
            ControlError::Io(pid, error) => write!(f, "the control socket of process {pid}: {error}"),
            ControlError::NoAnswer(pid) => {
                write!(f, "process {pid} does not answer; it may be stopped, or of another version of Overspill")
            }
            ControlError::Ended(pid) => write!(f, "process {pid} has ended"),
            ControlError::Closed(pid) => write!(
                f,
                "process {pid} gave no answer and has closed its control socket; it may have become another program (exec): try again"
            ),
            ControlError::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for ControlError {}

/// The directories where this user's sockets may be. A program and the command that looks for it may have different environments.
pub fn directories() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    // after `sudo` this variable may still name another user's directory
    let is_own = |dir: &PathBuf| std::fs::metadata(dir).is_ok_and(|data| data.uid() == uid);
    let runtime = set("XDG_RUNTIME_DIR").into_iter().chain([format!("/run/user/{uid}").into()]).filter(is_own);
    let others = ["/run".into(), "/tmp".into()].into_iter().chain(set("TMPDIR"));
    let others = others.map(|dir: PathBuf| dir.join(format!("overspill-{uid}")));
    runtime.map(|dir| dir.join("overspill")).chain(others).collect()
}

/// The first of [`directories`] that exists or can be made, and that only this user can enter.
///
/// # Errors
/// [`ControlError::Directory`] for the last of them if there is none.
pub fn make_directory() -> Result<PathBuf, ControlError> {
    let mut failure = None;
    for path in directories() {
        let made = match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => open_directory(&path),
            Err(error) => Err(OpenError::Kernel(error)),
        };
        match made {
            Ok(_) => return Ok(path),
            Err(OpenError::Kernel(error)) => failure = Some(ControlError::Directory(path, format!("cannot be made: {error}"))),
            Err(OpenError::NotPrivate(why)) => failure = Some(ControlError::Directory(path, why.into())),
        }
    }
    Err(failure.expect("there are several"))
}

enum OpenError {
    Kernel(Errno),
    NotPrivate(&'static str),
}

/// Opens the directory and checks that only this user can enter it.
fn open_directory(path: &Path) -> Result<OwnedFd, OpenError> {
    open_directory_of(path, &[my_uid()]).map(|(directory, _)| directory)
}

/// Opens the directory and checks that only one of these users can enter it. Returns which one.
fn open_directory_of(path: &Path, owners: &[u32]) -> Result<(OwnedFd, u32), OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(OpenError::Kernel)?;
    let stat = rustix::fs::fstat(&directory).map_err(OpenError::Kernel)?;
    if !owners.contains(&stat.st_uid) {
        return Err(OpenError::NotPrivate("belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(OpenError::NotPrivate("can be entered by others"));
    }
    Ok((directory, stat.st_uid))
}

/// The sockets in a directory, with their process ids and names.
fn sockets(directory: &OwnedFd) -> io::Result<Vec<(u32, String)>> {
    let mut all = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        if matches!(entry.file_type(), FileType::Socket | FileType::Unknown)
            && let Some((pid, name)) = entry.file_name().to_str().ok().and_then(control::parse_socket_name)
        {
            all.push((pid, name.to_owned()));
        }
    }
    all.sort();
    Ok(all)
}

/// Removes the sockets of processes that have ended: those on which no process listens.
pub fn remove_stale(path: &Path) {
    let Ok(directory) = open_directory(path) else { return };
    for (pid, name) in sockets(&directory).unwrap_or_default() {
        let file = control::socket_name(pid, &name);
        // A living process may be about to bind its socket anew, so its socket stays. And a process that seems to be gone may have
        // that id in another namespace, so the socket is tried.
        if has_ended(pid, Duration::ZERO) && matches!(connect_in(&directory, pid, &name), Err(Errno::CONNREFUSED)) {
            let _ = rustix::fs::unlinkat(&directory, file.as_str(), AtFlags::empty());
        }
    }
}

/// The process of this name.
///
/// # Errors
/// [`ControlError`] if there is none, or more than one.
pub fn find_name(name: &str) -> Result<u32, ControlError> {
    let mut pids = Vec::new();
    let mut failure = ControlError::NoSuchName(name.into());
    if name.is_empty() {
        return Err(failure); // or this would find any program without a name
    }
    for path in directories() {
        let directory = match open_directory(&path) {
            Ok(directory) => directory,
            Err(OpenError::Kernel(_)) => continue,
            Err(OpenError::NotPrivate(why)) => {
                failure = ControlError::Directory(path, why.into());
                continue;
            }
        };
        remove_stale(&path);
        let named = sockets(&directory).unwrap_or_default().into_iter().filter(|s| s.1 == name);
        // take the id of the process that listens, not the one in the file's name: it may be in another process id namespace
        let listeners = named.filter_map(|(pid, _)| listener(&connect_in(&directory, pid, name).ok()?, my_uid()));
        pids.extend(listeners);
    }
    pids.sort_unstable();
    pids.dedup(); // a directory may be among them twice
    match pids[..] {
        [] => Err(failure),
        [pid] => Ok(pid),
        _ => Err(ControlError::Ambiguous(name.into(), pids)),
    }
}

fn connect_in(directory: &OwnedFd, pid: u32, name: &str) -> Result<OwnedFd, Errno> {
    let address = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), control::socket_name(pid, name));
    let address = SocketAddrUnix::new(address.as_str())?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

fn my_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The process that listens at the other end, if it belongs to `owner`.
fn listener(socket: &OwnedFd, owner: u32) -> Option<u32> {
    let peer = sys::peer(socket.as_raw_fd()).ok().filter(|peer| peer.uid == owner)?;
    u32::try_from(peer.pid).ok().filter(|pid| *pid != 0)
}

/// The real, effective and saved user ids of a process.
pub(crate) fn users_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_whitespace().take(3).filter_map(|uid| uid.parse().ok()).collect()
}

/// A connection to a process.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    pid: u32,
}

impl Connection {
    /// Connects to the process. Searches the directories of this user, then the one that the process was started with.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn open(pid: u32) -> Result<Connection, ControlError> {
        let mut directories = directories();
        directories.extend(directory_of(pid));
        let mut failure = ControlError::NoSocket(pid);
        // Root may ask other users' processes, whose sockets are in those users' directories.
        let mut owners = vec![my_uid()];
        if my_uid() == 0 {
            owners.extend(users_of(pid));
        }
        for path in directories {
            let (directory, owner) = match open_directory_of(&path, &owners) {
                Ok(opened) => opened,
                Err(OpenError::Kernel(Errno::ACCESS)) => {
                    failure = ControlError::NotPermitted(pid);
                    continue;
                }
                Err(_) => continue,
            };
            // the socket that has the process id in its name; then all others, for a process in a process id namespace of its own
            let mut sockets = sockets(&directory).unwrap_or_default();
            sockets.sort_by_key(|(number, _)| *number != pid);
            for (number, name) in sockets {
                match connect_in(&directory, number, &name) {
                    Ok(socket) if listener(&socket, owner) != Some(pid) => {}
                    Ok(socket) => {
                        let io = |error: Errno| ControlError::Io(pid, error.into());
                        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))
                            .map_err(io)?;
                        return Ok(Connection { socket, pid });
                    }
                    Err(_) if number != pid => {}
                    Err(Errno::CONNREFUSED | Errno::NOENT) => {}
                    Err(Errno::ACCESS | Errno::PERM) => failure = ControlError::NotPermitted(pid),
                    Err(error) => failure = ControlError::Io(pid, error.into()),
                }
            }
        }
        Err(if has_ended(pid, Duration::ZERO) { ControlError::Ended(pid) } else { failure })
    }

    /// Sends a request, with descriptors if it takes some.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn send(&self, request: &Request<'_>, files: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        let packet: Packet = request.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let result = rustix::net::sendmsg(&self.socket, &[IoSlice::new(packet.bytes())], &mut ancillary, SendFlags::NOSIGNAL);
        match result {
            Ok(_) => Ok(()),
            // the server sent the reason before it hung up; it is read next
            Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(ControlError::Io(self.pid, error.into())),
        }
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// [`ControlError::NoAnswer`], [`ControlError::Ended`], [`ControlError::Closed`]; [`ControlError::Refused`] if the answer is an
    /// error.
    pub fn receive(&self) -> Result<Reply, ControlError> {
        let mut packet = [0u8; PACKET_MAX];
        let n = loop {
            match rustix::net::recv(&self.socket, &mut packet, rustix::net::RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Ok((_, n)) if n > 0 => break n,
                Err(Errno::AGAIN) => return Err(ControlError::NoAnswer(self.pid)),
                // the other end is closed: the process ends, which may take a moment more, or has closed it for another reason
                _ if has_ended(self.pid, END) => return Err(ControlError::Ended(self.pid)),
                _ => return Err(ControlError::Closed(self.pid)),
            }
        };
        match control::parse_reply(&packet[..n]) {
            Some(Reply::Error(why)) => Err(ControlError::Refused(why)),
            Some(reply) => Ok(reply),
            None => Err(ControlError::NoAnswer(self.pid)),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A process. It stays the same one when it has ended and its number is another's.
#[derive(Debug)]
pub struct Process(Result<OwnedFd, Errno>);

impl Process {
    /// The process that has this number now.
    pub fn of(pid: u32) -> Self {
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH);
        Process(process.and_then(|process| rustix::process::pidfd_open(process, PidfdFlags::empty())))
    }

    /// Whether it has ended, or ends within `patience`. A zombie has ended: it cannot answer. Says no, at once, if the kernel gives
    /// no descriptor for it.
    pub fn has_ended(&self, patience: Duration) -> bool {
        let pidfd = match &self.0 {
            Ok(pidfd) => pidfd,
            Err(error) => return *error == Errno::SRCH,
        };
        let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        matches!(rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&patience)), Ok(1))
    }
}

/// Whether the process that has this number now has ended, or ends within `patience`: see [`Process::has_ended`].
pub fn has_ended(pid: u32, patience: Duration) -> bool {
    Process::of(pid).has_ended(patience)
}

/// The directory that `overspill run` gave to the process when it started it.
fn directory_of(pid: u32) -> Option<PathBuf> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = environment.split(|b| *b == 0).find_map(|v| v.strip_prefix(b"OVERSPILL_CONTROL="))?;
    Some(PathBuf::from(OsStr::from_bytes(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// When a forked child ended in the middle of a swapoff, the message was "process 4711 does not answer; it may be stopped":
    /// every failure counted as an answer that did not come in time.
    #[test]
    fn an_ended_process_is_said_to_have_ended() {
        let pair = || {
            let kind = SocketType::SEQPACKET;
            rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("sockets")
        };
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let pid = child.id();
        let connection = || {
            let (socket, other) = pair();
            let patience = Some(Duration::from_millis(20));
            rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, patience).expect("a timeout");
            (Connection { socket, pid }, other)
        };
        let (silent, _other) = connection();
        assert!(matches!(silent.receive(), Err(ControlError::NoAnswer(n)) if n == pid));
        let (closed, other) = connection();
        drop(other);
        assert!(matches!(closed.receive(), Err(ControlError::Closed(n)) if n == pid));
        // it closes its socket a little before it is gone
        let (ending, other) = connection();
        drop(other);
        let ended = std::thread::scope(|scope| {
            let ended = scope.spawn(|| ending.receive());
            std::thread::sleep(Duration::from_millis(100));
            child.kill().expect("kill");
            ended.join().expect("no panic")
        });
        assert!(matches!(ended, Err(ControlError::Ended(n)) if n == pid), "{ended:?}");
        // nobody has waited for it, so it is a zombie, which cannot be asked
        assert!(matches!(Connection::open(pid), Err(ControlError::Ended(_))));
        child.wait().expect("wait");
        assert!(has_ended(pid, Duration::ZERO) && !has_ended(std::process::id(), Duration::ZERO));
    }
}
