//! One machine, two kernels: with the same references, Linux and the simulated kernel lead to the same decisions.

mod common;

use common::*;
use overspill::Pager;
use overspill_sim::{ReplayConfig, replay};

fn compare(what: &str, policy: &'static str, pages: usize, references: &[(u64, bool)]) {
    let memory_pages = (BUDGET as usize / PAGE) as u32;
    let config = ReplayConfig { policy: policy.parse().expect("known"), ..ReplayConfig::new(memory_pages, pages as u64) };
    let slots = config.slots as u64 * PAGE as u64;
    // without encryption, whose buffers are charged to the budget; the simulator has none
    let builder = Pager::builder().encrypt(false).memory(BUDGET).swap_limit(slots).policy(policy);
    let Some(pager) = build(builder.manual_daemon(true).decisions_max(config.decisions_max)) else { return };
    let mut region = pager.region(pages * PAGE).expect("a region");
    let words = region.as_mut_slice_of::<u64>();
    let mut expected = vec![0; pages];
    for (n, &(page, write)) in references.iter().enumerate() {
        // SAFETY: within the region. Volatile, so that each reference is made, in this order.
        unsafe {
            let word = &raw mut words[page as usize * 512];
            if write {
                word.write_volatile(n as u64 + 1);
                expected[page as usize] = n as u64 + 1;
            } else {
                assert_eq!(word.read_volatile(), expected[page as usize], "page {page}");
            }
        }
    }
    let (ours, theirs) = (pager.decisions(), replay(references, &config));
    let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
    assert!(
        same == ours.len() && same == theirs.len(),
        "{what}, {policy}: of {} and {} decisions the first {same} are the same; then {:?} here and {:?} there",
        ours.len(),
        theirs.len(),
        &ours[same.saturating_sub(3)..ours.len().min(same + 5)],
        &theirs[same.saturating_sub(3)..theirs.len().min(same + 5)],
    );
    eprintln!("{what}, {policy}: {same} decisions are the same");
    assert!(same > 2000, "{what} is too easy: {same} decisions");
}

#[test]
fn the_decisions_are_the_same() {
    let pages = 6000;
    let mut rng = Rng(7);
    let scan = |write: bool| (0..pages as u64).map(move |p| (p, write));
    let strings: Vec<(&str, Vec<(u64, bool)>)> = vec![
        ("scans", scan(true).chain(scan(false)).chain(scan(false)).collect()),
        ("sparse zeroes", scan(false).chain((0..pages as u64).map(|p| (p, p % 5 == 0))).chain(scan(false)).collect()),
        ("random", scan(true).chain((0..40_000).map(|_| (rng.below(pages) as u64, rng.below(4) == 0))).collect()),
        (
            "hot and cold",
            (0..60_000)
                .map(|_| (if rng.below(10) < 8 { rng.below(pages / 8) } else { rng.below(pages) } as u64, rng.below(3) == 0))
                .collect(),
        ),
        ("backwards", scan(true).chain((0..pages as u64).rev().map(|p| (p, p % 2 == 0))).collect()),
    ];
    let compare_all = |policies: &[&'static str]| {
        for policy in policies {
            // all strings for the two that differ most, two for each of the others: it takes seconds per string
            let few = !["use-once", "fifo"].contains(policy);
            for (what, string) in strings.iter().filter(|(what, _)| !few || ["scans", "hot and cold"].contains(what)) {
                compare(what, policy, pages, string);
            }
        }
    };
    let (some, others) = overspill::POLICIES.split_at(overspill::POLICIES.len() / 2);
    std::thread::scope(|s| {
        s.spawn(|| compare_all(some));
        compare_all(others);
    });
}
