//! The machine's own code under simulation: its handler and its page daemon serve a program of a few threads on the simulated
//! kernel, and a seed chooses whose turn it is at each lock and each call.

mod disk;
mod forks;
mod program;
mod swapoff;
mod world;

use disk::SimFiles;
use overspill_machine::daemon::{self, Daemon};
use overspill_machine::files::{DEVICES_MAX, DeviceName};
use overspill_machine::handler::Handler;
use overspill_machine::inject::Inject;
use overspill_machine::kernel::{Futex as _, Limit, Mistake};
use overspill_machine::machine::{Delivery, Parts};
use overspill_machine::{Machine, ranges};
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Actor, Failure, Report, Role, Timeout};
use overspill_swap::SwapPager;
use overspill_vm::pager::Pager as _;
use overspill_vm::policy::Spec;
use overspill_vm::status::Status;
use overspill_vm::{Config, Vm};
use program::{Habits, Thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use world::{Checked, Nothing, Sim, SimUffd, Trouble, World, world};

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    threads: usize,
    /// The budget, in pages.
    memory: u32,
    policy: &'static str,
    habits: Habits,
    /// Pages change hands for moments behind everybody's back.
    disturbed: bool,
    trouble: Trouble,
    /// Pages are sealed.
    sealed: bool,
    /// Some pages do not compress.
    noisy: bool,
    /// Devices come and go.
    swaps: Option<swapoff::Habits>,
    /// Forked children that may live at a time.
    children: usize,
    /// Pages that the first device has room for.
    slots: u32,
}

const USUAL: Scenario = Scenario {
    threads: 2,
    memory: 112,
    policy: "use-once",
    habits: Habits {
        steps: 120,
        arena: 512,
        pages: 140,
        weights: [20, 12, 4, 3, 4, 4, 2, 2, 1, 2],
        rest_ns: 0,
        forks: 0,
        peeks: 0,
    },
    disturbed: true,
    trouble: Trouble::NONE,
    sealed: false,
    noisy: false,
    swaps: None,
    children: 0,
    slots: SLOTS,
};

fn handler(machine: &Machine<Sim>) {
    let world = world();
    let mut handler = Handler::new((), CLUSTER_PAGES).expect("memory");
    while !machine.quit.load(Acquire) {
        let seen = world.kernel.messages_seen();
        handler.reap(machine, |_| {});
        if machine.is_frozen() {
            handler.pause();
            match handler.reader.io.next_in() {
                Some(ns) => _ = sched::Word::new(0).wait(0, Timeout::Tick(ns)),
                None => {
                    machine.follow_own_discards();
                    machine.frozen.wait_for(1, Limit::Tick(1_000_000));
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
        if !handler.follows() {
            let limit = handler.patience().unwrap_or(1_000_000_000).min(handler.reader.io.next_in().unwrap_or(u64::MAX));
            world.kernel.await_message_until(seen, Timeout::Tick(limit));
        }
    }
}

/// Pages of a cluster.
const CLUSTER_PAGES: usize = 8;
/// The least budget that there is, of which a scenario has a part.
const LEAST_PAGES: u32 = (overspill_vm::MEMORY_BYTES_MIN >> 12) as u32;
const SLOTS: u32 = 4096;

/// What a process's machine is made of.
fn parts(
    vm: Vm<SwapPager>,
    status: &'static Status,
    files: [Option<SimFiles>; DEVICES_MAX],
    process: usize,
    sealed: bool,
) -> Parts<Sim> {
    Parts {
        memory_pages: vm.limit(),
        vm,
        delivery: Delivery::Threads,
        follows_pointers: false,
        load_control: false,
        content: Checked { sealed },
        writes: daemon::writes(LEAST_PAGES, sealed),
        inject: Inject::default(),
        host: Nothing,
        status,
        program: SimUffd::new(world::program_of(process)),
        parking: SimUffd::new(world::park_of(process)),
        process: (),
        files,
        names: Box::new([const { DeviceName::new() }; DEVICES_MAX]),
        pool: None,
        ranges_max: ranges::ranges_max(1000, 1 << 14),
        objects_max: 1,
    }
}

fn machine(scenario: &Scenario) -> Machine<Sim> {
    let status: &'static Status = Box::leak(Box::default());
    let mut config = Config::new(LEAST_PAGES, 1 << 14);
    config.policy = scenario.policy.parse::<Spec>().expect("a policy");
    config.readahead_pages_max = CLUSTER_PAGES as u32;
    let mut pager = SwapPager::without_device(overspill_swap::Config {
        pages_max: 1 << 14,
        slots_max: SLOTS,
        devices_max: DEVICES_MAX as u16,
        extents_max: 64,
    });
    pager.devices_mut().add_device(scenario.slots, 0).expect("the first");
    let mut vm = Vm::new(config, pager, &status.counters).expect("a good configuration");
    vm.set_limit(scenario.memory);
    let mut files = [const { None }; DEVICES_MAX];
    files[0] = Some(SimFiles::block(scenario.slots as usize));
    Machine::new(parts(vm, status, files, 0, scenario.sealed)).expect("memory")
}

fn run(scenario: &Scenario, seed: u64, mistake: Option<Mistake>) -> Result<Report, Failure> {
    let mut processes = vec![0; scenario.threads + 2 + usize::from(scenario.swaps.is_some())];
    (1..=scenario.children).for_each(|child| processes.extend([child; forks::ACTORS]));
    let world = World::begin(seed, processes, scenario.disturbed, scenario.trouble, mistake);
    world.kernel.enter(|kernel| kernel.noise = scenario.noisy.then(|| Rng::new(!seed)));
    world.disk.space.set(scenario.swaps.map_or(0, |habits| habits.space));
    let machine = Arc::new(machine(scenario));
    let copies = scenario.habits.weights[4] + scenario.habits.weights[9] > 0;
    world.charge.set(Some((machine.status, if copies { world::COPIED_OUT } else { world::IN_PASSING })));
    let mut rng = Rng::new(seed.wrapping_mul(3));
    let left = Arc::new(AtomicUsize::new(scenario.threads));
    let mut actors = Vec::new();
    for (name, title) in ["first", "second", "third", "fourth"].into_iter().enumerate().take(scenario.threads) {
        let (machine, left, habits, seed) = (Arc::clone(&machine), Arc::clone(&left), scenario.habits, rng.bits());
        let act = move || {
            Thread::new(&machine, world::world(), seed, habits, name).run();
            if left.fetch_sub(1, SeqCst) == 1 {
                machine.quit.store(true, Release);
                machine.ring_daemon_anyway();
                world::world().children.program_ended();
            }
        };
        actors.push(Actor { name: title, role: Role::Program, act: Box::new(act) });
    }
    let serves = Arc::clone(&machine);
    actors.push(Actor { name: "handler", role: Role::Program, act: Box::new(move || handler(&serves)) });
    let pages_out = Arc::clone(&machine);
    let act = move || Daemon::new(&pages_out, ()).expect("memory").run(&pages_out, |_| {});
    actors.push(Actor { name: "daemon", role: Role::Program, act: Box::new(act) });
    if let Some(habits) = scenario.swaps {
        let (machine, seed) = (Arc::clone(&machine), rng.bits());
        let act = move || swapoff::Control::new(&machine, world::world(), seed, habits).run();
        actors.push(Actor { name: "control", role: Role::Program, act: Box::new(act) });
    }
    (1..=scenario.children).for_each(|child| actors.extend(forks::actors(child, scenario.habits, rng.bits())));
    world.children.begin(&machine);
    let report = sched::run(seed, actors);
    world.children.end();
    let report = report?;
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let core = machine.core.lock();
        core.vm.check(1);
        if scenario.children > 0 {
            core.vm.pager().check();
            assert_eq!(core.vm.devices().deferred(), 0, "slots wait for children that have ended");
        }
        let counters = &machine.status.counters;
        if std::env::var_os("TELL").is_some() {
            println!(
                "{} soft, {} hard, {} zero fills, {} reclaimed, {} copied out, {} denied, {} over budget, {} forks, {} unshared",
                counters.soft_faults.get(),
                counters.hard_faults.get(),
                counters.zero_fills.get(),
                counters.pages_reclaimed.get(),
                counters.pages_copied_out.get(),
                counters.moves_denied.get(),
                counters.over_budget.get(),
                counters.forks.get(),
                counters.pages_unshared.get(),
            );
        }
    }));
    drop(world);
    match checked {
        Ok(()) => Ok(report),
        Err(panic) => Err(Failure::Panicked(panic.downcast_ref::<String>().cloned().unwrap_or_default())),
    }
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("FIRST").unwrap_or(0);
            first..first + number("SEEDS").unwrap_or(default)
        }
    }
}

fn all_pass(scenario: &Scenario, default: u64) {
    let start = std::time::Instant::now();
    let (mut turns, seeds) = (0, seeds(default));
    let count = seeds.end - seeds.start;
    for seed in seeds {
        turns += run(scenario, seed, None).unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}")).turns;
    }
    println!("{:.0} runs a second, {} turns a run", count as f64 / start.elapsed().as_secs_f64(), turns / count);
}

#[test]
fn programs_find_what_they_wrote() {
    all_pass(&USUAL, 20);
}

/// All memory is writable, so that nothing is copied out: what is resident is charged, to the page.
const WRITABLE: Scenario = Scenario { habits: Habits { weights: [20, 12, 4, 3, 0, 4, 2, 2, 1, 0], ..USUAL.habits }, ..USUAL };

#[test]
fn what_is_resident_is_charged() {
    all_pass(&WRITABLE, 10);
}

/// Memory that becomes writable, is written, discarded and protected again, under pressure.
const FLIPS: Scenario = Scenario {
    threads: 3,
    habits: Habits { steps: 30, arena: 512, pages: 80, weights: [0, 1, 0, 0, 0, 1, 0, 0, 0, 8], rest_ns: 0, forks: 0, peeks: 0 },
    ..USUAL
};

#[test]
fn memory_that_is_protected_and_discarded_holds_what_it_must() {
    all_pass(&FLIPS, 20);
}

/// Threads that map, unmap and move memory in few places: what one has given up is another's at once.
const CROWDED: Scenario = Scenario {
    threads: 3,
    habits: Habits { steps: 60, arena: 160, pages: 60, weights: [12, 12, 3, 2, 2, 8, 8, 10, 1, 0], rest_ns: 0, forks: 0, peeks: 0 },
    ..USUAL
};

#[test]
fn what_comes_to_a_place_is_not_what_went() {
    all_pass(&CROWDED, 30);
}

/// Memory is moved over other memory.
const REPLACED: Scenario = Scenario {
    threads: 2,
    habits: Habits { steps: 60, arena: 512, pages: 120, weights: [4, 20, 0, 0, 0, 4, 1, 30, 0, 0], rest_ns: 0, forks: 0, peeks: 0 },
    ..USUAL
};

#[test]
fn what_is_replaced_is_not_taken() {
    all_pass(&REPLACED, 30);
}

/// Devices are added and swapped off, small ones as well.
const SWAPS: Scenario = Scenario {
    habits: program::Habits { steps: 240, weights: [20, 30, 4, 3, 4, 4, 2, 2, 1, 2], ..USUAL.habits },
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 320,
        lengths: (64, 512),
        compressed: false,
        space: 0,
        sparse: false,
        bold: 300,
        cancelled: 250,
    }),
    ..USUAL
};

#[test]
fn what_is_on_a_device_survives_it() {
    all_pass(&SWAPS, 8);
}

/// The same with more memory, so that a swapoff moves runs of pages.
const RUNS: Scenario = Scenario {
    threads: 2,
    memory: 448,
    habits: program::Habits {
        steps: 120,
        arena: 2048,
        pages: 480,
        weights: [10, 60, 4, 2, 2, 20, 2, 2, 1, 2],
        rest_ns: 0,
        forks: 0,
        peeks: 0,
    },
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 1100,
        lengths: (256, 1500),
        compressed: false,
        space: 0,
        sparse: false,
        bold: 300,
        cancelled: 250,
    }),
    ..USUAL
};

#[test]
fn runs_of_pages_survive_their_device() {
    all_pass(&RUNS, 4);
}

/// Devices so short that much has to go into memory, and often does not fit there.
const TIGHT: Scenario = Scenario {
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 320,
        lengths: (16, 128),
        compressed: false,
        space: 0,
        sparse: false,
        bold: 1000,
        cancelled: 250,
    }),
    ..SWAPS
};

#[test]
fn what_fits_nowhere_stays_where_it_is() {
    all_pass(&TIGHT, 8);
}

/// Both at once.
const TIGHT_RUNS: Scenario = Scenario {
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 1100,
        lengths: (16, 400),
        compressed: false,
        space: 0,
        sparse: false,
        bold: 1000,
        cancelled: 250,
    }),
    ..RUNS
};

#[test]
fn runs_that_fit_nowhere_stay_where_they_are() {
    all_pass(&TIGHT_RUNS, 4);
}

/// Compressed memory among the devices, which refuses what does not compress.
const COMPRESSED: Scenario = Scenario {
    noisy: true,
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 320,
        lengths: (16, 200),
        compressed: true,
        space: 0,
        sparse: false,
        bold: 1000,
        cancelled: 250,
    }),
    ..SWAPS
};

#[test]
fn compressed_memory_comes_and_goes() {
    all_pass(&COMPRESSED, 8);
}

/// The other devices take nothing from a swapoff: it has to come into memory.
const REFUSED: Scenario = Scenario {
    habits: program::Habits { pages: 70, ..SWAPS.habits },
    trouble: Trouble { refused: 1000, ..Trouble::NONE },
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 160,
        lengths: (200, 400),
        compressed: false,
        space: 0,
        sparse: false,
        bold: 1000,
        cancelled: 50,
    }),
    ..COMPRESSED
};

#[test]
fn what_is_refused_comes_into_memory() {
    all_pass(&REFUSED, 4);
}

/// The file system is full: files that are long enough have no room but where they have been written.
const FULL: Scenario = Scenario {
    noisy: true,
    habits: program::Habits { pages: 70, ..SWAPS.habits },
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 160,
        lengths: (16, 200),
        compressed: true,
        space: 30,
        sparse: true,
        bold: 1000,
        cancelled: 250,
    }),
    ..SWAPS
};

#[test]
fn a_full_file_system_ends_a_swapoff() {
    all_pass(&FULL, 4);
}

/// Files that grow as they are needed, in a file system that may be full.
const GROWING: Scenario = Scenario {
    habits: program::Habits { rest_ns: 2_500_000_000, ..SWAPS.habits },
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 320,
        lengths: (64, 512),
        compressed: false,
        space: 400,
        sparse: false,
        bold: 300,
        cancelled: 250,
    }),
    ..SWAPS
};

#[test]
fn files_grow_and_give_back() {
    all_pass(&GROWING, 8);
}

/// What is on devices is sealed.
const SEALED: Scenario = Scenario {
    sealed: true,
    noisy: true,
    swaps: Some(swapoff::Habits {
        threads: 2,
        program: 320,
        lengths: (64, 512),
        compressed: true,
        space: 400,
        sparse: false,
        bold: 300,
        cancelled: 250,
    }),
    ..SWAPS
};

#[test]
fn what_is_sealed_is_opened_again() {
    all_pass(&SEALED, 8);
}

/// The device from which pages are moved, or that to which, takes longer than ten seconds now and then. A swapoff that had moved
/// nothing for so long gave up, though nothing had failed.
const SLOW: Scenario = Scenario { trouble: Trouble { stall: 2, ..Trouble::NONE }, ..SWAPS };

#[test]
fn a_slow_device_is_waited_for() {
    all_pass(&SLOW, 8);
}

/// Transfers fail, are short, find no space. Pages may be lost if they cannot be read, which is told.
const TROUBLED: Scenario =
    Scenario { trouble: Trouble { read_error: 5, write_error: 20, no_space: 5, short: 50, ..Trouble::NONE }, ..SWAPS };

#[test]
fn transfers_fail() {
    all_pass(&TROUBLED, 8);
}

/// The same, but that nothing need be lost.
const WRITES_FAIL: Scenario = Scenario { trouble: Trouble { write_error: 60, no_space: 10, short: 50, ..Trouble::NONE }, ..SWAPS };

#[test]
fn writes_fail_and_nothing_is_lost() {
    all_pass(&WRITES_FAIL, 8);
}

/// Threads that fork alongside others, on a device that is nearly full of what children can still read. Each child, and each of its
/// own, runs a machine of its own on what it has inherited.
const FORKS: Scenario = Scenario {
    memory: 72,
    habits: Habits { steps: 90, pages: 72, weights: [8, 24, 4, 2, 3, 4, 2, 2, 1, 1], forks: 50, ..USUAL.habits },
    children: 3,
    slots: 176,
    ..USUAL
};

#[test]
fn children_find_what_was_there_at_the_fork() {
    all_pass(&FORKS, 15);
}

/// Memory that forks share is discarded and written, and made the process's own again to be paged out.
const UNSHARED: Scenario = Scenario {
    threads: 3,
    memory: 72,
    habits: Habits { steps: 60, pages: 64, weights: [6, 12, 24, 0, 0, 2, 0, 0, 0, 0], forks: 100, ..USUAL.habits },
    children: 2,
    ..USUAL
};

#[test]
fn forks_discards_and_sharing_get_on() {
    all_pass(&UNSHARED, 15);
}

/// What mended a defect is taken back: a seed finds it again.
#[test]
fn each_mistake_is_found() {
    use Mistake::*;
    // with the seed that found it when this was written: others come after it, a thousand in all
    let mistakes = [
        (BelievesDenials, USUAL, 2),
        (ForgetsDenialsWithin, FLIPS, 56),
        (DiscardsRunsAtOnce, FLIPS, 78),
        (TakesWhatIsDiscarded, USUAL, 157),
        (TakesWhatIsReplaced, REPLACED, 146),
        (FollowsLateUnmaps, CROWDED, 137),
        (DropsBeforeTheCopy, CROWDED, 56),
        (RingsNobody, USUAL, 0),
        (UnchargesBeforeTheDrop, WRITABLE, 0),
        (OffersWhatIsRefused, REFUSED, 4),
        (GivesUpAsItWaits, SLOW, 0),
        (ClosesBeforeReadsEnd, SWAPS, 2),
        (ParksInOnePlace, TIGHT_RUNS, 7),
        (ThawsEarly, FORKS, 0),
        (NeverThaws, FORKS, 0),
        (WaitsForItsParent, FORKS, 4),
        (WaitsToUnshare, UNSHARED, 69),
    ];
    let wanted = std::env::var("MISTAKE").ok();
    let mut missed = Vec::new();
    for (mistake, scenario, first) in mistakes.iter().filter(|(m, ..)| wanted.as_ref().is_none_or(|name| *name == format!("{m:?}")))
    {
        let order = (*first..1000).chain(0..*first);
        let found = order.into_iter().find_map(|seed| Some((seed, run(scenario, seed, Some(*mistake)).err()?)));
        match found {
            Some((seed, failure)) => println!("{mistake:?}: seed {seed}, {failure:?}"),
            None => missed.push(*mistake),
        }
    }
    assert!(missed.is_empty(), "{missed:?}: not found");
}
