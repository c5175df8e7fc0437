//! Arrays of pointers: the pages that they point to are read ahead, with the right content.

mod common;

use common::*;
use overspill::{Delivery, Pager, RegionOf};

const OBJECT_WORDS: usize = 512;

/// Objects of a page each, and an array of their addresses in no order.
fn objects(pager: &Pager, count: usize) -> (RegionOf<u64>, RegionOf<usize>) {
    let mut objects = pager.region_of::<u64>(count * OBJECT_WORDS).expect("room");
    for (at, object) in objects.chunks_mut(OBJECT_WORDS).enumerate() {
        object.fill(at as u64 * 0x9e37_79b9);
    }
    // a few pages to a window, so that there is more than one window
    let mut array = pager.region_of::<usize>(count * 16).expect("room");
    let mut rng = Rng(7);
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, rng.below(i + 1));
    }
    for (at, object) in order.iter().enumerate() {
        array[at * 16] = objects[object * OBJECT_WORDS..].as_ptr() as usize;
    }
    (objects, array)
}

/// Goes through the array from its beginning or its end, following the pointers or not.
fn walk(objects: &RegionOf<u64>, array: &RegionOf<usize>, up: bool, follow: bool) {
    let base = objects.as_ptr() as usize;
    let count = array.len() / 16;
    for i in 0..count {
        let pointer = array[if up { i } else { count - 1 - i } * 16];
        if follow {
            let word = (pointer - base) / 8;
            let expected = (word / OBJECT_WORDS) as u64 * 0x9e37_79b9;
            assert!(objects[word..word + OBJECT_WORDS].iter().all(|w| *w == expected), "object at word {word}");
        }
    }
}

#[test]
fn what_an_array_points_to_is_read_ahead() {
    for delivery in [Delivery::InThread, Delivery::Threads] {
        for up in [true, false] {
            let Some(pager) = build(Pager::builder().memory(BUDGET).delivery(delivery)) else { continue };
            let (objects, array) = objects(&pager, 8192);
            for _ in 0..3 {
                walk(&objects, &array, up, true);
            }
            let c = pager.counters();
            assert!(c.pointed_pages.get() > 0, "{delivery:?} {up}: {c:?}");
            assert_eq!(c.corrupt_pages.get() + c.read_errors.get(), 0);
            assert_budget(&pager, 1);
        }
    }
}

/// If a program only looks at pointers, following them costs samples only, once the pager has found out: one page in sixteen, where
/// each pass has 8192 pointers to pages that are out.
#[test]
fn what_nobody_follows_is_given_up() {
    for delivery in [Delivery::InThread, Delivery::Threads] {
        let Some(pager) = build(Pager::builder().memory(BUDGET).delivery(delivery)) else { continue };
        let (objects, array) = objects(&pager, 8192);
        let c = pager.counters();
        for _ in 0..30 {
            walk(&objects, &array, true, false);
        }
        let (used, lost) = (c.pointed_used.get(), c.pointed_lost.get());
        assert!(used == 0 || used * 10 < lost, "{delivery:?}: {used} used, {lost} lost");
        if lost > 20 {
            let before = c.pointed_pages.get();
            walk(&objects, &array, true, false);
            assert!(c.pointed_pages.get() - before <= 8192 / 8, "{delivery:?}: {}", c.pointed_pages.get() - before);
        }
        walk(&objects, &array, true, true);
    }
}

#[test]
fn it_can_be_turned_off() {
    let Some(pager) = build(Pager::builder().memory(BUDGET).follow_pointers(false)) else { return };
    let (objects, array) = objects(&pager, 8192);
    walk(&objects, &array, true, true);
    walk(&objects, &array, true, true);
    assert_eq!(pager.counters().pointed_pages.get() + pager.counters().pointed_restored.get(), 0);
}
