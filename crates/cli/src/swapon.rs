//! `overspill swapon` and `overspill swapoff` add and remove devices while a program runs.
//!
//! This process opens the files, with its user's rights, and passes their descriptors to the program: see
//! `overspill_linux::control`.

use crate::args::{SwapoffArgs, SwaponArgs};
use crate::report::{duration, grouped};
use crate::stat::NOTHING;
use crate::swaps::{connect, devices, failed};
use crate::{Failure, preflight, printable, say, supervise};
use overspill_linux::control::{Kind, Progress, Reply, Request};
use overspill_linux::control_client::{Connection, ControlError};
use overspill_linux::device_spec::{self, DeviceSpec, Medium};
use overspill_linux::setup::DEVICES_MAX;
use overspill_linux::size::human;
use overspill_linux::swap_file::{SwapFile, SwapFiles};
use std::ffi::OsStr;
use std::fs;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

/// Exit status of a swapoff that has ended, but some pages could not be read.
const LOST: u8 = 2;

/// Adds devices: all of them, or none.
pub fn swapon(args: &SwaponArgs) -> Result<u8, Failure> {
    let mut asked = preflight::Swap::default();
    for text in &args.devices {
        let origin = text.display().to_string();
        let device = device_spec::parse(text).map_err(|error| Failure::new(format!("{origin} {error}")))?;
        preflight::try_device(&mut asked, &origin, device)?;
    }
    if let Some(double) = device_spec::twice(&asked.devices) {
        return Err(Failure::new(format!("the swap device {} is named twice; name each once", double.display())));
    }
    let connection = connect(&args.program)?;
    let there = devices(&connection)?;
    let own = || there.iter().filter(|d| d.state != "inherited");
    // Report beforehand what is known beforehand.
    if let Some(double) = asked.devices.iter().find(|d| own().any(|o| o.name == d.name().as_bytes())) {
        return Err(Failure::with_status(
            NOTHING,
            format!("{}: this process has that swap device already", double.name().display()),
        ));
    }
    if there.len() + asked.devices.len() > DEVICES_MAX {
        return Err(Failure::with_status(
            NOTHING,
            format!(
                "{}: this process has {} of the {DEVICES_MAX} possible swap devices, and {} more were named; \
                 swap one off first, or name fewer",
                args.program,
                there.len(),
                asked.devices.len()
            ),
        ));
    }
    device_spec::settle_priorities(&mut asked.devices, own().map(|d| d.priority));
    let opened = asked.devices.iter().map(Opened::new).collect::<Result<Vec<_>, _>>()?;
    asked.warnings.iter().for_each(|line| say(format_args!("warning: {line}")));
    for (i, device) in opened.iter().enumerate() {
        if let Err(failure) = device.add(&connection) {
            return Err(take_back(&connection, &opened[..i], failure));
        }
    }
    Ok(0)
}

/// A device whose files are open. More this command cannot do alone.
struct Opened<'a> {
    device: &'a DeviceSpec,
    files: Option<SwapFiles>,
}

impl<'a> Opened<'a> {
    fn new(device: &'a DeviceSpec) -> Result<Self, Failure> {
        let files = match device.medium {
            Medium::Compressed(_) => None,
            _ => Some(SwapFiles::open(device).map_err(|(e, place)| {
                let why = std::io::Error::from_raw_os_error(e);
                Failure::new(format!("{}: {why}; name another place", place.display()))
            })?),
        };
        Ok(Opened { device, files })
    }

    fn name(&self) -> &'a OsStr {
        self.device.name()
    }

    fn add(&self, connection: &Connection) -> Result<(), Failure> {
        let fail = |why: String| Failure::with_status(NOTHING, format!("{}: {why}", self.name().display()));
        let kind = self.files.as_ref().map_or(Kind::Compressed, SwapFiles::kind);
        let algorithm = match self.device.medium {
            Medium::Compressed(algorithm) => algorithm,
            _ => device_spec::Algorithm::default(),
        };
        let descriptors: Vec<_> = self.files.iter().flat_map(SwapFiles::iter).map(SwapFile::as_fd).collect();
        let (bytes, align, name) = (self.device.size.unwrap_or(0), self.device.align, self.name().as_bytes());
        let request = Request::Swapon { kind, bytes, priority: self.device.priority.unwrap_or(0), align, algorithm, name };
        connection.send(&request, &descriptors).map_err(failed)?;
        match connection.receive() {
            Ok(Reply::Ok(_)) => Ok(()),
            Ok(_) => Err(fail("the process gave an answer that makes no sense; is it of another version?".into())),
            Err(error @ ControlError::Refused(_)) => Err(fail(error.to_string())),
            Err(error) => Err(failed(error)),
        }
    }
}

/// Swaps off again the devices that were added before a later one failed. The last comes first, so that its pages can go back to
/// where they came from. A device that cannot be emptied stays, and the message names it.
fn take_back(connection: &Connection, added: &[Opened<'_>], failure: Failure) -> Failure {
    let off = |device: &Opened<'_>| -> Result<(), ControlError> {
        connection.send(&Request::Swapoff(device.name().as_bytes()), &[])?;
        while let Reply::Progress(_) = connection.receive()? {}
        Ok(())
    };
    let stay: Vec<_> = added.iter().rev().filter_map(|device| Some((device, off(device).err()?))).collect();
    let Some((_, why)) = stay.first().filter(|(_, why)| !matches!(why, ControlError::Ended(_))) else { return failure };
    let names: Vec<_> = stay.iter().map(|(device, _)| device.name().display().to_string()).collect();
    let message = format!("{}; added before that, and not to be taken away again: {} ({why})", failure.message, names.join(", "));
    Failure { message, ..failure }
}

/// Empties a device, and removes it.
pub fn swapoff(args: &SwapoffArgs) -> Result<u8, Failure> {
    let connection = Arc::new(connect(&args.program)?);
    let name = device_name(&connection, &args.device)?;
    let interrupted = Arc::new(AtomicI32::new(0));
    let (their, signal) = (connection.clone(), interrupted.clone());
    supervise::on_interrupt(move |number| {
        signal.store(number, SeqCst);
        let _ = their.send(&Request::Cancel, &[]);
    })
    .map_err(|error| Failure::new(format!("the signals cannot be waited for: {error}")))?;

    connection.send(&Request::Swapoff(&name), &[]).map_err(failed)?;
    let mut line = Line { shown: 0, on: std::io::stderr().is_terminal() };
    let result = loop {
        match connection.receive() {
            Ok(Reply::Progress(progress)) => line.show(&format!(
                "{} left, {} moved, {} brought into memory",
                pages(progress.left_pages),
                pages(progress.moved_pages),
                pages(progress.memory_pages)
            )),
            other => break other,
        }
    };
    line.show("");
    let why = match result {
        Ok(Reply::Ok(progress)) => {
            // It does not matter if standard output is closed: the work is done.
            let name = printable(&String::from_utf8_lossy(&name));
            let _ = writeln!(std::io::stdout(), "{}", summary(&name, &progress));
            if progress.lost_pages > 0 {
                let lost = pages(progress.lost_pages);
                let why = format!(
                    "{name}: the device is off, but {lost} on it could not be read and are lost; `overspill stat` says where the first was"
                );
                return Err(Failure::with_status(LOST, why));
            }
            return Ok(0);
        }
        Ok(_) => {
            return Err(Failure::with_status(NOTHING, "the process gave an answer that makes no sense; is it of another version?"));
        }
        Err(ControlError::Refused(why)) => why,
        Err(error) => return Err(failed(error)),
    };
    let status = match interrupted.load(SeqCst) {
        0 => NOTHING,
        signal => u8::try_from(128 + signal).unwrap_or(NOTHING),
    };
    Err(Failure::with_status(status, format!("{}: {why}", String::from_utf8_lossy(&name))))
}

/// The process's own name for the device. The user may give the name that `overspill swaps` shows, a path to the device, or the
/// text with which it was added.
fn device_name(connection: &Connection, device: &OsStr) -> Result<Vec<u8>, Failure> {
    let there = devices(connection)?;
    let mut candidates = vec![device.to_owned()];
    let spec = device_spec::parse(device).ok();
    let paths = spec.iter().filter_map(|d| d.medium.path()).chain([Path::new(device)]);
    for path in paths {
        candidates.push(path.into());
        candidates.extend(fs::canonicalize(path).ok().map(Into::into));
        // a swap file has no name any more, but its directory has
        let parent = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
        if let (Some(Ok(parent)), Some(name)) = (parent.map(fs::canonicalize), path.file_name()) {
            candidates.push(parent.join(name).into());
        }
    }
    let found = candidates.iter().find(|c| there.iter().any(|d| d.name == c.as_bytes()));
    found.map(|name| name.as_bytes().to_vec()).ok_or_else(|| {
        let names: Vec<_> = there.iter().map(crate::swaps::name).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        Failure::with_status(NOTHING, format!("{}: this process has no such swap device; it has {names}", device.display()))
    })
}

fn pages(count: u64) -> String {
    human(count << 12)
}

fn summary(name: &str, progress: &Progress) -> String {
    let done = progress.moved_pages + progress.memory_pages;
    let per_read = if progress.reads == 0 { 0.0 } else { done as f64 / progress.reads as f64 };
    format!(
        "{name}: {} in {}; {} to other devices, {} into memory; {} reads of {per_read:.1} pages, {} writes",
        pages(done),
        duration(Duration::from_nanos(progress.nanoseconds)),
        pages(progress.moved_pages),
        pages(progress.memory_pages),
        grouped(progress.reads),
        grouped(progress.writes)
    )
}

/// A line on a terminal that is written over.
struct Line {
    shown: usize,
    on: bool,
}

impl Line {
    fn show(&mut self, text: &str) {
        if self.on {
            let mut out = std::io::stderr();
            let _ = write!(out, "\r{text:<width$}{}", if text.is_empty() { "\r" } else { "" }, width = self.shown);
            let _ = out.flush();
            self.shown = text.chars().count();
        }
    }
}
