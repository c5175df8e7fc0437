//! Each row of the table at the head of `vm.rs`: the answers to a fault or the page daemon, and the outcome for the page.

use overspill_vm::page::State;
use overspill_vm::pager::{HasPage, IoResult, Pager, SlotRun};
use overspill_vm::types::{PageId, PageIndex, Slot, Tag};
use overspill_vm::{
    Access, CLUSTER_PAGES_MAX, Compared, Config, Destination, Fault, Filled, Flush, Followed, Home, PageIn, Parked, Vm,
};
use std::collections::BTreeMap;

/// A device that never fills up. Slots are given out in order.
#[derive(Default)]
struct Tape {
    stored: BTreeMap<PageId, (Slot, Tag)>,
    end: u32,
}

impl Pager for Tape {
    type Devices = Self;

    fn devices(&self) -> &Self {
        self
    }
    fn devices_mut(&mut self) -> &mut Self {
        self
    }
    fn has_page(&self, page: PageId, _: u32, after_max: u32) -> Option<HasPage> {
        let (slot, _) = self.stored(page)?;
        let next = |k: &u32| self.stored(page.offset((*k).into())).is_some_and(|(there, _)| there.0 == slot.0 + k);
        Some(HasPage { slot, before: 0, after: (1..=after_max).take_while(next).count() as u32 })
    }
    fn stored(&self, page: PageId) -> Option<(Slot, Tag)> {
        self.stored.get(&page).copied()
    }
    fn alloc_run(&mut self, want: u32, _: PageId) -> Option<SlotRun> {
        self.end += want;
        Some(SlotRun { first: Slot(self.end - want), count: want })
    }
    fn assign(&mut self, page: PageId, slot: Slot, tag: Tag) -> bool {
        self.stored.insert(page, (slot, tag));
        true
    }
    fn free_slot(&mut self, _: Slot) {}
    fn release(&mut self, page: PageId) -> bool {
        self.stored.remove(&page).is_some()
    }
    fn release_range(&mut self, first: PageId, count: PageIndex) -> u64 {
        (0..count).filter(|i| self.release(first.offset(*i))).count() as u64
    }
    fn rename(&mut self, from: PageId, to: PageId) -> bool {
        if let Some((slot, tag)) = self.stored.remove(&from) {
            self.stored.insert(to, (slot, tag.renamed(from, to)));
        }
        true
    }
    fn used(&self) -> u64 {
        self.stored.len() as u64
    }
    fn metadata_bytes(&self) -> u64 {
        0
    }
}

const FRAMES: u32 = 2048;
const BOUNDS: core::ops::Range<PageIndex> = 0..1 << 20;

fn page(index: PageIndex) -> PageId {
    PageId::new(Default::default(), index)
}

fn tag(index: PageIndex) -> Tag {
    Tag::new(page(index), 77, 0)
}

fn core(pages_max: u64) -> Vm<Tape> {
    let config = Config { readahead_pages_max: 1, zero_ahead_pages_max: 1, ..Config::new(FRAMES, pages_max) };
    Vm::new(config, Tape::default(), Box::leak(Box::default())).expect("a good configuration")
}

fn fault(vm: &mut Vm<Tape>, index: PageIndex) -> Fault {
    vm.fault(page(index), BOUNDS, false)
}

fn state(vm: &Vm<Tape>, index: PageIndex) -> State {
    assert!(!vm.page(page(index)).busy());
    vm.page(page(index)).state()
}

/// Brings an untouched page to that state, by the calls of the table.
fn bring_to(vm: &mut Vm<Tape>, index: PageIndex, wanted: State) {
    for step in [State::Active, State::Inactive, State::Clean, State::PagedOut, State::Lost] {
        match step {
            State::Active => {
                assert_eq!(fault(vm, index), Fault::ZeroFill { first: page(index), count: 1 });
                assert!(!vm.fill_done(page(index), Filled::Mapped));
            }
            State::Inactive => assert!(!park(vm, index, Parked::Yes)),
            State::Clean => assert!(write(vm, index, IoResult::Ok)),
            State::PagedOut => reclaim(vm, index),
            State::Lost => assert_eq!(read(vm, index, |_| IoResult::Io(5)), Destination::Lost),
            State::Untouched => unreachable!(),
        }
        assert_eq!(state(vm, index), step);
        if step == wanted {
            return;
        }
    }
}

fn park(vm: &mut Vm<Tape>, index: PageIndex, parked: Parked) -> bool {
    let mut batch = Vec::with_capacity(1);
    vm.park_batch(1, &mut batch);
    assert!(batch[0].0 == page(index) && vm.page(page(index)).busy() && vm.is_parking(page(index), batch[0].1));
    vm.park_done(page(index), parked)
}

fn compare(vm: &mut Vm<Tape>, index: PageIndex) -> Compared {
    let mut batch = Vec::with_capacity(1);
    vm.launder_batch(1, &mut batch);
    assert!(batch[0].page == page(index) && vm.page(page(index)).laundering());
    vm.launder_compared(page(index), false, tag(index))
}

/// The page is compared, and must be written to the slot that is returned.
fn begin_write(vm: &mut Vm<Tape>, index: PageIndex) -> Slot {
    assert_eq!(compare(vm, index), Compared::Write);
    vm.launder_slots(1, page(index)).expect("room").first
}

fn write(vm: &mut Vm<Tape>, index: PageIndex, result: IoResult) -> bool {
    let slot = begin_write(vm, index);
    vm.launder_done(page(index), Some(slot), tag(index), result)
}

fn reclaim(vm: &mut Vm<Tape>, index: PageIndex) {
    let (mut batch, used) = (Vec::with_capacity(1), vm.used());
    vm.reclaim_batch(1, &mut batch);
    assert!(batch[0].0 == page(index) && vm.used() == used, "its frame holds its content until that is dropped");
    vm.frames_dropped(batch.iter().map(|m| m.1));
    assert_eq!(vm.used(), used - 1);
}

fn begin_read(vm: &mut Vm<Tape>, index: PageIndex) -> PageIn {
    let Fault::PageIn(op) = fault(vm, index) else { panic!("it is in memory") };
    assert_eq!((op.first, op.count, op.touched(), op.expected), (page(index), 1, Some(0), tag(index)));
    assert_eq!(op.location.offset, u64::from(op.slot.0) * 4096);
    op
}

/// The page is read, with this outcome. Returns where it goes.
fn read(vm: &mut Vm<Tape>, index: PageIndex, result: impl Fn(Tag) -> IoResult) -> Destination {
    let op = begin_read(vm, index);
    let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
    assert_eq!(vm.page_in_arrived(&op, BOUNDS, |_, expected| result(expected), &mut places), None);
    places[0]
}

#[test]
fn a_fault_of_each_state() {
    let mut vm = core(1 << 20);
    for (index, state) in (0..).zip([State::PagedOut, State::Lost, State::Clean, State::Inactive, State::Active]) {
        bring_to(&mut vm, index, state);
    }
    vm.check(1);
    assert_eq!(fault(&mut vm, 4), Fault::Mapped, "active");
    assert!(matches!(fault(&mut vm, 3), Fault::Restore { ahead: None, .. }), "inactive");
    assert!(matches!(fault(&mut vm, 2), Fault::Restore { ahead: None, .. }), "clean");
    assert_eq!(fault(&mut vm, 100), Fault::ZeroFill { first: page(100), count: 1 }, "untouched");
    assert!(matches!(fault(&mut vm, 0), Fault::PageIn(PageIn { count: 1, .. })), "paged out");
    assert_eq!(fault(&mut vm, 1), Fault::Lost);
    // all of these are busy now, and a second fault is told to wait
    for index in [0, 2, 3, 100] {
        assert_eq!(fault(&mut vm, index), Fault::Busy, "page {index}");
    }
    assert!(vm.restore_done(page(3), Filled::Mapped), "somebody waits");
    assert!(vm.restore_done(page(2), Filled::No) && vm.fill_done(page(100), Filled::No));
    assert_eq!([3, 2, 100].map(|i| state(&vm, i)), [State::Active, State::Clean, State::Untouched]);
    vm.check(1);
}

#[test]
fn a_page_that_was_read() {
    let mut vm = core(1 << 20);
    bring_to(&mut vm, 7, State::PagedOut);
    let same = |expected| if expected == tag(7) { IoResult::Ok } else { IoResult::Corrupt };
    assert_eq!(read(&mut vm, 7, same), Destination::Map);
    assert!(vm.page_in_done(page(7), Filled::No), "whoever waits looks again");
    assert_eq!(state(&vm, 7), State::PagedOut);
    assert_eq!(read(&mut vm, 7, same), Destination::Map);
    assert!(!vm.page_in_done(page(7), Filled::Mapped));
    assert_eq!(state(&vm, 7), State::Active);
    // released while it is read: it is untouched at once, and the data is thrown away when it arrives
    assert!(!park(&mut vm, 7, Parked::Yes) && compare(&mut vm, 7) == Compared::Settled);
    reclaim(&mut vm, 7);
    let op = begin_read(&mut vm, 7);
    assert_eq!(vm.release_range(page(7), 1, |_| unreachable!("it is not parked")), 1);
    assert_eq!(state(&vm, 7), State::Untouched);
    let mut places = [Destination::Map; CLUSTER_PAGES_MAX];
    assert_eq!(vm.page_in_arrived(&op, BOUNDS, |_, _| unreachable!("it is not wanted"), &mut places), None);
    assert_eq!((places[0], vm.used(), vm.is_quiescent()), (Destination::Discard, 0, true));
    vm.check(1);
}

#[test]
fn no_frame_and_no_table() {
    let mut vm = core(1 << 20);
    bring_to(&mut vm, 0, State::PagedOut);
    vm.charge(FRAMES);
    for index in [0, 1] {
        assert_eq!(fault(&mut vm, index), Fault::NoMemory);
    }
    assert!(matches!(vm.fault(page(1), BOUNDS, true), Fault::ZeroFill { count: 1, .. }), "above the budget");
    // pages as thin as they can lie: the table has room for few of them
    let mut vm = core(4096);
    let full = (0..1 << 12).find(|i| vm.fault(page(i << 12), 0..1 << 24, false) == Fault::TableFull);
    assert!(full.is_some_and(|n| n > 0), "{full:?}");
}

#[test]
fn the_page_daemons_batches() {
    let mut vm = core(1 << 20);
    // to be parked: refused; absent, so it reads as zeroes from now on; parked
    bring_to(&mut vm, 0, State::Active);
    assert!(!park(&mut vm, 0, Parked::Refused) && state(&vm, 0) == State::Active);
    assert!(!park(&mut vm, 0, Parked::Absent) && state(&vm, 0) == State::Untouched && vm.used() == 0);
    bring_to(&mut vm, 0, State::Inactive);
    // compared: all zeroes
    let mut batch = Vec::with_capacity(4);
    vm.launder_batch(4, &mut batch);
    let frame = batch[0].frame;
    assert_eq!((batch.len(), batch[0].stored), (1, None));
    assert_eq!(vm.launder_compared(page(0), true, Tag::UNKNOWN), Compared::Drop(frame));
    vm.frames_dropped([frame].into_iter());
    assert_eq!((state(&vm, 0), vm.used()), (State::Untouched, 0));
    // written: first without success, then with it
    bring_to(&mut vm, 0, State::Inactive);
    write(&mut vm, 0, IoResult::NoSpace);
    assert_eq!((state(&vm, 0), vm.pager().used()), (State::Inactive, 0));
    assert!(write(&mut vm, 0, IoResult::Ok) && state(&vm, 0) == State::Clean);
    // unchanged since: clean without a write
    assert!(matches!(fault(&mut vm, 0), Fault::Restore { .. }));
    assert!(!vm.restore_done(page(0), Filled::Mapped) && !park(&mut vm, 0, Parked::Yes));
    vm.launder_batch(4, &mut batch);
    assert_eq!((batch[0].stored, batch[0].in_memory), (Some(tag(0)), false));
    assert_eq!(vm.launder_compared(page(0), false, tag(0)), Compared::Settled);
    assert_eq!(state(&vm, 0), State::Clean);
    reclaim(&mut vm, 0);
    assert_eq!((state(&vm, 0), vm.used()), (State::PagedOut, 0));
    // touched while it is written: not clean when the write has ended, but stored
    bring_to(&mut vm, 1, State::Inactive);
    let slot = begin_write(&mut vm, 1);
    assert!(matches!(fault(&mut vm, 1), Fault::Restore { .. }));
    assert!(!vm.restore_done(page(1), Filled::Mapped) && vm.launder_done(page(1), Some(slot), tag(1), IoResult::Ok));
    assert_eq!((state(&vm, 1), vm.pager().tag(page(1))), (State::Active, Some(tag(1))));
    assert!(vm.is_quiescent());
    vm.check(1);
}

/// With no frame free, a soft fault brought the second copy of its page above the budget: a family of four had a page more than its
/// budget now and then. The last frames are for these copies, and who finds none of them waits.
#[test]
fn the_second_copies_of_soft_faults_have_room() {
    let mut vm = core(1 << 20);
    (0..20).for_each(|i| bring_to(&mut vm, i, State::Inactive));
    let filled = (20..).take_while(|&i| fault(&mut vm, i) != Fault::NoMemory && !vm.fill_done(page(i), Filled::Mapped)).count();
    assert_eq!((filled as u32, vm.room(), vm.available()), (FRAMES - 20 - 8, 0, 8));
    (0..8).for_each(|i| assert!(matches!(fault(&mut vm, i), Fault::Restore { .. })));
    assert_eq!((fault(&mut vm, 8), vm.charge_total()), (Fault::NoMemory, FRAMES.into()));
    assert!(vm.restore_done(page(0), Filled::No)); // its copy is not made
    assert!(matches!(fault(&mut vm, 8), Fault::Restore { .. }));
    assert!(!vm.restore_done(page(8), Filled::Mapped));
    vm.charge(1); // what is parked is charged until it is dropped
    assert_eq!((fault(&mut vm, 9), vm.charge_total()), (Fault::NoMemory, FRAMES.into()));
    // if nothing can be evicted, there is no use in waiting
    assert!(matches!(vm.fault(page(9), BOUNDS, true), Fault::Restore { .. }));
}

/// A range is given up or renamed in steps. Each step says how far it has come, and skips what is untouched. In between, the core
/// holds together, and pages that are still to be done are as they were.
#[test]
fn ranges_are_given_up_and_renamed_in_steps() {
    let mut vm = core(1 << 20);
    let states = [State::Active, State::Inactive, State::Clean, State::PagedOut];
    let fill = |vm: &mut Vm<Tape>, first: u64| {
        (0..4).rev().for_each(|i| bring_to(vm, first + i as u64, states[i]));
    };
    fill(&mut vm, 10);
    assert_eq!(vm.rename_some(page(0), page(100), 50, 2), Some(12));
    vm.check(1);
    let found = |vm: &Vm<Tape>, first: u64| [0, 1, 2, 3].map(|i| state(vm, first + i));
    let [active, inactive, clean, out] = states;
    let none = State::Untouched;
    assert_eq!((found(&vm, 110), found(&vm, 10)), ([active, inactive, none, none], [none, none, clean, out]));
    assert_eq!(vm.rename_some(page(12), page(112), 38, 2), Some(38), "the rest is untouched");
    assert_eq!(found(&vm, 110), states);
    let mut parked = 0;
    assert_eq!(vm.release_some(page(100), 50, true, 3, |_| parked += 1), 13, "the mapped page counts, and stays");
    vm.check(1);
    assert_eq!((found(&vm, 110), parked), ([active, none, none, out], 2));
    assert_eq!(vm.release_some(page(113), 37, true, 3, |_| parked += 1), 37);
    assert_eq!(vm.release_some(page(100), 50, false, 1, |_| parked += 1), 50);
    assert_eq!((found(&vm, 110), parked, vm.used(), vm.pager().used()), ([none; 4], 2, 0, 0));
    vm.check(1);
}

/// Pages that were in memory at a fork were written by each side to a slot of its own, and read from there by nobody else. They are
/// those used most: of what three children read, half came from the family's cache instead of two thirds.
#[test]
fn what_is_in_memory_is_saved_and_stays() {
    let mut vm = core(1 << 20);
    bring_to(&mut vm, 15, State::Inactive);
    (10..15).for_each(|index| bring_to(&mut vm, index, State::Active));
    assert!(vm.demand().is_none() && vm.is_saved());
    vm.save(true);
    assert!(vm.has_work() && !vm.is_saved());
    let demand = vm.demand();
    assert_eq!((demand.park, demand.launder), (5, 0), "they are written together");
    (10..15).for_each(|index| assert!(!park(&mut vm, index, Parked::Yes)));
    assert_eq!(vm.demand().launder, 6);
    [15, 10, 11, 12, 13, 14].into_iter().for_each(|index| assert!(write(&mut vm, index, IoResult::Ok)));
    assert!(vm.is_saved() && vm.demand().is_none(), "{:?}", vm.demand());
    (10..16).for_each(|index| assert_eq!(state(&vm, index), State::Clean));
    vm.save(false);
    assert!(vm.is_saved() && !vm.has_work());
    vm.check(1);
}

/// A program filled, discarded and filled again what it had. The pages that it had discarded were charged as long as they were not
/// touched, and each touch was a fault of its own.
#[test]
fn mapped_pages_that_are_absent_are_given_up() {
    let mut vm = core(1 << 20);
    let states = [State::Active, State::Active, State::Active, State::Active, State::Inactive, State::PagedOut];
    states.iter().enumerate().rev().for_each(|(i, state)| bring_to(&mut vm, 10 + i as u64, *state));
    assert!(vm.wire(page(13), true));
    let before = vm.used();
    let mut asked = Vec::new();
    assert_eq!(vm.release_absent(page(0), 50, 2, |page| (asked.push(page.index()), true).1), 12, "in steps");
    assert_eq!(vm.release_absent(page(12), 38, 9, |page| (asked.push(page.index()), false).1), 38);
    assert_eq!(asked, [10, 11, 12], "only pages that are mapped, and not wired");
    let found: Vec<State> = (10..16).map(|index| state(&vm, index)).collect();
    assert_eq!((&found[..2], &found[2..]), (&[State::Untouched; 2][..], &states[2..]));
    assert_eq!(vm.used(), before - 2);
    vm.check(1);
}

/// Pages that pointers lead to are read back soon after their eviction, too. They were taken for pages that a thread waits for, and
/// the inactive share grew: a sort in half of its memory had 374,000 soft faults instead of 230,000, and took a third longer.
#[test]
fn only_what_a_thread_waits_for_makes_the_inactive_share_grow() {
    let inactive_target = |bring_back: &dyn Fn(&mut Vm<Tape>, PageIndex) -> PageIn| {
        let mut vm = core(1 << 20);
        // half of them long before the others: as if they were used more rarely
        let others = 10_000..10_000 + u64::from(FRAMES);
        (0..200).chain(others).chain(200..400).for_each(|index| bring_to(&mut vm, index, State::PagedOut));
        let mut inactive = 0;
        for index in 0..400 {
            let op = bring_back(&mut vm, index);
            let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
            assert_eq!(vm.page_in_arrived(&op, BOUNDS, |_, _| IoResult::Ok, &mut places), None);
            let parks = places[0] != Destination::Map;
            inactive += parks as u32;
            vm.page_in_done(page(index), if parks { Filled::Parked } else { Filled::Mapped });
        }
        let fresh = (1000..).take_while(|index| {
            fault(&mut vm, *index);
            vm.fill_done(page(*index), Filled::Mapped);
            !vm.wants_daemon()
        });
        assert!(fresh.count() > 1000);
        vm.demand().park + inactive
    };
    let pointed = inactive_target(&|vm, index| match vm.follow_pointer(page(index)) {
        Followed::Read(op) => op,
        other => panic!("{other:?}"),
    });
    assert_eq!(pointed, FRAMES * 60 / 1000);
    let waited_for = inactive_target(&|vm, index| begin_read(vm, index));
    assert!(waited_for > pointed, "{waited_for}");
}

/// What is charged besides pages (compressed memory, buffers) can leave fewer frames than should be free, and no page to evict. The
/// page daemon of an idle process of a family was never without something wanted then, and could do nothing: it used most of a
/// processor, next to the processes that had its memory.
#[test]
fn there_is_no_work_where_nothing_can_be_evicted() {
    let mut vm = core(1 << 20);
    vm.charge(FRAMES - vm.free_low() + 1);
    assert!(vm.available() > 0 && vm.wants_daemon() && vm.demand().is_none() && !vm.has_work());
    bring_to(&mut vm, 0, State::Active);
    assert!(vm.has_work());
}

/// There was none either where all that could go was left to the kernel. So such a process gave up nothing.
#[test]
fn memory_that_is_left_to_the_kernel_is_adopted_first() {
    let mut vm = core(1 << 20);
    vm.set_reserved(u64::from(FRAMES - vm.free_low()));
    assert!(!vm.wants_daemon() && !vm.has_work());
    vm.charge(1);
    assert!(vm.has_work() && vm.demand().adopt);
}

/// Where the kernel tells references, the policy's victims stay mapped and are watched. A page that was used goes back to the
/// policy and costs no fault; one that was not is parked, and may be laundered at once.
#[test]
fn victims_are_watched_before_they_are_parked() {
    let mut vm = core(1 << 20);
    vm.set_watches(true);
    for index in 0..u64::from(FRAMES) {
        if vm.wants_daemon() {
            break;
        }
        bring_to(&mut vm, index, State::Active);
    }
    let share = FRAMES * 60 / 1000;
    assert_eq!((vm.demand().watch, vm.demand().park), (share, 0), "first pages are watched for a while");
    let (mut watched, mut batch) = (Vec::with_capacity(share as usize), Vec::with_capacity(2));
    vm.watch_batch(share, &mut watched);
    vm.check(1);
    assert_eq!(vm.watched(), share);
    assert!(watched.iter().all(|(page, _)| vm.page(*page).state() == State::Active && !vm.page(*page).busy()));
    let demand = vm.demand();
    assert!(demand.park > 0 && demand.launder == 0, "{demand:?}");
    // the oldest first: one was used, one was not
    let listed = vm.listed();
    vm.park_batch(2, &mut batch);
    assert_eq!(batch, watched[..2]);
    assert!(!vm.park_done(batch[0].0, Parked::Used) && !vm.park_done(batch[1].0, Parked::Yes));
    assert_eq!([0, 1].map(|i| vm.page(batch[i].0).state()), [State::Active, State::Inactive]);
    assert_eq!((vm.listed(), vm.watched()), (listed + 1, share - 2));
    assert_eq!((vm.demand().launder, vm.demand().watch), (0, 1), "first another takes its place");
    vm.watch_batch(1, &mut batch);
    assert_eq!((vm.demand().launder, vm.watched()), (1, share - 1), "it was watched before");
    vm.check(1);
    // watched pages are released, wired, moved, chosen for another reason, and handed over to another policy
    let at = |i: usize| watched[i].0;
    assert_eq!(vm.release_range(at(2), 1, |_| unreachable!("it is mapped")), 1);
    assert!(vm.wire(at(3), true) && vm.wire(at(3), false));
    assert!(vm.rename_range(at(4), page(1 << 14), 1));
    vm.park_these(&[at(5)], &mut batch);
    assert_eq!(batch, watched[5..6]);
    assert!(!vm.park_done(at(5), Parked::Refused));
    assert_eq!(vm.watched(), share - 4);
    vm.check(1);
    vm.set_policy(vm.make_policy(&"sieve".parse().expect("known")));
    vm.check(1);
    // what is watched goes first when the kernel does not tell any more
    vm.set_watches(false);
    assert!(vm.demand().watch == 0 && vm.demand().park >= vm.watched());
    vm.park_batch(1, &mut batch);
    assert_eq!(batch[0].0, page(1 << 14), "it has moved, and is watched still");
    assert!(!vm.park_done(batch[0].0, Parked::Absent) && vm.page(batch[0].0).state() == State::Untouched);
    vm.check(1);
}

/// Whatever happens to pages in whatever order, each is on the queue, on the policy's lists, inactive, or nowhere, as a model says
/// that knows nothing but that.
#[test]
fn watched_pages_are_where_a_model_says() {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Is {
        Untouched,
        Listed,
        Watched,
        Wired,
        Inactive,
    }
    const PAGES: usize = 64;
    let mut seed = 1u64;
    let mut below = |limit: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % limit
    };
    let mut vm = core(1 << 20);
    vm.set_watches(true);
    let mut model = [Is::Untouched; PAGES];
    let mut queue: Vec<PageId> = Vec::new();
    let mut batch = Vec::with_capacity(8);
    for turn in 0..20_000 {
        let at = below(PAGES);
        let (id, is) = (page(at as u64), &mut model[at]);
        match below(8) {
            0 | 1 => match *is {
                Is::Untouched => {
                    assert!(matches!(fault(&mut vm, at as u64), Fault::ZeroFill { count: 1, .. }));
                    vm.fill_done(id, Filled::Mapped);
                    *is = Is::Listed;
                }
                Is::Inactive => {
                    assert!(matches!(fault(&mut vm, at as u64), Fault::Restore { .. }));
                    vm.restore_done(id, Filled::Mapped);
                    *is = Is::Listed;
                }
                _ => assert_eq!(fault(&mut vm, at as u64), Fault::Mapped),
            },
            2 | 3 => {
                vm.watch_batch(below(8) as u32, &mut batch);
                for (id, _) in &batch {
                    assert_eq!(core::mem::replace(&mut model[id.index() as usize], Is::Watched), Is::Listed);
                    queue.push(*id);
                }
            }
            4 | 5 => {
                vm.park_batch(below(8) as u32, &mut batch);
                for (id, _) in &batch {
                    assert_eq!(*id, queue.remove(0), "the oldest first");
                    let (outcome, then) =
                        [(Parked::Used, Is::Listed), (Parked::Yes, Is::Inactive), (Parked::Refused, Is::Listed)][below(3)];
                    vm.park_done(*id, outcome);
                    model[id.index() as usize] = then;
                }
            }
            6 if matches!(*is, Is::Listed | Is::Watched | Is::Wired) => {
                assert!(vm.wire(id, *is != Is::Wired));
                queue.retain(|queued| *queued != id);
                *is = if *is == Is::Wired { Is::Listed } else { Is::Wired };
            }
            _ => {
                vm.release_range(id, 1, |_| {});
                queue.retain(|queued| *queued != id);
                *is = Is::Untouched;
            }
        }
        let count = |what: Is| model.iter().filter(|is| **is == what).count() as u32;
        assert_eq!((vm.listed(), vm.watched(), vm.queue_lengths().0), (count(Is::Listed), count(Is::Watched), count(Is::Inactive)));
        if turn % 64 == 0 {
            vm.check(1);
        }
    }
    assert!(vm.counters().references_seen.get() > 1000 && vm.counters().pages_parked.get() > 1000);
}

/// A core whose object is at home in a file of 100 pages, from its byte 8192 on.
fn core_of_file(access: Access) -> Vm<Tape> {
    let mut vm = core(1 << 20);
    let tags = (access != Access::ReadOnly).then(|| vec![Tag::UNKNOWN; vm.tags_wanted()]);
    vm.set_home(page(0).object(), Home { access, offset: 8192, pages: 100 }, tags);
    vm
}

/// The page is read from the file, whose content there has this tag.
fn read_home(vm: &mut Vm<Tape>, index: PageIndex, content: Tag) {
    let Fault::PageIn(op) = fault(vm, index) else { panic!("it is in memory") };
    assert!(op.location.is_home() && (op.first, op.count, op.location.offset) == (page(index), 1, 8192 + index * 4096));
    assert!(!vm.is_home_idle(page(0).object()));
    let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
    assert_eq!(vm.page_in_arrived(&op, BOUNDS, |_, _| IoResult::Ok, &mut places), None);
    assert_eq!(places[0], Destination::Map);
    vm.set_base(page(index), content);
    assert!(!vm.page_in_done(page(index), Filled::Mapped) && vm.is_home_idle(page(0).object()));
}

fn compare_with(vm: &mut Vm<Tape>, index: PageIndex, content: Tag) -> Compared {
    let mut batch = Vec::with_capacity(1);
    assert_eq!(vm.launder_batch(1, &mut batch), 0);
    assert!(batch[0].page == page(index) && batch[0].at_home);
    vm.launder_compared(page(index), false, content)
}

fn flush(vm: &mut Vm<Tape>) -> Vec<Flush> {
    let mut batch = Vec::with_capacity(64);
    let scan = vm.flush_batch(page(0).object(), 0, 100, &mut batch);
    assert_eq!((scan.next, scan.waits), (100, false));
    batch
}

#[test]
fn an_unchanged_page_of_a_file_is_dropped_and_read_again() {
    for access in [Access::ReadOnly, Access::ReadWrite, Access::CopyOnWrite] {
        let mut vm = core_of_file(access);
        for _ in 0..2 {
            read_home(&mut vm, 3, tag(1));
            assert!(!park(&mut vm, 3, Parked::Yes));
            match access {
                // nobody writes to it, so nobody looks
                Access::ReadOnly => assert_eq!(vm.launder_batch(1, &mut Vec::with_capacity(1)), 1),
                _ => assert_eq!(compare_with(&mut vm, 3, tag(1)), Compared::Settled),
            }
            assert_eq!(state(&vm, 3), State::Clean);
            reclaim(&mut vm, 3);
            vm.check(1);
        }
        assert_eq!(vm.pager().used(), 0);
    }
}

#[test]
fn a_changed_page_goes_to_its_file_or_to_swap() {
    let mut vm = core_of_file(Access::ReadWrite);
    read_home(&mut vm, 3, tag(1));
    assert!(!park(&mut vm, 3, Parked::Yes));
    // zeroes are content like any other, and after a failed write nobody knows what the file has
    let mut known = Some(tag(1));
    for (result, after) in [(IoResult::NoSpace, State::Inactive), (IoResult::Io(5), State::Inactive), (IoResult::Ok, State::Clean)]
    {
        let mut batch = Vec::with_capacity(1);
        vm.launder_batch(1, &mut batch);
        assert_eq!(batch[0].stored, known.take());
        assert_eq!(vm.launder_compared(page(3), true, tag(2)), Compared::WriteHome);
        vm.home_write_begins(page(3).object(), 1);
        vm.home_written(page(3), tag(2), result);
        vm.home_write_ended(page(3).object());
        assert_eq!(state(&vm, 3), after);
    }
    vm.check(1);
    assert!(matches!(fault(&mut vm, 3), Fault::Restore { .. }));
    assert!(!vm.restore_done(page(3), Filled::Mapped) && !park(&mut vm, 3, Parked::Yes));
    assert_eq!(compare_with(&mut vm, 3, tag(2)), Compared::Settled, "as it was written");
    // copy-on-write: to swap, and from there from then on, until it is released
    let mut vm = core_of_file(Access::CopyOnWrite);
    read_home(&mut vm, 3, tag(1));
    assert!(!park(&mut vm, 3, Parked::Yes));
    assert_eq!(compare_with(&mut vm, 3, tag(3)), Compared::Write);
    let slot = vm.launder_slots(1, page(3)).expect("room").first;
    assert!(vm.launder_done(page(3), Some(slot), tag(3), IoResult::Ok));
    reclaim(&mut vm, 3);
    assert_eq!(read(&mut vm, 3, |expected| if expected == tag(3) { IoResult::Ok } else { IoResult::Corrupt }), Destination::Map);
    assert!(!vm.page_in_done(page(3), Filled::Mapped));
    vm.release_range(page(3), 1, |_| unreachable!("it is not parked"));
    read_home(&mut vm, 3, tag(1));
    vm.check(1);
}

#[test]
fn a_flush_takes_mapped_and_parked_pages() {
    let mut vm = core_of_file(Access::ReadWrite);
    for index in [3, 4, 9] {
        read_home(&mut vm, index, tag(1));
    }
    assert!(!park(&mut vm, 3, Parked::Yes));
    let batch = flush(&mut vm);
    let seen: Vec<_> = batch.iter().map(|f| (f.page.index(), f.parked.is_some(), f.base)).collect();
    assert_eq!(seen, [(3, true, tag(1)), (4, false, tag(1)), (9, false, tag(1))]);
    // one that is being written is not written a second time, and not given to the page daemon
    let mut second = Vec::with_capacity(64);
    let scan = vm.flush_batch(page(0).object(), 0, 100, &mut second);
    assert_eq!((second.len(), scan.next, scan.waits), (0, 3, true));
    assert_eq!((vm.launder_batch(4, &mut Vec::with_capacity(4)), vm.laundering()), (0, 3));
    vm.flush_settled(page(3));
    vm.flush_written(page(4), tag(2), IoResult::Ok);
    vm.flush_written(page(9), tag(2), IoResult::Io(5));
    vm.check(1);
    let bases: Vec<_> = flush(&mut vm).iter().map(|f| f.base).collect();
    assert_eq!(bases, [tag(1), tag(2), Tag::UNKNOWN], "what was not written counts as changed");
    [3, 4, 9].into_iter().for_each(|i| vm.flush_settled(page(i)));
    // fdatasync has failed
    assert_eq!(compare_with(&mut vm, 3, tag(1)), Compared::Settled);
    assert_eq!(state(&vm, 3), State::Clean);
    vm.forget_bases(page(0).object(), 0..100);
    assert_eq!(state(&vm, 3), State::Inactive);
    let bases: Vec<_> = flush(&mut vm).iter().map(|f| f.base).collect();
    assert_eq!(bases, [Tag::UNKNOWN; 3]);
    [3, 4, 9].into_iter().for_each(|i| vm.flush_settled(page(i)));
    vm.check(1);
}

/// A write had ended on the device, which then lost it: fdatasync failed, and all pages counted as changed. But after that the
/// write was reported, and its page counted as unchanged again. The next flush left it out and succeeded, and the device did not
/// have it (a seed of `what_a_file_has_not_taken_stays`).
#[test]
fn a_write_that_a_failed_sync_may_have_lost_does_not_count() {
    let mut vm = core_of_file(Access::ReadWrite);
    [3, 4].into_iter().for_each(|index| read_home(&mut vm, index, tag(1)));
    // one is written by the page daemon, the other by a flush
    assert!(!park(&mut vm, 3, Parked::Yes));
    assert_eq!(compare_with(&mut vm, 3, tag(2)), Compared::WriteHome);
    let mut batch = Vec::with_capacity(64);
    assert!(!vm.flush_batch(page(0).object(), 4, 100, &mut batch).waits && batch.len() == 1);
    vm.forget_bases(page(0).object(), 0..100);
    vm.check(1);
    vm.home_written(page(3), tag(2), IoResult::Ok);
    vm.flush_written(page(4), tag(2), IoResult::Ok);
    vm.check(1);
    assert_eq!(state(&vm, 3), State::Inactive, "it may not be dropped");
    let bases: Vec<_> = flush(&mut vm).iter().map(|f| f.base).collect();
    assert_eq!(bases, [Tag::UNKNOWN; 2]);
    [3, 4].into_iter().for_each(|index| vm.flush_settled(page(index)));
    vm.check(1);
}

/// A write that failed had reached the file all the same. The program took its change back, so the page was as it had been read:
/// it was dropped as unchanged, a flush left it out and succeeded, and the file had the change.
#[test]
fn a_write_that_failed_may_have_reached_the_file() {
    let mut vm = core_of_file(Access::ReadWrite);
    [3, 4].into_iter().for_each(|index| read_home(&mut vm, index, tag(1)));
    assert!(!park(&mut vm, 3, Parked::Yes));
    assert_eq!(compare_with(&mut vm, 3, tag(2)), Compared::WriteHome);
    vm.home_written(page(3), tag(2), IoResult::Io(5));
    assert_eq!(compare_with(&mut vm, 3, tag(1)), Compared::WriteHome);
    vm.home_written(page(3), tag(1), IoResult::Ok);
    assert_eq!(flush(&mut vm).len(), 1);
    vm.flush_written(page(4), tag(2), IoResult::Io(5));
    assert_eq!(flush(&mut vm)[0].base, Tag::UNKNOWN);
    vm.flush_settled(page(4));
    vm.check(1);
}

/// A page was being read while fdatasync failed: what was read had not reached the device, which then forgot it. The page counted
/// as unchanged, and the next flush left it out and succeeded.
#[test]
fn a_read_that_a_failed_sync_overtakes_counts_as_changed() {
    let mut vm = core_of_file(Access::ReadWrite);
    for (index, base) in [(3, Tag::UNKNOWN), (4, tag(1))] {
        let Fault::PageIn(op) = fault(&mut vm, index) else { panic!("it is at home") };
        if index == 3 {
            vm.forget_bases(page(0).object(), 0..100);
        }
        let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
        vm.page_in_arrived(&op, BOUNDS, |_, _| IoResult::Ok, &mut places);
        vm.set_base_read(&op, 0, tag(1));
        vm.page_in_done(op.first, Filled::Mapped);
        let flushed = flush(&mut vm);
        assert_eq!(flushed.last().map(|flush| (flush.page, flush.base)), Some((page(index), base)));
        flushed.iter().for_each(|flush| vm.flush_settled(flush.page));
    }
}

/// A page that is being read ahead is mapped before that is reported. The program changed it in between, and a flush took it for a
/// page that is not in memory: it succeeded without that change, or the change was lost when the region was dropped (a seed of
/// `a_file_has_what_was_flushed`).
#[test]
fn a_flush_waits_for_a_page_that_is_being_read() {
    let mut vm = core_of_file(Access::ReadWrite);
    let Fault::PageIn(op) = fault(&mut vm, 3) else { panic!("it is at home") };
    let mut batch = Vec::with_capacity(64);
    let scan = vm.flush_batch(page(0).object(), 0, 100, &mut batch);
    assert_eq!((batch.len(), scan.next, scan.waits), (0, 3, true));
    let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
    vm.page_in_arrived(&op, BOUNDS, |_, _| IoResult::Ok, &mut places);
    assert!(!vm.page_in_done(page(3), Filled::Mapped));
    assert_eq!(flush(&mut vm).len(), 1);
    vm.flush_settled(page(3));
}

/// A flush read a page that had been parked since it was chosen, and its fault waited for a frame. The page daemon waited for the
/// end of the flush, whose pages it took for ones that are about to free their frames: everybody waited for ever (a seed of
/// `everything_at_once_with_files`).
#[test]
fn frames_are_not_expected_of_a_flush() {
    let mut vm = core_of_file(Access::ReadWrite);
    for index in 0..100 {
        read_home(&mut vm, index, tag(1));
        assert!(!park(&mut vm, index, Parked::Yes));
    }
    vm.set_limit(100);
    let before = vm.demand().launder;
    let mut batch = Vec::with_capacity(20);
    vm.flush_batch(page(0).object(), 0, 100, &mut batch);
    assert_eq!((batch.len(), vm.demand().launder), (20, before));
    assert!((1..100).contains(&before) && vm.has_writable());
    let mut more = Vec::with_capacity(100);
    vm.flush_batch(page(0).object(), 20, 100, &mut more);
    assert!(!vm.has_writable(), "faults may go above the budget: nothing else can come free");
    batch.iter().chain(&more).for_each(|flush| vm.flush_settled(flush.page));
    assert!(vm.has_writable());
    vm.check(1);
}

/// A page was released while it was on its way to the file. If it were read before that write has ended, nobody could say what is
/// read.
#[test]
fn a_page_is_not_read_while_it_is_written() {
    let mut vm = core_of_file(Access::ReadWrite);
    read_home(&mut vm, 3, tag(1));
    assert_eq!(flush(&mut vm).len(), 1);
    vm.home_write_begins(page(3).object(), 1);
    vm.release_range(page(3), 1, |_| unreachable!("it is not parked"));
    assert!(vm.is_writing(page(3).object(), 0..100) && !vm.is_home_idle(page(3).object()));
    assert_eq!(fault(&mut vm, 3), Fault::NoMemory, "to be tried again");
    vm.flush_written(page(3), tag(2), IoResult::Ok);
    vm.home_write_ended(page(3).object());
    assert!(!vm.is_writing(page(3).object(), 0..100));
    read_home(&mut vm, 3, tag(2));
    vm.check(1);
}

/// A page that was to be written lay beyond the end of its file, and was touched meanwhile, so it stayed. It counted as unchanged
/// when its change was taken back, although the file had nothing of it.
#[test]
fn a_page_that_stays_behind_the_end_of_its_file_is_changed() {
    let mut vm = core_of_file(Access::ReadWrite);
    read_home(&mut vm, 3, tag(1));
    assert!(!park(&mut vm, 3, Parked::Yes));
    assert_eq!(compare_with(&mut vm, 3, tag(2)), Compared::WriteHome);
    assert!(matches!(fault(&mut vm, 3), Fault::Restore { .. }));
    vm.restore_done(page(3), Filled::Mapped);
    assert_eq!(vm.home_is_shorter(page(3)), None);
    assert_eq!(flush(&mut vm)[0].base, Tag::UNKNOWN);
    vm.flush_settled(page(3));
    vm.check(1);
}

#[test]
fn a_file_ends_before_a_page() {
    let mut vm = core_of_file(Access::ReadWrite);
    read_home(&mut vm, 3, tag(1));
    assert!(!park(&mut vm, 3, Parked::Yes));
    assert_eq!(compare_with(&mut vm, 3, tag(2)), Compared::WriteHome);
    let frame = vm.home_is_shorter(page(3)).expect("it is parked");
    vm.frames_dropped([frame].into_iter());
    assert_eq!((state(&vm, 3), fault(&mut vm, 3), vm.used()), (State::Lost, Fault::Lost, 0));
    assert_eq!((vm.take_home_lost(page(3).object()), vm.take_home_lost(page(3).object())), (1, 0), "it is told once");
    let Fault::PageIn(op) = fault(&mut vm, 4) else { panic!("it is not known") };
    let mut places = [Destination::Discard; CLUSTER_PAGES_MAX];
    vm.page_in_arrived(&op, BOUNDS, |_, _| IoResult::Beyond, &mut places);
    assert_eq!((places[0], state(&vm, 4)), (Destination::Lost, State::Lost));
    vm.check(1);
}

/// A page was released while it was written, then its range was moved, before the write ended. Each such move took a leaf of the
/// page table for a page that is nothing, until the table was full.
#[test]
fn what_is_left_of_a_released_page_takes_no_leaf_where_it_moves() {
    let mut vm = core(4096); // some 65 leaves
    bring_to(&mut vm, 0, State::Inactive);
    let slot = begin_write(&mut vm, 0);
    assert_eq!(vm.release_range(page(0), 1, |_| ()), 1);
    assert!(vm.page(page(0)).laundering());
    for to in 1..200 {
        assert!(vm.rename_range(page(0), page(to << 12), 1), "{to}");
    }
    assert!(vm.launder_done(page(0), Some(slot), tag(0), IoResult::Ok) && vm.is_quiescent());
    vm.check(1);
}
