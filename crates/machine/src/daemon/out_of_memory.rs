//! What the page daemon does when nothing can be evicted: it waits, allows frames above the budget, or ends the program.

use super::{Daemon, Trouble};
use crate::errno::{self, Errno};
use crate::growth;
use crate::kernel::{Kernel, Mistake};
use crate::machine::Machine;
use crate::packet::Packet;
use crate::waited::Waited;
use core::fmt::Write as _;
use overspill_vm::types::ObjectId;

/// How long both memory and swap may be full before the program is stopped, in nanoseconds.
const GRACE_NS: u64 = 3_000_000_000;
/// The same if a swap device reports errors: it may recover.
const DEVICE_GRACE_NS: u64 = 10_000_000_000;
/// The same if it is files that cannot be written, whose pages are changed. Longer, because a person may make room meanwhile, and
/// because there is no other place for these pages.
const FILE_GRACE_NS: u64 = 30_000_000_000;
/// How often devices that answered ENOSPC to a write are asked again meanwhile, in nanoseconds: they may have space by then.
const ASKS_AGAIN_NS: u64 = 500_000_000;

fn file_grace_ns<K: Kernel>(machine: &Machine<K>) -> u64 {
    match machine.inject.file_grace_ms {
        0 => FILE_GRACE_NS,
        ms => ms * 1_000_000,
    }
}

/// The state of memory after a step of the page daemon.
#[derive(Clone, Copy)]
struct Outlook {
    /// Frames that could be given out: within the budget, and in all.
    free: bool,
    free_above: bool,
    /// There are pages in memory that could be written.
    writable: bool,
    /// A frame has come free since the last step, or a fork makes the process smaller.
    progress: bool,
    /// Why writing failed.
    trouble: Option<Trouble>,
    /// How long there has been no progress, in nanoseconds.
    stuck_ns: Option<u64>,
    /// [`FILE_GRACE_NS`].
    file_grace_ns: u64,
}

/// What the daemon concludes from an [`Outlook`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// All is well. The daemon waits for a slow device as long as it takes.
    Fine,
    /// There is trouble that may pass.
    Wait,
    /// The trouble did not pass within the grace time.
    GiveUp,
}

/// Whether an error of a write to swap says that there is no room.
fn is_full(why: Errno) -> bool {
    matches!(why, errno::ENOSPC | errno::EDQUOT | errno::ENOMEM | errno::EFBIG)
}

/// Notes that writing to swap has failed. A full device does not hide another one, or a file, that reports errors and may recover.
pub(super) fn note(trouble: &mut Option<Trouble>, why: Errno) {
    let hides = match *trouble {
        Some(Trouble::Swap(before)) => is_full(why) && !is_full(before),
        Some(Trouble::File(..)) => is_full(why),
        None => false,
    };
    if !hides {
        *trouble = Some(Trouble::Swap(why));
    }
}

/// Trouble is one of two things. Memory is full, writes fail, and no frame has come free for a while: swap is full or broken. Or
/// there is no frame left even above the budget, and no page that could be written. Parking pages is no progress: soft faults of
/// other threads undo it for ever.
fn judge(outlook: Outlook) -> Verdict {
    let Outlook { free, free_above, writable, progress, trouble, stuck_ns, file_grace_ns } = outlook;
    let fails = trouble.is_some() && !free && writable;
    let exhausted = !free_above && !writable;
    let grace = match trouble {
        Some(Trouble::File(..)) => file_grace_ns,
        Some(Trouble::Swap(why)) if !is_full(why) => DEVICE_GRACE_NS,
        Some(Trouble::Swap(_)) | None => GRACE_NS,
    };
    match stuck_ns {
        _ if progress || !(fails || exhausted) => Verdict::Fine,
        Some(ns) if ns > grace => Verdict::GiveUp,
        _ => Verdict::Wait,
    }
}

/// The message for a program that is stopped because writing failed.
fn message(trouble: Errno) -> &'static [u8] {
    match trouble {
        errno::ENOSPC | errno::EDQUOT => {
            b"memory and swap are both full, so the program was stopped: give it more --memory, or a --swap place with more room"
        }
        errno::ENOMEM => {
            b"memory is full and the pager has no room to remember where more pages are stored, so the program was stopped: give it more --memory, or the library a larger managed_max"
        }
        errno::EFBIG => {
            b"memory is full and the swap file has reached the limit on the size of files, so the program was stopped: raise the limit (ulimit -f), or give it more --memory"
        }
        _ => {
            b"writing to the swap place failed and memory is full, so the program was stopped: see the system log for the device's errors, or use another --swap place"
        }
    }
}

impl<K: Kernel, S> Daemon<K, S> {
    /// Something is wanted and nothing can be evicted. If no frame is free and no page could be written (all are wired or refused),
    /// faults go above the budget until something can be evicted again; that is counted. If there are pages that could be written,
    /// swap is full or broken, and [`Daemon::watch_progress`] counts the time.
    pub(super) fn stuck(&mut self, machine: &Machine<K>) {
        let is_starved = {
            let core = machine.core.lock();
            core.vm.room() == 0 && !core.vm.has_writable()
        };
        if is_starved {
            machine.shortage.set_starved(true);
            machine.arrivals.announce();
        }
        machine.shortage.note_stuck(K::now_ns);
        if core::mem::take(&mut self.locked_seen)
            && let Some(fixed) = K::fixed()
        {
            machine.status.counters.memory_locked_bytes.set(fixed.locked);
        }
        machine.doorbell.pause(&machine.host, 2_000_000);
    }

    /// After each step: stops the program if it cannot go on. A swapoff that is under way is ended first. While the process is
    /// stopped, its threads can free no memory, so that time is not part of the grace time.
    pub(super) fn watch_progress(&mut self, machine: &Machine<K>) {
        let now = K::now_ns();
        let freed = machine.status.counters.pages_reclaimed.get().wrapping_add(machine.status.counters.released_pages.get());
        let outlook = {
            let core = machine.core.lock();
            Outlook {
                free: core.vm.room() > 0,
                free_above: core.vm.has_frame(),
                writable: core.vm.has_writable(),
                progress: freed != self.freed_before || machine.freeze.is_shrinking(),
                trouble: self.trouble,
                stuck_ns: self.stuck.as_mut().map(|stuck| stuck.look(now)),
                file_grace_ns: file_grace_ns(machine),
            }
        };
        if outlook.progress || outlook.free || !outlook.writable {
            self.freed_before = freed;
            self.trouble = None;
        }
        match judge(outlook) {
            Verdict::Fine => self.stuck = None,
            Verdict::Wait if self.stuck.is_none() => (self.stuck, self.asked_at) = (Some(Waited::new(now)), now),
            Verdict::Wait if now - self.asked_at > ASKS_AGAIN_NS && !K::mistake(Mistake::AsksOnce) => {
                self.asked_at = now;
                machine.core.lock().vm.devices_mut().retry(true);
            }
            Verdict::Wait => {}
            // a swapoff needed the room: better no swapoff than no program
            Verdict::GiveUp if machine.core.lock().vm.devices_mut().stay_all() => self.stuck = None,
            Verdict::GiveUp => match self.trouble {
                None => Self::stop_for_fixed_pages(machine),
                Some(Trouble::Swap(errno::ENOSPC)) => match growth::try_again(machine) {
                    Ok(true) => self.stuck = None, // somebody else has made room
                    Ok(false) => machine.stop_program(message(errno::ENOSPC)),
                    Err(why) => machine.stop_program(message(why)),
                },
                Some(Trouble::Swap(why)) => machine.stop_program(message(why)),
                Some(Trouble::File(why, object)) => Self::stop_for_file(machine, why, object),
            },
        }
    }

    /// Memory is full of changed pages of a file that cannot be written.
    fn stop_for_file(machine: &Machine<K>, why: Errno, object: ObjectId) -> ! {
        let mut said = Packet::new();
        said.put(b"writing to the file ");
        if let Some(file) = machine.map.read().home(object) {
            said.put(file.name.bytes());
        }
        let reason = match why {
            errno::ENOSPC => "its file system is full",
            errno::EDQUOT => "its quota is used up",
            errno::EFBIG => "a limit on the size of files is reached",
            _ => "its device reports errors",
        };
        let _ = write!(
            said,
            " has failed for {} s and memory is full of its changed pages, so the program was stopped: {reason} (error {why})",
            file_grace_ns(machine) / 1_000_000_000
        );
        machine.stop_program(said.bytes())
    }

    /// The pages in memory cannot leave it.
    fn stop_for_fixed_pages(machine: &Machine<K>) -> ! {
        let fixed = K::fixed().unwrap_or_default();
        let mut said = Packet::new();
        let _ = write!(
            said,
            "memory is full of pages that cannot leave it ({} MiB locked by the program, {} MiB pinned by registered buffers or devices, \
             the rest held by the kernel or in memory of an unusual kind), so the program was stopped: give it more --memory",
            fixed.locked >> 20,
            fixed.pinned >> 20
        );
        machine.stop_program(said.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_stopped_only_for_what_does_not_pass() {
        let (long, short) = (Some(DEVICE_GRACE_NS + 1), Some(GRACE_NS));
        let full = Outlook {
            free: false,
            free_above: true,
            writable: true,
            progress: false,
            trouble: None,
            stuck_ns: long,
            file_grace_ns: FILE_GRACE_NS,
        };
        let (io, file) = (Some(Trouble::Swap(errno::EIO)), Some(Trouble::File(errno::EIO, ObjectId(3))));
        let no_space = Some(Trouble::Swap(errno::ENOSPC));
        for (what, outlook, verdict) in [
            ("a slow device", full, Verdict::Fine),
            ("writes fail", Outlook { trouble: io, ..full }, Verdict::GiveUp),
            ("swap is full", Outlook { trouble: no_space, stuck_ns: Some(GRACE_NS + 1), ..full }, Verdict::GiveUp),
            ("writes to a file fail", Outlook { trouble: file, ..full }, Verdict::Wait),
            ("for longer", Outlook { trouble: file, stuck_ns: Some(FILE_GRACE_NS + 1), ..full }, Verdict::GiveUp),
            ("for a moment", Outlook { trouble: io, stuck_ns: short, ..full }, Verdict::Wait),
            ("since now", Outlook { trouble: io, stuck_ns: None, ..full }, Verdict::Wait),
            ("but a frame came free", Outlook { trouble: io, progress: true, ..full }, Verdict::Fine),
            ("but there is memory", Outlook { trouble: io, free: true, ..full }, Verdict::Fine),
            ("nothing can be written, so faults go above the budget", Outlook { writable: false, ..full }, Verdict::Fine),
            ("nor is there a frame above it", Outlook { writable: false, free_above: false, ..full }, Verdict::GiveUp),
            ("which may pass", Outlook { writable: false, free_above: false, stuck_ns: short, ..full }, Verdict::Wait),
            ("or has", Outlook { writable: false, free_above: false, progress: true, ..full }, Verdict::Fine),
            ("no frame, but something to write", Outlook { free_above: false, ..full }, Verdict::Fine),
        ] {
            assert_eq!(judge(outlook), verdict, "{what}");
        }
    }

    /// One device was full and the other one reported errors: the program was stopped after three seconds, as if both were full.
    #[test]
    fn a_full_device_does_not_hide_one_that_fails() {
        let mut trouble = None;
        for (why, told) in [(errno::ENOSPC, errno::ENOSPC), (errno::EIO, errno::EIO), (errno::ENOSPC, errno::EIO)] {
            note(&mut trouble, why);
            assert!(matches!(trouble, Some(Trouble::Swap(error)) if error == told), "{why}");
        }
    }

    #[test]
    fn each_trouble_has_its_message() {
        let messages = [errno::ENOSPC, errno::ENOMEM, errno::EFBIG, errno::EIO].map(message);
        for (i, one) in messages.iter().enumerate() {
            assert!(!messages[..i].contains(one));
        }
        assert_eq!(message(errno::EDQUOT), message(errno::ENOSPC));
    }
}
