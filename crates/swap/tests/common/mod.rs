//! The core over the swap pager, and the calls that the tests of orders make.

use overspill_swap::SwapPager;
use overspill_vm::counters::Counters;
use overspill_vm::page::State;
use overspill_vm::types::{ObjectId, PageId};
use overspill_vm::{Config, Fault, Filled, PageIn, Vm};

pub type Core = Vm<SwapPager>;

pub const END: u64 = 1 << 20;

/// A core that reads nothing ahead, with room for so many pages.
pub fn core(pages_max: u64, swap: overspill_swap::Config) -> Core {
    let config = Config { readahead_pages_max: 1, zero_ahead_pages_max: 1, ..Config::new(2048, pages_max) };
    Vm::new(config, SwapPager::new(swap), Box::leak(Box::<Counters>::default())).expect("a good configuration")
}

pub fn page(index: u64) -> PageId {
    PageId::new(ObjectId(0), index)
}

pub fn state(vm: &Core, index: u64) -> State {
    vm.page(page(index)).state()
}

/// Serves a first touch.
pub fn touch(vm: &mut Core, index: u64) {
    assert_eq!(vm.fault(page(index), 0..END, false), Fault::ZeroFill { first: page(index), count: 1 });
    vm.fill_done(page(index), Filled::Mapped);
}

pub fn begin_read(vm: &mut Core, index: u64) -> PageIn {
    match vm.fault(page(index), 0..END, false) {
        Fault::PageIn(op) => op,
        other => panic!("{other:?}"),
    }
}
