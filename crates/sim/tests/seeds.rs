//! Seeds: many short runs of each scenario, over the real swap pager and over the model.
//!
//! `OVERSPILL_SEEDS=N` runs N seeds of each (default 60, 6 without optimisation); `OVERSPILL_SEED=n` replays one;
//! `OVERSPILL_SCENARIO=name` runs one scenario only.

use overspill_sim::rng::Rng;
use overspill_sim::{Faults, PagerKind, Report, Scenario, run, run_with};
use overspill_vm::policy::Spec;

const SEEDS: u64 = if cfg!(debug_assertions) { 6 } else { 60 };

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().unwrap_or_else(|_| panic!("{name} is not a number: {n}")))
}

/// Runs `make(seed)` for all seeds asked for and prints the sum of what was done.
fn seeds(name: &str, make: impl Fn(u64) -> Scenario) -> Report {
    let mut sum = Report::default();
    if std::env::var("OVERSPILL_SCENARIO").is_ok_and(|only| only != name) {
        return sum;
    }
    let range = match number("OVERSPILL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("OVERSPILL_SEEDS").unwrap_or(SEEDS),
    };
    for seed in range {
        let scenario = make(seed);
        // the model has no compressed memory
        let result = if scenario.pool_pages > 0 { run_with(&scenario, PagerKind::Swap) } else { run(&scenario) };
        match result {
            Ok(report) => sum.add(&report),
            Err(failure) => panic!("scenario {name}\n{failure}"),
        }
    }
    println!("{name}: {sum:?}");
    sum
}

/// Whether the sums mean anything: only one or a few seeds may miss a rare event.
fn whole() -> bool {
    number("OVERSPILL_SEED").is_none()
        && number("OVERSPILL_SEEDS").unwrap_or(SEEDS) >= 60
        && std::env::var("OVERSPILL_SCENARIO").is_err()
}

/// Nothing goes wrong: and then nothing may be lost, nor the budget exceeded.
#[test]
fn fair_weather() {
    let sum = seeds("fair-weather", Scenario::new);
    if whole() {
        assert!(
            sum.hard_faults > 1000
                && sum.soft_faults > 1000
                && sum.readahead > 100
                && sum.reclaimed_clean > 100
                && sum.reclaimed_zero > 10
        );
    }
    assert_eq!((sum.over_budget, sum.lost_pages, sum.write_errors), (0, 0, 0));
}

/// The address space changes all the time.
#[test]
fn address_space_changes() {
    let sum = seeds("address-space", |seed| Scenario { events: 60, refuse: 20, ..Scenario::new(seed) });
    if whole() {
        assert!(sum.discards > 100 && sum.unmaps > 100 && sum.remaps > 100 && sum.adopted > 100 && sum.doomed_reads > 20);
        assert!(sum.out_of_batch > 20, "{sum:?}");
    }
    assert_eq!(sum.lost_pages, 0);
}

/// The device fails in all ways there are.
#[test]
fn bad_device() {
    let sum = seeds("bad-device", |seed| Scenario { faults: Faults::ALL, events: 10, ..Scenario::new(seed) });
    if whole() {
        assert!(sum.lost_pages > 10 && sum.write_errors > 100);
    }
}

/// Faults that must be survived without a page lost.
#[test]
fn device_that_can_be_survived() {
    let faults = Faults { read_error: 0, corrupt: 0, ..Faults::ALL };
    let sum = seeds("survivable", |seed| Scenario { faults, events: 10, ..Scenario::new(seed) });
    assert_eq!(sum.lost_pages, 0);
}

/// Swap is too small for what is written.
#[test]
fn full_swap() {
    let sum =
        seeds("full-swap", |seed| Scenario { slots: 40 + (seed % 5) as u32 * 60, events: 15, writes: 900, ..Scenario::new(seed) });
    assert_eq!(sum.lost_pages, 0);
    if whole() {
        assert!(sum.over_budget > 0);
    }
}

/// Memory and swap add up, with everything at once (`replay.rs` has the exact sum; here a tenth of the contents are zeroes and need
/// no slot): a program may use nearly their sum before the budget gives way. What is missing is the page daemon's reserve, which is
/// a matter of the core's targets (here 128 of 640 pages of memory), and a batch in flight.
#[test]
fn memory_and_swap_add_up() {
    let sum = seeds("add-up", |seed| {
        let (memory, slots) = (640, 1000 + (seed % 3) as u32 * 300);
        Scenario {
            memory_pages: memory,
            pages: (memory + slots - 200) as usize,
            slots,
            writes: 950,
            steps: 40_000,
            ..Scenario::new(seed)
        }
    });
    assert_eq!((sum.over_budget, sum.lost_pages), (0, 0));
    assert!(sum.hard_faults > 1000 || !whole());
}

/// No write ever succeeds.
#[test]
fn dead_device() {
    let faults = Faults { write_error: 1000, ..Faults::NONE };
    let sum = seeds("dead-device", |seed| Scenario { faults, pages: 300, steps: 6000, writes: 1000, ..Scenario::new(seed) });
    assert_eq!((sum.lost_pages, sum.hard_faults), (0, 0));
    if whole() {
        assert!(sum.over_budget > 0);
    }
}

/// Much is wired, much is refused.
#[test]
fn wired_and_refused() {
    let sum = seeds("wired", |seed| Scenario { wires: 80, refuse: 150, events: 50, threads: 8, ..Scenario::new(seed) });
    assert_eq!(sum.lost_pages, 0);
}

/// Pages that are touched, changed and parked again while they are still being written, or released while they are still being
/// read.
#[test]
fn slow_device() {
    let sum = seeds("slow-device", |seed| Scenario {
        pages: 240,
        memory_pages: 150,
        latency_steps: 2500,
        policy: Spec::named(["fifo", "use-once"][seed as usize % 2]).expect("known"),
        threads: 12,
        writes: 900,
        refuse: [0, 250][seed as usize / 2 % 2],
        events: [0, 40][seed as usize / 4 % 2],
        ..Scenario::new(seed)
    });
    assert_eq!(sum.lost_pages, 0);
}

/// Parents, children, grandchildren on one store.
#[test]
fn forks() {
    let sum = seeds("forks", |seed| Scenario { processes_max: 4, events: 15, limits: true, steps: 16_000, ..Scenario::new(seed) });
    if whole() {
        assert!(sum.forks > 50);
    }
    assert_eq!(sum.lost_pages, 0);
}

/// The policy is changed at any moment, under load, with everything else going on.
#[test]
fn switches() {
    let sum = seeds("switches", |seed| Scenario {
        switches: true,
        events: 20,
        wires: 20,
        refuse: 50,
        limits: true,
        processes_max: 3,
        steps: 16_000,
        ..Scenario::new(seed)
    });
    assert_eq!(sum.lost_pages, 0);
    assert!(std::env::var("OVERSPILL_SEED").is_ok() || std::env::var("OVERSPILL_SCENARIO").is_ok() || sum.switches > 50);
}

/// Devices are swapped on and off all the time.
#[test]
fn swapoff() {
    let sum = seeds("swapoff", |seed| Scenario {
        swaps: 300,
        slots: 60 + (seed % 4) as u32 * 200,
        events: [0, 60][seed as usize % 2],
        refuse: 20,
        latency_steps: [0, 400][seed as usize / 2 % 2],
        ..Scenario::new(seed)
    });
    assert_eq!((sum.lost_pages, sum.write_errors), (0, 0));
    if whole() {
        assert!(sum.swapoffs > 200 && sum.moved > 1000 && sum.brought_in > 50 && sum.moves_void > 50);
        assert!(sum.swapons > 200 && sum.swapoffs_refused > 10 && sum.swapoffs_cancelled > 10);
    }
}

/// ... by parents, children and grandchildren.
#[test]
fn swapoff_and_forks() {
    let sum = seeds("swapoff-forks", |seed| Scenario {
        swaps: 300,
        slots: 300,
        processes_max: 4,
        events: 15,
        limits: true,
        steps: 16_000,
        ..Scenario::new(seed)
    });
    assert_eq!(sum.lost_pages, 0);
    if whole() {
        assert!(sum.swapoffs > 100 && sum.forks > 50);
    }
}

/// ... while they fail, fill up and die. What can be survived is survived.
#[test]
fn swapoff_of_failing_devices() {
    let survivable = Faults { read_error: 0, corrupt: 0, ..Faults::ALL };
    let base = |seed| Scenario { swaps: 300, deaths: true, slots: 400, events: 15, processes_max: 2, ..Scenario::new(seed) };
    let sum = seeds("swapoff-survivable", |seed| Scenario { faults: survivable, ..base(seed) });
    assert_eq!(sum.lost_pages, 0);
    let sum = seeds("swapoff-bad", |seed| Scenario { faults: Faults { corrupt: 20, ..Faults::ALL }, ..base(seed) });
    if whole() {
        assert!(sum.failed_devices > 20 && sum.swapoffs > 50 && sum.lost_pages > 10);
    }
}

/// Compressed memory in front of a device: full, too small, refusing; its coldest pages go on.
#[test]
fn compressed() {
    let sum = seeds("compressed", |seed| Scenario {
        pool_pages: 10 + (seed % 7) as u32 * 20,
        memory_pages: 160 + (seed % 3) as u32 * 100,
        pages: 800,
        events: [0, 40][seed as usize % 2],
        refuse: 20,
        writes: 300 + (seed % 5) as u32 * 150,
        ..Scenario::new(seed)
    });
    assert_eq!((sum.lost_pages, sum.write_errors), (0, 0));
    if whole() {
        assert!(sum.packed > 1000 && sum.pool_refused > 1000 && sum.pool_full > 20, "{sum:?}");
        assert!(sum.written_back > 1000 && sum.write_backs_void > 100, "{sum:?}");
    }
}

/// ... with budgets that change, forks that copy it, and devices that come and go, it among them.
#[test]
fn compressed_and_swapped_off() {
    let base = |seed| Scenario {
        pool_pages: 10 + (seed % 7) as u32 * 15,
        slots: 100 + (seed % 4) as u32 * 200,
        pages: 600,
        swaps: 300,
        events: 20,
        limits: seed % 2 == 0,
        processes_max: 1 + seed as usize % 3,
        ..Scenario::new(seed)
    };
    let sum = seeds("compressed-swapoff", base);
    // (what compressed memory refused in a swapoff was counted as a write error once)
    assert_eq!((sum.lost_pages, sum.write_errors), (0, 0));
    if whole() {
        assert!(sum.pools_off > 20 && sum.moved_into_pool > 5 && sum.written_back > 300 && sum.forks > 20, "{sum:?}");
    }
    let survivable = Faults { read_error: 0, corrupt: 0, ..Faults::ALL };
    let sum = seeds("compressed-survivable", |seed| Scenario { faults: survivable, deaths: true, ..base(seed) });
    assert_eq!(sum.lost_pages, 0);
    seeds("compressed-bad", |seed| Scenario { faults: Faults::ALL, deaths: true, switches: true, ..base(seed) });
}

/// Runs long enough for an access that is never served to be noticed.
#[test]
fn patience() {
    let dead = Faults { write_error: 1000, ..Faults::NONE };
    let sum = seeds("patience", |seed| match seed % 6 {
        0 => Scenario { steps: 150_000, faults: dead, pages: 300, writes: 1000, threads: 8, ..Scenario::new(seed) },
        1 => Scenario { steps: 150_000, slots: 50, writes: 900, threads: 8, events: 5, ..Scenario::new(seed) },
        _ => Scenario { steps: 2_000, wires: 100, refuse: 500, threads: 8, ..Scenario::new(seed) },
    });
    assert_eq!(sum.lost_pages, 0);
}

/// Everything at once, and all sizes.
#[test]
fn storm() {
    seeds("storm", |seed| {
        let mut rng = Rng::new(seed);
        let policies = overspill_vm::policy::NAMES;
        let mut pick = |from: u64, to: u64| from + rng.below(to - from + 1);
        Scenario {
            memory_pages: pick(140, 300) as u32,
            pages: pick(200, 900) as usize,
            slots: pick(20, 2000) as u32,
            policy: Spec::named(policies[pick(0, policies.len() as u64 - 1) as usize]).expect("known"),
            threads: pick(1, 12) as usize,
            daemons: pick(1, 3) as usize,
            ahead_pages_max: 1 << pick(0, 6),
            faults: if pick(0, 2) > 0 { Faults::ALL } else { Faults::NONE },
            refuse: pick(0, 100) as u32,
            events: pick(0, 60) as u32,
            wires: pick(0, 30) as u32,
            processes_max: pick(1, 4) as usize,
            writes: pick(0, 1000) as u32,
            limits: pick(0, 1) == 1,
            swaps: pick(0, 2) as u32 * 150,
            deaths: pick(0, 1) == 1,
            pool_pages: (pick(0, 2) * pick(2, 60)) as u32,
            ..Scenario::new(seed)
        }
    });
}
