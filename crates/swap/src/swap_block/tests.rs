//! Tests of swap blocks. Random calls are compared with a map (`behaves_like_a_map`).

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const LAST: PageIndex = PageId::INDEX_LIMIT - 1;

fn page(object: u16, index: PageIndex) -> PageId {
    PageId::new(ObjectId(object), index)
}

fn anywhere(_: Slot) -> (Slot, Slot) {
    (Slot(0), Slot(u32::MAX - 1))
}

#[test]
fn both_ends_of_an_object() {
    let mut blocks = SwapBlocks::new(100);
    for k in 0..300 {
        blocks.insert(page(3, k), Slot(1000 + k as u32), Tag::of(k)).unwrap();
        blocks.insert(page(3, LAST - k), Slot(5000 - k as u32), Tag::of(k)).unwrap();
    }
    let has = |index, before, after| blocks.has_page(page(3, index), before, after, anywhere).unwrap();
    assert_eq!(has(0, u32::MAX, u32::MAX), HasPage { slot: Slot(1000), before: 0, after: 299 });
    assert_eq!(has(299, u32::MAX, u32::MAX), HasPage { slot: Slot(1299), before: 299, after: 0 });
    assert_eq!(has(130, 10, 5), HasPage { slot: Slot(1130), before: 10, after: 5 });
    assert_eq!(has(LAST, u32::MAX, u32::MAX), HasPage { slot: Slot(5000), before: 299, after: 0 });
    assert_eq!(has(LAST - 299, u32::MAX, u32::MAX).after, 299);
    assert_eq!(blocks.has_page(page(3, 300), 9, 9, anywhere), None);
    assert_eq!(blocks.has_page(page(2, 0), 9, 9, anywhere), None);
    blocks.check();
}

#[test]
fn the_lowest_and_the_highest_slot() {
    let mut blocks = SwapBlocks::new(100);
    // Page 9 has slot 0: before it, "slot - 1" must not be taken for "not stored".
    blocks.insert(page(0, 9), Slot(0), Tag::of(1)).unwrap();
    blocks.insert(page(0, 20), Slot(u32::MAX - 1), Tag::of(1)).unwrap();
    let alone = |slot| Some(HasPage { slot: Slot(slot), before: 0, after: 0 });
    assert_eq!(blocks.has_page(page(0, 9), 99, 99, anywhere), alone(0));
    assert_eq!(blocks.has_page(page(0, 20), 99, 99, anywhere), alone(u32::MAX - 1));
}

#[test]
fn a_device_border_ends_a_run() {
    let mut blocks = SwapBlocks::new(100);
    for k in 0..100 {
        blocks.insert(page(0, k), Slot(k as u32), Tag::of(k)).unwrap();
    }
    let border = |slot: Slot| if slot.0 < 40 { (Slot(0), Slot(39)) } else { (Slot(40), Slot(1000)) };
    assert_eq!(blocks.has_page(page(0, 39), 99, 99, border).unwrap().after, 0);
    assert_eq!(blocks.has_page(page(0, 40), 99, 99, border).unwrap().before, 0);
    assert_eq!(blocks.has_page(page(0, 38), 99, 99, border).unwrap().after, 1);
}

#[test]
fn nodes_come_back() {
    let mut blocks = SwapBlocks::new(1000);
    for round in 0..3 {
        for k in 0..200 {
            let at = page(k as u16 % 5, k * 7_777_777 * (round + 1));
            blocks.insert(at, Slot(k as u32), Tag::of(0)).unwrap();
        }
        blocks.check();
        let mut slots = 0;
        for object in 0..5 {
            blocks.remove_range(page(object, 0), PageId::INDEX_LIMIT, |_| slots += 1);
        }
        assert_eq!((slots, blocks.stored(), blocks.nodes()), (200, 0, 0));
        blocks.check();
    }
    assert!(blocks.metadata_bytes() < 900 * NODE_BYTES);
}

#[test]
fn an_empty_terabyte_is_cheap() {
    let mut blocks = SwapBlocks::new(100);
    let far = [0, 1 << 20, 1 << 28, (1 << 35) - 1, LAST];
    for (k, &at) in far.iter().enumerate() {
        blocks.insert(page(0, at), Slot(k as u32), Tag::of(7)).unwrap();
    }
    let mut seen = Vec::new();
    let mut at = page(0, 0);
    while let Some((found, slot, _)) = blocks.next(at) {
        seen.push((found.index(), slot.0));
        if found.index() == LAST {
            break;
        }
        at = found.offset(1);
    }
    assert_eq!(seen, far.iter().enumerate().map(|(k, &at)| (at, k as u32)).collect::<Vec<_>>());
    // In a loop, because a single call would hide a walk over every absent leaf.
    for _ in 0..100_000 {
        assert_eq!(blocks.remove_range(page(0, 2), 1 << 19, |_| ()), 0);
        assert_eq!(blocks.remove_range(page(0, 1 << 29), 1 << 34, |_| ()), 0);
    }
    assert_eq!(blocks.remove_range(page(0, 1), u64::MAX, |_| ()), 4);
    blocks.check();
}

#[test]
fn without_metadata_nothing_changes_and_renames_still_work() {
    let mut blocks = SwapBlocks::new(50);
    let mut count = 0;
    while blocks.insert(page(0, count * 1_000_000), Slot(count as u32), Tag::of(count)).is_ok() {
        count += 1;
    }
    assert!(count >= 10, "{count}");
    assert_eq!(blocks.stored(), count);
    assert_eq!(blocks.insert(page(1, 0), Slot(77), Tag::of(0)), Err(NoMetadata));
    assert_eq!(blocks.insert(page(0, 0), Slot(77), Tag::of(0)), Ok(Some(Slot(0))));
    for k in 0..count {
        assert_eq!(blocks.rename(page(0, k * 1_000_000), page(9, k * 3_000_000 + 5)), Ok(true));
    }
    assert_eq!(blocks.stored(), count);
    blocks.check();
}

/// Found by the property test: a step out of several full levels at once carried twice, and went round to the first child.
#[test]
fn the_walk_ends_behind_the_last_child_of_every_level() {
    for height in 1..=HEIGHT_MAX as u32 {
        let end = (1u64 << (NODE_SHIFT * (height + 1))).min(PageId::INDEX_LIMIT);
        let mut blocks = SwapBlocks::new(100);
        blocks.insert(page(0, end - 2 * LEAF_PAGES), Slot(0), Tag::of(0)).unwrap();
        assert!(blocks.next(page(0, 0)).is_some());
        assert_eq!(blocks.next(page(0, end - 2 * LEAF_PAGES + 1)), None);
        assert_eq!(blocks.next(page(0, end - LEAF_PAGES)), None);
    }
}

/// Indices around the places where something may go wrong: leaf borders, level borders, both ends.
fn index() -> impl Strategy<Value = PageIndex> {
    let corner = prop::sample::select(vec![0, 128, 128 * 128, 1 << 21, 1 << 28, 1 << 35, LAST]);
    prop_oneof![
        4 => 0..400u64,
        4 => (corner, -200i64..200).prop_map(|(at, by)| at.saturating_add_signed(by).min(LAST)),
        1 => 0..=LAST,
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Insert { object: u16, index: PageIndex, slot: u32, pages: u64 },
    Remove { object: u16, index: PageIndex },
    RemoveRange { object: u16, index: PageIndex, count: u64 },
    Rename { from: (u16, PageIndex), to: (u16, PageIndex), pages: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let object = || prop::sample::select(vec![0u16, 1, 65535]);
    let count = prop_oneof![0..300u64, Just(1 << 21), Just(1 << 36), Just(u64::MAX)];
    prop_oneof![
        6 => (object(), index(), 0..2000u32, 1..200u64)
            .prop_map(|(object, index, slot, pages)| Op::Insert { object, index, slot, pages }),
        1 => (object(), index()).prop_map(|(object, index)| Op::Remove { object, index }),
        2 => (object(), index(), count).prop_map(|(object, index, count)| Op::RemoveRange { object, index, count }),
        2 => ((object(), index()), (object(), index()), 1..200u64)
            .prop_map(|(from, to, pages)| Op::Rename { from, to, pages }),
    ]
}

/// Runs of every length, broken at every place, also by a difference in one bit or at the end of the numbers.
#[test]
fn runs_are_counted_up_to_where_they_break() {
    for (len, first) in (0..40).flat_map(|len| [1, 1000, u32::MAX - 20].map(|first| (len, first))) {
        let run: Vec<u32> = (0..len).map(|k| first.wrapping_add(k)).collect();
        let end = first.wrapping_add(len);
        assert_eq!((rising_from(&run, first), rising_to(&run, end)), (run.len(), run.len()));
        for broken in 0..run.len() {
            for with in [run[broken] ^ 1, run[broken] ^ 1 << 31] {
                let mut run = run.clone();
                run[broken] = with;
                let found = (rising_from(&run, first), rising_to(&run, end));
                assert_eq!(found, (broken, run.len() - broken - 1), "{len}, {first}");
            }
        }
    }
}

proptest! {
    #[test]
    fn behaves_like_a_map(ops in prop::collection::vec(op(), 1..60), nodes in prop_oneof![Just(1000u32), 0..60u32]) {
        let mut blocks = SwapBlocks::new(nodes);
        let mut model: BTreeMap<PageId, (Slot, Tag)> = BTreeMap::new();
        for (step, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert { object, index, slot, pages } => {
                    for k in 0..pages.min(LAST - index + 1) {
                        let (at, value) = (page(object, index + k), (Slot(slot + k as u32), Tag::of(step as u64 + k)));
                        match blocks.insert(at, value.0, value.1) {
                            Ok(old) => prop_assert_eq!(old, model.insert(at, value).map(|v| v.0)),
                            Err(NoMetadata) => prop_assert!(!model.contains_key(&at) && nodes < 1000),
                        }
                    }
                }
                Op::Remove { object, index } => {
                    prop_assert_eq!(blocks.remove(page(object, index)), model.remove(&page(object, index)));
                }
                Op::RemoveRange { object, index, count } => {
                    let end = page(object, index.saturating_add(count.saturating_sub(1)).min(LAST));
                    let range = if count == 0 { vec![] } else {
                        model.range(page(object, index)..=end).map(|(&p, v)| (p, v.0)).collect()
                    };
                    let mut slots = Vec::new();
                    let removed = blocks.remove_range(page(object, index), count, |slot| slots.push(slot));
                    prop_assert_eq!(removed as usize, range.len());
                    prop_assert_eq!(slots, range.iter().map(|r| r.1).collect::<Vec<_>>());
                    for (p, _) in range { model.remove(&p); }
                }
                Op::Rename { from, to, pages } => {
                    for k in 0..pages.min(LAST - from.1.max(to.1) + 1) {
                        let (from, to) = (page(from.0, from.1 + k), page(to.0, to.1 + k));
                        if model.contains_key(&to) { continue }
                        match blocks.rename(from, to) {
                            Ok(was) => {
                                let value = model.remove(&from);
                                prop_assert_eq!(was, value.is_some());
                                if let Some((slot, tag)) = value { model.insert(to, (slot, tag.renamed(from, to))); }
                            }
                            Err(NoMetadata) => prop_assert!(model.contains_key(&from)),
                        }
                    }
                }
            }
            prop_assert_eq!(blocks.stored() as usize, model.len());
        }
        blocks.check();

        // Every stored page, its neighbours, and the walk in order.
        let border = |slot: Slot| if slot.0 < 1000 { (Slot(0), Slot(999)) } else { (Slot(1000), Slot(9999)) };
        for (k, (&at, &value)) in model.iter().enumerate() {
            prop_assert_eq!(blocks.get(at), Some(value));
            let (before_max, after_max) = ([0, 7, 200, u32::MAX][k % 4], [u32::MAX, 0, 150, 31][k / 4 % 4]);
            let (first, last) = border(value.0);
            let follows = |by: i64| {
                let index = at.index().checked_add_signed(by).filter(|&i| i <= LAST)?;
                let slot = value.0.0.checked_add_signed(by as i32).filter(|s| (first.0..=last.0).contains(s))?;
                model.get(&page(at.object().0, index)).filter(|v| v.0.0 == slot)
            };
            let before = (1..).take_while(|&k| k <= i64::from(before_max) && follows(-k).is_some()).count();
            let after = (1..).take_while(|&k| k <= i64::from(after_max) && follows(k).is_some()).count();
            let has = HasPage { slot: value.0, before: before as u32, after: after as u32 };
            prop_assert_eq!(blocks.has_page(at, before_max, after_max, border), Some(has));
        }
        for object in [0, 1, 65535] {
            let mut walked = Vec::new();
            let mut from = Some(0);
            while let Some((at, slot, tag)) = from.and_then(|index| blocks.next(page(object, index))) {
                walked.push((at, (slot, tag)));
                from = Some(at.index() + 1).filter(|&i| i <= LAST);
            }
            let range = model.range(page(object, 0)..=page(object, LAST)).map(|(&p, &v)| (p, v));
            prop_assert_eq!(walked, range.collect::<Vec<_>>());
        }
    }
}
