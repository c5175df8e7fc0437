//! Each process of a run: its machine's parts, and its handler.

use crate::content::Checked;
use crate::files::SimFiles;
use crate::kernel::{Family, Sim};
use crate::uffd::SimUffd;
use crate::world::{park_of, program_of, world};
use overspill_machine::daemon;
use overspill_machine::files::{DEVICES_MAX, DeviceName};
use overspill_machine::handler::Handler;
use overspill_machine::inject::Inject;
use overspill_machine::kernel::Io as _;
use overspill_machine::machine::{Config, Delivery, Parts};
use overspill_machine::{Machine, ranges};
use overspill_simkernel::sched::{self, Timeout};
use overspill_swap::SwapPager;
use overspill_vm::Vm;
use overspill_vm::status::Status;

/// The loop of a handler.
pub fn handler(machine: &Machine<Sim>) {
    let world = world();
    let mut handler = Handler::new((), CLUSTER_PAGES).expect("memory");
    while !machine.shutdown.has_begun() {
        let seen = world.kernel.messages_seen();
        handler.reap(machine, |_| {});
        if machine.freeze.is_on() {
            handler.pause();
            match handler.reader.io.next_in() {
                Some(ns) => _ = sched::Word::new(0).wait(0, Timeout::Tick(ns)),
                None => {
                    machine.follow_own_discards();
                    machine.freeze.wait(1_000_000);
                }
            }
            continue;
        }
        handler.retry(machine);
        let mut more = true;
        while more && handler.has_room() {
            let mut any = false;
            more = handler.read_messages(machine, |_, _| any = true) || any;
        }
        handler.finish(machine);
        if !handler.follows() && !handler.is_refused() {
            let limit = handler.patience().unwrap_or(1_000_000_000).min(handler.reader.io.next_in().unwrap_or(u64::MAX));
            world.kernel.await_message_until(seen, Timeout::Tick(limit));
        }
    }
    while handler.reader.in_flight() > 0 {
        handler.reader.io.wait(None);
        handler.reap(machine, |_| {});
    }
    handler.reader.give_back(machine, true);
}

/// A process's program has ended: reports that by `tell`, and ends its pager's threads. While `there` says that some are left, the
/// loop follows discards, because memory is still mapped and the page daemon may be discarding pages of it. (On Linux a process
/// simply ends.)
pub fn program_ended(machine: &Machine<Sim>, tell: impl FnOnce(), there: impl Fn() -> bool) {
    machine.shutdown.begin();
    machine.ring_daemon_anyway();
    tell();
    while there() {
        machine.follow_own_discards();
        sched::Word::new(0).wait(0, Timeout::Tick(100_000));
    }
}

/// Pages of a cluster.
pub const CLUSTER_PAGES: usize = 8;
/// The minimum budget of the core, from which a scenario takes a part.
pub const LEAST_PAGES: u32 = (overspill_vm::MEMORY_BYTES_MIN >> 12) as u32;
/// Slots of a device, where the number does not matter.
pub const SLOTS: u32 = 4096;

/// The parts of a process's machine.
pub fn parts(
    vm: Vm<SwapPager>,
    status: &'static Status,
    files: [Option<SimFiles>; DEVICES_MAX],
    process: usize,
    content: Checked,
    follows_pointers: bool,
    objects_max: u16,
) -> Parts<Sim> {
    Parts {
        memory_pages: LEAST_PAGES,
        vm,
        config: Config {
            delivery: Delivery::Threads,
            follows_pointers,
            finds_grown: true,
            load_control: false,
            writes: daemon::writes(LEAST_PAGES, content.sealed),
        },
        content,
        inject: Inject::default(),
        host: Family::default(),
        status,
        program: SimUffd::new(program_of(process)),
        parking: SimUffd::new(park_of(process)),
        process: (),
        files,
        names: Box::new([const { DeviceName::new() }; DEVICES_MAX]),
        pool: None,
        ranges_max: ranges::ranges_max(1000, 1 << 14),
        objects_max,
    }
}
