//! What the device layer does with a disk: slots, extents, and I/O, without pages and programs. `bench/fio.py` compares it with fio.
//!
//! `device_speed DIRECTORY BYTES OPERATION PAGES THREADS DEPTH SECONDS`, OPERATION being `read` or `write`, PAGES per request, DEPTH
//! requests in flight per thread. A write takes a run of slots as page-out does, a read goes to slots drawn evenly; both find their place
//! by the device's extents, under one lock for all threads, as in a machine. Prints the bytes per second.

use overspill_linux::devices;
use overspill_linux::io::{Engine, Io};
use overspill_linux::lock::Mutex;
use overspill_linux::swap_file::SwapFile;
use overspill_linux::sys::{self, IoVec};
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
    let [_, directory, bytes, operation, pages, threads, depth, seconds] = &arguments[..] else {
        eprintln!("usage: device_speed DIRECTORY BYTES read|write PAGES THREADS DEPTH SECONDS");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let (bytes, pages, threads, depth) = (number(bytes), number(pages) as u32, number(threads), number(depth) as usize);
    let slots = (bytes >> PAGE_SHIFT) as u32;
    let mut pager = SwapPager::without_device(Config { pages_max: 1000, slots_max: slots, devices_max: 1, extents_max: 4096 });
    let mut file = SwapFile::create(directory.as_bytes(), bytes).expect("a swap file").aligned(true);
    assert!(file.is_direct(), "no direct I/O there");
    let device = devices::add_file(&mut pager, &file, 0).expect("a device");
    while let Ok((offset, bytes)) = file.grow(u64::MAX) {
        let mut at = offset;
        for &count in file.pieces(offset, (bytes >> PAGE_SHIFT) as u32).lens() {
            pager.add_extent(device, 0, at, count).expect("room for an extent");
            at += u64::from(count) << PAGE_SHIFT;
        }
    }
    let slots = pager.status(device).expect("it is there").len;
    let pager = Mutex::new(pager);
    let fd = file.raw();
    // every block is written once, so that none is a hole
    transfer(&pager, fd, slots, Pass { write: true, pages: 64, depth: 8, seed: 0, until: None });
    let until = Some(Instant::now() + Duration::from_secs_f64(seconds.parse().expect("seconds")));
    let write = operation == "write";
    let start = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        let one = |seed| {
            let pager = &pager;
            scope.spawn(move || transfer(pager, fd, slots, Pass { write, pages, depth, seed, until }))
        };
        let all: Vec<_> = (1..=threads).map(one).collect();
        all.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    println!("{:.0}", done as f64 / start.elapsed().as_secs_f64());
}

struct Pass {
    write: bool,
    pages: u32,
    depth: usize,
    /// Also which writer it is.
    seed: u64,
    /// `None`: as many as the device has slots.
    until: Option<Instant>,
}

/// One thread's part. Returns the bytes.
fn transfer(pager: &Mutex<SwapPager>, fd: i32, slots: u32, pass: Pass) -> u64 {
    let Pass { write, pages, depth, seed, until } = pass;
    let mut io = Io::new(Engine::Uring, depth as u32).expect("io_uring");
    let len = (pages as usize) << PAGE_SHIFT;
    let buffers = sys::map_anonymous(len * depth).expect("memory");
    // SAFETY: our own fresh mapping. Not zeroes: a device might make less of those.
    unsafe {
        (0..len * depth / 8).for_each(|i| buffers.cast::<u64>().add(i).write((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    };
    let mut rng = Rng(seed);
    let mut vectors = vec![IoVec { base: 0, len: 0 }; depth];
    let mut flights: Vec<Option<SlotRun>> = vec![None; depth];
    let (mut in_flight, mut issued, mut done) = (0, 0, 0);
    let near = PageId::new(ObjectId(0), seed << 18);
    loop {
        let more = until.map_or(issued < u64::from(slots), |until| Instant::now() < until);
        for (i, flight) in flights.iter_mut().enumerate().filter(|(_, flight)| flight.is_none() && more) {
            let mut pager = pager.lock();
            let run = match write {
                true => pager.alloc_run(pages, near),
                // whole requests in one extent, as clusters that were written so are
                false => Some(SlotRun { first: Slot(rng.below(u64::from(slots / pages)) as u32 * pages), count: pages }),
            };
            let Some(run) = run else { break };
            let place = pager.locate(run.first).offset;
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
            *flight = Some(run);
            issued += u64::from(run.count);
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        io.wait(None);
        while let Some(ended) = io.completion() {
            let run = flights[ended.token as usize].take().expect("it is in flight");
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
    unsafe { sys::unmap(buffers, len * depth) };
    done
}
