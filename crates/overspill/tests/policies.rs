//! Regions with a replacement policy of their own, in one budget with others.

mod common;

use common::*;
use overspill::{Access, Error, FileOptions, Pager, PolicyUse, REGION_POLICIES_MAX, Region};
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Pages of a region that is in use, and of one that is read once.
const IN_USE: usize = BUDGET as usize / PAGE * 6 / 10;
const READ_ONCE: usize = 4 * BUDGET as usize / PAGE;

fn touch(region: &Region, page: usize) -> u8 {
    // SAFETY: within the region, which is borrowed.
    unsafe { region.as_ptr().add(page * PAGE).read_volatile() }
}

/// How the policies of regions stand.
fn of_regions(pager: &Pager) -> Vec<PolicyUse> {
    pager.policies().split_off(1)
}

/// A region in use, whose policy is the first, next to one that is read through once, and once more. Its pages stay, after some of
/// them had to be read again until it had its place: shares begin equal.
fn stays(pager: &Pager, index: &Region, scan: impl Fn(usize)) {
    let counts = || of_regions(pager)[0].counts;
    let mut rng = Rng(3);
    for most in [IN_USE / 2, IN_USE / 10] {
        let before = counts().refaults;
        for page in 0..READ_ONCE {
            touch(index, rng.below(IN_USE));
            scan(page);
        }
        let again = (counts().refaults - before) as usize;
        println!("{:?}: {again} of {IN_USE} pages read again", pager.delivery());
        assert!(again < most, "{again} of {IN_USE}: {:?}", pager.policies());
    }
    assert!(counts().resident as usize > IN_USE * 9 / 10, "{:?}", pager.policies());
    pager.check();
}

fn fill(region: &mut Region) {
    region.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
}

/// The whole budget under `fifo` lets pages that are in use go, one after the other. With a policy of its own the region in use
/// keeps its pages, whatever happens in the other.
#[test]
fn a_region_in_use_keeps_its_pages_beside_one_that_is_read_once() {
    for [in_use, once] in [["lru", "fifo"], ["use-once", "fifo"], ["use-once", "drop-behind"], ["lru", "lru"]] {
        for pager in both() {
            let mut index = pager.region(IN_USE * PAGE).expect("a region");
            let mut log = pager.region(READ_ONCE * PAGE).expect("a region");
            index.set_policy(in_use).expect("a policy");
            log.set_policy(once).expect("a policy");
            fill(&mut log);
            fill(&mut index);
            stays(&pager, &index, |page| _ = touch(&log, page));
            assert_budget(&pager, 2);
        }
    }
}

/// The same with a file that is read once.
#[test]
fn a_file_that_is_read_once_has_a_policy_for_itself() {
    let path = std::env::temp_dir().join(format!("overspill-policies-{}", std::process::id()));
    std::fs::write(&path, vec![1; READ_ONCE * PAGE]).expect("a file");
    for once in ["drop-behind", "fifo", "use-once"] {
        for pager in both() {
            let mut index = pager.region(IN_USE * PAGE).expect("a region");
            index.set_policy("use-once").expect("a policy");
            fill(&mut index);
            let file = FileOptions::new(Access::ReadOnly).policy(once).open(&pager, &path).expect("a region");
            assert_eq!(file.policy(), once);
            // SAFETY: within the region; nobody changes the file.
            let read = |page: usize| assert_eq!(unsafe { file.as_ptr().add(page * PAGE).read_volatile() }, 1);
            stays(&pager, &index, read);
            drop(file);
            assert_eq!(of_regions(&pager).len(), 1, "the policy has ended with the region");
            pager.check();
        }
    }
    std::fs::remove_file(&path).expect("it is there");
}

/// All policies one after the other, of the pager and of each region, under threads that read and write; regions come and go.
#[test]
fn policies_of_regions_change_meanwhile() {
    for pager in both() {
        let mut regions: Vec<Region> = (0..3).map(|_| pager.region(2 * BUDGET as usize).expect("a region")).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let names = overspill::POLICIES;
            for (i, region) in regions.iter_mut().enumerate() {
                let stop = &stop;
                scope.spawn(move || {
                    for round in 0u8.. {
                        for page in region.chunks_mut(PAGE) {
                            assert!(page[7] == round && page[8] == round, "round {round}");
                            (page[7], page[8]) = (round.wrapping_add(1), round.wrapping_add(1));
                        }
                        if stop.load(Relaxed) {
                            break;
                        }
                        match round % 5 {
                            4 => region.reset_policy().expect("here"),
                            _ => region.set_policy(names[(round as usize + 5 * i) % names.len()]).expect("a policy"),
                        }
                    }
                });
            }
            for name in names.iter().cycle().take(40) {
                pager.set_policy(name).expect("a policy");
                let mut passing = pager.region(BUDGET as usize / 4).expect("a region");
                passing.set_policy(name).expect("a policy");
                assert_eq!(passing.policy(), *name);
                fill(&mut passing);
                pager.check();
            }
            stop.store(true, Relaxed);
        });
        drop(regions);
        assert_eq!(pager.policies().len(), 1);
        let (resident, _) = pager.check();
        assert!(pager.policies()[0].counts.resident == 0, "{resident} pages: {:?}", pager.policies());
        assert_budget(&pager, 4);
    }
}

#[test]
fn there_are_so_many_policies_of_regions() {
    let regions_max = REGION_POLICIES_MAX as u16 + 1;
    let Some(pager) = build(Pager::builder().memory(BUDGET).regions_max(regions_max)) else { return };
    let regions: Vec<Region> = (0..regions_max).map(|_| pager.region(PAGE).expect("a region")).collect();
    assert!(matches!(regions[0].set_policy("best"), Err(Error::Policy(_))));
    assert_eq!(regions[0].policy(), "use-once");
    pager.set_policy("2q:kin=0.1").expect("a policy");
    assert_eq!(regions[0].policy(), "2q:kin=0.1", "it has the pager's");
    regions.iter().take(REGION_POLICIES_MAX).for_each(|region| region.set_policy("fifo").expect("a policy"));
    let last = regions.last().expect("the last");
    let refused = last.set_policy("fifo").expect_err("there are too many");
    assert!(matches!(refused, Error::TooManyPolicies) && refused.to_string().starts_with("254 regions"), "{refused}");
    assert_eq!(last.policy(), "2q:kin=0.1");
    regions[7].set_policy("lru").expect("it had one before");
    let mut regions = regions;
    drop(regions.swap_remove(3));
    regions[3].set_policy("sieve").expect("a place is free again"); // the one that was refused
    assert_eq!(pager.policies().len(), REGION_POLICIES_MAX + 1);
    let missing = FileOptions::new(Access::ReadOnly).policy("worst").open(&pager, "/proc/self/exe");
    assert!(matches!(missing, Err(Error::Policy(_))));
}
