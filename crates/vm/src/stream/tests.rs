//! Tests of the table of streams.

use super::*;
use crate::types::ObjectId;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

fn p(i: u64) -> PageId {
    PageId::new(ObjectId(0), i)
}

/// A fault that gets what it wants. => the window
fn fault(s: &mut Streams, at: u64) -> u32 {
    let (stream, window) = s.fault(p(at));
    if let Some(stream) = stream {
        s.advance(stream, s.direction(stream).step(p(at), window));
    }
    window
}

#[test]
fn a_run_doubles_and_random_faults_do_not() {
    let mut s = Streams::new(8, 64);
    let mut at = 1000;
    for expected in [1, 8, 16, 32, 64, 64] {
        assert_eq!(fault(&mut s, at), expected);
        at += expected as u64;
    }
    assert!((0..100).all(|k| fault(&mut s, k * 7919 + 50_000) == 1));
    assert_eq!(fault(&mut s, 0), 1); // nothing lies below it
}

/// A scan alongside random faults read page by page: a few dozen random faults between two of its own pushed it out of the
/// table. Later it was only before it had shown itself that they did: an array of pointers, each of which leads to a fault, did
/// not.
#[test]
fn a_scan_survives_random_faults() {
    let mut s = Streams::new(8, 64);
    let mut at = 1_000_000;
    for (round, expected) in [1, 8, 16, 32, 64].into_iter().enumerate() {
        assert_eq!(fault(&mut s, at), expected);
        at += expected as u64;
        for k in 0..100 {
            fault(&mut s, (k * 7919 + round as u64 * 104_729) % 900_000);
        }
    }
}

/// Objects of two pages, used at random: seven pages were read for nothing at every second fault (189,000 of 316,000 pages of a
/// Python program, 1 % of them used).
#[test]
fn pairs_are_no_runs() {
    let mut s = Streams::new(8, 64);
    let pairs = |s: &mut Streams, n: u64| -> u32 {
        let first = |k: u64| k * 7919 % 1_000_000 * 2;
        (0..n).map(|k| fault(s, first(k)) + fault(s, first(k) + 1)).sum()
    };
    assert!(pairs(&mut s, 1000) < 2 * 1000 + 7 * 33);
    assert_eq!(pairs(&mut s, 1000), 2 * 1000);
    // a scan is found all the same, a little later, and scans among them bring the first windows back
    let scan = |s: &mut Streams, mut at: u64| -> Vec<u32> {
        let step = |_| {
            let window = fault(s, at);
            at += window as u64;
            window
        };
        (0..7).map(step).collect()
    };
    assert_eq!(scan(&mut s, 10_000_000), [1, 1, 2, 4, 16, 32, 64]);
    assert_eq!(scan(&mut s, 20_000_000), [1, 8, 16, 32, 64, 64, 64]);
}

#[test]
fn a_run_may_go_down() {
    let mut s = Streams::new(8, 64);
    let mut at = 900;
    assert_eq!(s.fault(p(at)), (None, 1));
    for expected in [8, 16, 32, 64] {
        at -= 1;
        let (stream, window) = s.fault(p(at));
        let stream = stream.expect("a run");
        assert_eq!((s.direction(stream), window), (Direction::Down, expected));
        at -= window as u64 - 1;
        let given = s.advance(stream, p(at - 1));
        assert_eq!(s.find(p(at)), Some(given));
    }
    let bounds = 100..1000;
    assert_eq!(Direction::Down.clip(p(105), 8, &bounds), 6);
    assert_eq!(Direction::Down.clip(p(100), 8, &bounds), 1);
    assert_eq!(Direction::Up.clip(p(998), 8, &bounds), 2);
    // page 0 has none below it, and the end of the object before is not mistaken for one
    let first = |i| PageId::new(ObjectId(1), i);
    s.fault(first(1));
    let (stream, window) = s.fault(first(0));
    assert_eq!((window, s.direction(stream.expect("a run"))), (8, Direction::Down));
    let next = Direction::Down.step(first(0), Direction::Down.clip(first(0), window, &(0..10)));
    assert!(!(0..10).contains(&next.index()));
}

#[test]
fn many_readers_at_once() {
    let mut s = Streams::new(8, 64);
    let mut at: Vec<u64> = (0..16).map(|i| i * 1_000_000).collect();
    for expected in [1, 8, 16, 32, 64] {
        for a in &mut at {
            assert_eq!(fault(&mut s, *a), expected);
            *a += expected as u64;
        }
    }
}

/// A reader that waited for each window was given the next one only then, and the device had nothing to do until it asked: a file
/// was read in order at the pace of one read of 128 KiB after another, 0.45 times as fast as by mmap.
#[test]
fn more_windows_are_under_way_for_a_reader_that_waits() {
    for (most, expected) in [(0, 1), (64, 2), (96, 3)] {
        let mut s = Streams::new(8, 32);
        s.set_under_way_max(most, 0);
        let mut at = 1000;
        for window in [1, 8, 16] {
            assert_eq!(fault(&mut s, at), window);
            at += window as u64;
        }
        let (stream, window) = s.fault(p(at));
        let mut under_way = VecDeque::from([(p(at), s.give(stream.expect("a run"), p(at), window, window))]);
        for _ in 0..20 {
            let (first, given) = under_way.pop_front().expect("a window");
            assert_eq!(first, p(at), "in order, without a gap");
            at += 32;
            s.waited(given, true);
            let (stream, mut next, mut want) = s.follow(given, first).expect("the run goes on");
            loop {
                let given = s.give(stream, next, want.min(32), want);
                under_way.push_back((next, given));
                let Some((_, from, left)) = s.rest(given) else { break };
                (next, want) = (from, left);
            }
        }
        assert_eq!(under_way.len(), expected);
        // the trigger of the first of them is touched: one more is asked for, no matter how many are under way
        let stream = s.find(p(at)).expect("the same run");
        assert!(s.follow(stream, p(at)).is_some_and(|(.., want)| want == 32));
        assert_eq!(s.under_way(), if expected == 1 { 0 } else { 32 * expected as u32 });
    }
}

/// A reader of a file gets longer windows when many are under way and it waits nevertheless. (With sixteen of 128 KiB a file was
/// read in order at the pace of the device, which takes half as long for reads of 512 KiB.)
#[test]
fn a_reader_of_a_file_that_waits_gets_long_windows() {
    let mut s = Streams::new(8, 32);
    s.set_under_way_max(512, 128);
    let mut at = 1000;
    for window in [1, 8, 16] {
        assert_eq!(fault(&mut s, at), window);
        at += window as u64;
    }
    let (stream, window) = s.fault(p(at));
    let stream = stream.expect("a run");
    let mut under_way = VecDeque::from([(p(at), 32, s.give(stream, p(at), window, window))]);
    for _ in 0..40 {
        let (first, pages, given) = under_way.pop_front().expect("a window");
        assert_eq!(first, p(at), "in order, without a gap");
        at += pages as u64;
        s.waited(given, true);
        let Some((stream, mut next, mut want)) = s.follow(s.find(first).unwrap_or(given), first) else { continue };
        loop {
            let most = want.min(s.window_max(stream));
            let given = s.give(stream, next, most, want);
            under_way.push_back((next, most, given));
            let Some((_, from, left)) = s.rest(given) else { break };
            (next, want) = (from, left);
        }
    }
    let pages: Vec<u32> = under_way.iter().map(|window| window.1).collect();
    assert_eq!(pages, [128; 4]);
    assert_eq!((s.window_max(stream), s.window_touched_max(), s.under_way()), (128, 32, 512));
}

/// A reader whose memory is endless and whose reads take no time, as the core serves it.
struct Reader {
    streams: Streams,
    present: BTreeSet<u64>,
    triggers: BTreeSet<u64>,
    faults: u32,
    reads: u32,
}

impl Reader {
    fn new() -> Self {
        let streams = Streams::new(8, 64);
        Reader { streams, present: BTreeSet::new(), triggers: BTreeSet::new(), faults: 0, reads: 0 }
    }

    fn touch(&mut self, page: u64) {
        if self.triggers.remove(&page) {
            let next = self.streams.find(p(page)).and_then(|stream| self.streams.follow(stream, p(page)));
            if let Some((at, next, want)) = next.filter(|(_, next, _)| next.object() == ObjectId(0)) {
                self.read(Some(at), next, want, false);
            }
        } else if !self.present.contains(&page) {
            self.faults += 1;
            let (at, want) = self.streams.fault(p(page));
            self.read(at, p(page), want, true);
            assert!(self.present.contains(&page), "{page} was touched");
        }
    }

    fn read(&mut self, at: Option<usize>, mut page: PageId, mut want: u32, mut touched: bool) {
        let mut has_trigger = true;
        loop {
            let reach = at.map_or(want, |at| self.streams.reach(at, page, want));
            let direction = at.map_or(Direction::Up, |at| self.streams.direction(at));
            assert!(reach <= 64, "{reach}");
            let wanted = |i: &u32| *i == 0 || at.is_none_or(|at| self.streams.wants(at, direction.step(page, *i)));
            let pages: Vec<u32> = (0..reach).filter(wanted).collect();
            let count = pages.last().expect("there is one") + 1;
            self.reads += 1;
            for i in &pages {
                let page = direction.step(page, *i);
                assert_eq!(page.object(), ObjectId(0), "{page:?}");
                self.present.insert(page.index());
            }
            let Some(at) = at else { return };
            let trigger = self.streams.trigger(at, page, count, touched).filter(|_| has_trigger);
            let given = self.streams.give(at, page, count, want);
            if let Some(i) = trigger.and_then(|from| pages.iter().find(|i| **i >= from)) {
                let trigger = direction.step(page, *i);
                self.triggers.insert(trigger.index());
                self.streams.await_trigger(given, trigger);
            }
            has_trigger = touched && count == 1;
            touched = false;
            match self.streams.rest(given) {
                Some((_, next, left)) => (page, want) = (next, left),
                None => return,
            }
        }
    }

    fn touch_all(&mut self, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| self.touch(page));
    }

    /// => faults, reads and pages read while these are touched
    fn cost(&mut self, pages: impl IntoIterator<Item = u64>) -> (u32, u32, usize) {
        let before = (self.faults, self.reads, self.present.len());
        self.touch_all(pages);
        (self.faults - before.0, self.reads - before.1, self.present.len() - before.2)
    }
}

/// `count` bursts of `len` pages, each read upwards, `stride` pages from one to the next.
fn bursts(from: u64, stride: i64, len: u64, count: u64) -> impl DoubleEndedIterator<Item = u64> {
    (0..count as i64).flat_map(move |k| (0..len).map(move |i| from.wrapping_add_signed(k * stride) + i))
}

fn random() -> impl FnMut(u64) -> u64 {
    let mut state = 1u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// 16 pages in order, 48 passed over: a run went on to 25 to 57 pages, of which 16 were used, and waited for four reads.
/// Now nobody waits from the sixth burst on, and nothing is read that is not used (but for the last window).
#[test]
fn bursts_are_read_whole_and_ahead() {
    for (len, stride) in [(2, 64), (3, 64), (4, 64), (7, 64), (16, 64), (16, 63), (24, 70), (40, 256), (100, 512)] {
        let back = -stride;
        let orders: [Vec<u64>; 3] = [
            bursts(1_000_000, stride, len, 206).collect(),
            bursts(1_000_000, stride, len, 206).rev().collect(),
            bursts(1_000_000, back, len, 206).collect(), // blocks from the last to the first, each upwards
        ];
        for order in orders {
            let mut reader = Reader::new();
            let (learning, known) = order.split_at(6 * len as usize);
            let (faults, ..) = reader.cost(learning.iter().copied());
            assert!(faults <= 21, "{len}/{stride}: {faults} faults");
            let (faults, reads, pages) = reader.cost(known.iter().copied());
            assert!(faults <= 3, "{len}/{stride}: {faults} faults");
            assert!(pages as u64 <= 200 * len + 128, "{len}/{stride}: {pages} pages");
            assert!(reads as u64 <= 205 * len.div_ceil(64), "{len}/{stride}: {reads} reads");
        }
    }
}

/// Columns of a matrix: single pages at regular distances, each of which was a fault. Where they lie near each other, one read
/// brings many.
#[test]
fn strides_are_read_ahead() {
    for stride in [2, 3, 5, 8, 9, 10, 16, 100, 1024, 4096] {
        for sign in [1, -1] {
            let mut reader = Reader::new();
            let (faults, reads, pages) = reader.cost(bursts(1 << 30, sign * stride, 1, 1000));
            assert_eq!(faults, 5, "{stride}: the fifth proves it");
            assert!(pages <= 1000 + 64, "{stride}: {pages} pages");
            assert!(stride > 8 || reads <= 5 + 5 + 2000 * stride as u32 / 64, "{stride}: {reads} reads");
        }
    }
}

/// Bursts that lie anywhere are read as runs, as if there were no strides.
#[test]
fn irregular_gaps_predict_nothing() {
    let mut random = random();
    let mut at = 0;
    let pages: Vec<u64> = (0..1000)
        .flat_map(|_| {
            at += 100 + random(1000);
            at..at + 16
        })
        .collect();
    let mut reader = Reader::new();
    let mut plain = Reader { streams: Streams::new(8, 64).without_bursts(), ..Reader::new() };
    let (got, expected) = (reader.cost(pages.iter().copied()), plain.cost(pages.iter().copied()));
    assert!(got.0 <= expected.0 + expected.0 / 100 && got.2 <= expected.2, "{got:?}, plainly {expected:?}");
}

/// What is over costs one window, once; whoever comes by there later gets what he asks for.
#[test]
fn bursts_that_stop_are_forgotten() {
    let mut reader = Reader::new();
    reader.touch_all(bursts(0, 64, 16, 50));
    let used = 50 * 16;
    let read = reader.present.len();
    assert!(read <= used + 2 * 64 + 2 * 64, "{read}: the first two as runs, the last window in vain");
    // a thread that touches pages at random hits upon the burst that was expected next
    let next = (0..).map(|k| k * 64).find(|page| *page > 50 * 64 && !reader.present.contains(page)).expect("one");
    let (_, _, pages) = reader.cost([next]);
    assert!(pages <= 8, "{pages}: half a burst, and nothing ahead");
    assert_eq!(reader.cost([next + 64 * 7]).2, 1);
    let mut random = random();
    let (faults, _, pages) = reader.cost((0..2000).map(|_| 10_000 + random(1_000_000)));
    assert!(pages as u32 <= faults + faults / 50, "{pages} pages for {faults} faults");
}

/// Bursts become shorter, then longer: what is too much is noticed by the trigger, what is too little by faults.
#[test]
fn bursts_change_their_length() {
    let mut reader = Reader::new();
    reader.touch_all(bursts(0, 64, 16, 20));
    let (faults, _, pages) = reader.cost(bursts(20 * 64, 64, 4, 100));
    assert!(pages <= 400 + 150 && faults <= 20, "{faults} faults, {pages} pages");
    let (faults, _, pages) = reader.cost(bursts(120 * 64, 64, 24, 100));
    assert!(pages <= 2400 + 150 && faults <= 20, "{faults} faults, {pages} pages");
}

/// Three random faults in each burst, which have nothing to do with it, neither hide it nor cost a page.
#[test]
fn random_faults_do_not_hide_bursts() {
    for len in [1, 16] {
        let (mut reader, mut random) = (Reader::new(), random());
        let mut others = 0;
        let before = reader.present.len();
        for k in 0..400 {
            reader.touch_all(bursts(k * 64, 64, len, 1));
            reader.touch_all((0..3).map(|_| 100_000 + random(1_000_000)));
            others += 3;
        }
        let pages = reader.present.len() - before;
        assert!(reader.faults < others + 60, "{len}: {} faults", reader.faults);
        assert!(pages as u64 <= 400 * len + others as u64 + 300, "{len}: {pages} pages");
    }
}

/// The heads of aligned chunks, touched at random, lie at regular distances, and three of them now and then in order. A triple
/// of pages likewise.
#[test]
fn regular_places_at_random_are_no_stride() {
    for len in [1, 2, 3] {
        let (mut reader, mut random) = (Reader::new(), random());
        let mut plain = Reader { streams: Streams::new(8, 64).without_bursts(), ..Reader::new() };
        for _ in 0..20_000 {
            let at = random(100_000) * 64;
            for reader in [&mut reader, &mut plain] {
                reader.touch_all(at..at + len);
            }
        }
        let (got, expected) = (reader.present.len(), plain.present.len());
        assert!(got <= expected + expected / 100, "{len}: {got} pages, without strides {expected}");
    }
}

/// A scan alongside a hundred patterns that are over: they do not keep it from being found.
#[test]
fn old_bursts_are_in_nobodys_way() {
    let mut reader = Reader::new();
    for k in 0..100 {
        reader.touch_all(bursts(k * 100_000, 64, 1 + k % 20, 8));
    }
    let (faults, _, pages) = reader.cost(50_000_000..50_001_000);
    assert!(faults == 2 && pages < 1000 + 128, "{faults} faults, {pages} pages");
}

/// A hot page in ten, used at random, and a scan over all (bench `hot-scan-spread`): a chance stride's trigger was touched
/// sooner or later, and so each one after it; and a scan past places of old bursts was taken for a burst that is longer than
/// was known. 241,000 pages were read instead of 135,000.
#[test]
fn nothing_follows_a_trigger_touched_late() {
    let (mut reader, mut random) = (Reader::new(), random());
    reader.touch_all(bursts(1_000_000, -640, 6, 20));
    reader.touch_all((0..2 * LATE).map(|_| 2_000_000 + random(1_000_000)));
    let trigger = *reader.triggers.first().expect("the last window's");
    assert_eq!(reader.cost([trigger]), (0, 0, 0));
    let behind_a_burst = 1_000_000 - 6400 + 6;
    let (faults, ..) = reader.cost(behind_a_burst..behind_a_burst + 600);
    assert_eq!(faults, 2, "a run like any other");
}

/// Bursts of all lengths and distances, short scans and single pages, mixed at random in little room: whatever is taken for
/// what, each page that is touched is read. (Where the end of a burst was looked for while its window was given in parts,
/// more of it had been given than was known to be used, and a window's length was less than nothing.)
#[test]
fn anything_goes() {
    let mut random = random();
    for _ in 0..30 {
        let mut reader = Reader::new();
        for _ in 0..200 {
            let (from, len, stride) = (10_000 + random(2000), 1 + random(40), random(200) as i64 - 100);
            let pages: Vec<u64> = bursts(from, stride, len, 1 + random(20)).collect();
            match random(3) {
                0 => reader.touch_all(pages.iter().copied()),
                1 => reader.touch_all(pages.iter().rev().copied()),
                _ => reader.touch_all((0..20).map(|_| 10_000 + random(3000))),
            }
            // what is not used goes out again
            reader.present.retain(|_| random(3) > 0);
            let present = &reader.present;
            reader.triggers.retain(|page| present.contains(page));
        }
    }
}

/// Bursts that come to an end of their object do not go on in the next one, which lies beside it in the numbers.
#[test]
fn bursts_end_with_their_object() {
    let mut reader = Reader::new();
    reader.touch_all(bursts(100 * 64, -64, 4, 101));
    reader.touch_all(bursts(100 * 64, -16, 1, 401));
    reader.touch_all(bursts(PageId::INDEX_LIMIT - 100 * 64, 64, 4, 100));
    assert!(reader.faults < 50);
}

/// Objects of a few pages, used at random: their third page was taken for the end of the first window, and twice as many pages
/// were read after it, 25 for each object.
#[test]
fn objects_of_a_few_pages_are_no_runs() {
    for (pages, most) in [(3, 4), (4, 8), (5, 8)] {
        let mut random = random();
        let mut reader = Reader::new();
        let objects: Vec<u64> = (0..3000).map(|_| 1000 * random(1 << 29)).collect();
        let (faults, _, read) = reader.cost(objects.iter().flat_map(|first| *first..first + pages));
        assert!(faults <= 3 * 3000 && read <= 3000 * most + 1000, "{pages}: {faults} faults, {read} pages");
    }
}
