//! The protocol of the control sockets, and where these sockets are.
//!
//! Each paged process has a Unix socket (SOCK_SEQPACKET: packets keep their bounds), mode 0600, in a directory that only its owner
//! can enter. The socket's name has the process id, and the name from `overspill run --name`:
//!
//! ```text
//!   $XDG_RUNTIME_DIR/overspill/    else /run/user/UID/overspill/, /run/overspill-UID/ (root can make it), /tmp/overspill-UID/,
//!       4711.sock                  $TMPDIR/overspill-UID/
//!       4712.nightly.sock          directory 0700, sockets 0600, the user's
//! ```
//!
//! A process uses the first of these directories that it can make or enter; commands search all of them. A descendant of the
//! program gets its socket when it is 0.2 s old, so that short-lived ones leave none behind. The next `overspill` command removes
//! sockets that were left behind.
//!
//! A request is one packet of text, at most [`PACKET_MAX`] bytes: the protocol's version, a verb, and its words, with a space
//! between them. A name goes to the end of the packet, so it may have spaces. Answers are packets, too: any number of `device` or
//! `progress`, then one `ok` or `error`. If a client goes away, its swapoff is given up.
//!
//! ```text
//!   request                                            answers
//!   overspill/1 swaps                                  device KEY=VALUE ... name=NAME    for each, then ok
//!   overspill/1 swapon KIND BYTES PRIORITY NAME        ok                (BYTES 0: no limit; of memory, as much as pays;
//!                                                                         its files' descriptors come along,
//!                                                                         SCM_RIGHTS, one to 8, but none with the kind
//!                                                                         "compressed", which is memory;
//!                                                                         KIND block, file, or file,align=extents; compressed,
//!                                                                         or compressed,algo=ALGO as in a device)
//!   overspill/1 swapoff NAME                           progress KEY=VALUE ...   ten a second, then ok KEY=VALUE ...
//!   overspill/1 policy SPEC                            ok                (as for --policy)
//!   overspill/1 cancel                                 (while a swapoff of this client's runs) it ends with an error
//!   anything else, or what cannot be done              error MESSAGE
//! ```
//!
//! File modes are not the only protection: each side checks who the other is (SO_PEERCRED). The server answers the user that the
//! process was when it began to listen, and root. The client asks only the process that is meant. Another user can be first with
//! the name of a directory under /tmp, or with a socket of that process id. The client does not use such a directory, and it sends
//! nothing to a server that has another process id. The *client* opens the files of a new device, with its own rights and flags,
//! and passes their descriptors. So `swapon` works in a program that has changed its root or its user, and a process never opens a
//! name that another process sent.
//!
//! Nothing here allocates on the server's side, and no packet makes either side panic (tests and `fuzz/` throw random ones).

use crate::device_spec::{Algorithm, NAME_MAX};
use core::fmt::{self, Write};
use overspill_machine::figures;
pub use overspill_machine::packet::{PACKET_MAX, Packet};
pub use overspill_machine::swapoff::Progress;

/// What every request begins with.
const VERSION: &[u8] = b"overspill/1 ";
/// The kind of a file whose clusters end where its physical extents do.
const ALIGNED: &[u8] = b"file,align=extents";
/// The kind of compressed memory, before the algorithm.
const ALGORITHM: &[u8] = b"compressed,algo=";
/// The longest name of a program, in bytes.
pub const PROGRAM_NAME_MAX: usize = 32;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// List the devices.
    Swaps,
    /// Add a device. Its descriptors come with the packet.
    Swapon {
        /// `file`, `block` or `compressed`.
        kind: Kind,
        /// The most it may hold, in bytes; 0: no limit.
        bytes: u64,
        /// Higher ones are used first.
        priority: i16,
        /// Of a file: whether clusters end where its physical extents do.
        align: bool,
        /// Of compressed memory: how its pages are packed.
        algorithm: Algorithm,
        /// Its name.
        name: &'a [u8],
    },
    /// Move everything off the device of this name, and give it up.
    Swapoff(&'a [u8]),
    /// Replace pages by this policy from now on.
    Policy(&'a str),
    /// Cancel this client's swapoff.
    Cancel,
}

/// Kinds of devices, as the machine tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file that grows.
    File,
    /// A block device.
    Block,
    /// Compressed memory.
    Compressed,
}

impl Kind {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Block => "block",
            Kind::Compressed => "compressed",
        }
    }
    fn parse(word: &[u8]) -> Option<Kind> {
        [Kind::File, Kind::Block, Kind::Compressed].into_iter().find(|k| k.name().as_bytes() == word)
    }
}

/// Why a packet is no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// It is not of this protocol, or of another version.
    Version,
    /// The verb is not known.
    Verb,
    /// Its words are not what the verb takes.
    Words,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RequestError::Version => "this process speaks version 1 of the control protocol; use the `overspill` that started it",
            RequestError::Verb => "this process does not know that request; use the `overspill` that started it",
            RequestError::Words => "the request is malformed",
        })
    }
}

/// Reads a request.
///
/// # Errors
/// [`RequestError`].
pub fn parse_request(packet: &[u8]) -> Result<Request<'_>, RequestError> {
    let text = packet.strip_prefix(VERSION).ok_or(RequestError::Version)?;
    let (verb, rest) = word(text);
    let bare = |request| if rest.is_empty() { Ok(request) } else { Err(RequestError::Words) };
    match verb {
        b"swaps" => bare(Request::Swaps),
        b"cancel" => bare(Request::Cancel),
        b"swapoff" => Ok(Request::Swapoff(device_name(rest)?)),
        b"policy" if !rest.is_empty() => Ok(Request::Policy(core::str::from_utf8(rest).map_err(|_| RequestError::Words)?)),
        b"policy" => Err(RequestError::Words),
        b"swapon" => {
            let (kind, rest) = word(rest);
            let (bytes, rest) = word(rest);
            let (priority, name) = word(rest);
            let align = kind == ALIGNED;
            let (kind, algorithm) = match kind.strip_prefix(ALGORITHM) {
                Some(name) => {
                    let name = core::str::from_utf8(name).ok();
                    (Kind::Compressed, name.and_then(Algorithm::parse).ok_or(RequestError::Words)?)
                }
                None if align => (Kind::File, Algorithm::default()),
                None => (Kind::parse(kind).ok_or(RequestError::Words)?, Algorithm::default()),
            };
            Ok(Request::Swapon {
                kind,
                align,
                algorithm,
                bytes: number(bytes).ok_or(RequestError::Words)?,
                priority: number(priority).ok_or(RequestError::Words)?,
                name: device_name(name)?,
            })
        }
        _ => Err(RequestError::Verb),
    }
}

fn word(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|b| *b == b' ') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    }
}

fn number<T: core::str::FromStr>(word: &[u8]) -> Option<T> {
    core::str::from_utf8(word).ok()?.parse().ok()
}

fn device_name(rest: &[u8]) -> Result<&[u8], RequestError> {
    let good = !rest.is_empty() && rest.len() <= NAME_MAX && !rest.contains(&0);
    if good { Ok(rest) } else { Err(RequestError::Words) }
}

impl Request<'_> {
    /// The packet that [`parse_request`] reads back.
    pub fn encode(&self) -> Packet {
        let mut packet = Packet::new();
        packet.put(VERSION);
        match self {
            Request::Swaps => packet.put(b"swaps"),
            Request::Cancel => packet.put(b"cancel"),
            Request::Swapoff(name) => packet.put(b"swapoff ").put(name),
            Request::Policy(spec) => packet.put(b"policy ").put(spec.as_bytes()),
            Request::Swapon { kind, bytes, priority, align, algorithm, name } => {
                packet.put(b"swapon ");
                if *algorithm != Algorithm::default() {
                    let _ = write!(packet.put(ALGORITHM), "{algorithm}");
                } else {
                    packet.put(if *align { ALIGNED } else { kind.name().as_bytes() });
                }
                let _ = write!(packet, " {bytes} {priority} ");
                packet.put(name)
            }
        };
        packet
    }
}

figures! {
    /// What a device has done.
    Figures {
        /// Its number in this process.
        number,
        /// The most it may hold, in bytes.
        size_bytes,
        /// What it holds, in bytes.
        used_bytes,
        /// Pages read from it.
        pages_in,
        /// Pages written to it.
        pages_out,
        /// Bytes read from it; on a compressed device those of the packed pages.
        bytes_in,
        /// Bytes written to it, counted in the same way.
        bytes_out,
        /// Reads issued.
        reads,
        /// Writes issued.
        writes,
        /// Reads that failed.
        read_errors,
        /// Writes that failed.
        write_errors,
        /// Half of the reads were faster, in nanoseconds.
        read_p50_ns,
        /// 99 of 100 reads were faster, in nanoseconds.
        read_p99_ns,
        /// Half of the writes were faster, in nanoseconds.
        write_p50_ns,
        /// 99 of 100 writes were faster, in nanoseconds.
        write_p99_ns,
        /// How many of its free slots lie in holes too short for a whole cluster, in thousandths.
        fragmented_permille,
        /// Files or block devices that it is made of; 0 if it is memory.
        files,
        /// Pieces that it is made of, none of which an operation crosses; 0 if it is one whole.
        extents,
        /// What was given back to the file system over time, in bytes.
        given_back_bytes,
        /// 1 if its pieces are the file's physical extents.
        aligned,
        /// 1 if they should be, but the file system does not say where its extents lie.
        align_refused,
        /// On a compressed device: pages stored. On other devices this and all that follow are 0.
        stored_pages,
        /// The bytes that they take, without overhead.
        packed_bytes,
        /// Pages among them that are one word repeated, and take no room.
        same_filled_pages,
        /// Pages that did not compress and went to another device.
        refused_pages,
        /// Pages that went on to another device to make room.
        written_back_pages,
        /// Pages stored per page of memory that holds them, in thousandths.
        ratio_permille,
        /// Memory that holds no compressed page, in bytes.
        overhead_bytes,
    }
}

/// One device of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Device {
    /// Kind.
    pub kind: String,
    /// `on`, `full`, `leaving`, `failing`, or `inherited`.
    pub state: String,
    /// Higher ones are used first.
    pub priority: i16,
    /// Its numbers.
    pub figures: Figures,
    /// What it is called: any bytes.
    pub name: Vec<u8>,
}

/// Writes a `device` packet.
pub fn device_packet(kind: &str, state: &str, priority: i16, figures: &Figures, name: &[u8]) -> Packet {
    let mut packet = Packet::new();
    let _ = write!(packet, "device kind={kind} state={state} priority={priority}{figures} name=");
    packet.put(name);
    packet
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "one is alive at a time, and nothing here allocates")]
pub enum Reply {
    /// One of the devices.
    Device(Device),
    /// How far the swapoff is.
    Progress(Progress),
    /// Done; for a swapoff with its figures.
    Ok(Progress),
    /// Not done: a message that says why.
    Error(String),
}

/// Reads an answer; `None` if the packet is none. Unknown keys are skipped: they come from a later version.
pub fn parse_reply(packet: &[u8]) -> Option<Reply> {
    let (verb, mut rest) = word(packet);
    if verb == b"error" {
        return Some(Reply::Error(String::from_utf8_lossy(rest).into_owned()));
    }
    let mut progress = Progress::default();
    let mut device = Device::default();
    while !rest.is_empty() {
        if let Some(name) = rest.strip_prefix(b"name=") {
            device.name = name.to_vec();
            break;
        }
        let (pair, next) = word(rest);
        rest = next;
        let at = pair.iter().position(|b| *b == b'=')?;
        let (key, value) = (&pair[..at], &pair[at + 1..]);
        match key {
            b"kind" => device.kind = String::from_utf8_lossy(value).into_owned(),
            b"state" => device.state = String::from_utf8_lossy(value).into_owned(),
            b"priority" => device.priority = number(value)?,
            _ => {
                let value = number(value)?;
                device.figures.set(key, value);
                progress.set(key, value);
            }
        }
    }
    match verb {
        b"device" if !device.name.is_empty() => Some(Reply::Device(device)),
        b"progress" => Some(Reply::Progress(progress)),
        b"ok" => Some(Reply::Ok(progress)),
        _ => None,
    }
}

/// What is wrong with the name of a program, as the rest of a sentence; `None` if nothing is.
pub fn program_name_trouble(name: &str) -> Option<&'static str> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    if name.is_empty() || name.len() > PROGRAM_NAME_MAX || !name.bytes().all(good) || name.starts_with(['.', '-']) {
        return Some(
            "is not a name; write up to 32 letters, digits, dots, dashes or underscores, none of the first two signs in front",
        );
    }
    name.bytes().all(|b| b.is_ascii_digit()).then_some("is a number, which would be taken for a process id; write a letter too")
}

/// The file name of a process's socket.
pub fn socket_name(pid: u32, name: &str) -> String {
    if name.is_empty() { format!("{pid}.sock") } else { format!("{pid}.{name}.sock") }
}

/// The inverse of [`socket_name`].
pub fn parse_socket_name(file: &str) -> Option<(u32, &str)> {
    let stem = file.strip_suffix(".sock")?;
    let (pid, name) = stem.split_once('.').unwrap_or((stem, ""));
    let plain = !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit());
    Some((pid.parse().ok().filter(|_| plain)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests() {
        for (text, request) in [
            (&b"overspill/1 swaps"[..], Ok(Request::Swaps)),
            (b"overspill/1 swapoff /a b", Ok(Request::Swapoff(b"/a b"))),
            (b"overspill/1 policy 2q:kin=0.2", Ok(Request::Policy("2q:kin=0.2"))),
            (b"overspill/1 policy ", Err(RequestError::Words)),
            (b"overspill/1 policy \xff", Err(RequestError::Words)),
            (
                b"overspill/1 swapon block 4096 -7 /dev/x y",
                Ok(Request::Swapon {
                    kind: Kind::Block,
                    bytes: 4096,
                    priority: -7,
                    align: false,
                    algorithm: Algorithm::default(),
                    name: b"/dev/x y",
                }),
            ),
            (
                b"overspill/1 swapon file,align=extents 0 1 /x",
                Ok(Request::Swapon {
                    kind: Kind::File,
                    bytes: 0,
                    priority: 1,
                    align: true,
                    algorithm: Algorithm::default(),
                    name: b"/x",
                }),
            ),
            (b"overspill/1 swapon block,align=extents 0 1 /x", Err(RequestError::Words)),
            (b"overspill/2 swaps", Err(RequestError::Version)),
            (b"", Err(RequestError::Version)),
            (b"overspill/1 ", Err(RequestError::Verb)),
            (b"overspill/1 swaps now", Err(RequestError::Words)),
            (b"overspill/1 swapoff ", Err(RequestError::Words)),
            (b"overspill/1 swapoff a\0b", Err(RequestError::Words)),
            (b"overspill/1 swapon file 1x 0 /a", Err(RequestError::Words)),
            (b"overspill/1 swapon file 1 99999 /a", Err(RequestError::Words)),
            (b"overspill/1 swapon tape 1 0 /a", Err(RequestError::Words)),
            (b"overspill/1 swapon file 1 0", Err(RequestError::Words)),
        ] {
            assert_eq!(parse_request(text), request, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn names_of_programs_and_sockets() {
        assert!(program_name_trouble("nightly-2.b_1").is_none());
        for bad in ["", "4711", "a/b", ".a", "-a", "a b", "\u{e4}", "abcdefghijklmnopqrstuvwxyz1234567"] {
            assert!(program_name_trouble(bad).is_some(), "{bad}");
        }
        for (pid, name) in [(1, ""), (4711, "a"), (7, "a.b"), (u32::MAX, "x.sock")] {
            assert_eq!(parse_socket_name(&socket_name(pid, name)), Some((pid, name)));
        }
        for bad in ["", "sock", ".sock", "x.sock", "+1.sock", "1.sock.tmp", "99999999999.sock"] {
            assert_eq!(parse_socket_name(bad), None, "{bad}");
        }
    }

    /// With two more figures the packet would have been cut off silently.
    #[test]
    fn the_longest_answer_fits() {
        let mut figures = Figures::default();
        let names: Vec<_> = figures.each().map(|(name, _)| name).collect();
        names.iter().for_each(|name| figures.set(name.as_bytes(), u64::MAX));
        let name = [b'n'; NAME_MAX];
        let packet = device_packet("compressed", "inherited", i16::MIN, &figures, &name);
        assert!(packet.bytes().len() < PACKET_MAX, "{}", packet.bytes().len());
        assert!(matches!(parse_reply(packet.bytes()), Some(Reply::Device(d)) if d.name == name && d.figures == figures));
    }

    proptest! {
        #[test]
        fn what_is_asked_is_understood(
            name in prop::collection::vec(1..255u8, 1..NAME_MAX + 1),
            bytes: u64, priority: i16, kind in 0..3usize, align: bool, level in 0..21u8,
        ) {
            let kind = [Kind::File, Kind::Block, Kind::Compressed][kind];
            let align = align && kind == Kind::File;
            let algorithm = match level {
                _ if kind != Kind::Compressed => Algorithm::default(),
                0 => Algorithm::Words,
                1 => Algorithm::Lz4,
                level => Algorithm::Zstd(level - 1),
            };
            for request in [Request::Swapoff(&name), Request::Swapon { kind, bytes, priority, align, algorithm, name: &name }] {
                let packet = request.encode();
                prop_assert_eq!(parse_request(packet.bytes()), Ok(request));
            }
        }

        #[test]
        fn what_is_answered_is_understood(name in prop::collection::vec(1..255u8, 1..NAME_MAX + 1), numbers: [u64; 9], p: [u64; 5], more: [u64; 7], pool: [u64; 7], priority: i16) {
            let [number, size_bytes, used_bytes, pages_in, pages_out, reads, writes, read_errors, write_errors] = numbers;
            let [read_p50_ns, read_p99_ns, write_p50_ns, write_p99_ns, fragmented_permille] = p;
            let [files, extents, given_back_bytes, aligned, align_refused, bytes_in, bytes_out] = more;
            let [stored_pages, packed_bytes, same_filled_pages, refused_pages, written_back_pages, ratio_permille, overhead_bytes] = pool;
            let figures = Figures {
                number, size_bytes, used_bytes, pages_in, pages_out, reads, writes, read_errors, write_errors,
                read_p50_ns, read_p99_ns, write_p50_ns, write_p99_ns, fragmented_permille,
                files, extents, given_back_bytes, aligned, align_refused, bytes_in, bytes_out,
                stored_pages, packed_bytes, same_filled_pages, refused_pages, written_back_pages, ratio_permille, overhead_bytes,
            };
            let packet = device_packet("file", "on", priority, &figures, &name);
            let device = Device { kind: "file".into(), state: "on".into(), priority, figures, name };
            prop_assert_eq!(parse_reply(packet.bytes()), Some(Reply::Device(device)));
        }

        #[test]
        fn no_packet_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100), verb in 0..8usize) {
            let verbs = ["", "overspill/1 ", "overspill/1 swapon ", "overspill/1 swapoff ", "device ", "progress ", "ok ", "error "];
            let mut packet = verbs[verb].as_bytes().to_vec();
            packet.extend(bytes);
            if let Ok(request) = parse_request(&packet) {
                // numbers may be written in other ways ("+1"), but mean the same
                let packet = request.encode();
                prop_assert_eq!(parse_request(packet.bytes()), Ok(request));
            }
            let _ = parse_reply(&packet);
        }
    }
}
