//! The budget of a family: all processes of an `overspill run` have a pager each, and one `--memory` for all.
//!
//! Forks share the memory that says who has what. A process that has come by exec finds it under `OVERSPILL_FAMILY`, a memory file
//! of `overspill run`'s ([`FamilyFile`]).
//!
//! Shared memory says which process has which part of the budget ([`shares`]). A process's limit is its part. The page daemon
//! manages it ([`sharing`]). When its process runs short, it takes units that nobody has. If there are none, it asks the others,
//! and evicts pages of its own meanwhile. A process that is asked gives what it does not use, and then a sixteenth of its part at a
//! time. Its pages become inactive as always. If it turns out to use them, it wants them back, and keeps an equal part from then
//! on. So memory goes to the processes that use it, an idle process is left with little, and a process that wants more does not
//! have less than an equal part for long. If that is too little for each, they take turns ([`View::part`]).
//!
//! A part shrinks in this order: the core works towards less ([`overspill_vm::Vm::set_reclaim_target`]); once no more is charged,
//! the units are given back. It grows in the opposite order. Both happen under the core lock, so that the limit always equals the
//! units.
//!
//! After a fork two processes may be charged for one page, which neither has written to. It counts twice, because nothing tells
//! when it becomes two pages.
//!
//! Each process needs its buffers and a few more pages to work at all ([`Family::least`]). With more processes than the budget can
//! hold at that size, the family exceeds it.

pub mod cache;
pub mod shares;
pub mod sharing;

use crate::area;
use crate::kernel::Linux;
use crate::lock::{Mutex, Rank};
use crate::machine::{Core, Machine, Space};
use crate::native;
use crate::status_file::{self, Mapping, Shared};
use crate::sys::{self, Errno, sys};
use cache::Cache;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};
use overspill_machine::kernel::Kernel;
use overspill_store::PageBytes;
use overspill_store::packing::{Algorithm, Packer};
use overspill_vm::types::PAGE_SIZE;
use shares::{MEMBERS_MAX, Member, MemberId, Shares, View, Words};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The least that a process has beyond its own buffers, in pages.
const LEAST_PAGES: u32 = 96;
/// A process that has just come, forks, or does not fit into its part, waits at most this long for others to give what they do not
/// use, in nanoseconds.
pub const ASK_NS: u64 = 4_000_000;
/// It looks at this interval, in nanoseconds.
const ASK_LOOK_NS: u64 = 100_000;

/// The shared memory of a family of at most `N` members.
#[repr(C)]
struct Block<const N: usize> {
    words: Words,
    members: [Member; N],
}

// SAFETY: all fields are atomics.
unsafe impl Shared for Block<MEMBERS_MAX> {}

/// The memory file by which processes that have come by exec share a budget. It takes address space, and memory for those entries
/// that are used.
#[derive(Debug)]
pub struct FamilyFile(OwnedFd);

impl FamilyFile {
    /// Makes the file, close-on-exec.
    ///
    /// # Errors
    /// No memory, or no descriptor left.
    pub fn create() -> io::Result<Self> {
        let (_, file) = Mapping::<Block<MEMBERS_MAX>>::create("overspill-family")?;
        Ok(FamilyFile(file))
    }

    /// The path by which this process's descendants find the file, as long as it lives.
    pub fn path(&self) -> PathBuf {
        status_file::path_of(&self.0)
    }

    /// The device and the inode of the file, as the line in `/proc/PID/maps` of a process that has mapped it shows them after the
    /// offset.
    pub fn in_maps(&self) -> Option<String> {
        let stat = rustix::fs::fstat(&self.0).ok()?;
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Some(format!("{major:02x}:{minor:02x} {} ", stat.st_ino))
    }
}

/// A fork waits at most this long until the child's program goes on, and checks at this interval whether the child lives, in
/// nanoseconds.
const BIRTH_NS: u64 = 1_000_000_000;
const BIRTH_LOOK_NS: u64 = 20_000_000;
/// The first interval at which a process that waits for a child's end checks for it, in nanoseconds.
const AWAIT_NS: u64 = 100_000;

/// For [`Shares::view`].
fn milliseconds(ns: u64) -> u32 {
    (ns / 1_000_000) as u32
}

/// Wakes a member's page daemon.
fn ring(member: &Member) {
    let bell = member.bell.atomic();
    bell.fetch_add(1, SeqCst);
    sys::futex_wake_shared(bell, 1);
}

/// The page daemon's robust list (linux/futex.h), which the kernel reads: `next` of the only node; and the head, which is `next`,
/// the distance from the node to the futex in bytes, and nothing pending.
///
/// It is in shared memory, although it is this process's own: of a process that is killed, the kernel may take private memory away
/// before its threads have ended (its OOM reaper, process_mrelease(2)). Then it could not follow the list.
#[derive(Debug)]
#[repr(C)]
struct RobustList {
    node: AtomicUsize,
    head: [AtomicUsize; 3],
}

/// A process's part of the budget of its family.
#[derive(Debug)]
pub struct Family {
    shares: Shares<'static>,
    /// Not in the family's memory, which other programs have at other addresses.
    robust: &'static RobustList,
    /// This process's id.
    id: AtomicU32,
    /// There may be other processes.
    shared: AtomicBool,
    /// Some of them may run the same program, by fork.
    has_kin: AtomicBool,
    /// This process's program. (Nobody: it has come by exec, and has no entry yet.)
    program: AtomicU32,
    /// A fork is under way, and a child has a part already: the page daemon takes and gives nothing.
    forking: AtomicBool,
    least: u32,
    /// What the process may have above its part, in pages: compressed memory that it got by a fork and that cannot go elsewhere.
    excess: AtomicU32,
    /// What all processes have in common. `None`: there is no address space for it.
    cache: Option<Cache>,
    /// Compresses what goes there. (Who does not get it at once does without. No thread has it at a fork, because a fork waits for
    /// reads.)
    packer: Mutex<Packer>,
    /// The process has given up rights, and so its part in the cache.
    left_cache: AtomicBool,
}

impl Family {
    /// For a single process, which has all `pages` pages and needs `buffer_pages` for itself. Forked children share the memory.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn new(pages: u32, buffer_pages: u32, members: usize) -> Result<Family, Errno> {
        let members = members.clamp(1, MEMBERS_MAX);
        let at = area::map_shared(size_of::<Block<0>>() + members * size_of::<Member>())? as *const Block<0>;
        // SAFETY: our own fresh mapping, zeroed, for good, and as long as that; it is read and written through atomics only.
        let (block, entries) = unsafe { (&*at, core::slice::from_raw_parts(&raw const (*at).members as *const Member, members)) };
        let family = Family::of(Shares::new(pages, &block.words, entries), buffer_pages, members == MEMBERS_MAX)?;
        let id = family.shares.reserve(MemberId::NOBODY).expect("all entries are free");
        family.set_id(id);
        family.shares.take(id, pages);
        Ok(family)
    }

    /// For a process that has come by exec and finds the [`FamilyFile`] here: it shares the budget of `pages` pages with those that
    /// have done the same. `with_cache`: and with its forks what they read. `None` if there is no such file, or it is for another
    /// budget. => [`Family::claim`] and [`Family::arrive`] follow
    pub fn join(path: &Path, pages: u32, buffer_pages: u32, with_cache: bool) -> Option<Family> {
        let (map, _) = Mapping::<Block<MEMBERS_MAX>>::open(path).ok()?;
        let block = Box::leak(Box::new(map)).block();
        Family::of(Shares::join(pages, &block.words, &block.members)?, buffer_pages, with_cache).ok()
    }

    fn of(shares: Shares<'static>, buffer_pages: u32, with_cache: bool) -> Result<Family, Errno> {
        let robust = area::map_shared(size_of::<RobustList>())? as *const RobustList;
        Ok(Family {
            // SAFETY: our own fresh mapping, zeroed, for good; it is read and written through atomics only.
            robust: unsafe { &*robust },
            id: AtomicU32::new(MemberId::NOBODY.0),
            program: AtomicU32::new(MemberId::NOBODY.0),
            shared: AtomicBool::new(false),
            has_kin: AtomicBool::new(false),
            forking: AtomicBool::new(false),
            least: buffer_pages + LEAST_PAGES,
            excess: AtomicU32::new(0),
            cache: with_cache.then(|| Cache::new(shares.total()).ok()).flatten(),
            packer: Mutex::ranked(Rank::Packer, Packer::new(Algorithm::default())),
            left_cache: AtomicBool::new(false),
            shares,
        })
    }

    fn id(&self) -> MemberId {
        MemberId(self.id.load(Relaxed))
    }

    fn set_id(&self, id: MemberId) {
        self.id.store(id.0, Relaxed);
        self.program.store(self.shares.program(id).0, Relaxed);
    }

    fn program(&self) -> MemberId {
        MemberId(self.program.load(Relaxed))
    }

    fn entry(&self) -> &'static Member {
        self.shares.member(self.id())
    }

    /// The word on which the page daemon sleeps, by [`sys::futex_wait_shared`].
    pub fn bell(&self) -> &'static AtomicU32 {
        self.entry().bell.atomic()
    }

    /// Whether there may be other processes.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Relaxed)
    }

    /// Whether some of them may run the same program, by fork.
    pub fn has_kin(&self) -> bool {
        self.has_kin.load(Relaxed)
    }

    /// The whole budget, in pages.
    pub fn total(&self) -> u32 {
        self.shares.total()
    }

    /// The least that a process has, in pages.
    pub fn least(&self) -> u32 {
        self.least.min(self.total())
    }

    /// This process's limit, in pages.
    pub fn limit(&self) -> u32 {
        self.shares.pages(self.id()).max(self.least()).saturating_add(self.excess.load(Relaxed)).min(self.total())
    }

    /// The state of the budget, as this process sees it.
    pub fn view(&self) -> View {
        self.shares.view(self.id(), milliseconds(sys::now_ns()))
    }

    /// The pages that this process can have if it wants more: an equal part, or its limit if that is more.
    pub fn within_reach(&self) -> u32 {
        if self.is_shared() { self.view().fair().max(self.limit()) } else { self.limit() }
    }

    /// From now on the end of the calling thread counts as the end of the process, which gets an entry if it has none. If a child's
    /// parent is dead, its entry may have been given up, and its part with it. Then it gets another entry, too.
    ///
    /// # Errors
    /// EAGAIN: there are too many members. ENOMEM.
    pub fn claim(&self) -> Result<(), Errno> {
        // SAFETY: a parent's list, if any.
        unsafe { area::renew_shared(&raw const *self.robust as usize, size_of::<RobustList>()) }?;
        let enlist = |_, member: &'static Member| {
            self.enlist(member);
            sys::gettid()
        };
        let reserved = self.id();
        if reserved == MemberId::NOBODY || !self.shares.claim(reserved, enlist(reserved, self.entry())) {
            let id = self.shares.reserve_as(MemberId::NOBODY, self.program(), enlist).ok_or(libc::EAGAIN)?;
            self.set_id(id);
        }
        self.shares.set_left(self.id(), self.left_cache.load(Relaxed));
        Ok(())
    }

    /// Puts `life` of this entry on the calling thread's robust list, which has nothing else.
    fn enlist(&self, member: &'static Member) {
        let RobustList { node, head } = self.robust;
        let (node_at, head_at) = (&raw const *node as usize, &raw const *head as usize);
        node.store(head_at, Relaxed);
        head[0].store(node_at, Relaxed);
        head[1].store((&raw const member.life as usize).wrapping_sub(node_at), Relaxed);
        // SAFETY: list and entry stay mapped for good. At this thread's end the kernel follows the list, and writes to `life` if
        // that is this thread's id, as it should. This thread has no other robust list. (With this size it is never refused.)
        let _ = unsafe { sys!(libc::SYS_set_robust_list, head_at, size_of_val(head)) };
    }

    /// In a process that has come by exec and has its entry: takes what nobody has, or half of that if there are others, which may
    /// need more as well. If that is less than a process needs at least, asks the others, and waits for it.
    pub fn arrive(&self, machine: &Machine) {
        self.arrive_until(machine, sys::now_ns() + ASK_NS);
    }

    /// The same; waits until `end`. It asks in any case: on a busy machine the time may be over before anything is done.
    fn arrive_until(&self, machine: &Machine, end: u64) {
        self.shares.set_floor(self.id(), self.least());
        self.shares.reap_cache(self.program());
        loop {
            let view = self.view();
            let part = if view.members == 1 { view.free } else { (view.free / 2).max(self.least()) };
            self.take(&machine.map.read(), &mut machine.core.lock(), part.saturating_sub(view.mine));
            self.shared.store(self.limit() < self.total(), Relaxed);
            if self.shares.pages(self.id()) >= self.least() {
                return;
            }
            self.ask(&view);
            if sys::now_ns() > end {
                return;
            }
            Linux::sleep_ns(ASK_LOOK_NS);
        }
    }

    /// In the child, which has its entry: takes what it lacks of its charge, and sets the limit. From now on others may ask it.
    pub fn complete(&self, map: &Space, core: &mut Core) {
        self.shares.set_floor(self.id(), self.least());
        let charge = (core.vm.charge_total() as u32).saturating_sub(self.excess.load(Relaxed));
        let lacks = charge.max(self.least()).saturating_sub(self.shares.pages(self.id()));
        self.take(map, core, lacks);
    }

    // ---- fork ----

    /// Reserves an entry for a child that is about to be forked. `None` if there are too many. => [`Family::endow`] or
    /// [`Family::take_back`] follows
    pub fn reserve(&self) -> Option<MemberId> {
        let child = self.shares.reserve(self.id())?;
        self.shares.set_floor(child, u32::MAX); // nobody asks it for memory yet
        self.forking.store(true, Relaxed);
        Some(child)
    }

    /// There is no child.
    pub fn take_back(&self, child: MemberId, map: &Space, core: &mut Core) {
        self.shares.give(child, u32::MAX, self.id());
        self.shares.bury(child);
        self.forking.store(false, Relaxed);
        self.apply(map, core);
    }

    /// Frees the part of a child that has ended. (Usually the kernel has already marked it.)
    pub fn bury(&self, child: MemberId) {
        self.shares.bury(child);
    }

    /// Gives a child pages that nobody has, until it has as many as are charged to this process. Returns how many the two have
    /// together. Others cannot take these before the fork.
    pub fn gather(&self, child: MemberId, core: &Core) -> u32 {
        let charge = core.vm.charge_total() as u32;
        self.shares.take(child, charge.saturating_sub(self.shares.pages(child)));
        self.limit().saturating_add(self.shares.pages(child)).min(self.total())
    }

    /// Gives a child half of what this process and the child have. This process keeps no more, unless more is charged to it. So it
    /// does not outgrow the child's part before the fork.
    pub fn halve(&self, child: MemberId, map: &Space, core: &mut Core) {
        let (whole, fixed) = (self.gather(child, core), map.fixed_pages(core));
        self.give_up_to(child, map.half(core, whole).saturating_sub(fixed), core);
        let childs = self.shares.pages(child).saturating_add(fixed).max(core.vm.charge_total() as u32);
        map.set_limit(core, self.limit().min(childs));
    }

    /// Gives a child pages that this process does not need, until it has so many.
    fn give_up_to(&self, child: MemberId, pages: u32, core: &Core) {
        let spare = self.shares.pages(self.id()).saturating_sub(core.vm.charge_total() as u32);
        self.shares.give(self.id(), pages.saturating_sub(self.shares.pages(child)).min(spare), child);
    }

    /// Gives a child its part, from units that nobody has or that this process does not need. It is as much as this process is
    /// charged, and some more: up to an equal part of the whole if there is room, else as much as this process gets. Returns how
    /// many pages the child has above its part. => this process's limit is set anew
    pub fn endow(&self, child: MemberId, map: &Space, core: &Core) -> u32 {
        let (charge, fixed) = (core.vm.charge_total() as u32, map.fixed_pages(core));
        let whole = self.gather(child, core).saturating_add(self.shares.free()).min(self.total());
        let spare = whole.saturating_sub(charge.saturating_mul(2)) / 2;
        let fair = self.total() / (self.view().members + 1); // another child may follow
        let (pages, excess) = match spare {
            0 => (map.half(core, whole).saturating_sub(fixed), fixed),
            _ => (charge + spare.min(fair.saturating_sub(charge).max(2 * core.vm.free_high())), 0),
        };
        let pages = pages.max(self.least());
        let has = self.shares.pages(child);
        self.shares.give(child, has.saturating_sub(pages), self.id());
        self.shares.take(child, pages.saturating_sub(has));
        self.give_up_to(child, pages, core);
        self.forking.store(false, Relaxed);
        self.shared.store(true, Relaxed);
        self.has_kin.store(true, Relaxed);
        excess
    }

    /// In the child: makes this process the member `id`. `excess` pages are above its part.
    pub fn forked(&self, id: MemberId, excess: u32) {
        self.id.store(id.0, Relaxed);
        self.excess.store(excess, Relaxed);
    }

    /// In the child: tells the parent that the child's program goes on.
    pub fn tell_born(&self) {
        let born = &self.shares.member(self.id()).born;
        born.store(1);
        sys::futex_wake_shared(born.atomic(), 1);
    }

    /// Returns when the child's program goes on, or the child has ended, or it takes too long because it is stopped or slow. Until
    /// then the child sleeps in the pager's set-up. A program that waits until its child sleeps, and then sends it a signal, would
    /// take that for a sleep of the child's own.
    pub fn await_birth(&self, child: MemberId) {
        let (born, end) = (&self.shares.member(child).born, sys::now_ns() + BIRTH_NS);
        while born.load() == 0 && self.shares.lives(child) && sys::now_ns() < end {
            sys::futex_wait_shared(born.atomic(), 0, BIRTH_LOOK_NS);
        }
    }

    /// Returns when the child has ended or called exec.
    pub fn await_end(&self, child: MemberId) {
        let (born, mut pause) = (self.shares.member(child).born.atomic(), AWAIT_NS);
        while self.shares.lives(child) {
            sys::futex_wait_shared(born, born.load(Relaxed), pause); // the end wakes nobody: the kernel only marks the entry
            pause = (pause * 2).min(BIRTH_LOOK_NS);
        }
    }

    // ---- others ----

    /// Asks the other processes for memory. => this process is short
    pub fn ask(&self, view: &View) {
        self.shares.set_wants(self.id(), true);
        self.shares.ask(self.id(), view, ring);
    }

    /// Takes up to `pages` pages that nobody has. Returns whether there were any.
    pub fn take(&self, map: &Space, core: &mut Core, pages: u32) -> bool {
        let taken = self.shares.take(self.id(), pages);
        self.apply(map, core);
        taken > 0
    }

    /// Sets the limit to what the units say.
    pub fn apply(&self, map: &Space, core: &mut Core) {
        map.set_limit(core, self.limit());
    }

    // ---- the cache ----

    fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref().filter(|_| self.has_kin() && !self.left_cache.load(Relaxed))
    }

    /// Whether this process has a part in a cache.
    pub fn shares_cache(&self) -> bool {
        self.cache().is_some()
    }

    /// From now on no thread begins to use the cache.
    pub fn shun_cache(&self) {
        self.left_cache.store(true, Relaxed);
        self.shares.set_left(self.id(), true);
    }

    /// If the process is to have no part in the cache any more, it cannot write there from now on. => no thread uses the cache
    ///
    /// # Errors
    /// ENOMEM.
    pub fn leave_cache(&self) -> Result<(), Errno> {
        self.cache.as_ref().filter(|_| self.left_cache.load(Relaxed)).map_or(Ok(()), Cache::leave)
    }

    /// This process reads a page by itself. If other processes may read the same page, it has a `key`. Returns whether the cache
    /// had one for it; it may be wrong.
    pub fn load_common(&self, key: Option<u128>, page: &mut PageBytes) -> bool {
        let Some(cache) = self.cache() else { return false };
        match key {
            Some(key) => cache.load(key, self.id(), page),
            None => {
                cache.note_read();
                false
            }
        }
    }

    /// This process has read this page from a device, and others may read it as well.
    pub fn store_common(&self, key: u128, page: &PageBytes) {
        if let Some(cache) = self.cache()
            && let Some(mut packer) = self.packer.try_lock()
        {
            cache.store(key, self.id(), page, &mut packer);
        }
    }

    /// Brings the cache nearer to its best size. Asks processes that have more than their part if it lacks something.
    fn tend_cache(&self, view: &View) {
        let program = self.program();
        if view.sharers == 0 && self.left_cache.load(Relaxed) && self.shares.holds_cache(program) {
            self.shares.leave_cache(program); // the memory went with those who had it
        }
        let Some(cache) = self.cache() else { return self.shares.reap_cache(program) };
        if !cache.begin_change(self.id(), |id| self.shares.lives(id)) {
            return;
        }
        if !self.shares.hold_cache(program) {
            cache.resize(0); // its part may have gone to another program, when nobody seemed to run this one
            cache.end_change();
            return;
        }
        let most = if view.kin > 1 { self.total().saturating_sub(view.members.saturating_mul(2 * self.least())) } else { 0 };
        let now = self.shares.cached();
        let wants = cache.judge(now, most, view.wanting > 0, milliseconds(sys::now_ns())).unwrap_or(now).min(most);
        self.shares.set_cached(wants);
        let has = self.shares.pages(MemberId::CACHE);
        if has < wants {
            self.shares.take(MemberId::CACHE, wants - has);
            cache.resize(self.shares.pages(MemberId::CACHE));
        } else if cache.pages() > wants || has > wants {
            cache.resize(wants);
            self.shares.give(MemberId::CACHE, has.saturating_sub(cache.pages()), MemberId::NOBODY);
        }
        if view.kin == 1 && cache.pages() == 0 {
            self.shares.leave_cache(program);
        }
        cache.end_change();
        if self.shares.pages(MemberId::CACHE) < wants {
            self.shares.ask(self.id(), view, ring);
            self.entry().asked.store(1);
        }
    }

    /// Publishes the view in the counters.
    fn show(&self, machine: &Machine, view: &View) {
        let counters = &machine.status.counters;
        counters.family_members.set(view.members.into());
        counters.family_free_bytes.set(view.free as u64 * PAGE_SIZE as u64);
        let cached = self.shares.pages(MemberId::CACHE);
        counters.family_cache_bytes.set(u64::from(cached) * PAGE_SIZE as u64);
    }
}

impl Family {
    /// If this process is the last of its family, gives it the whole budget again. Returns whether it is.
    pub fn take_if_alone(machine: &Machine) -> bool {
        let Some(family) = &machine.host.family else { return true };
        let view = family.view();
        family.show(machine, &view);
        if view.members > 1 {
            return false;
        }
        family.tend_cache(&view); // without the locks: a large cache takes long to give back
        let map = machine.map.read();
        let mut core = machine.core.lock();
        if family.forking.load(Relaxed) || family.view().members > 1 {
            return false; // a fork has begun since, and may be over
        }
        family.excess.store(0, Relaxed);
        core.vm.shut_pool(false);
        family.take(&map, &mut core, family.total());
        family.shared.store(family.limit() < family.total(), Relaxed);
        family.has_kin.store(family.shares.holds_cache(family.program()), Relaxed); // if another thread was changing it
        drop(core);
        machine.arrivals.announce();
        true
    }

    /// Takes pages that no process has, or that others do not use, until this process can have `pages` more without paging. Returns
    /// whether it can. May wait for some milliseconds.
    pub fn obtain(machine: &Machine, pages: u64) -> bool {
        let family = machine.host.family.as_ref().filter(|family| family.is_shared() && machine.host.record.is_none());
        let Some(family) = family else { return false };
        let end = sys::now_ns() + ASK_NS;
        loop {
            let view = {
                let (map, mut core) = (machine.map.read(), machine.core.lock());
                let needs = native::limit_with(&core, pages);
                let view = family.view();
                let most = if view.wanting > 0 { view.part(view.me) } else { view.total };
                if family.forking.load(Relaxed) || needs > u64::from(most) {
                    return false;
                }
                let lacks = (needs as u32).saturating_sub(family.limit());
                family.take(&map, &mut core, lacks.max(view.total / 64).min(view.free));
                if needs <= u64::from(core.vm.limit()) {
                    return true;
                }
                if needs > u64::from(family.limit() + view.idle_spare) {
                    return false;
                }
                view
            };
            family.shares.ask(family.id(), &view, ring);
            if sys::now_ns() > end {
                return false;
            }
            Linux::sleep_ns(ASK_LOOK_NS);
        }
    }
}

#[cfg(test)]
mod tests;
