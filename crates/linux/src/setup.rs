//! Sets a machine up, and has the messages for what can go wrong.

use crate::compressed::Compressed;
use crate::content::Content;
use crate::daemon;
use crate::device_spec::{DeviceSpec, Medium, SIZE_MIN};
use crate::devices;
use crate::io::Engine;
use crate::kernel::Host;
use crate::machine::{self, Delivery, Inject, Machine, Parts};
use crate::ranges::ranges_max;
use crate::reader;
use crate::swap_file::{DeviceName, SwapFiles};
use crate::sys::{self, Errno, Fd};
use crate::uffd::{self, Uffd};
use core::fmt;
use overspill_machine::files::{Files as _, SLOTS_UNLIMITED};
use overspill_machine::kernel::Content as _;
use overspill_swap::SwapPager;
use overspill_vm::pager::Pager as _;
use overspill_vm::policy::Spec;
use overspill_vm::status::Status;
use overspill_vm::types::{PAGE_SHIFT, PAGE_SIZE};
use overspill_vm::{Config, ConfigError, Vm};
use std::ffi::OsStr;

/// How a machine is set up.
#[derive(Debug)]
pub struct Options<'a> {
    /// The budget in bytes.
    pub memory_bytes: u64,
    /// The swap devices, at least one, no two alike.
    pub swap: &'a [DeviceSpec],
    /// Replacement policy.
    pub policy: Spec,
    /// How I/O is issued; resolved.
    pub engine: Engine,
    /// How faults are delivered.
    pub delivery: Delivery,
    /// Whether swap is encrypted.
    pub encrypt: bool,
    /// Whether threads that thrash take turns: see [`overspill_machine::load_control`].
    pub load_control: bool,
    /// Whether pointers in pages that are read in order are followed: see [`overspill_machine::pointers`].
    pub follow_pointers: bool,
    /// A program's memory is paged, rather than regions.
    pub whole_program: bool,
    /// How many pages may be managed.
    pub pages_max: u64,
    /// How many objects there may be.
    pub objects_max: u16,
    /// The longest window of readahead and zero-ahead, in pages; `None`: by the budget.
    pub ahead_pages_max: Option<u32>,
    /// The number of decisions to remember, for tests.
    pub decisions_max: usize,
}

/// Why a machine could not be set up. Displays as one message: what happened, where, what to try.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SetupError {
    /// The core refused.
    Config(ConfigError),
    /// userfaultfd(2) failed.
    Userfaultfd(Errno, Delivery),
    /// The swap file could not be made.
    Swap(Errno, String),
    /// io_uring was asked for and is refused.
    Engine(Errno),
    /// No memory could be locked for a key, or there was no randomness.
    Key(Errno),
    /// mmap(2) or clone(2) failed.
    Memory(Errno),
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let os = |e: Errno| std::io::Error::from_raw_os_error(e);
        match self {
            SetupError::Config(e) => write!(f, "{e}"),
            SetupError::Userfaultfd(libc::EPERM | libc::EACCES, Delivery::Threads) => write!(
                f,
                "userfaultfd is not permitted here: run as root or with CAP_SYS_PTRACE, or set the sysctl vm.unprivileged_userfaultfd=1, \
                 where in a container the seccomp profile must allow userfaultfd too; or give this user access to /dev/userfaultfd"
            ),
            SetupError::Userfaultfd(libc::EPERM, Delivery::InThread) => {
                write!(
                    f,
                    "userfaultfd is not permitted here: the container's seccomp profile must allow the system call userfaultfd"
                )
            }
            SetupError::Userfaultfd(libc::EINVAL, _) => {
                write!(f, "this kernel's userfaultfd cannot move pages (UFFDIO_MOVE): Overspill needs Linux 6.8 or later")
            }
            SetupError::Userfaultfd(libc::ENOSYS, _) => {
                write!(
                    f,
                    "there is no system call userfaultfd here: the kernel was built without CONFIG_USERFAULTFD, or a seccomp filter hides it; \
                     allow it there, or give this user access to /dev/userfaultfd"
                )
            }
            SetupError::Userfaultfd(e, _) => write!(f, "userfaultfd could not be opened: {}", os(*e)),
            SetupError::Swap(libc::EEXIST, place) => {
                write!(f, "the swap file {place} exists already: name a new file or a directory with --swap")
            }
            SetupError::Swap(libc::EBUSY, place) => {
                write!(
                    f,
                    "the block device {place} is in use, as a mounted file system or by another program: name another with --swap"
                )
            }
            SetupError::Swap(libc::ENOTBLK, place) => {
                write!(f, "{place} is not a block device: name one with --swap, or write file: for a file or directory")
            }
            SetupError::Swap(libc::ENOMEDIUM, place) => {
                write!(f, "the block device {place} is empty: no medium is in it, or it was not set up: name another with --swap")
            }
            SetupError::Swap(libc::E2BIG, place) => {
                write!(f, "{place} is one swap device too many: there may be {DEVICES_AT_START}")
            }
            SetupError::Swap(e, place) => {
                write!(f, "no swap file could be made at {place}: {}: choose another place with --swap", os(*e))
            }
            SetupError::Engine(e) => write!(f, "io_uring is refused here ({}): use --engine auto or --engine psync", os(*e)),
            SetupError::Key(e @ (libc::ENOMEM | libc::EPERM | libc::EAGAIN)) => write!(
                f,
                "no page of memory could be locked for the key that encrypts swap ({}): raise the limit (ulimit -l), or do without \
                 encryption (--no-encrypt)",
                os(*e)
            ),
            SetupError::Key(e) => {
                write!(f, "no key could be made to encrypt swap with ({}): do without encryption (--no-encrypt)", os(*e))
            }
            SetupError::Memory(libc::ENOMEM) => write!(
                f,
                "the pager could not get memory for itself: if there is a limit on address space or data (ulimit -v, ulimit -d), raise it; its \
                 tables count, and the budget twice"
            ),
            SetupError::Memory(e) => write!(f, "the pager could not get memory or threads for itself: {}", os(*e)),
        }
    }
}

impl std::error::Error for SetupError {}

/// The longest cluster for a budget of `memory_pages` pages, in pages.
pub fn cluster_pages(memory_pages: u32) -> usize {
    Config::cluster_pages(memory_pages) as usize
}

/// The most pages of a budget of `memory_pages` that go to the machine's own buffers: those of `readers` readers, and those that
/// writes are sealed in if swap is encrypted.
pub fn buffers_max(memory_pages: u32, readers: usize, sealed: bool) -> u32 {
    let writes = daemon::writes(memory_pages, sealed);
    (readers * reader::buffer_pages(cluster_pages(memory_pages)) + daemon::buffer_pages(writes, sealed)) as u32
}

/// Pages of buffers that are in memory while one thread faults. (Measured, at the median: 57 in 73 MiB, 66 in 271 MiB.)
pub fn buffers_usual(memory_pages: u32) -> u32 {
    (reader::SINGLES + cluster_pages(memory_pages)) as u32
}

/// Opens the two userfaultfds: for the program's ranges and for the parking area. `device` as for [`Uffd::open`].
///
/// # Errors
/// As [`Uffd::open`].
pub fn open_uffds(delivery: Delivery, device: Option<&Fd>) -> Result<(Uffd, Uffd), Errno> {
    let full = delivery == Delivery::Threads;
    let features = uffd::FEATURE_MOVE | if full { uffd::FEATURES_EVENTS | uffd::FEATURE_THREAD_ID } else { uffd::FEATURE_SIGBUS };
    let with = |more| Uffd::open(full, features | more, device);
    let program = with(uffd::FEATURE_POISON | uffd::FEATURES_REFERENCES).ok().filter(|uffd| uffd.has_told_references() == Ok(true));
    let program = program.map_or_else(|| with(uffd::FEATURE_POISON).or_else(|_| with(0)), Ok)?;
    // nobody reads its messages: a touch of a parked page that is gone must end the process, and not wait for ever
    let parking = Uffd::open(false, uffd::FEATURE_MOVE | uffd::FEATURE_SIGBUS, device)?;
    Ok((program, parking))
}

pub use overspill_machine::files::DEVICES_MAX;
/// The most devices that a process may start with: forked children inherit them, and each generation adds one of its own.
pub const DEVICES_AT_START: usize = 8;

/// The smallest table for a device without a limit, when address space is short: 4 GiB.
const SLOTS_USUAL_MIN: u64 = 1 << 20;
/// The devices' names, for people.
pub fn names(devices: &[DeviceSpec]) -> String {
    let name = |d: &DeviceSpec| d.names().map(|name| name.to_string_lossy()).collect::<Vec<_>>().join(" + ");
    devices.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Sets a machine up, without starting any thread.
///
/// # Errors
/// [`SetupError`].
pub fn machine(options: &Options<'_>, status: &'static Status) -> Result<Machine, SetupError> {
    let memory_pages = (options.memory_bytes >> PAGE_SHIFT).min(1 << 28) as u32;
    let mut config = Config::new(memory_pages, options.pages_max);
    config.policy = options.policy;
    config.objects_max = options.objects_max;
    config.decisions_max = options.decisions_max;
    if let Some(most) = options.ahead_pages_max {
        config.readahead_pages_max = config.readahead_pages_max.min(most).max(1);
        config.zero_ahead_pages_max = config.zero_ahead_pages_max.min(most).max(1);
    }
    if options.memory_bytes < overspill_vm::MEMORY_BYTES_MIN {
        return Err(SetupError::Config(ConfigError::BudgetTooSmall));
    }
    let content = if options.encrypt { Content::sealed().map_err(SetupError::Key)? } else { Content::Checked };
    let writes = daemon::writes(memory_pages, content.is_sealed());
    sys::find_clock();
    let (program, parking) = open_uffds(options.delivery, None).map_err(|e| SetupError::Userfaultfd(e, options.delivery))?;
    let mut devices: Vec<_> = options.swap.iter().collect();
    devices.sort_by_key(|d| core::cmp::Reverse(d.priority));
    let mut files = [const { None }; DEVICES_MAX];
    let mut names = Box::new([const { DeviceName::new() }; DEVICES_MAX]);
    let mut lengths = [0; DEVICES_AT_START];
    for (i, device) in devices.iter().enumerate() {
        let fail = |(e, place): (Errno, &OsStr)| SetupError::Swap(e, place.to_string_lossy().into_owned());
        if i == DEVICES_AT_START {
            return Err(fail((libc::E2BIG, device.name())));
        }
        match device.medium {
            Medium::Compressed(_) => {}
            Medium::File(_) | Medium::Block { .. } => {
                let opened = SwapFiles::open(device).map_err(fail)?;
                lengths[i] = if opened.limit() == 0 { 0 } else { opened.slots() };
                files[i] = Some(opened);
            }
        }
        names[i].set(device.name().as_encoded_bytes());
    }
    // A device without a limit, or one that comes later, gets tables for 256 GiB. They are smaller if address space is so short
    // that far less memory can be managed.
    let usual = options.pages_max.saturating_mul(2).next_power_of_two().clamp(SLOTS_USUAL_MIN, SLOTS_UNLIMITED.into()) as u32;
    let mut pager = SwapPager::without_device(overspill_swap::Config {
        // an object of a few pages takes the metadata of sixteen pages, twice
        pages_max: options.pages_max + 32 * u64::from(options.objects_max),
        slots_max: lengths.iter().copied().max().unwrap_or(0).max(usual),
        devices_max: DEVICES_MAX as u16,
        extents_max: 1 << 17,
    });
    let mut pools = [const { None }; DEVICES_AT_START];
    for ((device, files), pool) in devices.iter().zip(&files).zip(&mut pools) {
        let priority = device.priority.unwrap_or(0);
        let entry = match files {
            Some(files) => devices::add_files(pager.devices_mut(), files, priority),
            // a compressed device is entered later, when there is a budget; until then this entry keeps its place
            None => pager.devices_mut().add_device(1, priority),
        };
        let entry = entry.expect("an empty table has entries, in order");
        if let Medium::Compressed(algorithm) = device.medium {
            let slots_max = pager.devices().slots_max();
            let compressed = match device.size {
                Some(bytes) if bytes >= SIZE_MIN => Compressed::new(bytes, memory_pages, slots_max, algorithm),
                None if devices.len() > 1 => Compressed::automatic(memory_pages, slots_max, algorithm),
                _ => return Err(SetupError::Swap(libc::EINVAL, device.name().to_string_lossy().into_owned())),
            };
            *pool = Some((entry, compressed.map_err(SetupError::Memory)?));
        }
    }
    let mut vm = Vm::new(config, pager, &status.counters).map_err(SetupError::Config)?;
    let mut pool = None;
    for (device, (entry, compressed)) in devices.iter().zip(pools).filter_map(|(d, p)| Some((d, p?))) {
        vm.devices_mut().remove(entry);
        let again = compressed.enter(&mut vm, device.priority.unwrap_or(0)).expect("its entry is free again");
        assert!(again == entry && pool.is_none(), "the lowest free entry, and no two devices are alike");
        pool = Some(compressed);
    }
    let capacity = vm.devices().capacity();
    status.counters.swap_capacity_bytes.set(capacity * PAGE_SIZE as u64);
    status.policy.set(options.policy.to_string().as_bytes());
    status.engine.set(options.engine.name().as_bytes());
    status.swap.set(self::names(options.swap).as_bytes());
    let (ns, cycles) = sys::clocks();
    status.start(ns, cycles);
    let inject = std::env::var("OVERSPILL_INJECT").ok().filter(|text| !text.is_empty());
    // (some systems have 2^31 for "no limit")
    let mappings_max = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
    Machine::new(Parts {
        vm,
        config: machine::Config {
            delivery: options.delivery,
            follows_pointers: options.follow_pointers,
            finds_grown: options.whole_program,
            load_control: options.load_control,
            writes,
        },
        content,
        inject: inject.map_or_else(Inject::default, |text| Inject::parse(&text)),
        host: Host::new().map_err(SetupError::Memory)?,
        status,
        program,
        parking,
        process: sys::pidfd_open(sys::getpid()).ok(),
        files,
        names,
        pool,
        memory_pages,
        ranges_max: ranges_max(mappings_max.unwrap_or(65_530), options.pages_max),
        objects_max: options.objects_max,
    })
    .map_err(SetupError::Memory)
}
