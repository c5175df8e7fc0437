//! `strace -f` of file reads and writes, as references to pages of files.
//!
//! ```text
//! strace -f -y -o FILE PROGRAM...        -y (paths next to descriptors) is not needed, but follows symbolic links
//! ```
//!
//! Rules for the lines, with or without a process id and a time before them:
//!
//! - open, openat, openat2, creat, dup*, fcntl, pipe and close change a table of descriptors per process. fork copies the table and
//!   CLONE_FILES shares it; execve closes descriptors that are marked for that. Descriptors that share an open file share its
//!   offset. If two threads use one table, the order in which their calls return counts.
//! - read, pread, readv, write, pwrite, writev and their variants, sendfile and copy_file_range refer to each page of the bytes
//!   that they moved, by their return value. At the end of a file that is none.
//! - mmap of a file refers to each page of the mapping within the file, as a read, or as a write if it is shared and writable.
//!   MAP_FIXED counts nothing, because the dynamic loader maps parts of a file in this way that it has just mapped as a whole.
//!   strace does not show which pages a program then touches, the pages of the programs themselves, which execve maps, and the work
//!   of io_uring.
//! - A file's length is known once a call tells it: fstat or statx of a descriptor, a seek relative to the end, ftruncate or
//!   truncate, O_TRUNC, or O_EXCL of a new file. Writes and fallocate beyond the end then raise it. If it is not known, a mapping
//!   counts as a whole, and the place of what is appended (O_APPEND) is not known: such a call is counted as unplaced, not as a
//!   reference.
//! - `<unfinished ...>` and `resumed` lines are put together; the call counts where it is resumed.
//!
//! A file is identified by its path, as strace prints it, made absolute where the working directory is known (`..` is resolved as
//! text). Pipes, sockets, and paths in /dev, /proc and /sys do not count as files. Every line that is not a reference is a mark.

use super::TextParser;
use super::fields::{decimal, hex, quote};
use crate::builder::Builder;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// An open file description, which dup and fork share.
struct OpenFile {
    /// `None`: not a file whose pages count.
    path: Option<Rc<[u8]>>,
    /// `None`: not known, since something was appended to a file of unknown length.
    offset: Option<u64>,
    append: bool,
}

#[derive(Clone)]
struct Descriptor {
    file: Rc<RefCell<OpenFile>>,
    close_on_exec: bool,
}

type Table = FxHashMap<i64, Descriptor>;

struct Process {
    table: Rc<RefCell<Table>>,
    /// Working directory; empty if unknown.
    directory: Rc<RefCell<Vec<u8>>>,
    /// The call whose print was interrupted: everything before `<unfinished ...>`.
    unfinished: Option<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct Strace {
    processes: FxHashMap<u64, Process>,
    /// Calls of processes whose parent is not known yet, because the parent's clone has not returned.
    early: BTreeMap<u64, Vec<Vec<u8>>>,
    /// The early calls that are being replayed: those of a process, and above them those of its child that it has just made.
    replaying: Vec<(u64, std::vec::IntoIter<Vec<u8>>)>,
    /// Processes in an unfinished clone.
    cloning: FxHashSet<u64>,
    /// Sizes of files in bytes, where known.
    sizes: FxHashMap<Rc<[u8]>, u64>,
    /// The process of lines without a number: strace prints none as long as there is only one process.
    first: Option<u64>,
    announced: FxHashSet<u64>,
    /// The beginning of a line that strace interrupted to say that a process was attached.
    torn: Vec<u8>,
}

/// No process id is greater: `PID_MAX_LIMIT` of Linux on 64 bits. A greater number before a call is a time in whole seconds.
const PID_MAX: u64 = 4 << 20;
/// Stands for the first process until its number is known. No process has it.
const UNNUMBERED: u64 = 0;

impl TextParser for Strace {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let before = out.references_total();
        match find(line, b"strace: Process ") {
            // (what was torn before is not looked through again: a line may be torn many times)
            Some(at) if (at > 0 || !self.torn.is_empty()) && line.ends_with(b" attached") => {
                self.take(&line[at..], out)?;
                self.torn.extend_from_slice(&line[..at]);
            }
            _ if self.torn.is_empty() => self.take(line, out)?,
            _ => {
                self.torn.extend_from_slice(line);
                let whole = std::mem::take(&mut self.torn);
                self.take(&whole, out)?;
            }
        }
        if out.references_total() == before {
            out.marks += 1;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut Builder) -> Result<(), String> {
        self.cloning.clear();
        self.settle(out)
    }
}

impl Strace {
    fn take(&mut self, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let (pid, rest) = self.process_id(line)?;
        let rest = without_time(rest);
        if rest.starts_with(b"strace: ") {
            if let Some(number) = between(rest, b"strace: Process ", b" attached").and_then(decimal) {
                self.announced.insert(number);
            }
            return Ok(());
        }
        if rest.starts_with(b"[ Process PID=") || rest.starts_with(b"--- ") {
            return Ok(());
        }
        let pid = pid.unwrap_or_else(|| self.unnumbered());
        if !self.processes.contains_key(&pid) {
            if !self.cloning.is_empty() {
                self.early.entry(pid).or_default().push(rest.to_vec());
                return Ok(());
            }
            self.processes.insert(pid, Process::new());
        }
        self.event(pid, rest, out)?;
        self.settle(out)
    }

    /// The number before a line, and what follows.
    fn process_id<'a>(&mut self, line: &'a [u8]) -> Result<(Option<u64>, &'a [u8]), String> {
        let (digits, rest) = if let Some(rest) = line.strip_prefix(b"[pid ") {
            let end = rest.iter().position(|&byte| byte == b']').ok_or("\"[pid\" without \"]\"")?;
            (rest[..end].trim_ascii(), rest[end + 1..].trim_ascii_start())
        } else {
            let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
            match line.get(digits) {
                Some(b' ' | b'\t') if digits > 0 && decimal(&line[..digits]).is_none_or(|number| number <= PID_MAX) => {
                    (&line[..digits], line[digits..].trim_ascii_start())
                }
                _ => return Ok((None, line.trim_ascii_start())),
            }
        };
        let pid = decimal(digits).ok_or_else(|| format!("{} is not a process id", quote(digits)))?;
        // A number that was not announced belongs to the process that had none so far.
        if self.first == Some(UNNUMBERED) && !self.announced.contains(&pid) && !self.processes.contains_key(&pid) {
            if let Some(process) = self.processes.remove(&UNNUMBERED) {
                self.processes.insert(pid, process);
            }
            if self.cloning.remove(&UNNUMBERED) {
                self.cloning.insert(pid);
            }
            self.first = Some(pid);
        }
        self.first.get_or_insert(pid);
        Ok((Some(pid), rest))
    }

    /// The process of a line without a number: the only process.
    fn unnumbered(&mut self) -> u64 {
        let first = *self.first.get_or_insert(UNNUMBERED);
        let mut all = self.processes.keys();
        match (all.next(), all.next()) {
            (Some(&only), None) => only,
            _ => first,
        }
    }

    /// If no clone is under way any more, the parents of the processes that still wait stay unknown: replays these without one.
    fn settle(&mut self, out: &mut Builder) -> Result<(), String> {
        while self.cloning.is_empty() {
            let Some((&pid, _)) = self.early.first_key_value() else { break };
            self.processes.insert(pid, Process::new());
            self.replay(pid, out)?;
        }
        Ok(())
    }

    /// Replays the calls that a process made before it was known. If one of them makes another such process, its calls come next. A
    /// list takes the place of a recursion, for which there may be too many of them.
    fn replay(&mut self, pid: u64, out: &mut Builder) -> Result<(), String> {
        let Some(lines) = self.early.remove(&pid) else { return Ok(()) };
        self.replaying.push((pid, lines.into_iter()));
        if self.replaying.len() > 1 {
            return Ok(()); // the loop below goes on with them
        }
        while let Some((pid, lines)) = self.replaying.last_mut() {
            let pid = *pid;
            match lines.next() {
                Some(line) => self.event(pid, &line, out)?,
                None => drop(self.replaying.pop()),
            }
        }
        Ok(())
    }

    /// One line of a known process, without number and time.
    fn event(&mut self, pid: u64, line: &[u8], out: &mut Builder) -> Result<(), String> {
        if line.starts_with(b"+++ ") {
            self.processes.remove(&pid);
            self.cloning.remove(&pid);
            return Ok(());
        }
        let line = line.trim_ascii_end();
        if let Some(begun) = line.strip_suffix(b"<unfinished ...>").or(line.strip_suffix(b"<detached ...>")) {
            if is_clone(name_of(begun)) {
                self.cloning.insert(pid);
            }
            self.process(pid)?.unfinished = Some(begun.trim_ascii_end().to_vec());
            return Ok(());
        }
        if let Some(rest) = line.strip_prefix(b"<... ") {
            let resumed = find(rest, b" resumed>").ok_or("\"<...\" without \"resumed>\"")?;
            let (name, rest) = (&rest[..resumed], &rest[resumed + b" resumed>".len()..]);
            let whole = match self.process(pid)?.unfinished.take() {
                Some(begun) if name_of(&begun) == name => [&begun, rest].concat(),
                // It began before the trace, so its arguments are unknown.
                _ => return Ok(()),
            };
            self.cloning.remove(&pid);
            return self.call(pid, &whole, out);
        }
        self.call(pid, line, out)
    }

    fn process(&mut self, pid: u64) -> Result<&mut Process, String> {
        self.processes.get_mut(&pid).ok_or_else(|| format!("process {pid} has ended before"))
    }

    /// A whole call: `name(arguments) = result`.
    fn call(&mut self, pid: u64, line: &[u8], out: &mut Builder) -> Result<(), String> {
        let Call { name, arguments, result, result_path } = Call::parse(line)
            .ok_or_else(|| format!("{} is not a line of strace's; write its output with strace -o FILE", quote(line)))?;
        let argument = |index: usize| arguments.get(index).copied().unwrap_or_default();
        let Some(result) = result.filter(|&result| result >= 0) else {
            return Ok(());
        };
        match name {
            b"open" | b"creat" | b"openat" | b"openat2" | b"memfd_create" => {
                let path = match name {
                    b"memfd_create" => None,
                    _ if result_path.is_some() => result_path,
                    b"open" | b"creat" => self.path(pid, b"AT_FDCWD", argument(0))?,
                    _ => self.path(pid, argument(0), argument(1))?,
                };
                let flags = match name {
                    b"creat" => b"O_TRUNC",
                    b"open" => argument(1),
                    _ => argument(2),
                };
                let path = path.filter(|path| is_file(path)).map(Rc::from);
                if let Some(path) = &path
                    && (has_flag(flags, b"O_TRUNC") || has_flag(flags, b"O_CREAT") && has_flag(flags, b"O_EXCL"))
                {
                    self.sizes.insert(Rc::clone(path), 0);
                }
                let file = OpenFile { path, offset: Some(0), append: has_flag(flags, b"O_APPEND") };
                self.insert(pid, result, Rc::new(RefCell::new(file)), has_flag(flags, b"O_CLOEXEC"))?;
            }
            b"close" => {
                let table = &self.process(pid)?.table;
                let descriptor = leading_number(argument(0));
                descriptor.and_then(|descriptor| table.borrow_mut().remove(&descriptor));
            }
            b"close_range" => {
                let (Some(first), Some(last)) = (leading_number(argument(0)), leading_number(argument(1))) else { return Ok(()) };
                let table = &self.process(pid)?.table;
                let marks_only = has_flag(argument(2), b"CLOSE_RANGE_CLOEXEC");
                table.borrow_mut().retain(|descriptor, entry| {
                    let inside = (first..=last).contains(descriptor);
                    entry.close_on_exec |= inside;
                    !inside || marks_only
                });
            }
            b"dup" | b"dup2" | b"dup3" => self.duplicate(pid, argument(0), result, has_flag(argument(2), b"O_CLOEXEC"))?,
            b"fcntl" | b"fcntl64" => match argument(1) {
                b"F_DUPFD" => self.duplicate(pid, argument(0), result, false)?,
                b"F_DUPFD_CLOEXEC" => self.duplicate(pid, argument(0), result, true)?,
                b"F_SETFD" => {
                    let table = &self.process(pid)?.table;
                    let mut table = table.borrow_mut();
                    if let Some(entry) = leading_number(argument(0)).and_then(|descriptor| table.get_mut(&descriptor)) {
                        entry.close_on_exec = has_flag(argument(2), b"FD_CLOEXEC");
                    }
                }
                _ => {}
            },
            b"pipe" | b"pipe2" | b"socketpair" => {
                // The numbers may have been those of files that were closed unseen.
                let pair = argument(if name == b"socketpair" { 3 } else { 0 });
                let table = &self.process(pid)?.table;
                for word in pair.split(|byte| matches!(byte, b'[' | b']' | b',' | b' ')) {
                    leading_number(word).and_then(|descriptor| table.borrow_mut().remove(&descriptor));
                }
            }
            b"read" | b"readv" => self.transfer(pid, argument(0), None, result, false, out)?,
            b"write" | b"writev" => self.transfer(pid, argument(0), None, result, true, out)?,
            b"pread64" | b"pread" | b"preadv" => self.transfer(pid, argument(0), Some(argument(3)), result, false, out)?,
            b"pwrite64" | b"pwrite" | b"pwritev" => self.transfer(pid, argument(0), Some(argument(3)), result, true, out)?,
            // Their offset may be -1: the file's own.
            b"preadv2" | b"pwritev2" => {
                let offset = Some(argument(3)).filter(|&offset| offset != b"-1");
                self.transfer(pid, argument(0), offset, result, name == b"pwritev2", out)?;
            }
            b"sendfile" | b"sendfile64" => {
                self.transfer(pid, argument(1), given(argument(2)), result, false, out)?;
                self.transfer(pid, argument(0), None, result, true, out)?;
            }
            b"copy_file_range" | b"splice" => {
                self.transfer(pid, argument(0), given(argument(1)), result, false, out)?;
                self.transfer(pid, argument(2), given(argument(3)), result, true, out)?;
            }
            b"lseek" | b"_llseek" => {
                if let Some(file) = self.file(pid, argument(0))? {
                    // _llseek leaves the offset in brackets, and returns 0.
                    let (offset, whence) = match name {
                        b"_llseek" => (bracketed(argument(2)).unwrap_or(0), argument(3)),
                        _ => (result, argument(2)),
                    };
                    file.borrow_mut().offset = Some(offset.unsigned_abs());
                    if whence == b"SEEK_END"
                        && let Some(size) = leading_number(argument(1)).and_then(|from_end| offset.checked_sub(from_end))
                    {
                        self.set_size(pid, argument(0), size.unsigned_abs())?;
                    }
                }
            }
            b"fstat" | b"fstat64" | b"newfstatat" | b"fstatat64" | b"statx" => {
                let (of_descriptor, status, field) = match name {
                    b"fstat" | b"fstat64" => (true, argument(1), &b"st_size="[..]),
                    // With a path they do not concern a descriptor.
                    b"statx" => (is_empty_path(argument(1)), argument(4), &b"stx_size="[..]),
                    _ => (is_empty_path(argument(1)), argument(2), &b"st_size="[..]),
                };
                if of_descriptor && let Some(size) = between(status, field, b",").and_then(decimal) {
                    self.set_size(pid, argument(0), size)?;
                }
            }
            b"ftruncate" | b"ftruncate64" => {
                if let Some(size) = decimal(argument(1)) {
                    self.set_size(pid, argument(0), size)?;
                }
            }
            b"truncate" | b"truncate64" => {
                if let (Some(path), Some(size)) = (self.path(pid, b"AT_FDCWD", argument(0))?, decimal(argument(1))) {
                    self.sizes.insert(path.into(), size);
                }
            }
            b"fallocate" if !has_flag(argument(1), b"FALLOC_FL_KEEP_SIZE") => {
                let path = self.file(pid, argument(0))?.and_then(|file| file.borrow().path.clone());
                let end = decimal(argument(2)).zip(decimal(argument(3))).and_then(|(offset, length)| offset.checked_add(length));
                let moves =
                    [&b"FALLOC_FL_COLLAPSE_RANGE"[..], b"FALLOC_FL_INSERT_RANGE"].iter().any(|flag| has_flag(argument(1), flag));
                if let (Some(path), Some(end)) = (path, end) {
                    match self.sizes.get_mut(&path) {
                        Some(_) if moves => _ = self.sizes.remove(&path),
                        Some(size) => *size = end.max(*size),
                        None => {}
                    }
                }
            }
            b"mmap" | b"mmap2" | b"old_mmap" => self.map(pid, &arguments, out)?,
            b"chdir" => {
                let path = self.path(pid, b"AT_FDCWD", argument(0))?;
                *self.process(pid)?.directory.borrow_mut() = path.unwrap_or_default();
            }
            b"fchdir" => {
                let path = match annotation(argument(0)) {
                    Some(path) => Some(path),
                    None => self.file(pid, argument(0))?.and_then(|file| file.borrow().path.as_deref().map(<[u8]>::to_vec)),
                };
                *self.process(pid)?.directory.borrow_mut() = path.unwrap_or_default();
            }
            b"unshare" => {
                let process = self.process(pid)?;
                if has_flag(argument(0), b"CLONE_FILES") {
                    let copy = process.table.borrow().clone();
                    process.table = Rc::new(RefCell::new(copy));
                }
                if has_flag(argument(0), b"CLONE_FS") {
                    let copy = process.directory.borrow().clone();
                    process.directory = Rc::new(RefCell::new(copy));
                }
            }
            b"execve" | b"execveat" => {
                let process = self.process(pid)?;
                let mut table = process.table.borrow().clone();
                table.retain(|_, entry| !entry.close_on_exec);
                process.table = Rc::new(RefCell::new(table));
            }
            name if is_clone(name) => {
                let all = arguments.join(&b","[..]);
                let parent = self.process(pid)?;
                let shared = |flag: &[u8]| has_flag(&all, flag);
                let table = match shared(b"CLONE_FILES") {
                    true => Rc::clone(&parent.table),
                    false => Rc::new(RefCell::new(parent.table.borrow().clone())),
                };
                let directory = match shared(b"CLONE_FS") {
                    true => Rc::clone(&parent.directory),
                    false => Rc::new(RefCell::new(parent.directory.borrow().clone())),
                };
                let child = result.unsigned_abs();
                self.announced.insert(child);
                self.processes.insert(child, Process { table, directory, unfinished: None });
                self.replay(child, out)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn insert(&mut self, pid: u64, descriptor: i64, file: Rc<RefCell<OpenFile>>, close_on_exec: bool) -> Result<(), String> {
        self.process(pid)?.table.borrow_mut().insert(descriptor, Descriptor { file, close_on_exec });
        Ok(())
    }

    fn duplicate(&mut self, pid: u64, from: &[u8], to: i64, close_on_exec: bool) -> Result<(), String> {
        match self.file(pid, from)? {
            // dup2 of a descriptor to itself does nothing, not even to its mark.
            Some(_) if leading_number(from) == Some(to) => Ok(()),
            Some(file) => self.insert(pid, to, file, close_on_exec),
            None => {
                self.process(pid)?.table.borrow_mut().remove(&to);
                Ok(())
            }
        }
    }

    /// The open file of a descriptor: from the table, or for one that was opened before the trace, from strace's annotation, at
    /// offset 0.
    fn file(&mut self, pid: u64, argument: &[u8]) -> Result<Option<Rc<RefCell<OpenFile>>>, String> {
        let Some(descriptor) = leading_number(argument) else { return Ok(None) };
        if let Some(entry) = self.process(pid)?.table.borrow().get(&descriptor) {
            return Ok(Some(Rc::clone(&entry.file)));
        }
        let Some(path) = annotation(argument).filter(|path| is_file(path)) else { return Ok(None) };
        let file = Rc::new(RefCell::new(OpenFile { path: Some(Rc::from(path)), offset: Some(0), append: false }));
        self.insert(pid, descriptor, Rc::clone(&file), false)?;
        Ok(Some(file))
    }

    /// References by a call that moved `bytes` bytes at `offset`, or at the file's own offset, which then moves on.
    fn transfer(
        &mut self,
        pid: u64,
        descriptor: &[u8],
        offset: Option<&[u8]>,
        bytes: i64,
        write: bool,
        out: &mut Builder,
    ) -> Result<(), String> {
        let Some(file) = self.file(pid, descriptor)? else { return Ok(()) };
        let mut file = file.borrow_mut();
        let Some(path) = file.path.clone() else { return Ok(()) };
        let bytes = bytes.unsigned_abs();
        let at = match offset {
            Some(text) => bracketed(text).map(i64::unsigned_abs).ok_or_else(|| format!("{} is not an offset", quote(text)))?,
            None => {
                let own = if write && file.append { self.sizes.get(&path).copied() } else { file.offset };
                let Some(own) = own else {
                    if bytes > 0 {
                        file.offset = None;
                        out.unplaced += 1;
                    }
                    return Ok(());
                };
                own
            }
        };
        let end = at.checked_add(bytes).ok_or("the offset exceeds 64 bits")?;
        if offset.is_none() {
            file.offset = Some(end);
        }
        // A file of unknown length may be longer than what is written.
        if write && let Some(size) = self.sizes.get_mut(&path) {
            *size = end.max(*size);
        }
        if bytes == 0 {
            return Ok(());
        }
        let object = out.object(&path)?;
        out.bytes(object, at, bytes, write)
    }

    fn set_size(&mut self, pid: u64, descriptor: &[u8], size: u64) -> Result<(), String> {
        if let Some(file) = self.file(pid, descriptor)?
            && let Some(path) = &file.borrow().path
        {
            self.sizes.insert(Rc::clone(path), size);
        }
        Ok(())
    }

    /// `mmap(address, length, protection, flags, descriptor, offset)`. The kernel's `mmap2` counts its offset in 4096 bytes, but
    /// strace prints it in bytes, as that of `mmap`.
    fn map(&mut self, pid: u64, arguments: &[&[u8]], out: &mut Builder) -> Result<(), String> {
        let &[_, length, protection, flags, descriptor, offset] = arguments else { return Ok(()) };
        if protection == b"PROT_NONE" || has_flag(flags, b"MAP_ANONYMOUS") || has_flag(flags, b"MAP_FIXED") {
            return Ok(());
        }
        let Some(file) = self.file(pid, descriptor)? else { return Ok(()) };
        let Some(path) = file.borrow().path.clone() else { return Ok(()) };
        let number =
            |text: &[u8]| leading_number(text).map(i64::unsigned_abs).ok_or_else(|| format!("{} is not a number", quote(text)));
        let (length, offset) = (number(length)?, number(offset)?);
        let length = match self.sizes.get(&path) {
            Some(size) => length.min(size.saturating_sub(offset)),
            None => length,
        };
        if length == 0 {
            return Ok(());
        }
        let object = out.object(&path)?;
        out.range(object, offset, length, has_flag(flags, b"MAP_SHARED") && has_flag(protection, b"PROT_WRITE"))
    }

    /// The path that a quoted argument means, relative to a directory's descriptor. `None` if the argument is no string.
    fn path(&mut self, pid: u64, directory: &[u8], quoted: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let Some(path) = unquote(quoted) else { return Ok(None) };
        if path.starts_with(b"/") {
            return Ok(Some(normal(&path)));
        }
        let base = match annotation(directory) {
            Some(base) => base,
            None if directory.starts_with(b"AT_FDCWD") => self.process(pid)?.directory.borrow().clone(),
            None => {
                self.file(pid, directory)?.and_then(|file| file.borrow().path.as_deref().map(<[u8]>::to_vec)).unwrap_or_default()
            }
        };
        Ok(Some(if base.is_empty() { normal(&path) } else { normal(&[&base[..], b"/", &path].concat()) }))
    }
}

impl Process {
    fn new() -> Self {
        Process { table: Rc::default(), directory: Rc::default(), unfinished: None }
    }
}

/// The parts of `name(arguments) = result<path> ...`.
struct Call<'a> {
    name: &'a [u8],
    arguments: Vec<&'a [u8]>,
    /// `None`: the call did not return (`?`).
    result: Option<i64>,
    result_path: Option<Vec<u8>>,
}

impl<'a> Call<'a> {
    fn parse(line: &'a [u8]) -> Option<Call<'a>> {
        let name = name_of(line);
        if name.is_empty() {
            return None;
        }
        let rest = &line[name.len() + 1..];
        let mut arguments = Vec::new();
        let (mut depth, mut begin, mut at, mut quoted) = (0u32, 0, 0, false);
        let end = loop {
            let byte = *rest.get(at)?;
            match byte {
                b'\\' if quoted => at += 1,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                // A descriptor's path, in which strace escapes < and >.
                b'<' if at > 0 && rest[at - 1].is_ascii_alphanumeric() && rest.get(at + 1) != Some(&b'<') => {
                    if let Some(length) = rest[at..].iter().position(|&byte| byte == b'>') {
                        at += length;
                    }
                }
                b'(' | b'[' | b'{' => depth += 1,
                b')' if depth == 0 => break at,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => {
                    arguments.push(rest[begin..at].trim_ascii());
                    begin = at + 1;
                }
                _ => {}
            }
            at += 1;
        };
        if end > begin {
            arguments.push(rest[begin..end].trim_ascii());
        }
        let result = rest[end + 1..].trim_ascii_start().strip_prefix(b"=")?.trim_ascii_start();
        let word = &result[..result.iter().position(|&byte| byte == b' ').unwrap_or(result.len())];
        if word.starts_with(b"?") {
            return Some(Call { name, arguments, result: None, result_path: None });
        }
        Some(Call { name, arguments, result: Some(leading_number(word)?), result_path: annotation(result) })
    }
}

/// The name of the call that a line begins with; empty if it begins with none.
fn name_of(line: &[u8]) -> &[u8] {
    let length = line.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
    if line.get(length) == Some(&b'(') { &line[..length] } else { &[] }
}

fn is_clone(name: &[u8]) -> bool {
    matches!(name, b"clone" | b"clone2" | b"clone3" | b"fork" | b"vfork")
}

/// Drops a time of `strace -t`, `-tt`, `-ttt`, `-r` or `--absolute-timestamps=unix`.
fn without_time(line: &[u8]) -> &[u8] {
    let length = line.iter().take_while(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.')).count();
    match line.get(length) {
        Some(b' ') if length > 0 => line[length..].trim_ascii_start(),
        _ => line,
    }
}

/// The decimal, hexadecimal (0x) or negative number at the beginning. (Results beyond 63 bits are addresses, which are not needed.)
fn leading_number(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix(b"0x") {
        Some(rest) => hex(&rest[..rest.iter().take_while(|byte| byte.is_ascii_hexdigit()).count()])?,
        None => decimal(&digits[..digits.iter().take_while(|byte| byte.is_ascii_digit()).count()])?,
    };
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    Some(if negative { -value } else { value })
}

/// A number, or the first of `[number]` and `[number] => [number]`.
fn bracketed(text: &[u8]) -> Option<i64> {
    leading_number(text.strip_prefix(b"[").unwrap_or(text))
}

/// An offset argument that is not NULL.
fn given(argument: &[u8]) -> Option<&[u8]> {
    (argument != b"NULL").then_some(argument)
}

/// Whether a path argument says that the call is about the descriptor before it.
fn is_empty_path(argument: &[u8]) -> bool {
    argument == b"\"\"" || argument == b"NULL"
}

/// The path next to a descriptor (`3</etc/passwd>`), as `strace -y` prints it.
fn annotation(argument: &[u8]) -> Option<Vec<u8>> {
    let begin = argument.iter().position(|&byte| byte == b'<')?;
    if begin == 0 || !argument[..begin].iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        return None;
    }
    let rest = &argument[begin + 1..];
    let path = &rest[..rest.iter().position(|&byte| byte == b'>')?];
    Some(unescape(path.strip_suffix(b" (deleted)").unwrap_or(path)))
}

/// Whether something with this path has pages in the file cache.
fn is_file(path: &[u8]) -> bool {
    // Pipes and sockets have annotations such as `pipe:[123]` and `socket:[123]`.
    let special = ["pipe:[", "socket:[", "anon_inode:", "TCP:", "UDP:", "UNIX:", "NETLINK:"];
    let devices = ["/dev", "/proc", "/sys"];
    !path.is_empty()
        && !special.iter().any(|prefix| path.starts_with(prefix.as_bytes()))
        && !devices.iter().any(|top| path.strip_prefix(top.as_bytes()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/'))
}

/// Whether a list of flags, such as `O_RDONLY|O_CLOEXEC`, has this one.
fn has_flag(text: &[u8], flag: &[u8]) -> bool {
    text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_').any(|word| word == flag)
}

/// The text between two texts.
fn between<'a>(text: &'a [u8], before: &[u8], after: &[u8]) -> Option<&'a [u8]> {
    let begin = find(text, before)? + before.len();
    let length = find(&text[begin..], after)?;
    Some(&text[begin..begin + length])
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

/// The content of `"..."`.
fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    Some(unescape(text.strip_prefix(b"\"")?.strip_suffix(b"\"")?))
}

/// Undoes C's escapes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            plain.push(*first);
            continue;
        }
        let [escape, tail @ ..] = rest else { break };
        rest = tail;
        match escape {
            b'n' => plain.push(b'\n'),
            b't' => plain.push(b'\t'),
            b'r' => plain.push(b'\r'),
            b'v' => plain.push(0x0b),
            b'f' => plain.push(0x0c),
            b'x' => {
                let digits = rest.iter().take(2).take_while(|byte| byte.is_ascii_hexdigit()).count();
                plain.push(hex(&rest[..digits]).unwrap_or_default() as u8);
                rest = &rest[digits..];
            }
            b'0'..=b'7' => {
                let more = rest.iter().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
                let value = rest[..more].iter().fold(u32::from(escape - b'0'), |value, digit| value * 8 + u32::from(digit - b'0'));
                plain.push(value as u8);
                rest = &rest[more..];
            }
            other => plain.push(*other),
        }
    }
    plain
}

/// A path without `.`, empty parts, and `..` where it can be resolved as text.
fn normal(path: &[u8]) -> Vec<u8> {
    let absolute = path.starts_with(b"/");
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if parts.last().is_some_and(|&last| last != b"..") => {
                parts.pop();
            }
            b".." if absolute => {}
            _ => parts.push(part),
        }
    }
    let joined = parts.join(&b'/');
    if absolute { [&b"/"[..], &joined].concat() } else { joined }
}
