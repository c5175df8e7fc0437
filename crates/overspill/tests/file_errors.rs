//! Regions of files when reads, writes and fdatasync fail, the file system is full, or the process ends. Each case is a child of
//! its own, started from this binary with the case's name.

mod common;

use common::*;
use overspill::{Access, Delivery, Error, FileRegion, Pager};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

fn bytes_of(region: &FileRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_at(&mut bytes, 0).expect("read");
    bytes
}

/// The file's pages, each filled with its number.
fn numbered(pages: usize) -> Vec<u8> {
    (0..pages * PAGE).map(|i| (i / PAGE) as u8).collect()
}

fn case(name: &str, path: &Path) {
    let (what, delivery) = name.split_once('-').expect("a delivery");
    let delivery = if delivery == "threads" { Delivery::Threads } else { Delivery::InThread };
    let seldom = Duration::from_secs(3600);
    let pager = match Pager::builder().memory(BUDGET).delivery(delivery).write_back(seldom, BUDGET).build() {
        Ok(pager) => pager,
        Err(e @ Error::Userfaultfd(_)) => {
            println!("CANNOT: {e}");
            std::process::exit(0)
        }
        Err(e) => panic!("{e}"),
    };
    let counters = pager.counters();
    let mut model = numbered(1500);
    if what != "full" {
        std::fs::write(path, &model).expect("a file");
    }
    let open = || pager.open_file(path, Access::ReadWrite).expect("a region");
    let io = |told: Result<(), Error>, what: &str| match told {
        Err(Error::File { path: file, what: tried, .. }) => assert_eq!((file.as_path(), tried), (path, what)),
        told => panic!("{told:?}"),
    };
    match what {
        // Some writes of a flush fail. It says so, and the pages stay as they are. The next one writes the rest.
        "write" => {
            let mut region = open();
            for at in (0..model.len()).step_by(3 * PAGE) {
                (model[at], _) = (99, region.write_at(&[99], at).expect("written"));
            }
            io(region.flush(..), "written");
            assert!(counters.file_write_errors.get() > 0 && bytes_of(&region) == model);
            assert!(std::fs::read(path).expect("the file") != model);
            region.flush(..).expect("the device works again");
            assert!(std::fs::read(path).expect("the file") == model);
            pager.check();
        }
        // Writes of the page daemon's fail for a while. Nobody is stopped, and nothing is lost.
        "evict" => {
            let mut region = open();
            for at in (0..model.len()).step_by(PAGE) {
                (model[at + 7], _) = (98, region.write_at(&[98], at + 7).expect("written"));
            }
            let mut memory = pager.region(BUDGET as usize).expect("memory");
            memory.fill(1);
            assert!(counters.file_write_errors.get() > 0);
            assert!(bytes_of(&region) == model && memory.iter().all(|b| *b == 1));
            region.flush(..).expect("the device works again");
            assert!(std::fs::read(path).expect("the file") == model);
            pager.check();
        }
        // They fail for ever, and memory is full of changed pages.
        "stopped" => {
            drop(std::mem::replace(&mut model, numbered(4000)));
            std::fs::write(path, &model).expect("a longer file");
            let mut region = open();
            for at in (0..model.len()).step_by(PAGE) {
                region.write_at(&[97], at).expect("written");
            }
            println!("not stopped");
        }
        // The first fdatasync after one that worked fails. All pages count as changed, and are written again.
        "sync" => {
            let mut region = open();
            for (i, told) in [Ok(()), Err(()), Ok(()), Ok(())].into_iter().enumerate() {
                let before = counters.file_pages_out.get();
                if i < 2 {
                    for at in (0..100 * PAGE).step_by(PAGE) {
                        (model[at], _) = (200 - i as u8, region.write_at(&[200 - i as u8], at).expect("written"));
                    }
                }
                match told {
                    Ok(()) => region.flush(..).expect("flushed"),
                    Err(()) => io(region.flush(..), "written to its device"),
                }
                let written = counters.file_pages_out.get() - before;
                assert!(if i < 3 { written >= 100 } else { written == 0 }, "flush {i} has written {written} pages");
            }
            assert!(std::fs::read(path).expect("the file") == model);
            pager.check();
        }
        // A write and the device fail in one flush. A failed write is told by the next flush, too, what the device has lost is not:
        // so that is told first.
        "together" => {
            let mut region = open();
            for (byte, told) in [(201, Ok(())), (202, Err(())), (203, Ok(()))] {
                (model[0], _) = (byte, region.write_at(&[byte], 0).expect("written"));
                match told {
                    Ok(()) => region.flush(..).expect("flushed"),
                    Err(()) => io(region.flush(..), "written to its device"),
                }
            }
            assert!(std::fs::read(path).expect("the file") == model);
        }
        // Page 9 cannot be read: copies are refused, its neighbours are well.
        "read" => {
            let region = open();
            let mut page = [0; PAGE];
            assert!(matches!(region.read_at(&mut page, 9 * PAGE), Err(Error::Lost)));
            let mut all = vec![0; region.len()];
            assert!(matches!(region.read_at(&mut all, 0), Err(Error::Lost)));
            assert!(matches!(region.wire(..100 * PAGE), Err(Error::Lost)));
            for at in [8, 10] {
                region.read_at(&mut page, at * PAGE).expect("read");
                assert_eq!(page, [at as u8; PAGE]);
            }
            let loss = pager.first_loss().expect("a loss");
            assert!(loss.contains(path.to_str().expect("a name")), "{loss}");
            assert_eq!(counters.read_errors.get(), 1);
            pager.check();
        }
        // ... and a touch raises SIGBUS.
        "touch" => {
            let region = open();
            // SAFETY: nobody changes the file.
            println!("{}", unsafe { region.as_slice() }[9 * PAGE]);
        }
        // The file system has no room for the holes of a file. Then it has.
        "full" => {
            // SAFETY: this process becomes the only one to see its mounts.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                println!("CANNOT: no mount namespace: {}", std::io::Error::last_os_error());
                return;
            }
            std::fs::create_dir(path).expect("a directory");
            let (root, target) = (c"/", std::ffi::CString::new(path.to_str().expect("a name")).expect("a name"));
            // SAFETY: strings that end with a zero byte.
            let mounted = unsafe {
                libc::mount(root.as_ptr(), root.as_ptr(), root.as_ptr(), libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()) == 0
                    && libc::mount(c"none".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=4m,huge=never".as_ptr().cast())
                        == 0
            };
            if !mounted {
                println!("CANNOT: no file system: {}", std::io::Error::last_os_error());
                return;
            }
            std::fs::write(path.join("filler"), vec![1; 3 * MIB]).expect("it fits");
            let file = path.join("file");
            std::fs::File::create(&file).expect("a file").set_len(2 * MIB as u64).expect("a hole");
            let mut region = pager.open_file(&file, Access::ReadWrite).expect("a region");
            let bytes: Vec<u8> = numbered(512).iter().map(|b| b | 1).collect();
            region.write_at(&bytes, 0).expect("written");
            match region.flush(..) {
                Err(Error::File { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::ENOSPC)),
                told => panic!("{told:?}"),
            }
            let mut memory = pager.region(BUDGET as usize).expect("memory");
            std::thread::scope(|scope| {
                // eviction waits for room
                scope.spawn(|| {
                    wait_until("no write has failed", || counters.file_write_errors.get() > 512);
                    std::fs::remove_file(path.join("filler")).expect("room");
                });
                memory.fill(1);
            });
            assert!(bytes_of(&region) == bytes);
            region.flush(..).expect("there is room");
            assert!(std::fs::read(&file).expect("the file") == bytes);
            pager.check();
        }
        // A forked child has no region. What the parent has changed is written once, by the parent.
        "fork" => {
            let mut region = open();
            region.write_at(b"parent", 100).expect("written");
            model[100..106].copy_from_slice(b"parent");
            // SAFETY: no other thread of this program holds a lock that the child needs.
            match unsafe { fork() } {
                0 => {
                    let answers = [
                        region.read_at(&mut [0; 10], 0),
                        region.write_at(&[0; 10], 0),
                        region.flush(..),
                        region.reload(..),
                        region.grow(region.len()),
                        region.punch(..),
                        region.wire(..),
                        pager.open_file("/proc/self/exe", Access::ReadOnly).map(drop),
                    ];
                    for (i, answer) in answers.into_iter().enumerate() {
                        assert!(matches!(answer, Err(Error::Forked)), "{i}: {answer:?}");
                    }
                    drop(region);
                    // it may have a pager and regions of its own, also of the same pages
                    let own = Pager::builder().memory(BUDGET).build().expect("a pager");
                    drop(own.open_file(path, Access::ReadWrite).expect("a region"));
                    std::process::exit(77);
                }
                pid => {
                    let status = status_of(pid);
                    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77, "status {status:#x}");
                }
            }
            assert!(bytes_of(&region) == model);
            assert_eq!(counters.file_pages_out.get(), 0, "the child has written nothing");
            region.flush(..).expect("flushed");
            assert!(std::fs::read(path).expect("the file") == model);
        }
        // A process that is killed has written what it has flushed, and pages that were evicted.
        "killed" => {
            let mut region = open();
            region.write_at(b"flushed", 50 * PAGE).expect("written");
            region.flush(..).expect("flushed");
            region.write_at(b"not flushed", 60 * PAGE).expect("written");
            // SAFETY: ends this process.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        _ => panic!("no case {what}"),
    }
    println!("as it must");
}

struct Temp(PathBuf);

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn child(name: &str, inject: &str) -> Option<(Output, Temp)> {
    let file = Temp(std::env::temp_dir().join(format!("overspill-errors-{}-{name}", std::process::id())));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.env("OVERSPILL_CASE", name).env("OVERSPILL_FILE", &file.0).env("OVERSPILL_INJECT", inject);
    let output = command.output().expect("a child");
    could_be_tested(name, &output).then_some((output, file))
}

fn main() {
    if let Ok(name) = std::env::var("OVERSPILL_CASE") {
        return case(&name, &PathBuf::from(std::env::var_os("OVERSPILL_FILE").expect("a file")));
    }
    for delivery in ["inthread", "threads"] {
        for (what, inject) in [
            ("write", "home_write=3,home_write_fails=2"),
            ("evict", "home_write=2,home_write_fails=3"),
            ("sync", "sync=1"),
            ("together", "home_write=1,home_write_fails=1,sync=1"),
            ("read", "bad_page=10"),
            ("full", ""),
            ("fork", ""),
        ] {
            let name = format!("{what}-{delivery}");
            let Some((output, _file)) = child(&name, inject) else { continue };
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("as it must"), "{name}: {output:?}");
            println!("{name}: as it must");
        }
        for (what, inject, signal, words) in [
            ("stopped", "home_write=2,file_grace_ms=2000", libc::SIGKILL, "memory is full of its changed pages"),
            ("touch", "bad_page=10", libc::SIGBUS, ""),
            ("killed", "", libc::SIGKILL, ""),
        ] {
            let name = format!("{what}-{delivery}");
            let Some((output, file)) = child(&name, inject) else { continue };
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(signal), "{name}: {output:?}");
            assert!(output.stdout.is_empty() && said.contains(words) && !said.contains("swap"), "{name}: {output:?}");
            if what == "killed" {
                let mut seven = [0; 7];
                let there = std::fs::File::open(&file.0).expect("the file");
                there.read_exact_at(&mut seven, 50 * PAGE as u64).expect("read");
                assert_eq!(&seven, b"flushed");
                there.read_exact_at(&mut seven, 60 * PAGE as u64).expect("read");
                assert_eq!(seven, [60; 7], "nobody wrote it");
            }
            println!("{name}: {} {}", output.status, said.trim());
        }
    }
}
