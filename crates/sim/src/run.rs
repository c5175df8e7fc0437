//! One run: the machine's own handler and page daemon serve a program of a few threads on the simulated kernel. A seed chooses the
//! actor that goes on at each lock and each call.

use crate::content::Checked;
use crate::file_program::{FileHabits, FileThread, Files, files};
use crate::files::SimFiles;
use crate::forks::{self, Children, children};
use crate::home::File;
use crate::kernel::Sim;
use crate::process::{CLUSTER_PAGES, LEAST_PAGES, SLOTS, handler, parts, program_ended};
use crate::program::{self, Thread};
use crate::swapoff;
use crate::trouble::Trouble;
use crate::world::{self, World, program_of};
use overspill_machine::Machine;
use overspill_machine::daemon::Daemon;
use overspill_machine::files::DEVICES_MAX;
use overspill_machine::kernel::Mistake;
use overspill_machine::machine::Delivery;
use overspill_machine::reader;
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Actor, Failure, Report, Role};
use overspill_swap::SwapPager;
use overspill_vm::pager::Pager as _;
use overspill_vm::policy::Spec;
use overspill_vm::status::Status;
use overspill_vm::{Config, Vm};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Of a program with files: the write-back thread, a thread that reads next to what others give up, and others who have the files.
const FILE_HELPERS: usize = 3;

/// How many threads there are for files, with those and perhaps a stranger.
fn file_threads(scenario: &Scenario) -> usize {
    scenario.files.map_or(0, |habits| habits.threads + FILE_HELPERS + usize::from(habits.stranger))
}

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Threads of the program.
    pub threads: usize,
    /// Handlers of its faults: 1 or 2.
    pub handlers: usize,
    /// The budget, in pages.
    pub memory: u32,
    /// The replacement policy.
    pub policy: &'static str,
    /// The threads' actions.
    pub habits: program::Habits,
    /// The kernel isolates pages for moments without anybody's knowledge.
    pub disturbed: bool,
    /// How devices fail.
    pub trouble: Trouble,
    /// Stored pages are sealed.
    pub sealed: bool,
    /// How long it takes to check a page that was read, in nanoseconds.
    pub check_ns: u64,
    /// Pages hold more than a byte. Some do not compress, and some hold addresses, which the machine follows as pointers.
    pub noisy: bool,
    /// If set, devices come and go.
    pub swaps: Option<swapoff::Habits>,
    /// If set, the program has regions of files as well.
    pub files: Option<FileHabits>,
    /// Threads serve their own faults, as in a program that uses the library without privileges. It has regions of files alone.
    pub in_thread: bool,
    /// The most forked children that live at a time.
    pub children: usize,
    /// Slots of the first device.
    pub slots: u32,
    /// Stored pages that the swap pager can remember, if they lie close together.
    pub remembered: u64,
    /// The program may be stopped for lack of memory and swap, with a message that contains this.
    pub may_stop: Option<&'static str>,
}

/// Two threads that do a little of everything on one device, in less memory than they want.
pub const USUAL: Scenario = Scenario {
    threads: 2,
    handlers: 1,
    memory: 112,
    policy: "use-once",
    habits: program::Habits {
        steps: 120,
        arena: 512,
        pages: 140,
        weights: [20, 12, 4, 3, 4, 4, 2, 2, 1, 2],
        rest_ns: 0,
        forks: 0,
        seals: 0,
        peeks: 0,
        whims: 0,
        kernel_swap: 0,
        twins: false,
        large: 1,
        returns: 0,
    },
    disturbed: true,
    trouble: Trouble::NONE,
    sealed: false,
    check_ns: 0,
    noisy: false,
    swaps: None,
    files: None,
    in_thread: false,
    children: 0,
    slots: SLOTS,
    remembered: 1 << 14,
    may_stop: None,
};

/// Memory objects: one for all anonymous memory, and one for each region of a file.
fn objects(scenario: &Scenario) -> u16 {
    1 + scenario.files.map_or(0, |habits| habits.threads * habits.regions) as u16
}

fn machine(scenario: &Scenario) -> Machine<Sim> {
    let status: &'static Status = Box::leak(Box::default());
    let mut config = Config::new(LEAST_PAGES, 1 << 14);
    config.policy = scenario.policy.parse::<Spec>().expect("a policy");
    config.objects_max = objects(scenario);
    config.readahead_pages_max = CLUSTER_PAGES as u32;
    let mut pager = SwapPager::without_device(overspill_swap::Config {
        pages_max: scenario.remembered,
        slots_max: SLOTS,
        devices_max: DEVICES_MAX as u16,
        extents_max: 64,
    });
    pager.devices_mut().add_device(scenario.slots, 0).expect("the first");
    let mut vm = Vm::new(config, pager, &status.counters).expect("a good configuration");
    vm.set_limit(scenario.memory);
    let mut files = [const { None }; DEVICES_MAX];
    files[0] = Some(SimFiles::block(scenario.slots as usize));
    let content = Checked { sealed: scenario.sealed, check_ns: scenario.check_ns };
    let mut parts = parts(vm, status, files, 0, content, scenario.noisy, objects(scenario));
    if scenario.in_thread {
        assert_eq!(scenario.threads, 0, "events are not reported");
        let pages = reader::file_pages(CLUSTER_PAGES) as u32;
        parts.config.delivery = Delivery::InThread;
        parts.vm.set_under_way_max(pages, reader::long_pages(CLUSTER_PAGES) as u32);
        parts.vm.set_drops();
    }
    Machine::new(parts).expect("memory")
}

/// After all memory has been given up: checks that nothing is left in use, and that the counters are right.
fn check_end(scenario: &Scenario, machine: &Machine<Sim>, world: &World) {
    let (map, mut core) = (machine.map.read(), machine.core.lock());
    core.vm.check(objects(scenario));
    core.vm.pager().check();
    if scenario.habits.seals > 0 {
        return; // sealed memory stays mapped
    }
    let devices = core.vm.devices();
    assert_eq!(devices.deferred(), 0, "slots wait for children that have ended");
    assert_eq!((core.vm.used(), devices.stored(), devices.used()), (0, 0, 0), "frames, pages stored and slots are left");
    assert!(core.vm.is_quiescent(), "something is under way");
    assert_eq!(machine.host.waiting.load(Relaxed), 0, "faults wait");
    assert_eq!((core.park.used(), core.park.drops()), (0, 0), "parking places are in use, or to be dropped");
    let pool = map.pool.as_ref().map_or(0, |pool| {
        pool.refill(&mut core.vm); // this empties slots that were given up
        assert_eq!(pool.holding().pool.stored_pages, 0, "compressed memory keeps pages that were given up");
        pool.charged_pages()
    });
    let counters = core.vm.counters();
    let buffers = counters.buffer_bytes.get();
    assert_eq!((core.vm.charge_total(), buffers), (pool, 0), "charged in the end, and for compressed memory; bytes of buffers");
    let lost = counters.read_errors.get();
    assert!(lost <= world.harmed.get(), "{lost} pages are lost of {} that were harmed", world.harmed.get());
    let devices = core.vm.devices();
    let in_vain = devices.iter().filter_map(|device| devices.stats(device)).map(|stats| stats.reads.errors).sum::<u64>();
    assert!(world.trouble.fails() || in_vain == 0, "{in_vain} reads of good devices count as failed");
    let is_plain = !world.trouble.fails()
        && scenario.swaps.is_none()
        && scenario.files.is_none()
        && scenario.children + scenario.habits.whims == 0;
    let above = counters.over_budget.get();
    // memory that can be watched cannot be copied out, so it stays while it is not writable
    let stays = world.tells_references && scenario.habits.weights[4] + scenario.habits.weights[9] > 0;
    assert!(stays || !is_plain || above == 0, "{above} faults went above the budget");
}

/// After the program was stopped: checks that memory was full.
fn check_stop(status: &Status) {
    let counters = &status.counters;
    let (used, limit) = (counters.memory_used_bytes.get(), counters.memory_limit_bytes.get());
    assert!(used >= limit, "stopped although memory was free: {used} of {limit} bytes were in use");
}

/// Runs a scenario, with a mistake if one is given. If a crash ends it, another process goes on with the files.
///
/// # Errors
/// Why the run failed.
pub fn run(scenario: &Scenario, seed: u64, mistake: Option<Mistake>) -> Result<Report, Failure> {
    let (mut seed, mut left) = (seed, Vec::new());
    loop {
        match run_process(scenario, seed, mistake, left)? {
            (_, Some(files)) => left = files,
            (report, None) => return Ok(report),
        }
        seed = Rng::new(seed).bits();
    }
}

/// Runs a process on these files. Returns what is left of them, if a crash has ended it.
fn run_process(
    scenario: &Scenario,
    seed: u64,
    mistake: Option<Mistake>,
    files_left: Vec<File>,
) -> Result<(Report, Option<Vec<File>>), Failure> {
    let file_threads = file_threads(scenario);
    let mut processes = vec![0; scenario.threads + scenario.handlers + 1 + file_threads + usize::from(scenario.swaps.is_some())];
    (1..=scenario.children).for_each(|child| processes.extend([child; forks::ACTORS]));
    let world = World::begin(seed, processes, scenario.disturbed, scenario.trouble, mistake);
    world.kernel.enter(|kernel| kernel.noise = scenario.noisy.then(|| Rng::new(!seed)));
    world.kernel.enter(|kernel| {
        let program = &mut kernel.uffds[program_of(0)];
        (program.events, program.signals) = (!scenario.in_thread, scenario.in_thread);
    });
    world.disk.space.set(scenario.swaps.map_or(0, |habits| habits.space));
    world.objects.set(objects(scenario));
    let machine = Arc::new(machine(scenario));
    let places = Children::begin(scenario.children, &machine);
    let copies = scenario.habits.weights[4] + scenario.habits.weights[9] > 0;
    world.charge.set(Some((machine.status, if copies { world::COPIED_OUT } else { world::IN_PASSING })));
    let mut rng = Rng::new(seed.wrapping_mul(3));
    // the program's threads, the library's, and the page daemon
    let left = Arc::new(AtomicUsize::new(scenario.threads + file_threads + 1));
    let ends = |machine: &Machine<Sim>, left: &AtomicUsize| {
        if left.fetch_sub(1, SeqCst) == 2 {
            program_ended(machine, || children().program_ended(), || left.load(SeqCst) > 0);
        }
    };
    let mut actors = Vec::new();
    for (name, title) in ["first", "second", "third", "fourth"].into_iter().enumerate().take(scenario.threads) {
        let (machine, left, habits, seed) = (Arc::clone(&machine), Arc::clone(&left), scenario.habits, rng.bits());
        let act = move || {
            Thread::new(&machine, world::world(), seed, habits, name).run(forks::fork);
            ends(&machine, &left);
        };
        actors.push(Actor { name: title, role: Role::Program, act: Box::new(act) });
    }
    for name in ["handler", "second handler"].into_iter().take(scenario.handlers) {
        let (serves, in_thread) = (Arc::clone(&machine), scenario.in_thread);
        let act = move || if in_thread { files().reader() } else { handler(&serves) };
        actors.push(Actor { name, role: Role::Program, act: Box::new(act) });
    }
    let (pages_out, others) = (Arc::clone(&machine), Arc::clone(&left));
    let act = move || {
        Daemon::new(&pages_out, ()).expect("memory").run(&pages_out, |_| {});
        left.fetch_sub(1, SeqCst);
    };
    actors.push(Actor { name: "daemon", role: Role::Program, act: Box::new(act) });
    if let Some(habits) = scenario.files {
        let mut rng = Rng::new(!seed.wrapping_mul(5));
        Files::begin(&machine, &world, habits, files_left, rng.bits());
        for name in 0..file_threads {
            let (machine, left, seed) = (Arc::clone(&machine), Arc::clone(&others), rng.bits());
            let act = move || {
                match name.checked_sub(habits.threads) {
                    None => FileThread::new(&files(), seed, habits, name).run(),
                    Some(0) => files().write_back(seed),
                    Some(1) => files().neighbour(seed),
                    Some(FILE_HELPERS) => files().stranger(),
                    Some(_) => files().others(habits, seed),
                }
                ends(&machine, &left);
            };
            actors.push(Actor { name: "files", role: Role::Program, act: Box::new(act) });
        }
    }
    if let Some(habits) = scenario.swaps {
        let (machine, seed, threads) = (Arc::clone(&machine), rng.bits(), scenario.threads);
        let act = move || swapoff::Control::new(&machine, world::world(), seed, habits, threads).run();
        actors.push(Actor { name: "control", role: Role::Program, act: Box::new(act) });
    }
    (1..=scenario.children).for_each(|child| actors.extend(forks::actors(child, scenario.habits, rng.bits())));
    let report = sched::run(seed, actors);
    places.end();
    let crashed = (report.is_ok() && scenario.files.is_some()).then(files);
    Files::end();
    if let Some(files) = crashed {
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| files.after_crash(!seed)));
        match left {
            Ok(None) => {}
            Ok(left) => return report.map(|report| (report, left)),
            Err(panic) => return Err(Failure::Panicked(panic.downcast_ref::<String>().cloned().unwrap_or_default())),
        }
    }
    let report = match report {
        Err(Failure::Panicked(said)) if scenario.may_stop.is_some_and(|why| said.contains(why)) => {
            check_stop(machine.status);
            return Ok((Report { turns: 0, ns: 0, rescues: 0 }, None));
        }
        report => report?,
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        check_end(scenario, &machine, &world);
        let counters = &machine.status.counters;
        if std::env::var_os("TELL").is_some() {
            println!(
                "{} soft, {} hard, {} zero fills, {} reclaimed, {} copied out, {} denied, {} over budget, {} forks, {} unshared, \
                 {} refused, {} written back, {} pointed to, {} read from files, {} written to files, {} writes failed, {} lost",
                counters.soft_faults.get(),
                counters.hard_faults.get(),
                counters.zero_fills.get(),
                counters.pages_reclaimed.get(),
                counters.pages_copied_out.get(),
                counters.moves_denied.get(),
                counters.over_budget.get(),
                counters.forks.get(),
                counters.pages_unshared.get(),
                counters.pool_refused.get(),
                counters.pool_written_back.get(),
                counters.pointed_pages.get(),
                counters.file_pages_in.get(),
                counters.file_pages_out.get(),
                counters.file_write_errors.get(),
                counters.file_pages_lost.get(),
            );
        }
    }));
    drop(world);
    match checked {
        Ok(()) => Ok((report, None)),
        Err(panic) => Err(Failure::Panicked(panic.downcast_ref::<String>().cloned().unwrap_or_default())),
    }
}
