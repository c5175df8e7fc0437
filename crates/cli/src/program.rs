//! Finds a program, and tells beforehand whether the agent can be loaded into it.
//!
//! The dynamic loader that a program names obeys LD_PRELOAD. So it *silently* has no effect on programs that are statically linked,
//! of another architecture or C library, or run with more rights than their caller. This module recognises each of them.
//!
//! ```text
//! NAME --find--> file --examine--> ELF: class, machine, PT_INTERP, set-id bits, file capabilities
//!                       |    ^
//!                       |    +--- #!/path/interpreter [argument]     as often as the kernel follows it
//!                       +-------- #!/usr/bin/env NAME                env itself, and then what env starts
//! ```
//!
//! It lets through what it cannot know: programs that a program starts later, and binfmt_misc. This is not a security check: the
//! file may change before it is started.

use object::elf::{DT_STRSZ, DT_STRTAB, EM_X86_64, ET_DYN, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};
use overspill_linux::sanitizers::SANITIZERS;
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many times the kernel goes from a script to its interpreter (`BINPRM` recursion in `fs/exec.c`).
const SCRIPTS_MAX: u32 = 5;
/// The kernel reads this much of a script's first line.
const LINE_MAX: u64 = 256;
/// The most bytes to read of the names that a program asks its loader for. Browsers have some MiB of them.
const NAMES_MAX: u64 = 64 << 20;
/// The default of `PATH`, as in glibc's execvp.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// Why a program was not found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotFound {
    /// There is no such file. By convention exit status 127.
    Missing,
    /// The file cannot be executed. By convention exit status 126.
    NotExecutable(PathBuf),
}

/// Finds the file that `execvp` would start for `name`, given the value of `PATH`.
///
/// # Errors
/// [`NotFound`] tells a missing file from one that cannot be executed.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NotFound> {
    let mut denied = None;
    let mut look = |file: PathBuf| {
        let Ok(data) = fs::metadata(&file) else {
            return None;
        };
        let executable = rustix::fs::accessat(CWD, &file, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
        if data.is_file() && executable {
            return Some(file);
        }
        denied.get_or_insert(file);
        None
    };
    if name.as_bytes().contains(&b'/') {
        if let Some(file) = look(name.into()) {
            return Ok(file);
        }
    } else if !name.is_empty() {
        for directory in path.unwrap_or(OsStr::new(PATH_DEFAULT)).as_bytes().split(|b| *b == b':') {
            // An empty entry is the working directory. Joined by hand, because `./name` must keep its slash.
            let directory = if directory.is_empty() { b"." } else { directory };
            let mut file = OsString::from_vec(directory.to_vec());
            file.push("/");
            file.push(name);
            let file = PathBuf::from(file);
            if file.is_dir() {
                continue; // A directory of that name does not count as "not executable".
            }
            if let Some(file) = look(file) {
                return Ok(file);
            }
        }
    }
    Err(denied.map_or(NotFound::Missing, NotFound::NotExecutable))
}

/// Why the agent cannot be loaded into a program.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unfit {
    /// It names no dynamic loader.
    Static,
    /// 32 bits instead of 64, or the other way round.
    Bits(u8),
    /// Another processor; its number in `e_machine`.
    Machine(u16),
    /// It would run under another user id.
    SetUserId,
    /// It would run under another group id.
    SetGroupId,
    /// It would gain capabilities.
    Capabilities,
    /// Its loader belongs to another C library than the agent's.
    Library(PathBuf),
    /// It is built with this sanitizer, which gets its memory without libc.
    Sanitizer(&'static str),
    /// Its loader or interpreter does not exist, so it cannot start at all. By convention exit status 127.
    NoInterpreter(PathBuf),
    /// An ELF header that makes no sense.
    Damaged,
    /// It can be executed but not read, so nothing is known about it. (The agent is loaded into it, but may not patch libc there:
    /// the kernel gives its /proc/self/mem to root.)
    Unreadable,
}

impl Unfit {
    /// Whether the program could not run without Overspill either.
    pub fn is_broken(&self) -> bool {
        matches!(self, Unfit::NoInterpreter(_))
    }
}

impl fmt::Display for Unfit {
    /// The rest of a sentence whose subject is the program.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Static => f.write_str("is statically linked, and the agent comes in by dynamic linking"),
            Unfit::Bits(n) => write!(f, "is a {n}-bit program, and the agent has {} bits", usize::BITS),
            Unfit::Machine(n) => match machine_name(*n) {
                Some(name) => write!(f, "is for another processor ({name})"),
                None => write!(f, "is for another processor (ELF machine {n})"),
            },
            Unfit::SetUserId => {
                f.write_str("runs under its owner's user id (set-uid), and the system loads no agent into such programs")
            }
            Unfit::SetGroupId => {
                f.write_str("runs under its own group id (set-gid), and the system loads no agent into such programs")
            }
            Unfit::Capabilities => f.write_str("has file capabilities, and the system loads no agent into such programs"),
            Unfit::Library(loader) => write!(f, "is for another C library (its loader is {}) than the agent", loader.display()),
            Unfit::Sanitizer(name) => write!(f, "is built with {name}, which gets its memory past the C library"),
            Unfit::NoInterpreter(path) => {
                write!(f, "needs {}, which does not exist", path.display())
            }
            Unfit::Damaged => f.write_str("is not a valid ELF file"),
            Unfit::Unreadable => {
                f.write_str("may be executed but not read, and the system does not let the agent change what such a program does")
            }
        }
    }
}

impl std::error::Error for Unfit {}

/// The kind of an executable file, as far as this module needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A program or library with a dynamic loader.
    Dynamic(PathBuf),
    /// The agent cannot be loaded.
    Unfit(Unfit),
    /// A script; the interpreter and its argument.
    Script(PathBuf, Option<OsString>),
    /// Neither: `execvp` gives it to the shell.
    Other,
}

fn machine_name(machine: u16) -> Option<&'static str> {
    Some(match machine {
        3 => "32-bit x86",
        8 => "MIPS",
        20 => "PowerPC",
        21 => "64-bit PowerPC",
        22 => "S/390",
        40 => "32-bit Arm",
        62 => "x86-64",
        183 => "64-bit Arm",
        243 => "RISC-V",
        258 => "LoongArch",
        _ => return None,
    })
}

/// The kind of a file. `None` if it cannot be read.
fn kind_of<'a>(file: impl ReadRef<'a>) -> Option<Kind> {
    let head = file.read_bytes_at(0, file.len().ok()?.min(LINE_MAX)).ok()?;
    if let Some(line) = head.strip_prefix(b"#!") {
        return Some(script(line));
    }
    if !head.starts_with(b"\x7fELF") {
        return Some(Kind::Other);
    }
    Some(loader(file).map_or_else(Kind::Unfit, Kind::Dynamic))
}

type Header = FileHeader64<Endianness>;

/// The header of an ELF file for this processor, and its byte order.
fn header<'a>(file: impl ReadRef<'a>) -> Result<(&'a Header, Endianness), Unfit> {
    match FileKind::parse(file) {
        Ok(FileKind::Elf64) => {}
        Ok(FileKind::Elf32) => return Err(Unfit::Bits(32)),
        _ => return Err(Unfit::Damaged),
    }
    let header = Header::parse(file).map_err(|_| Unfit::Damaged)?;
    let endian = header.endian().map_err(|_| Unfit::Damaged)?;
    match header.e_machine(endian) {
        EM_X86_64 if endian == Endianness::Little => Ok((header, endian)),
        other => Err(Unfit::Machine(other.0)),
    }
}

/// The dynamic loader that a program names.
fn loader<'a>(file: impl ReadRef<'a>) -> Result<PathBuf, Unfit> {
    let (header, endian) = header(file)?;
    let segments = header.program_headers(endian, file).map_err(|_| Unfit::Damaged)?;
    let names_loader = segments.iter().find(|segment| segment.p_type(endian) == PT_INTERP).ok_or(Unfit::Static)?;
    let path = names_loader.data(endian, file).map_err(|()| Unfit::Damaged)?;
    // Bounds as in the kernel's load_elf_binary: PATH_MAX, and at least one character and the zero.
    if !(2..=4096).contains(&path.len()) {
        return Err(Unfit::Damaged);
    }
    let path = path.split(|byte| *byte == 0).next().unwrap_or(path);
    Ok(OsStr::from_bytes(path).into())
}

/// Why the file cannot be loaded as a library into programs of this processor; `None` if it can, as far as its headers tell.
///
/// # Errors
/// Those of opening it.
pub fn examine_library(file: &Path) -> io::Result<Option<Unfit>> {
    Ok(library_trouble(&ReadCache::new(File::open(file)?)))
}

fn library_trouble<'a>(file: impl ReadRef<'a>) -> Option<Unfit> {
    let (header, endian) = match header(file) {
        Ok(found) => found,
        Err(why) => return Some(why),
    };
    let (Ok(segments), Ok(length)) = (header.program_headers(endian, file), file.len()) else { return Some(Unfit::Damaged) };
    // a file that was copied in part has the headers, but its segments end behind the file
    let is_there = |segment: &<Header as FileHeader>::ProgramHeader| {
        let (at, size) = segment.file_range(endian);
        at.checked_add(size).is_some_and(|end| end <= length)
    };
    let is_library = header.e_type(endian) == ET_DYN && !segments.is_empty();
    (!is_library || !segments.iter().all(is_there)).then_some(Unfit::Damaged)
}

/// What follows `#!`: an interpreter, and the rest of the line as one argument.
fn script(line: &[u8]) -> Kind {
    let end = line.iter().position(|b| *b == b'\n').unwrap_or(line.len());
    let line = line[..end].trim_ascii();
    let split = line.iter().position(|b| *b == b' ' || *b == b'\t').unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(split);
    if interpreter.is_empty() {
        return Kind::Other;
    }
    let argument = argument.trim_ascii();
    Kind::Script(OsStr::from_bytes(interpreter).into(), (!argument.is_empty()).then(|| OsStr::from_bytes(argument).into()))
}

/// The name that `env` starts, from the one argument that a `#!` line gives it. `None` if it is unknown.
fn env_starts(argument: &OsStr) -> Option<OsString> {
    let text = argument.as_bytes();
    // Without -S the whole argument is one word.
    let split = text.strip_prefix(b"-S").or(text.strip_prefix(b"--split-string="));
    let Some(rest) = split else {
        return (!text.starts_with(b"-")).then(|| argument.to_owned());
    };
    for word in rest.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if word.starts_with(b"-") || word.iter().any(|b| b"\"'\\$".contains(b)) {
            return None; // An option, which may take the next word, or quoting.
        }
        if !word.contains(&b'=') {
            return Some(OsStr::from_bytes(word).to_owned());
        }
    }
    None
}

/// Whether the agent can be loaded into `program`, a file that can be executed. `path` is the value of `PATH`, for
/// `#!/usr/bin/env`.
///
/// # Errors
/// The file that is the problem (the program, or an interpreter on the way to it), and why.
pub fn examine(program: &Path, path: Option<&OsStr>) -> Result<(), (PathBuf, Unfit)> {
    let mut file = program.to_path_buf();
    for _ in 0..=SCRIPTS_MAX {
        let Ok(open) = File::open(&file) else { return Err((file, Unfit::Unreadable)) };
        let open = &ReadCache::new(open);
        let Some(kind) = kind_of(open) else { return Err((file, Unfit::Unreadable)) };
        let next = match kind {
            Kind::Unfit(unfit) => return Err((file, unfit)),
            Kind::Dynamic(loader) => {
                if !loader.exists() {
                    return Err((file, Unfit::NoInterpreter(loader)));
                }
                if cfg!(target_env = "gnu") && is_musl(&loader) {
                    return Err((file, Unfit::Library(loader)));
                }
                let unfit = raises_rights(&file).or_else(|| sanitizer(open).map(Unfit::Sanitizer));
                return unfit.map_or(Ok(()), |unfit| Err((file, unfit)));
            }
            Kind::Script(interpreter, argument) => {
                if !interpreter.exists() {
                    return Err((file, Unfit::NoInterpreter(interpreter)));
                }
                let name = match argument {
                    Some(argument) if interpreter.file_name() == Some(OsStr::new("env")) => env_starts(&argument),
                    _ => None,
                };
                match name {
                    None => interpreter,
                    Some(name) => {
                        examine(&interpreter, None)?;
                        // If env does not find it, env itself reports that.
                        let Ok(found) = find(&name, path) else {
                            return Ok(());
                        };
                        found
                    }
                }
            }
            Kind::Other if file == Path::new("/bin/sh") => return Ok(()),
            Kind::Other => "/bin/sh".into(),
        };
        file = next;
    }
    Ok(()) // Too many scripts: the kernel will report it.
}

/// The sanitizer that a program was built with, recognised by the names that the program imports or exports.
fn sanitizer<'a>(file: impl ReadRef<'a>) -> Option<&'static str> {
    let is_of = |name: &[u8], library, symbol: &core::ffi::CStr| name.starts_with(library) || name == symbol.to_bytes();
    let mut names = dynamic_names(file)?.split(|byte| *byte == 0);
    names.find_map(|name| SANITIZERS.iter().find(|(_, library, symbol)| is_of(name, library, symbol))).map(|found| found.0)
}

/// The string table that a program's loader reads: libraries, and symbols to be bound.
fn dynamic_names<'a>(file: impl ReadRef<'a>) -> Option<&'a [u8]> {
    let (header, endian) = header(file).ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let table = segments.iter().find_map(|segment| segment.dynamic(endian, file).ok().flatten())?;
    let value = |tag| table.iter().find(|entry| entry.d_tag(endian) == tag).map(|entry| entry.d_val(endian));
    let (address, size) = (value(DT_STRTAB)?, value(DT_STRSZ)?.min(NAMES_MAX));
    segments.iter().find_map(|segment| segment.data_range(endian, file, address, size).ok().flatten())
}

fn is_musl(loader: &Path) -> bool {
    loader.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"))
}

/// Whether the kernel would start the file in secure mode, in which the loader ignores LD_PRELOAD: set-id bits that change an
/// id, or file capabilities for anyone but root. A `nosuid` mount or no_new_privs, which switch both off, are not looked at.
fn raises_rights(file: &Path) -> Option<Unfit> {
    const SET_UID: u32 = 0o4000;
    const SET_GID_AND_GROUP_EXEC: u32 = 0o2010;
    let data = fs::metadata(file).ok()?;
    let user = rustix::process::getuid();
    if data.mode() & SET_UID != 0 && data.uid() != user.as_raw() {
        return Some(Unfit::SetUserId);
    }
    if data.mode() & SET_GID_AND_GROUP_EXEC == SET_GID_AND_GROUP_EXEC && data.gid() != rustix::process::getgid().as_raw() {
        return Some(Unfit::SetGroupId);
    }
    let has_capabilities = rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok();
    (has_capabilities && !user.is_root()).then_some(Unfit::Capabilities)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A header with these program headers: (type, offset, file size).
    fn elf(machine: u16, headers: &[(u32, u64, u64)], tail: &[u8]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        file.extend(2u16.to_le_bytes());
        file.extend(machine.to_le_bytes());
        file.resize(32, 0);
        file.extend(64u64.to_le_bytes());
        file.resize(54, 0);
        file.extend(56u16.to_le_bytes());
        file.extend((headers.len() as u16).to_le_bytes());
        file.resize(64, 0);
        for (kind, offset, size) in headers {
            let start = file.len();
            file.extend(kind.to_le_bytes());
            file.resize(start + 8, 0);
            file.extend(offset.to_le_bytes());
            file.resize(start + 32, 0);
            file.extend(size.to_le_bytes());
            file.resize(start + 56, 0);
        }
        file.extend(tail);
        file
    }

    fn kind(file: &[u8]) -> Kind {
        kind_of(file).unwrap()
    }

    /// A library that was copied in part was preloaded, and the program died of SIGBUS without a message.
    #[test]
    fn libraries_that_cannot_be_loaded() {
        let mut file = elf(EM_X86_64.0, &[(1, 0, 64), (1, 64, 200), (0x6474_e551, 0, 0)], &[0; 200]);
        assert_eq!(library_trouble(&file[..]), Some(Unfit::Damaged), "a program");
        file[16] = 3;
        assert_eq!(library_trouble(&file[..]), None);
        assert_eq!(library_trouble(&file[..263]), Some(Unfit::Damaged));
        for length in 0..64 + 3 * 56 {
            assert_eq!(library_trouble(&file[..length]), Some(Unfit::Damaged), "cut to {length}");
        }
        assert_eq!(library_trouble(&b"root:x:0:0"[..]), Some(Unfit::Damaged));
        file[18] = 8;
        assert_eq!(library_trouble(&file[..]), Some(Unfit::Machine(8)));
    }

    const LOADER: &[u8] = b"/lib64/ld.so\0";

    #[test]
    fn dynamic_and_static() {
        let at = 64 + 2 * 56;
        let dynamic = elf(EM_X86_64.0, &[(1, 0, 0), (3, at, LOADER.len() as u64)], LOADER);
        assert_eq!(kind(&dynamic), Kind::Dynamic("/lib64/ld.so".into()));
        assert_eq!(kind(&elf(EM_X86_64.0, &[(1, 0, 0)], b"")), Kind::Unfit(Unfit::Static));
        assert_eq!(kind(&elf(EM_X86_64.0, &[], b"")), Kind::Unfit(Unfit::Static));
    }

    #[test]
    fn other_machines() {
        assert_eq!(kind(&elf(8, &[], b"")), Kind::Unfit(Unfit::Machine(8)));
        let mut other = elf(EM_X86_64.0, &[], b"");
        other[4] = 1;
        assert_eq!(kind(&other), Kind::Unfit(Unfit::Bits(32)));
        other[4] = 2;
        other[5] = 2;
        assert!(matches!(kind(&other), Kind::Unfit(Unfit::Machine(_))), "big-endian");
    }

    #[test]
    fn damaged_files_are_told_and_never_overrun() {
        let good = elf(EM_X86_64.0, &[(1, 0, 0), (3, 64 + 112, LOADER.len() as u64)], LOADER);
        for length in 4..good.len() {
            let cut = kind(&good[..length]);
            assert_eq!(cut, Kind::Unfit(Unfit::Damaged), "cut to {length}");
        }
        for size in [0, 1, 4097, u64::MAX] {
            let file = elf(EM_X86_64.0, &[(3, 120, size)], &[b'a'; 8192]);
            assert_eq!(kind(&file), Kind::Unfit(Unfit::Damaged), "{size}");
        }
        let beyond = elf(EM_X86_64.0, &[(3, u64::MAX, 8)], b"");
        assert_eq!(kind(&beyond), Kind::Unfit(Unfit::Damaged));
        let mut table = elf(EM_X86_64.0, &[(3, 120, 8)], b"");
        table[32..40].fill(0xff);
        assert_eq!(kind(&table), Kind::Unfit(Unfit::Damaged));
        let mut sizes = elf(EM_X86_64.0, &[(3, 120, 8)], b"");
        sizes[54] = 8;
        assert_eq!(kind(&sizes), Kind::Unfit(Unfit::Damaged));
        // Every byte of the header replaced: any answer will do, but no panic.
        for i in 4..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = good.clone();
                file[i] = value;
                kind(&file);
            }
        }
    }

    #[test]
    fn scripts() {
        let script = |text: &str| kind(text.as_bytes());
        let is = |path: &str, argument: Option<&str>| Kind::Script(path.into(), argument.map(Into::into));
        assert_eq!(script("#!/bin/sh\nx"), is("/bin/sh", None));
        assert_eq!(script("#! /bin/sh  -e -x \nx"), is("/bin/sh", Some("-e -x")));
        assert_eq!(script("#!/usr/bin/env\tpython3"), is("/usr/bin/env", Some("python3")));
        assert_eq!(script("#!\n"), Kind::Other);
        assert_eq!(script(""), Kind::Other);
        assert_eq!(script("echo hello\n"), Kind::Other);
        for (argument, name) in [
            ("python3", Some("python3")),
            ("-S python3 -u", Some("python3")),
            ("-SA=1 B=2 ruby", Some("ruby")),
            ("--split-string=ruby -w", Some("ruby")),
            ("-S -i ruby", None),
            ("-i", None),
            ("-S 'a b'", None),
            ("-S", None),
        ] {
            assert_eq!(env_starts(OsStr::new(argument)), name.map(OsString::from), "{argument}");
        }
    }

    /// A directory of its own, removed at the end.
    struct Dir(PathBuf);
    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("overspill-program-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Dir(dir)
        }
        fn file(&self, name: &str, mode: u32, content: &[u8]) -> PathBuf {
            let file = self.0.join(name);
            fs::write(&file, content).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            file
        }
    }
    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn programs_are_found_as_execvp_finds_them() {
        let dir = Dir::new("find");
        let yes = dir.file("yes", 0o755, b"");
        let no = dir.file("no", 0o644, b"");
        fs::create_dir(dir.0.join("sub")).unwrap();
        let mut path = OsString::from("/nonexistent:");
        path.push(&dir.0);
        let look = |name: &str| find(OsStr::new(name), Some(&path));
        assert_eq!(look("yes"), Ok(yes.clone()));
        assert_eq!(look("no"), Err(NotFound::NotExecutable(no.clone())));
        assert_eq!(look("sub"), Err(NotFound::Missing));
        assert_eq!(look("missing"), Err(NotFound::Missing));
        assert_eq!(look(""), Err(NotFound::Missing));
        assert_eq!(find(yes.as_os_str(), None), Ok(yes));
        assert_eq!(find(no.as_os_str(), None), Err(NotFound::NotExecutable(no)));
        let sub = dir.0.join("sub");
        assert_eq!(find(sub.as_os_str(), None), Err(NotFound::NotExecutable(sub)));
        assert!(find(OsStr::new("sh"), None).is_ok());
    }

    #[test]
    fn scripts_are_followed_to_their_end() {
        let dir = Dir::new("follow");
        let fixed = dir.file("static", 0o755, &elf(EM_X86_64.0, &[(1, 0, 0)], b""));
        let one = dir.file("one", 0o755, format!("#!{}\n", fixed.display()).as_bytes());
        let two = dir.file("two", 0o755, format!("#! {} x\n", one.display()).as_bytes());
        let env = dir.file("env-script", 0o755, b"#!/usr/bin/env static\n");
        let gone = dir.file("gone", 0o755, b"#!/nonexistent/interpreter\n");
        let plain = dir.file("plain", 0o755, b"echo hello\n");
        let ring = dir.0.join("ring");
        dir.file("ring", 0o755, format!("#!{}\n", ring.display()).as_bytes());
        let path = Some(dir.0.as_os_str());
        for script in [&fixed, &one, &two, &env] {
            assert_eq!(examine(script, path), Err((fixed.clone(), Unfit::Static)));
        }
        let interpreter = PathBuf::from("/nonexistent/interpreter");
        assert_eq!(examine(&gone, path), Err((gone, Unfit::NoInterpreter(interpreter))));
        assert_eq!(examine(&plain, path), Ok(()));
        assert_eq!(examine(&ring, path), Ok(()), "ends");
        assert_eq!(examine(Path::new("/bin/sh"), path), Ok(()));
    }

    #[test]
    fn set_id_programs() {
        let dir = Dir::new("setid");
        let at = 64 + 56;
        let loader = b"/bin/sh\0"; // any file that exists
        let content = elf(EM_X86_64.0, &[(3, at, loader.len() as u64)], loader);
        let own = dir.file("own", 0o6755, &content);
        // Their own ids change nothing, so the agent is loaded.
        assert_eq!(examine(&own, None), Ok(()));
        if std::os::unix::fs::chown(&own, Some(4242), None).is_ok() {
            fs::set_permissions(&own, fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(examine(&own, None), Err((own.clone(), Unfit::SetUserId)));
            std::os::unix::fs::chown(&own, Some(0), Some(4242)).unwrap();
            fs::set_permissions(&own, fs::Permissions::from_mode(0o2755)).unwrap();
            assert_eq!(examine(&own, None), Err((own, Unfit::SetGroupId)));
        }
    }
}
