//! A thread that uses files: what it does with its regions, and what it checks.

use super::{BASE, FileHabits, Files, Page, Region, SPAN, TRIES, With};
use crate::home::Homes;
use crate::program::{Going, LEAST_BUDGET};
use crate::world::{say, tell};
use overspill_machine::files::DeviceName;
use overspill_machine::home::HomeFile;
use overspill_machine::ranges::{Flags, Kind, Range as AddressRange};
use overspill_simkernel::call::{Advice, Call, Outcome, READ_WRITE, SIGBUS};
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Timeout};
use overspill_vm::types::{ObjectId, Tag};
use overspill_vm::{Access, Home, policy};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

/// A thread that uses files.
pub struct FileThread<'a> {
    files: &'a Files,
    rng: Rng,
    habits: FileHabits,
    name: usize,
    step: usize,
    regions: Vec<Option<Rc<Region>>>,
    /// The last byte that was written to each page of a file.
    written: BTreeMap<(i32, u64), u8>,
    with: With,
}

impl<'a> FileThread<'a> {
    /// Makes thread number `name`.
    pub fn new(files: &'a Files, seed: u64, habits: FileHabits, name: usize) -> Self {
        let regions = (0..habits.regions).map(|_| None).collect();
        let with = super::flusher();
        FileThread { files, rng: Rng::new(seed), habits, name, step: 0, regions, written: BTreeMap::new(), with }
    }

    /// Runs all steps of the thread.
    pub fn run(&mut self) {
        for step in 0..self.habits.steps {
            self.step = step;
            let slot = self.rng.below(self.habits.regions);
            let Some(region) = self.regions[slot].clone() else {
                self.open(slot);
                continue;
            };
            if self.habits.grows > 0 && self.rng.below(1000) < self.habits.grows {
                self.grow(&region);
                continue;
            }
            match self.rng.weighted(&self.habits.weights) {
                0 => self.touch(&region),
                1 => self.sweep(&region),
                2 => self.flush(&region),
                3 => self.reload(&region),
                4 => self.punch(&region),
                5 => self.close(slot),
                _ => self.whim(&region),
            }
            sched::progress();
        }
        (0..self.habits.regions).for_each(|slot| self.close(slot));
        self.files.threads.update(|n| n - 1);
    }

    fn say(&self, what: std::fmt::Arguments<'_>) {
        say(format_args!("file thread {} step {}", self.name, self.step), what);
    }

    fn cuts(&self, region: &Region, i: u64) -> Option<usize> {
        self.files.homes().cuts(region.fd, region.first + i)
    }

    /// A range of a region, which is not empty.
    fn range(&mut self, region: &Region, most: u64) -> Range<u64> {
        let start = self.rng.below(region.len() as usize) as u64;
        start..region.len().min(start + 1 + self.rng.below(most as usize) as u64)
    }

    // ---- regions come and go ----

    fn open(&mut self, slot: usize) {
        let (machine, homes) = (&*self.files.machine, self.files.homes());
        let number = self.name * self.habits.regions + slot;
        let (fd, rest) = Homes::fds(number);
        let access =
            self.rng.pick(&[Access::ReadOnly, Access::ReadWrite, Access::ReadWrite, Access::ReadWrite, Access::CopyOnWrite]);
        let first = self.rng.below(4) as u64;
        let wanted = 1 + self.rng.below(self.habits.pages) as u64;
        let there = homes.len(fd).div_ceil(PAGE as u64).saturating_sub(first);
        if access != Access::ReadWrite && there == 0 {
            return;
        }
        let pages = if access == Access::ReadWrite { wanted } else { wanted.min(there) };
        homes.hold(fd, Some(access));
        let least = (first + pages) * PAGE as u64 - self.rng.below(2) as u64 * self.rng.below(PAGE) as u64;
        if access == Access::ReadWrite && homes.len(fd) < least {
            homes.set_len(fd, least);
        }
        let (base, object) = (BASE + number * SPAN, ObjectId(1 + number as u16));
        self.say(format_args!("opens {fd} from page {first} on, {pages} pages at {base:x}, {access:?}"));
        // (from here to the next turn nothing happens to the file)
        let known: Vec<Page> = (0..pages).map(|i| self.known(fd, first + i, access)).collect();
        let capacity = if self.habits.grows > 0 { pages + self.rng.below(self.habits.pages) as u64 } else { pages };
        let region = Rc::new(Region {
            object,
            base,
            fd,
            access,
            first,
            pages: RefCell::new(known),
            capacity,
            synced: Cell::new(0),
            written_back: Cell::new(false),
            users: Cell::new(0),
            taken: Cell::new(false),
            given_up: Cell::new(None),
            leaves: Cell::new(false),
            own_policy: Cell::new(false),
        });
        let (len, home) = (capacity as usize * PAGE, self.home(&region));
        let mapped = self.files.world.call(Call::Map { at: base, len, prot: READ_WRITE, replace: false });
        assert_eq!(mapped, Outcome::Ok(base));
        machine.await_unmaps(base, base + len);
        let wanted = machine.core.lock().vm.tags_wanted();
        let tags = (access != Access::ReadOnly && wanted > 0).then(|| vec![Tag::UNKNOWN; wanted]);
        {
            let mut map = machine.map.write();
            map.origins[object.0 as usize] = base;
            let mut name = Box::new(DeviceName::new());
            name.set(b"a file");
            let file = HomeFile { access, fd, rest, direct: true, name, retry_at: AtomicU64::new(0) };
            map.homes[object.0 as usize] = Some(file);
            machine.core.lock().vm.set_home(object, home, tags);
            let range =
                AddressRange { start: base, end: base + len, kind: Kind::Managed, object, origin: base, flags: Flags::NONE };
            machine.manage(&mut map, range);
            assert!(map.ranges.find(base).is_some());
        }
        if access == Access::ReadWrite {
            self.files.open.borrow_mut().push(Rc::clone(&region));
        }
        if self.habits.policies && self.rng.below(2) == 0 {
            self.choose_policy(&region);
        }
        self.regions[slot] = Some(region);
    }

    /// What a program knows of a page of a file that it has opened.
    fn known(&self, fd: i32, page: u64, access: Access) -> Page {
        let homes = self.files.homes();
        let byte = homes.byte(fd, page);
        let mut since = homes.may_hold(fd, page);
        since.push(byte);
        Page {
            holds: (access == Access::ReadWrite).then_some(byte),
            since,
            older: 0,
            cuts: homes.cuts(fd, page),
            seen: homes.version(fd, page),
            unsure: homes.is_unsure(fd, page),
            failures: 0,
            lost: false,
            writing: false,
        }
    }

    /// Makes a region longer, and a read-write region's file if that is shorter.
    fn grow(&mut self, region: &Region) {
        let (files, before) = (self.files, region.len());
        let after = before + self.rng.below((region.capacity - before) as usize + 1) as u64;
        let ragged = self.rng.below(2) as u64 * self.rng.below(PAGE) as u64;
        let needed = (region.first + after) * PAGE as u64 - ragged;
        if after == before || region.access != Access::ReadWrite && files.homes().len(region.fd) < needed {
            return;
        }
        self.take(region);
        if files.homes().len(region.fd) < needed {
            files.homes().set_len(region.fd, needed);
        }
        self.say(format_args!("makes {} as long as {needed} bytes, {after} pages of it", region.fd));
        // the page with the old end was filled up with zeroes: if others have made the file longer, it has something else there
        let first = before - u64::from(region.access == Access::ReadOnly);
        self.give_up(region, &(first..after));
        region.pages.borrow_mut().truncate(first as usize);
        let known = (first..after).map(|i| self.known(region.fd, region.first + i, region.access));
        region.pages.borrow_mut().extend(known);
        let home = self.home(region);
        files.machine.core.lock().vm.set_home_pages(region.object, home.pages);
        region.taken.set(false);
    }

    /// Gives the region a policy of its own, or another one, or the pager's again.
    fn choose_policy(&mut self, region: &Region) {
        if region.own_policy.get() && self.rng.below(4) == 0 {
            self.say(format_args!("has {} managed by the pager's policy again", region.fd));
            self.files.machine.end_policy_of(region.object);
            assert_eq!(self.files.machine.core.lock().vm.own_policy(region.object), None);
            region.own_policy.set(false);
            return;
        }
        let policy = self.rng.pick(policy::NAMES);
        self.say(format_args!("has {} managed by {policy} from now on", region.fd));
        assert!(self.files.machine.set_policy_of(region.object, &policy.parse().expect("its name")));
        region.own_policy.set(true);
        let number = self.files.machine.core.lock().vm.own_policy(region.object).expect("it has one");
        let (row, mut shown) = (&self.files.machine.status.policies[number], [0; 64]);
        row.policy.copy_to(&mut shown);
        assert!(shown.starts_with(policy.as_bytes()) && !row.region.is_empty(), "what the status block has of {policy}");
    }

    fn home(&self, region: &Region) -> Home {
        let offset = region.first * PAGE as u64;
        let len = self.files.homes().len(region.fd);
        Home { access: region.access, offset, pages: len.saturating_sub(offset).div_ceil(PAGE as u64) }
    }

    /// The thread has the region for itself, until it is left to others again. It may be written back all the same.
    fn take(&self, region: &Region) {
        region.taken.set(true);
        wait_while(|| region.users.get() > 0);
    }

    fn close(&mut self, slot: usize) {
        let Some(region) = self.regions[slot].take() else { return };
        let (files, machine) = (self.files, &*self.files.machine);
        self.take(&region);
        region.leaves.set(true);
        wait_while(|| region.written_back.get());
        let mut written = false;
        if region.access == Access::ReadWrite {
            let with = &mut self.with;
            written = (0..TRIES).any(|_| files.flush(with, &region, 0..region.len(), false).is_ok());
            files.open.borrow_mut().retain(|other| other.object != region.object);
        }
        self.say(format_args!("closes {}, written: {written}", region.fd));
        let len = region.capacity as usize;
        {
            let _going = Going::new(&files.world, len);
            let (start, end) = (region.base, region.base + len * PAGE);
            machine.unmap_region(start, end, || {
                files.leaves(start, end);
                assert_eq!(files.world.call(Call::Unmap { at: start, len: end - start }), Outcome::Ok(0));
                files.world.forget_used(start, end);
            });
            files.leaving.set(None);
            if region.own_policy.get() {
                machine.end_policy_of(region.object);
            }
        }
        wait_while(|| files.is_strangers.get());
        files.wait_until(|| machine.is_home_gone(region.object, region.capacity));
        {
            let mut map = machine.map.write();
            machine.core.lock().vm.clear_home(region.object);
            map.homes[region.object.0 as usize] = None;
        }
        files.check_device(&region);
        for (i, page) in region.pages.borrow().iter().enumerate() {
            let (cuts, byte) = (self.cuts(&region, i as u64), files.homes().byte(region.fd, region.first + i as u64));
            if let Some(holds) = page.holds.filter(|_| written && cuts.is_some() && cuts == page.cuts) {
                assert_eq!(byte, holds, "page {i} of {:?}, which was closed", region.object);
            }
        }
        files.homes().hold(region.fd, None);
    }

    // ---- touches ----

    /// Whether the region's page must be as the program left it.
    fn is_certain(&self, region: &Region, i: u64, page: &Page) -> bool {
        let cuts = self.cuts(region, i);
        page.holds.is_some() && (region.access == Access::CopyOnWrite || cuts.is_some() && cuts == page.cuts)
    }

    /// A touch was an error. It may be one only if the page cannot be read.
    fn touch_failed(&self, region: &Region, i: u64) {
        let page = &mut region.pages.borrow_mut()[i as usize];
        let cuts = self.cuts(region, i);
        let in_file = region.access != Access::CopyOnWrite || page.holds.is_none();
        let may = page.lost || in_file && (self.files.homes().is_lossy() || cuts.is_none() || cuts != page.cuts);
        assert!(may, "page {i} of {:?} ({:?}) is lost in step {} of file thread {}", region.object, page, self.step, self.name);
        page.lost = true;
    }

    fn read(&mut self, region: &Region, i: u64) {
        let at = region.at(i);
        tell(at, PAGE, || "program reads".to_string());
        let got = self.files.touch(at, Call::Read { at });
        tell(at, PAGE, || format!("program has read {got:?}"));
        let byte = match got {
            Outcome::Signal(SIGBUS) => return self.touch_failed(region, i),
            Outcome::Ok(byte) => byte as u8,
            other => panic!("a read of page {i} of {:?}: {other:?}", region.object),
        };
        let page = &mut region.pages.borrow_mut()[i as usize];
        let right = if self.is_certain(region, i, page) {
            page.holds == Some(byte)
        } else if page.holds.is_some() {
            byte == 0 || page.since.contains(&byte)
        } else {
            // what others have written there, and never something older than before
            let version = self.files.homes().version_of(region.fd, region.first + i, byte, page.seen);
            page.seen = version.unwrap_or(page.seen);
            version.is_some()
        };
        assert!(
            right,
            "page {i} of {:?} ({page:?}) reads {byte} in step {} of file thread {}",
            region.object, self.step, self.name
        );
    }

    fn write(&mut self, region: &Region, i: u64) {
        if region.access == Access::ReadOnly {
            return;
        }
        let (at, before) = (region.at(i), self.cuts(region, i));
        // Others write even bytes. No page gets the same twice: that would be no change to what its file had before.
        let (crashes, there) = (self.habits.crashes > 0, self.files.homes().byte(region.fd, region.first + i));
        let last = self.written.entry((region.fd, region.first + i)).or_insert(if crashes { there | 1 } else { 1 });
        *last = last.wrapping_add(2);
        // (a page of zeroes in a file's private changes is not dropped as other zeroes are, unless its file had zeroes)
        let had_zeroes = || {
            let seen = region.pages.borrow()[i as usize].seen;
            self.files.homes().version_of(region.fd, region.first + i, 0, seen).is_some()
        };
        let byte = if region.access == Access::CopyOnWrite && *last % 8 == 1 && !had_zeroes() { 0 } else { *last };
        {
            let page = &mut region.pages.borrow_mut()[i as usize];
            page.since.push(byte); // write-back may write it before the call returns
            page.writing = true;
        }
        tell(at, PAGE, || format!("program writes {byte}"));
        let first = self.files.touch(at, Call::Write { at, byte });
        let last = at + PAGE - 1;
        let whole = match first {
            Outcome::Ok(_) if crashes => self.files.touch(last, Call::Write { at: last, byte }),
            outcome => outcome,
        };
        match whole {
            Outcome::Ok(_) => {}
            Outcome::Signal(SIGBUS) => {
                let mut pages = region.pages.borrow_mut();
                let page = &mut pages[i as usize];
                if whole == first {
                    page.since.pop();
                }
                page.writing = false;
                drop(pages);
                return self.touch_failed(region, i);
            }
            other => panic!("a write of page {i} of {:?}: {other:?}", region.object),
        }
        let after = self.cuts(region, i);
        let page = &mut region.pages.borrow_mut()[i as usize];
        (page.holds, page.writing) = (Some(byte), false);
        if page.cuts != after {
            // it lay beyond the end meanwhile: nobody knows what the device has
            let last = page.since.len() - 1;
            page.since.splice(last..last, self.files.homes().may_hold(region.fd, region.first + i));
        }
        page.cuts = after.filter(|_| before == after);
        page.unsure = false;
    }

    fn touch(&mut self, region: &Region) {
        let i = self.rng.below(region.len() as usize) as u64;
        if self.rng.below(2) == 0 { self.read(region, i) } else { self.write(region, i) }
    }

    fn sweep(&mut self, region: &Region) {
        let (range, writes) = (self.range(region, self.habits.sweep), self.rng.below(2) == 0);
        let step = self.rng.pick(&[1, 1, 2, 3]);
        self.say(format_args!("sweeps {range:?} of {} by {step} {}", region.fd, if writes { "writing" } else { "reading" }));
        for i in range.step_by(step) {
            if writes { self.write(region, i) } else { self.read(region, i) }
        }
    }

    // ---- the file ----

    fn flush(&mut self, region: &Region) {
        if region.access != Access::ReadWrite {
            return self.sweep(region);
        }
        let range = if self.rng.below(2) == 0 { 0..region.len() } else { self.range(region, 16) };
        let sync = self.rng.below(4) > 0;
        // changed just now, and beyond the end all the time
        let beyond = (range.start..range.end).find(|i| self.cuts(region, *i).is_none());
        if let Some(i) = beyond {
            self.write(region, i);
        }
        let beyond = beyond.filter(|i| !region.pages.borrow()[*i as usize].lost && self.cuts(region, *i).is_none());
        let told = self.files.flush(&mut self.with, region, range.clone(), sync);
        self.say(format_args!("flushes {range:?} of {}, sync {sync}: {told:?}", region.fd));
        let known = self.files.homes();
        if let Some(i) = beyond.filter(|i| known.cuts(region.fd, region.first + i).is_none() && sync && told.is_ok()) {
            panic!("page {i} of {:?} is changed and lies beyond the end, but a flush succeeds", region.object);
        }
    }

    /// Gives up the pages of a range. The thread has the region for itself.
    fn give_up(&mut self, region: &Region, range: &Range<u64>) {
        let machine = &*self.files.machine;
        let (start, end) = (region.at(range.start), region.at(range.end));
        let advise = Call::Advise { at: start, len: end - start, advice: Advice::DontNeed };
        region.given_up.set(Some(range.start));
        self.files.given_up.add(1);
        self.files.given_up.wake(1);
        let mut map = self.files.is_in_thread().then(|| machine.map.write());
        if map.is_none() {
            machine.begin_discard(start, end);
        }
        assert_eq!(self.files.world.call(advise), Outcome::Ok(0));
        self.files.world.forget_used(start, end);
        match &mut map {
            Some(map) => machine.forget_range(map, start, end),
            None => machine.discard_done(start, end),
        }
        drop(map);
        machine.forgotten();
        region.given_up.set(None);
    }

    fn reload(&mut self, region: &Region) {
        let (files, range) = (self.files, self.range(region, 24));
        self.take(region);
        let told = match region.access {
            Access::ReadWrite => files.flush(&mut self.with, region, range.clone(), false),
            _ => Ok(()),
        };
        self.say(format_args!("reads {range:?} of {} again: {told:?}", region.fd));
        if told.is_ok() {
            let versions: Vec<usize> = range.clone().map(|i| files.homes().version(region.fd, region.first + i)).collect();
            self.give_up(region, &range);
            for (i, version) in range.zip(versions) {
                let (cuts, byte) = (self.cuts(region, i), files.homes().byte(region.fd, region.first + i));
                let page = &mut region.pages.borrow_mut()[i as usize];
                (page.lost, page.seen) = (false, version);
                match region.access {
                    Access::ReadWrite if cuts.is_some() && cuts == page.cuts => {
                        assert_eq!(page.holds, Some(byte), "page {i} of {:?} is to be read again", region.object);
                    }
                    Access::ReadWrite => {
                        page.holds = Some(byte);
                        page.since.extend(files.homes().may_hold(region.fd, region.first + i));
                        page.unsure |= files.homes().is_unsure(region.fd, region.first + i);
                        page.since.push(byte);
                    }
                    Access::ReadOnly | Access::CopyOnWrite => page.holds = None,
                }
                page.cuts = cuts;
            }
            let home = self.home(region);
            files.machine.core.lock().vm.set_home_pages(region.object, home.pages);
        }
        region.taken.set(false);
    }

    fn punch(&mut self, region: &Region) {
        if region.access != Access::ReadWrite {
            return self.reload(region);
        }
        let (files, range) = (self.files, self.range(region, 8));
        self.take(region);
        self.give_up(region, &range);
        files.wait_until(|| !files.machine.core.lock().vm.is_writing(region.object, range.clone()));
        self.say(format_args!("empties {range:?} of {}", region.fd));
        let there = |i: &u64| files.homes().cuts(region.fd, region.first + i).is_some();
        let within = range.clone().take_while(there).count() as u64;
        files.homes().punch(region.fd, region.first + range.start..region.first + range.start + within);
        for i in range.clone() {
            let cuts = self.cuts(region, i);
            let page = &mut region.pages.borrow_mut()[i as usize];
            page.since.push(0);
            (page.holds, page.cuts, page.unsure) = (Some(0), cuts, false);
        }
        self.give_up(region, &range);
        range.for_each(|i| region.pages.borrow_mut()[i as usize].lost = false);
        region.taken.set(false);
    }

    /// Changes the budget or a policy; then checks that everything adds up.
    fn whim(&mut self, region: &Region) {
        let machine = &*self.files.machine;
        let whim = self.rng.below(2 + self.habits.policies as usize);
        if whim == 2 {
            self.choose_policy(region);
        } else if whim == 0 {
            let pages = LEAST_BUDGET + self.rng.below(LEAST_BUDGET as usize) as u32;
            self.say(format_args!("has {pages} pages of memory from now on"));
            let map = machine.map.read();
            map.set_limit(&mut machine.core.lock(), pages);
            machine.ring_daemon_anyway();
        } else {
            let policy = self.rng.pick(policy::NAMES);
            self.say(format_args!("is managed by {policy} from now on"));
            machine.set_policy(&policy.parse().expect("its name"));
        }
        let core = machine.core.lock();
        core.vm.check(self.files.world.objects.get());
        core.vm.pager().check();
    }
}

/// Looks again and again.
fn wait_while(is_so: impl Fn() -> bool) {
    while is_so() {
        sched::Word::new(0).wait(0, Timeout::Tick(20_000));
    }
}
