//! The checks that are made before the program starts. Each fails with one message: what happened, where, what to try.

use crate::cgroup;
use crate::program::{self, NotFound, Unfit};
use crate::{FAILED, Failure, NOT_EXECUTABLE, NOT_FOUND};
use overspill_linux::control;
use overspill_linux::control_client::{self, ControlError};
use overspill_linux::device_spec::{self, Algorithm, DeviceSpec, Medium, SpecError};
use overspill_linux::setup::DEVICES_AT_START;
use overspill_linux::size::{self, Size};
use overspill_linux::{probe, signature};
use overspill_vm::policy;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The smallest budget: the pager's buffers and a working set for a few threads. Guessed.
pub const MEMORY_MIN: u64 = 8 << 20;

/// The ways to issue I/O.
const ENGINES: [&str; 3] = ["auto", "io_uring", "psync"];

/// The message about a block device of no length.
const EMPTY: &str = "this block device is empty: no medium is in it, or it was not set up; name another";

/// The budget in bytes, a whole number of pages. `origin` is where it was asked for: `--memory`, or a key of a file.
pub fn memory(origin: &str, text: &str) -> Result<u64, Failure> {
    let size = size::parse(text).map_err(|error| Failure::new(format!("{origin} {text:?} {error}")))?;
    let bytes = match size {
        Size::Bytes(bytes) => bytes,
        Size::Share(_) => {
            let limit = cgroup::memory_limit().map(|limit| limit.bytes);
            let Some(total) = limit.or_else(cgroup::total_memory) else {
                return Err(Failure::new(format!(
                    "{origin} {text}: the machine's memory cannot be read from /proc/meminfo; write a size such as 2G"
                )));
            };
            size.of(total)
        }
    };
    if bytes < MEMORY_MIN {
        let meaning = match size {
            Size::Share(_) => format!(" ({})", size::human(bytes)),
            Size::Bytes(_) => String::new(),
        };
        return Err(Failure::new(format!("{origin} {text}{meaning} is too little; the minimum is {}", size::exact(MEMORY_MIN))));
    }
    Ok(bytes & !4095)
}

/// A warning if the kernel would end the program before its budget is used up.
pub fn memory_warning(origin: &str, bytes: u64) -> Option<String> {
    if let Some(limit) = cgroup::memory_limit().filter(|limit| limit.bytes < bytes) {
        return Some(format!(
            "{origin} {} is more than the memory limit of this control group, {} ({}); \
             the kernel may kill the program before Overspill pages",
            size::human(bytes),
            size::human(limit.bytes),
            limit.file.display()
        ));
    }
    let total = cgroup::total_memory().filter(|total| *total < bytes)?;
    Some(format!(
        "{origin} {} is more than this machine has ({}); the kernel may kill the program before Overspill pages",
        size::human(bytes),
        size::human(total)
    ))
}

/// Checks the policy, `NAME[:KEY=VALUE,...]`. `origin` says where it was given.
pub fn policy<'a>(origin: &str, spec: Option<&'a str>) -> Result<&'a str, Failure> {
    let spec = spec.unwrap_or(policy::DEFAULT);
    match spec.parse::<policy::Spec>() {
        Ok(_) => Ok(spec),
        Err(e) => Err(Failure::new(format!("{origin}: {e}"))),
    }
}

/// Checks the engine's name, and tries the engine out if it was asked for. `origin` says where it was given.
pub fn engine<'a>(origin: &str, name: &'a str) -> Result<&'a str, Failure> {
    if !ENGINES.contains(&name) {
        return Err(Failure::new(format!("{origin}: there is no engine {name:?}; there are {}", ENGINES.join(", "))));
    }
    if name == "io_uring"
        && let Err(error) = probe::io_uring()
    {
        return Err(Failure::new(format!(
            "{origin} io_uring does not work here ({error}); \
             use --engine psync, or allow it: sysctl kernel.io_uring_disabled=0 and the container's seccomp profile"
        )));
    }
    Ok(name)
}

/// Checks the name of the program, which no other running program may have. `origin` says where it was given. Returns an empty name
/// if there is none.
pub fn program_name<'a>(origin: &str, name: Option<&'a str>) -> Result<&'a str, Failure> {
    let Some(name) = name else { return Ok("") };
    if let Some(why) = control::program_name_trouble(name) {
        return Err(Failure::new(format!("{origin} {name:?} {why}")));
    }
    match control_client::find_name(name) {
        Err(ControlError::NoSuchName(_) | ControlError::Directory(..)) => Ok(name),
        _ => Err(Failure::new(format!("{origin} {name}: a program of yours with this name runs already; choose another"))),
    }
}

/// Swap devices that were tried out.
#[derive(Debug, Default)]
pub struct Swap {
    /// With absolute paths: directories, files that do not exist, block devices.
    pub devices: Vec<DeviceSpec>,
    /// Free space on their file systems, in bytes.
    pub free: u64,
    /// Warnings about settings that work, but are probably not what the user wants.
    pub warnings: Vec<String>,
}

impl Swap {
    /// Puts compressed memory that finds its size by itself in front of them, unless some is among them or there are too many.
    pub fn compress(&mut self) {
        let has = self.devices.iter().any(|device| matches!(device.medium, Medium::Compressed(_)));
        if !has && self.devices.len() < DEVICES_AT_START {
            self.devices.insert(0, Medium::Compressed(Algorithm::default()).into());
        }
    }

    /// Their names, for people.
    pub fn names(&self) -> String {
        overspill_linux::setup::names(&self.devices)
    }
}

/// Reads the swap devices that were asked for, each with its origin (such as `--swap`), and tries them out. If there are none, the
/// directory for temporary files is used.
pub fn swap(asked: &[(String, Result<DeviceSpec, SpecError>)]) -> Result<Swap, Failure> {
    let mut swap = Swap::default();
    for (origin, device) in asked {
        let device = device.clone().map_err(|error| Failure::new(format!("{origin} {error}")))?;
        try_device(&mut swap, origin, device)?;
    }
    if asked.is_empty() {
        let (place, origin) = match env::var_os("TMPDIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => (PathBuf::from(&dir), format!("swap place {} (from TMPDIR)", dir.display())),
            None => ("/tmp".into(), "swap place /tmp (the default)".into()),
        };
        if !place.is_dir() {
            return Err(Failure::new(format!("{origin}: this directory does not exist; create it, or name another one")));
        }
        try_device(&mut swap, &origin, DeviceSpec::file(place))?;
    }
    if let Some(double) = device_spec::twice(&swap.devices) {
        return Err(Failure::new(format!("the swap device {} is named twice; name each once", double.display())));
    }
    device_spec::has_place(&swap.devices).map_err(|error| Failure::new(format!("{} {error}", asked[0].0)))?;
    device_spec::settle_priorities(&mut swap.devices, core::iter::empty());
    Ok(swap)
}

/// The devices of `--swap` options.
pub fn swap_options(options: &[OsString]) -> Vec<(String, Result<DeviceSpec, SpecError>)> {
    let origin = |text: &OsString| if text.is_empty() { "--swap".into() } else { format!("--swap {}", text.display()) };
    options.iter().map(|text| (origin(text), device_spec::parse(text))).collect()
}

/// Makes the device's paths absolute, tries them out, and adds it.
pub fn try_device(swap: &mut Swap, origin: &str, mut device: DeviceSpec) -> Result<(), Failure> {
    let several = !device.more.is_empty();
    let at = |path: &Path| if several { format!("{origin}: {}", path.display()) } else { origin.to_owned() };
    let fail = |path: &Path, why: &str| Failure::new(format!("{}: {why}", at(path)));
    let size = device.size.unwrap_or(0);
    match &mut device.medium {
        Medium::File(path) => {
            let mut free = 0u64;
            for path in [path].into_iter().chain(&mut device.more) {
                let (place, directory) = resolve(path).map_err(|why| fail(path, &why))?;
                free = free.saturating_add(try_file_place(swap, &at(path), &directory)?);
                *path = place;
            }
            if size > free {
                let (size, free) = (size::human(size), size::human(free));
                swap.warnings.push(format!("{origin}: {size} of swap are allowed and only {free} are free"));
            }
        }
        Medium::Block { path, force } => {
            let mut length = 0u64;
            for path in [path].into_iter().chain(&mut device.more) {
                let place = fs::canonicalize(&*path);
                let place = place.map_err(|error| fail(path, &format!("{error}; name a block device such as /dev/sdb")))?;
                length = length.saturating_add(try_block_device(&place, *force).map_err(|why| fail(path, &why))?);
                *path = place;
            }
            swap.free = swap.free.saturating_add(length);
            if size > length {
                let (size, length) = (size::human(size), size::human(length));
                let them = if several { "these block devices have" } else { "this block device has" };
                swap.warnings.push(format!("{origin}: {size} of swap are allowed and {them} only {length}"));
            }
        }
        Medium::Compressed(_) => swap.free = swap.free.saturating_add(size),
    }
    if let Some(long) = device.names().find(|name| name.len() > device_spec::NAME_MAX) {
        return Err(fail(Path::new(long), "the absolute path of this place is too long; name one that is shorter"));
    }
    swap.devices.push(device);
    Ok(())
}

/// Tries a file in `directory`. Returns the free bytes there; for memory, which gets a warning, the largest number.
fn try_file_place(swap: &mut Swap, origin: &str, directory: &Path) -> Result<u64, Failure> {
    let fail = |why: &str| Failure::new(format!("{origin}: {why}"));
    let file = try_file_in(directory).map_err(|error| {
        fail(&match error {
            Errno::ROFS => "the file system is mounted read-only; name a directory on a writable disk".into(),
            Errno::ACCESS | Errno::PERM => {
                format!("you may not create files in {}; name a directory of yours", directory.display())
            }
            Errno::NOSPC | Errno::DQUOT => {
                "there is no space left (or your quota is used up); name a directory on another disk".into()
            }
            error => format!("no file can be created in {}: {error}", directory.display()),
        })
    })?;
    let free = probe::free_bytes(file.as_fd()).unwrap_or(u64::MAX);
    swap.free = swap.free.saturating_add(free);
    if probe::is_memory_file_system(file.as_fd()).unwrap_or(false) {
        swap.warnings.push(format!(
            "{origin} is a tmpfs, so what is swapped there still takes memory; name a directory on a disk with --swap"
        ));
        return Ok(u64::MAX);
    }
    Ok(free)
}

/// Checks that a block device may be overwritten. Returns its length in bytes.
fn try_block_device(path: &Path, force: bool) -> Result<u64, String> {
    let Some(data) = fs::metadata(path).ok().filter(|data| data.file_type().is_block_device()) else {
        return Err("this is not a block device; for a file or a directory write file:PATH".into());
    };
    // The kernel lets root open a read-only device, and then fails each write.
    let (major, minor) = (rustix::fs::major(data.rdev()), rustix::fs::minor(data.rdev()));
    if fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|text| text.trim() == "1") {
        return Err("this block device is read-only; name another, or make it writable (blockdev --setrw)".into());
    }
    // O_EXCL without O_CREAT: refused if the kernel, or another program, uses the device.
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(device) => fs::File::from(device),
        Err(Errno::BUSY) => {
            return Err(
                "this block device is in use, as a mounted file system or by another program; unmount it, or name another".into()
            );
        }
        Err(Errno::ACCESS | Errno::PERM) if rustix::process::geteuid().is_root() => {
            return Err(
                "not even root may write to this block device here, as where a container's rules forbid it; name another".into()
            );
        }
        Err(Errno::ACCESS | Errno::PERM) => {
            return Err("you may not write to this block device; run as root, or as a user who may".into());
        }
        Err(Errno::NOMEDIUM) => return Err(EMPTY.into()),
        Err(error) => return Err(format!("this block device cannot be opened: {error}; name another")),
    };
    match signature::find(&device) {
        Ok(Some(what)) if !force => {
            return Err(signature::sentence(what, path));
        }
        Ok(_) => {}
        Err(error) => return Err(format!("this block device cannot be read: {error}; name another")),
    }
    match rustix::fs::seek(&device, rustix::fs::SeekFrom::End(0)) {
        Ok(0) => Err(EMPTY.into()),
        Ok(length) => Ok(length),
        Err(error) => Err(format!("its length cannot be had: {error}; name another")),
    }
}

/// Makes the place absolute. Also returns the directory of the swap file.
fn resolve(place: &Path) -> Result<(PathBuf, PathBuf), String> {
    match fs::metadata(place) {
        Ok(data) if data.is_dir() => {
            let path = fs::canonicalize(place).map_err(|error| error.to_string())?;
            return Ok((path.clone(), path));
        }
        Ok(data) if data.file_type().is_block_device() => {
            return Err(format!("this is a block device; to use it as such write block:{}", place.display()));
        }
        Ok(_) => {
            return Err("a file of this name exists already, and Overspill overwrites nothing; \
                 name a file that does not exist yet, or a directory"
                .into());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(format!("{error}; name another directory")),
    }
    if fs::symlink_metadata(place).is_ok() {
        return Err("this is a symbolic link to nowhere; name a directory, or a file that does not exist yet".into());
    }
    let missing = || "this directory does not exist; create it, or name another one".to_owned();
    let is_directory_name = place.as_os_str().as_bytes().ends_with(b"/");
    let Some(name) = place.file_name().filter(|_| !is_directory_name) else {
        return Err(missing());
    };
    let parent = match place.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match fs::canonicalize(parent) {
        Ok(parent) if parent.is_dir() => Ok((parent.join(name), parent)),
        Ok(parent) => Err(format!("{} is not a directory", parent.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("the directory {} does not exist; create it, or name another one", parent.display()))
        }
        Err(error) => Err(format!("the directory {}: {error}", parent.display())),
    }
}

/// Creates a file without a name, or one whose name is removed at once.
fn try_file_in(directory: &Path) -> Result<std::os::fd::OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        // The file system has no files without names (or the kernel has none, and takes this for opening a directory).
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
        other => return other,
    }
    let path = directory.join(format!(".overspill-probe-{}", std::process::id()));
    let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    rustix::fs::unlink(&path)?;
    Ok(file)
}

/// A program that was found.
#[derive(Debug)]
pub struct Program {
    /// The file to execute.
    pub file: PathBuf,
    /// Why it cannot be paged, as one message.
    pub unfit: Option<String>,
}

/// Finds the program and checks whether the agent can be loaded into it.
pub fn program(name: &OsStr) -> Result<Program, Failure> {
    let path = env::var_os("PATH");
    if name.is_empty() {
        return Err(Failure::with_status(NOT_FOUND, "the name of the program to run is empty"));
    }
    let file = program::find(name, path.as_deref()).map_err(|error| match error {
        NotFound::Missing if name.as_bytes().contains(&b'/') => {
            let why = match fs::metadata(name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => error.to_string(),
                _ => "there is no such program".into(),
            };
            Failure::with_status(NOT_FOUND, format!("{}: {why}", name.display()))
        }
        NotFound::Missing => {
            Failure::with_status(NOT_FOUND, format!("{}: there is no such program in the directories of PATH", name.display()))
        }
        NotFound::NotExecutable(file) => Failure::with_status(
            NOT_EXECUTABLE,
            if file.is_dir() {
                format!("{} is a directory, not a program", file.display())
            } else if !file.is_file() {
                format!("{} is not a regular file, so it is no program", file.display())
            } else {
                format!("{} may not be executed; try `chmod +x` on it", file.display())
            },
        ),
    })?;
    let Err((culprit, why)) = program::examine(&file, path.as_deref()) else {
        return Ok(Program { file, unfit: None });
    };
    let subject = if culprit == file {
        file.display().to_string()
    } else {
        format!("{}, which runs the script {},", culprit.display(), file.display())
    };
    if why.is_broken() {
        return Err(Failure::with_status(NOT_FOUND, format!("{subject} {why}")));
    }
    if why == Unfit::Damaged {
        return Err(Failure::with_status(NOT_EXECUTABLE, format!("{subject} {why}")));
    }
    Ok(Program { file, unfit: Some(format!("{subject} {why}")) })
}

/// The agent's file name.
const AGENT: &str = "liboverspill_agent.so";

/// Finds the agent library.
pub fn agent() -> Result<PathBuf, Failure> {
    let candidates = match env::var_os("OVERSPILL_AGENT").filter(|path| !path.is_empty()) {
        Some(path) => vec![PathBuf::from(path)],
        None => agent_places(&env::current_exe().unwrap_or_default()),
    };
    let Some(agent) = candidates.iter().find(|path| path.is_file()) else {
        let places: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
        return Err(Failure::new(format!(
            "the agent library was not found (looked for {}); install it there, or set OVERSPILL_AGENT to its path",
            places.join(", ")
        )));
    };
    let agent = fs::canonicalize(agent).map_err(|error| Failure::new(format!("the agent library {}: {error}", agent.display())))?;
    match program::examine_library(&agent) {
        Ok(None) => {}
        Ok(Some(why)) => {
            return Err(Failure::new(format!("the agent library {} {why}; install it anew", agent.display())));
        }
        Err(error) => return Err(Failure::new(format!("the agent library {} cannot be read: {error}", agent.display()))),
    }
    if agent.as_os_str().as_bytes().iter().any(|b| b" :\t\n$".contains(b)) {
        return Err(Failure::new(format!(
            "the path of the agent library, {:?}, contains a space, a colon or a dollar sign, which LD_PRELOAD cannot express; \
             install Overspill elsewhere",
            agent
        )));
    }
    Ok(agent)
}

fn agent_places(executable: &Path) -> Vec<PathBuf> {
    let here = executable.parent().unwrap_or(Path::new("/"));
    let mut places = vec![here.join(AGENT)];
    if let Some(up) = here.parent() {
        places.push(up.join("lib").join(AGENT));
        places.push(up.join("lib/overspill").join(AGENT));
    }
    places
}

/// `LD_PRELOAD` with the agent first, then what was there, without the agent of a run around this one, which may be another
/// installation's: two agents in one program would patch the same functions.
pub fn preload(agent: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = agent.as_os_str().to_owned();
    let separators = |b: &u8| *b == b':' || *b == b' ';
    let is_agent =
        |path: &[u8]| path == agent.as_os_str().as_bytes() || path.rsplit(|b| *b == b'/').next() == Some(AGENT.as_bytes());
    for library in before.unwrap_or_default().as_bytes().split(separators) {
        if !library.is_empty() && !is_agent(library) {
            value.push(":");
            value.push(OsStr::from_bytes(library));
        }
    }
    value
}

/// Tries userfaultfd out.
pub fn userfaultfd() -> Result<(), Failure> {
    match probe::full_mode() {
        Ok(_) => Ok(()),
        Err(refusal) => Err(Failure { status: FAILED, message: refusal.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preloads_are_kept() {
        let agent = Path::new("/lib/agent.so");
        let value = |before: &str| preload(agent, Some(OsStr::new(before)));
        assert_eq!(preload(agent, None), "/lib/agent.so");
        assert_eq!(value(""), "/lib/agent.so");
        assert_eq!(value("a.so b.so:/c.so"), "/lib/agent.so:a.so:b.so:/c.so");
        assert_eq!(value("a.so:/lib/agent.so"), "/lib/agent.so:a.so", "nested runs load it once");
        let others = "a.so:/other/liboverspill_agent.so liboverspill_agent.so:/x/not_liboverspill_agent.so";
        assert_eq!(value(others), "/lib/agent.so:a.so:/x/not_liboverspill_agent.so", "nor that of another installation");
    }

    #[test]
    fn the_agent_is_looked_for_around_the_executable() {
        let places = agent_places(Path::new("/usr/bin/overspill"));
        let places: Vec<_> = places.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(
            places,
            ["/usr/bin/liboverspill_agent.so", "/usr/lib/liboverspill_agent.so", "/usr/lib/overspill/liboverspill_agent.so"]
        );
    }

    #[test]
    fn budgets() {
        assert_eq!(memory("--memory", "64M").unwrap(), 64 << 20);
        assert_eq!(memory("--memory", "8388609").unwrap(), 8 << 20);
        assert!(memory("--memory", "100%").unwrap() > MEMORY_MIN);
        assert!(memory("--memory", "8388607").unwrap_err().message.contains("minimum is 8M"));
        assert!(memory("--memory", "x").unwrap_err().message.contains("--memory \"x\" is not a size"));
    }

    #[test]
    fn probes_leave_nothing_behind() {
        let dir = env::temp_dir().join(format!("overspill-probe-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        try_file_in(&dir).unwrap();
        fs::remove_dir(&dir).expect("still empty");
    }
}
