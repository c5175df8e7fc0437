//! Measures the device layer alone: slots, extents, and I/O, without pages and programs. `bench/fio.py` compares it with fio, and
//! `bench/extents.py` compares devices of few extents with devices of many.
//!
//! `device_speed DIRECTORY BYTES OPERATION PAGES THREADS DEPTH SECONDS [EXTENTS...]`: OPERATION is `read`, `write` or `both` (half
//! of the requests each). There are PAGES pages per request and DEPTH requests in flight per thread. A write takes a run of slots
//! as page-out does; a read goes to slots drawn evenly. Both look up their place in the device's extents, under one lock for all
//! threads, as in a machine.
//!
//! Prints the bytes per second. With EXTENTS the same file is measured once for each number, as a device of that many extents of
//! equal length instead of its physical ones. Then each line has the bytes per second and the time spent in lookups, in parts per
//! million of the threads' time and of the processor time.

use overspill_linux::area;
use overspill_linux::devices;
use overspill_linux::io::{Engine, Io};
use overspill_linux::lock::Mutex;
use overspill_linux::swap_file::{SwapFile, SwapFiles};
use overspill_linux::sys::{self, IoVec};
use overspill_machine::files::Files as _;
use overspill_machine::kernel::Io as _;
use overspill_swap::{Config, SwapPager};
use overspill_vm::pager::{Pager, SlotRun};
use overspill_vm::types::{ObjectId, PAGE_SHIFT, PAGE_SIZE, PageId, Slot};
use std::time::{Duration, Instant};

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, directory, bytes, operation, pages, threads, depth, seconds, extents @ ..] = &arguments[..] else {
        eprintln!("usage: device_speed DIRECTORY BYTES read|write|both PAGES THREADS DEPTH SECONDS [EXTENTS...]");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (bytes, pages, threads, depth) = (number(bytes), number(pages) as u32, number(threads), number(depth) as usize);
    let operation = match operation.as_str() {
        "read" => Operation::Read,
        "write" => Operation::Write,
        "both" => Operation::Both,
        _ => panic!("read, write or both"),
    };
    let slots = (bytes >> PAGE_SHIFT) as u32;
    let file = SwapFile::create(directory.as_bytes(), bytes).expect("a swap file").aligned(true);
    assert!(file.is_direct(), "no direct I/O there");
    let mut files = SwapFiles::one(file);
    let mut physical = Vec::new();
    while let Some(chunk) = files.chunk(u64::MAX, 0).filter(|chunk| SwapFiles::allocate_chunk(chunk).is_ok()) {
        files.grown(&chunk);
        physical.extend_from_slice(files.pieces(chunk.file, chunk.offset, (chunk.bytes >> PAGE_SHIFT) as u32).lens());
    }
    let fd = files.get(0).raw();
    let device = |lens: &mut dyn Iterator<Item = u32>| {
        let extents_max = 1 << 17;
        let mut pager = SwapPager::without_device(Config { pages_max: 1000, slots_max: slots, devices_max: 1, extents_max });
        let device = devices::add_files(pager.devices_mut(), &files, 0).expect("a device");
        let mut at = 0;
        for count in lens {
            pager.devices_mut().add_extent(device, 0, at, count).expect("room for an extent");
            at += u64::from(count) << PAGE_SHIFT;
        }
        Mutex::new(pager)
    };
    let physical = device(&mut physical.into_iter());
    // every block is written once, so that none is a hole
    transfer(&physical, fd, slots, Pass { operation: Operation::Write, pages: 64, depth: 8, seed: 0, until: None });
    let run = |pager: &Mutex<SwapPager>| {
        let until = Some(Instant::now() + Duration::from_secs_f64(seconds.parse().expect("seconds")));
        let (start, processor) = (Instant::now(), processor_ns());
        let (done, map_ns) = std::thread::scope(|scope| {
            let one = |seed| scope.spawn(move || transfer(pager, fd, slots, Pass { operation, pages, depth, seed, until }));
            let all: Vec<_> = (1..=threads).map(one).collect();
            let ended = all.into_iter().map(|thread| thread.join().expect("it ends"));
            ended.fold((0, 0), |(bytes, ns), (more, further)| (bytes + more, ns + further))
        });
        let (elapsed, processor) = (start.elapsed().as_nanos() as f64, (processor_ns() - processor) as f64);
        let share = |of: f64| map_ns as f64 / of * 1e6;
        (done as f64 / elapsed * 1e9, share(elapsed * threads as f64), share(processor))
    };
    if extents.is_empty() {
        println!("{:.0}", run(&physical).0);
    }
    for count in extents.iter().map(|text| number(text) as u32) {
        let end = |k: u32| (u64::from(slots) * u64::from(k) / u64::from(count)) as u32;
        let (speed, wall, processor) = run(&device(&mut (0..count).map(|k| end(k + 1) - end(k))));
        println!("{count} {speed:.0} {wall:.0} {processor:.0}");
    }
}

/// Processor time of this process so far, in nanoseconds.
fn processor_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
    Both,
}

/// A request under way.
#[derive(Clone, Copy)]
struct Flight {
    run: SlotRun,
    write: bool,
}

struct Pass {
    operation: Operation,
    pages: u32,
    depth: usize,
    /// Also which writer it is.
    seed: u64,
    /// `None`: until each slot had its turn.
    until: Option<Instant>,
}

/// The work of one thread. Returns the bytes, and the nanoseconds spent in lookups.
fn transfer(pager: &Mutex<SwapPager>, fd: i32, slots: u32, pass: Pass) -> (u64, u64) {
    let Pass { operation, pages, depth, seed, until } = pass;
    let mut io = Io::new(Engine::Uring, depth as u32).expect("io_uring");
    let len = (pages as usize) << PAGE_SHIFT;
    let buffers = area::map_anonymous(len * depth).expect("memory");
    // SAFETY: our own fresh mapping. Not zeroes: a device might make less of those.
    unsafe {
        (0..len * depth / 8).for_each(|i| buffers.cast::<u64>().add(i).write((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    };
    let mut rng = Rng(seed);
    let mut vectors = vec![IoVec { base: 0, len: 0 }; depth];
    let mut flights: Vec<Option<Flight>> = vec![None; depth];
    let (mut in_flight, mut issued, mut done, mut map_ns) = (0, 0, 0, 0);
    let mut write = matches!(operation, Operation::Write);
    let near = PageId::new(ObjectId(0), seed << 18);
    loop {
        let more = until.map_or(issued < u64::from(slots), |until| Instant::now() < until);
        for (i, flight) in flights.iter_mut().enumerate().filter(|(_, flight)| flight.is_none() && more) {
            write ^= matches!(operation, Operation::Both);
            let mut pager = pager.lock();
            let run = match write {
                true => pager.alloc_run(pages, near),
                // each request within one extent, as for clusters that were written so
                false => Some(SlotRun { first: Slot(rng.below(u64::from(slots / pages)) as u32 * pages), count: pages }),
            };
            let Some(run) = run else { break };
            let start = sys::now_ns();
            let place = pager.locate(run.first).offset;
            map_ns += sys::now_ns() - start;
            drop(pager);
            // SAFETY: this flight's part of the mapping.
            let buffer = unsafe { buffers.add(i * len) };
            vectors[i] = IoVec { base: buffer as usize, len: (run.count as usize) << PAGE_SHIFT };
            // SAFETY: the buffer and the vector are this flight's until its completion.
            unsafe {
                match write {
                    true => io.write(fd, &vectors[i..=i], place, i as u64),
                    false => io.read(fd, buffer, len, place, i as u64),
                }
            }
            *flight = Some(Flight { run, write });
            issued += u64::from(run.count);
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        io.wait(None);
        while let Some(ended) = io.completion() {
            let Flight { run, write } = flights[ended.token as usize].take().expect("it is in flight");
            assert_eq!(ended.result, Ok(run.count as usize * PAGE_SIZE), "I/O");
            done += ended.result.unwrap_or(0) as u64;
            in_flight -= 1;
            if write {
                let mut pager = pager.lock();
                (0..run.count).for_each(|k| pager.free_slot(Slot(run.first.0 + k)));
            }
        }
    }
    // SAFETY: the mapping made above; nothing is in flight.
    unsafe { area::unmap(buffers, len * depth) };
    (done, map_ns)
}
