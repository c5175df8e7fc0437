//! Swap devices that come and go while threads touch regions.

mod common;

use common::*;
use overspill::{Delivery, DeviceSpec, Engine, Error, Pager, Region, SwapDevice};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WORDS: usize = PAGE / 8;

/// Directories that are removed in the end, and must be empty then.
struct Places(PathBuf);

impl Places {
    fn new(test: &str) -> Places {
        let dir = std::env::temp_dir().join(format!("overspill-lib-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temp dir");
        Places(dir)
    }
    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.0.join(name);
        std::fs::create_dir_all(&dir).expect("temp dir");
        dir
    }
    /// The open files of this process that lie in it.
    fn files(&self) -> Vec<i32> {
        let files = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
        let here = files.filter(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.starts_with(&self.0)));
        here.map(|file| file.file_name().to_string_lossy().parse().expect("a number")).collect()
    }
    /// How many there are.
    fn open(&self) -> usize {
        self.files().len()
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for dir in std::fs::read_dir(&self.0).expect("dir").flatten() {
            std::fs::remove_dir(dir.path()).expect("no swap file is left");
        }
        std::fs::remove_dir(&self.0).expect("cleanup");
    }
}

/// Pagers of both deliveries and engines, one after the other.
fn pagers(memory: u64, device: DeviceSpec) -> impl Iterator<Item = Pager> {
    let kinds =
        [Delivery::InThread, Delivery::Threads].map(|delivery| [Engine::Uring, Engine::Psync].map(|engine| (delivery, engine)));
    kinds.into_iter().flatten().filter_map(move |(delivery, engine)| {
        build(Pager::builder().memory(memory).delivery(delivery).engine(engine).swap_device(device.clone()))
    })
}

fn device(pager: &Pager, name: &Path) -> Option<SwapDevice> {
    pager.swaps().into_iter().find(|d| d.name == name.as_os_str().as_bytes())
}

/// What page `n` of `version` holds.
fn word(n: usize, version: u64, i: usize) -> u64 {
    (n as u64) << 40 ^ version << 20 ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Touches and changes pages at random until `stop`; in the end checks all of them.
fn churn(pager: &Pager, pages: usize, seed: u64, stop: &AtomicBool) {
    let mut region = pager.region_of::<u64>(pages * WORDS).expect("a region");
    let mut versions = vec![0u64; pages];
    let fill = |page: &mut [u64], n, version| page.iter_mut().enumerate().for_each(|(i, w)| *w = word(n, version, i));
    let right = |page: &[u64], n, version| page.iter().enumerate().all(|(i, w)| *w == word(n, version, i));
    for (n, page) in region.chunks_mut(WORDS).enumerate() {
        fill(page, n, 0);
    }
    let mut rng = Rng(seed);
    while !stop.load(Relaxed) {
        let n = rng.below(pages);
        let page = &mut region[n * WORDS..][..WORDS];
        assert!(right(page, n, versions[n]), "page {n}, version {}", versions[n]);
        if rng.below(3) == 0 {
            versions[n] += 1;
            fill(page, n, versions[n]);
        }
    }
    for (n, page) in region.chunks(WORDS).enumerate() {
        assert!(right(page, n, versions[n]), "page {n} in the end");
    }
}

/// Some of the devices are made of several files, and one is compressed memory.
#[test]
fn devices_come_and_go_under_threads() {
    let places = Places::new("churn");
    let [first, second, third] = ["a", "b", "c"].map(|name| places.dir(name));
    let several = DeviceSpec::file(&second).and(&third);
    let memory: DeviceSpec = overspill::device_spec::parse("compressed:size=4M,prio=3".as_ref()).expect("a device");
    for pager in pagers(16 << 20, DeviceSpec::file(&first)) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..2 {
                let (pager, stop) = (&pager, &stop);
                scope.spawn(move || churn(pager, 4000, seed, stop));
            }
            // however this thread ends, the others end, too
            struct Stop<'a>(&'a AtomicBool);
            impl Drop for Stop<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Relaxed);
                }
            }
            let _stop = Stop(&stop);
            let start = Instant::now();
            while device(&pager, &first).is_some_and(|d| d.figures.used_bytes < 8 << 20) {
                assert!(start.elapsed() < PATIENCE, "{:?}", pager.swaps());
                std::thread::sleep(Duration::from_millis(10));
            }
            let mut moved = 0;
            for round in 0..4 {
                let (there, other) = if round % 2 == 0 { (&first, &several) } else { (&second, &DeviceSpec::file(&first)) };
                pager.swap_on(other.clone()).expect("a further device");
                if round == 1 {
                    pager.swap_on(memory.clone()).expect("compressed memory");
                }
                let done = pager.swap_off(there).expect("the other has room");
                assert!(device(&pager, there).is_none() && done.left_pages == 0, "{done:?}");
                moved += done.moved_pages + done.memory_pages;
            }
            pager.swap_off("compressed").expect("the file has room");
            assert!(moved > 4000, "{moved} pages were moved");
        });
        assert_eq!(pager.swaps().len(), 1);
        assert_eq!(places.open(), 1, "a file of a device that is gone is open");
        let c = pager.counters();
        assert_eq!((c.corrupt_pages.get(), c.read_errors.get(), c.write_errors.get()), (0, 0, 0));
        pager.check();
    }
    assert_eq!(places.open(), 0);
}

#[test]
fn what_cannot_be_is_refused_and_nothing_changes() {
    let places = Places::new("refused");
    let [first, second] = ["a", "b"].map(|name| places.dir(name));
    for pager in pagers(BUDGET, DeviceSpec::file(&first)) {
        let words = pager.delivery() as u64; // so that regions of the two deliveries differ
        let mut region = pager.region_of::<u64>(10_000 * WORDS).expect("a region");
        region.iter_mut().enumerate().for_each(|(i, w)| *w = word(i / WORDS, words, i % WORDS));
        let refused = |result: Result<(), Error>, parts: &[&str]| {
            let text = result.expect_err("it cannot be").to_string();
            assert!(parts.iter().all(|part| text.contains(part)) && !text.contains('\n'), "{text}");
        };
        refused(pager.swap_on(DeviceSpec::file(&first)), &["/a: ", "has that swap device already"]);
        refused(pager.swap_on(DeviceSpec::file(second.join("no/such"))), &["/b/no/such: No such file"]);
        refused(pager.swap_on(DeviceSpec::file(&second).and(second.join("no/such"))), &["/b/no/such: No such file"]);
        refused(pager.swap_on(DeviceSpec::file(&second).and(&second)), &["has the place", "/b twice"]);
        refused(pager.swap_off(&second).map(drop), &["/b: the pager has no such swap device"]);
        refused(pager.swap_off(&first).map(drop), &["/a: ", "MiB are on this device", "add a device first"]);
        assert_eq!(places.open(), 1, "nothing is left behind");

        // cancelled half-way
        pager.swap_on(DeviceSpec::file(&second)).expect("a further device");
        let before = device(&pager, &first).expect("it is there").figures.used_bytes;
        let mut told = 0;
        let result = pager.swap_off_while(&first, |_| {
            told += 1;
            refused(pager.swap_off(&second).map(drop), &["another swapoff is under way"]);
            false
        });
        match result {
            // the disk may be that fast
            Ok(done) => assert!(told == 0 && done.moved_pages + done.memory_pages > 0),
            Err(why) => {
                assert!(why.to_string().contains("in use as before"), "{why}");
                assert_eq!(device(&pager, &first).map(|d| d.state), Some("on".into()), "{before} bytes before");
                pager.swap_off(&first).expect("the other has room");
            }
        }
        assert!(region.iter().enumerate().all(|(i, w)| *w == word(i / WORDS, words, i % WORDS)));
        assert_eq!(pager.swaps().len(), 1);
    }
}

/// A child that was forked by the function that a swapoff calls went on with its parent's swapoff, and never ended.
#[test]
fn a_child_that_is_forked_within_a_swapoff_is_told_so() {
    let places = Places::new("forked");
    let (first, second) = (places.dir("a"), places.dir("b"));
    for pager in pagers(BUDGET, DeviceSpec::file(&first)) {
        let mut region = pager.region_of::<[u64; WORDS]>(100_000).expect("400 MB");
        region.iter_mut().enumerate().for_each(|(n, page)| *page = [n as u64; WORDS]);
        pager.swap_on(DeviceSpec::file(&second)).expect("a further device");
        let (mut child, parent) = (None, std::process::id());
        let done = pager.swap_off_while(&first, |_| {
            if std::process::id() == parent && child.is_none() {
                // SAFETY: the child ends soon, and takes no lock of this program's.
                child = Some(unsafe { fork() });
            }
            true
        });
        if std::process::id() != parent {
            // SAFETY: ends the child.
            unsafe { libc::_exit(if matches!(done, Err(Error::Forked)) { 7 } else { 1 }) };
        }
        done.expect("the other has room");
        let child = child.expect("it takes long enough");
        assert_eq!(libc::WEXITSTATUS(status_of(child)), 7);
        assert!(region.iter().enumerate().all(|(n, page)| *page == [n as u64; WORDS]));
        pager.swap_off(&second).map(drop).expect_err("the last device");
    }
}

/// A thread that may make no ring could not take a device off.
#[test]
fn a_swapoff_needs_no_ring() {
    let places = Places::new("rings");
    let (first, second) = (places.dir("a"), places.dir("b"));
    for pager in pagers(BUDGET, DeviceSpec::file(&first)) {
        let mut region = pager.region_of::<[u64; WORDS]>(5000).expect("20 MB");
        region.iter_mut().enumerate().for_each(|(n, page)| *page = [n as u64; WORDS]);
        pager.swap_on(DeviceSpec::file(&second)).expect("a further device");
        let swaps_off = || {
            forbid_io_uring();
            pager.swap_off(&first).expect("the other has room");
        };
        std::thread::scope(|s| s.spawn(swaps_off).join().expect("taken off")); // the filter ends with the thread
    }
}

/// Pages are on all files of a device, and the figures show it.
#[test]
fn several_files_are_one_device() {
    let places = Places::new("several");
    let dirs = ["a", "b", "c"].map(|name| places.dir(name));
    let mut spec = DeviceSpec::file(&dirs[0]).and(&dirs[1]).and(&dirs[2]);
    spec.size = Some(600 << 20);
    let pagers = [true, false]
        .into_iter()
        .filter_map(|encrypt| build(Pager::builder().memory(BUDGET).encrypt(encrypt).swap_device(spec.clone())));
    for pager in pagers {
        assert_eq!(places.open(), 3);
        // the files grow by 64 MiB at a time
        let pages = 50_000;
        let mut region = pager.region_of::<u64>(pages * WORDS).expect("a region");
        region
            .chunks_mut(WORDS)
            .enumerate()
            .for_each(|(n, page)| page.iter_mut().enumerate().for_each(|(i, w)| *w = word(n, 0, i)));
        let d = device(&pager, &dirs[0]).expect("it is called by the first");
        assert_eq!((d.figures.files, d.figures.size_bytes, d.kind.as_str()), (3, 600 << 20, "file"));
        assert!(d.figures.extents >= 3, "{d:?}");
        assert!(d.figures.pages_out > 0 && d.figures.bytes_out == d.figures.pages_out * PAGE as u64, "{d:?}");
        use std::os::unix::fs::MetadataExt;
        for dir in &dirs {
            let files = std::fs::read_dir("/proc/self/fd").expect("proc").flatten();
            let file = files.map(|f| f.path()).find(|f| std::fs::read_link(f).is_ok_and(|to| to.starts_with(dir)));
            let blocks = std::fs::metadata(file.expect("it is open")).expect("stat").blocks();
            assert!(blocks * 512 >= 4 << 20, "{blocks} blocks in {}", dir.display());
        }
        assert!(region.chunks(WORDS).enumerate().all(|(n, page)| page.iter().enumerate().all(|(i, w)| *w == word(n, 0, i))));
        drop(region);
        pager.check();
    }
}

/// Like the command, the library refuses a block device with data on it.
#[test]
fn data_on_a_block_device_is_guarded() {
    let places = Places::new("guarded");
    let file = places.0.with_extension("disk");
    let mut disk = vec![0; 16 * MIB];
    disk[0x438..0x43A].copy_from_slice(&[0x53, 0xef]); // as on ext4
    std::fs::write(&file, disk).expect("a file");
    let output = std::process::Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
    let device = output.ok().filter(|output| output.status.success());
    let device = device.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let built = device.clone().map(|device| {
        Pager::builder()
            .memory(BUDGET)
            .swap_device(overspill::device_spec::parse(format!("block:{device}").as_ref()).expect("a device"))
            .build()
    });
    if let Some(device) = &device {
        let _ = std::process::Command::new("losetup").args(["--detach", device]).status();
    }
    std::fs::remove_file(&file).expect("cleanup");
    match built {
        None => assert!(std::env::var_os("CI").is_none(), "no loop device can be had here"),
        Some(Err(Error::Device(why))) => assert!(why.contains("ext4") && why.contains(&device.unwrap()), "{why}"),
        Some(other) => panic!("{other:?}"),
    }
}

/// Files that are not there for a while: reads of them end at once, without a byte.
struct Away(Vec<(i32, i32)>);

impl Away {
    fn new(places: &Places) -> Away {
        let file = std::fs::File::open("/dev/null").expect("a file");
        let away = |fd: i32| {
            // SAFETY: duplicates descriptors; the file that the pager reads stays open as the copy.
            let kept = unsafe { libc::dup(fd) };
            // SAFETY: likewise.
            assert!(kept >= 0 && unsafe { libc::dup3(file.as_raw_fd(), fd, libc::O_CLOEXEC) } == fd);
            (fd, kept)
        };
        Away(places.files().into_iter().map(away).collect())
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        for (fd, kept) in &self.0 {
            // SAFETY: likewise.
            unsafe {
                assert_eq!(libc::dup3(*kept, *fd, libc::O_CLOEXEC), *fd);
                libc::close(*kept);
            }
        }
    }
}

/// A region of four times the budget, each page with its number. The page daemon is idle then, so some frames are free.
fn numbered(pager: &Pager) -> Region {
    let mut region = pager.region(4 * BUDGET as usize).expect("a region");
    (0..region.len() / PAGE).for_each(|n| region[n * PAGE..][..8].copy_from_slice(&(n as u64 + 1).to_ne_bytes()));
    let used = || pager.counters().memory_used_bytes.get();
    let (mut before, mut now) = (0, used());
    while before != now {
        std::thread::sleep(Duration::from_millis(50));
        (before, now) = (now, used());
    }
    region
}

/// Checks the numbers. Returns how many pages are lost.
fn lost(region: &mut Region) -> usize {
    let is_lost = |n: &usize| region.wire(n * PAGE..(n + 1) * PAGE).is_err();
    let (lost, there): (Vec<_>, Vec<_>) = (0..region.len() / PAGE).partition(is_lost);
    assert!(there.iter().all(|n| region[n * PAGE..][..8] == (*n as u64 + 1).to_ne_bytes()));
    lost.len()
}

/// Reads ahead until so many reads from the device have failed. (Without free frames a hint does nothing.)
fn prefetch_until(pager: &Pager, region: &Region, dir: &Path, errors: u64) {
    wait_until("reads have failed", || {
        region.prefetch(0..region.len());
        device(pager, dir).is_some_and(|d| d.figures.read_errors >= errors)
    });
}

/// A hint while a disk did not answer for 0.2 s lost 2,048 pages for good. Nobody had touched them, and the disk was well again.
#[test]
fn what_is_only_read_ahead_is_not_lost_while_a_disk_is_away() {
    let places = Places::new("away");
    let dir = places.dir("disk");
    for pager in pagers(BUDGET, DeviceSpec::file(&dir)) {
        let mut region = numbered(&pager);
        let away = Away::new(&places);
        prefetch_until(&pager, &region, &dir, 1);
        drop(away);
        assert_eq!(lost(&mut region), 0);
    }
}

/// A page that a thread needed was lost as soon as its disk did not answer, although it did a moment later.
#[test]
fn a_page_that_is_needed_waits_for_its_disk() {
    let places = Places::new("needed");
    let dir = places.dir("disk");
    for pager in pagers(BUDGET, DeviceSpec::file(&dir)) {
        let mut region = numbered(&pager);
        let away = Away::new(&places);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|n| &region[n * 100 * PAGE..][..8])
                .map(|page| scope.spawn(move || u64::from_ne_bytes(page.try_into().expect("eight bytes"))))
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            assert!(readers.iter().all(|reader| !reader.is_finished()));
            drop(away);
            for (n, reader) in readers.into_iter().enumerate() {
                assert_eq!(reader.join().expect("no signal"), n as u64 * 100 + 1);
            }
        });
        assert_eq!(lost(&mut region), 0);
    }
}

/// With a second device, eight failed reads began a swapoff of the first one, and that lost each page that it could not read at
/// once: 6,280 of 8,192 in an outage of 0.2 s.
#[test]
fn a_disk_that_is_away_for_a_moment_is_emptied_later() {
    let (places, other) = (Places::new("moment"), Places::new("spare"));
    let (dir, spare) = (places.dir("disk"), other.dir("disk"));
    for pager in pagers(BUDGET, DeviceSpec::file(&dir)) {
        let mut region = numbered(&pager);
        pager.swap_on(DeviceSpec::file(&spare)).expect("a second device");
        let away = Away::new(&places);
        prefetch_until(&pager, &region, &dir, 8);
        std::thread::sleep(Duration::from_millis(200));
        drop(away);
        wait_until("it is emptied", || device(&pager, &dir).is_none());
        assert_eq!(lost(&mut region), 0);
    }
}

/// While a device that had failed was emptied, no swapoff that a user asked for could begin: "another swapoff is under way".
#[test]
fn a_user_comes_before_a_device_that_has_failed() {
    let (places, other) = (Places::new("failed"), Places::new("others"));
    let (dir, spare, third) = (places.dir("disk"), other.dir("disk"), other.dir("third"));
    for pager in pagers(BUDGET, DeviceSpec::file(&dir)) {
        let mut region = numbered(&pager);
        for dir in [&spare, &third] {
            pager.swap_on(DeviceSpec::file(dir)).expect("another device");
        }
        let away = Away::new(&places);
        prefetch_until(&pager, &region, &dir, 12); // eight, and some that the swapoff has tried
        assert_eq!(pager.swap_off(&third).expect("it makes way").lost_pages, 0);
        drop(away);
        wait_until("it is emptied", || device(&pager, &dir).is_none());
        assert_eq!(lost(&mut region), 0);
    }
}

/// The same for a swapoff that a user asks for. What cannot be read for ten seconds is lost, for the user wants the device.
#[test]
fn a_swapoff_waits_ten_seconds_for_its_disk() {
    let (places, other) = (Places::new("waits"), Places::new("instead"));
    let (dir, spare) = (places.dir("disk"), other.dir("disk"));
    let spec = DeviceSpec::file(&dir);
    for (n, pager) in pagers(BUDGET, spec).enumerate() {
        let mut region = numbered(&pager);
        pager.swap_on(DeviceSpec::file(&spare)).expect("a second device");
        let mut away = Some(Away::new(&places));
        let returns = n > 0;
        let ended = pager.swap_off_while(&dir, |progress| {
            assert!(progress.lost_pages == 0 || progress.nanoseconds > 10_000_000_000, "{progress:?}");
            away.take_if(|_| returns && progress.nanoseconds > 300_000_000);
            true
        });
        let progress = ended.expect("the device is gone");
        drop(away);
        assert_eq!((lost(&mut region) as u64, progress.lost_pages > 0), (progress.lost_pages, !returns), "{progress:?}");
    }
}

/// With some frames free, the page daemon wrote again as soon as a write had failed: 80,000 times a second.
#[test]
fn the_page_daemon_rests_while_a_disk_refuses_writes() {
    let places = Places::new("refuses");
    let dir = places.dir("disk");
    for pager in pagers(BUDGET, DeviceSpec::file(&dir)) {
        let mut full = numbered(&pager);
        let mut region = pager.region(BUDGET as usize).expect("a region");
        let errors = || device(&pager, &dir).expect("its device").figures.write_errors;
        let away = Away::new(&places);
        let mut pages = region.chunks_mut(PAGE);
        while errors() < 8 {
            pages.next().expect("writes have failed")[0] = 1;
            std::thread::sleep(Duration::from_micros(200)); // some frames are to be free in the end
        }
        std::thread::sleep(Duration::from_millis(100));
        let before = errors();
        std::thread::sleep(Duration::from_secs(1));
        let failed = errors() - before;
        drop(away);
        assert!(failed < 200, "{failed} writes have failed in a second");
        pages.for_each(|page| page[0] = 1);
        assert_eq!(lost(&mut full), 0);
    }
}
