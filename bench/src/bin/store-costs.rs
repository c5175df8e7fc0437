//! Measures the cost of a page on its way to a device and back, without the fault and without the device: checksum, seal,
//! compression, and the whole page-in from the compressed pool, compared with the kernel's zram. Prints Markdown tables.
//!
//! `store-costs [--zram]`: with `--zram` (as root) a zram device is made, filled with the same pages, read, and removed again.

use overspill_store::packing::{Algorithm, Packed, Packer, Unpacker};
use overspill_store::pool::Pool;
use overspill_store::seal::Keys;
use overspill_store::{PageBytes, checksum};
use overspill_vm::types::{ObjectId, PAGE_SIZE, PageId, Tag};
use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Instant;

/// Pages worked on in turn: 2 MiB, so that they come from the second-level cache at best, as parked pages do.
const WARM: usize = 512;
/// Pages in the pool and in zram: 256 MiB, so that random ones come from memory.
const COLD: usize = 65536;

#[repr(C, align(4096))]
struct Page(PageBytes);

fn page_id(index: usize) -> PageId {
    PageId::new(ObjectId(0), index as u64)
}

/// Nanoseconds per call, the least of 21 rounds.
fn cost(mut f: impl FnMut(usize)) -> f64 {
    let mut round = || {
        let start = Instant::now();
        (0..WARM).for_each(&mut f);
        start.elapsed().as_nanos() as f64 / WARM as f64
    };
    (0..21).map(|_| round()).fold(f64::MAX, f64::min)
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % n
    }
}

/// Words, some much more frequent than others.
fn text(rng: &mut Rng, page: &mut PageBytes) {
    let mut at = 0;
    while at < PAGE_SIZE {
        let word = rng.below(20) * rng.below(20);
        let mut letters = Rng(word as u64 * 77 + 1);
        for _ in 0..=word % 9 {
            if at < PAGE_SIZE {
                page[at] = b'a' + letters.below(26) as u8;
                at += 1;
            }
        }
        if at < PAGE_SIZE {
            page[at] = b' ';
            at += 1;
        }
    }
}

/// Objects of a heap: a pointer into a few megabytes, a length, a type, and a random number.
fn heap(rng: &mut Rng, page: &mut PageBytes) {
    for object in page.as_chunks_mut::<32>().0 {
        let words = [0x7f3a_5000_0000 + rng.below(4 << 20) as u64 * 16, rng.below(100) as u64, rng.below(20) as u64 | 1 << 32];
        for (to, word) in object.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        object[24..].copy_from_slice(&if rng.below(2) == 0 { rng.0 } else { 0 }.to_le_bytes());
    }
}

type Fill = fn(&mut Rng, &mut PageBytes);

fn pages(count: usize, fill: Fill) -> Vec<PageBytes> {
    let mut rng = Rng(9);
    let mut pages = vec![[0; PAGE_SIZE]; count];
    pages.iter_mut().for_each(|page| fill(&mut rng, page));
    pages
}

fn check_and_seal() {
    let pages = pages(WARM, heap);
    let mut sealed = vec![[0; PAGE_SIZE]; WARM];
    let mut work = vec![[0; PAGE_SIZE]; WARM];
    let mut stored = vec![Tag::UNKNOWN; WARM];
    let keys = Keys::new();
    keys.add(&[7; 16]).expect("a key");
    println!("| step | ns per page |\n| --- | --- |");
    println!("| copy, for scale | {:.0} |", cost(|i| work[i] = pages[i]));
    println!("| `checksum::is_zero` of a page that is not | {:.0} |", cost(|i| _ = black_box(checksum::is_zero(&pages[i]))));
    println!("| checksum (XXH3, 128 bits) | {:.0} |", cost(|i| _ = black_box(checksum::of(page_id(i), &pages[i]))));
    println!(
        "| seal (AEGIS-128L), into another buffer | {:.0} |",
        cost(|i| stored[i] = keys.seal(page_id(i), &pages[i], &mut sealed[i]))
    );
    let copy = cost(|i| work[i] = sealed[i]);
    let open = cost(|i| {
        work[i] = sealed[i];
        assert!(keys.open(page_id(i), stored[i], &mut work[i]));
    });
    println!("| open, in place (the copy before it taken off) | {:.0} |", open - copy);
    let mut scratch = [0; PAGE_SIZE];
    let unchanged = cost(|i| assert!(keys.is_unchanged(page_id(i), stored[i], &pages[i], &mut scratch)));
    println!("| unchanged? (sealed again under the stored number) | {unchanged:.0} |\n");
}

fn compression(name: &str, fill: Fill, algorithm: Algorithm, zram: bool) -> io::Result<()> {
    let warm = pages(WARM, fill);
    let (mut packer, mut unpacker) = (Packer::new(algorithm), Unpacker::new(algorithm));
    let kernels = if algorithm == Algorithm::Lz4 { "lz4" } else { "zstd" };
    let mut packed = vec![vec![]; WARM];
    let pack = cost(|i| _ = black_box(packer.pack(&warm[i])));
    for (to, page) in packed.iter_mut().zip(&warm) {
        let Packed::Bytes(bytes) = packer.pack(page) else { panic!("it compresses") };
        *to = bytes.to_vec();
    }
    let mut work = vec![[0; PAGE_SIZE]; WARM];
    let unpack = cost(|i| unpacker.unpack(&packed[i], &mut work[i]).expect("it was packed"));

    let cold = pages(COLD, fill);
    let mut pool = Pool::new(COLD as u32, COLD * PAGE_SIZE);
    let start = Instant::now();
    for (slot, page) in cold.iter().enumerate() {
        pool.store(slot as u32, packer.pack(page)).expect("there is room");
    }
    let store = start.elapsed().as_nanos() as f64 / COLD as f64;
    let stored: Vec<Tag> = cold.iter().enumerate().map(|(i, page)| checksum::of(page_id(i), page)).collect();
    let (mut rng, mut page) = (Rng(3), Box::new(Page([0; PAGE_SIZE])));
    let load = cost(|_| {
        let i = rng.below(COLD);
        assert!(
            pool.load(i as u32, &mut unpacker, &mut page.0).expect("no damage") && checksum::of(page_id(i), &page.0) == stored[i]
        );
    });
    let counters = pool.counters();
    let per_page = (counters.arena_used_bytes + pool.metadata_bytes()) as f64 / COLD as f64;
    let overhead = (counters.arena_overhead_bytes() + pool.metadata_bytes()) as f64 / counters.packed_bytes as f64;
    println!(
        "| {name}, {algorithm:?} | {pack:.0} | {unpack:.0} | {store:.0} | {load:.0} | {:.2} | {:.2} | {:.1} % |",
        counters.ratio(),
        PAGE_SIZE as f64 / per_page,
        overhead * 100.0
    );
    if zram {
        let zram = Zram::new(COLD * PAGE_SIZE, kernels)?;
        let start = Instant::now();
        for (i, source) in cold.iter().enumerate() {
            page.0 = *source;
            zram.file.write_all_at(&page.0, (i * PAGE_SIZE) as u64)?;
        }
        let store = start.elapsed().as_nanos() as f64 / COLD as f64;
        let load = cost(|_| {
            let i = rng.below(COLD);
            zram.file.read_exact_at(&mut page.0, (i * PAGE_SIZE) as u64).expect("zram reads");
            assert!(page.0[..64] == cold[i][..64]);
        });
        let stat = fs::read_to_string(format!("/sys/block/zram{}/mm_stat", zram.id))?;
        let stat: Vec<f64> = stat.split_whitespace().map(|n| n.parse().unwrap_or(f64::NAN)).collect();
        println!(
            "| {name}, zram {kernels} | | | {store:.0} | {load:.0} | | {:.2} | {:.1} % |",
            stat[0] / stat[2],
            (stat[2] / stat[1] - 1.0) * 100.0
        );
    }
    Ok(())
}

/// A zram device of our own, removed at the end.
struct Zram {
    id: String,
    file: File,
}

impl Zram {
    fn new(bytes: usize, algorithm: &str) -> io::Result<Zram> {
        let id = fs::read_to_string("/sys/class/zram-control/hot_add")?.trim().to_owned();
        let set = |what: &str, value: &str| fs::write(format!("/sys/block/zram{id}/{what}"), value);
        let file = (|| {
            set("comp_algorithm", algorithm)?;
            set("disksize", &bytes.to_string())?;
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(format!("/dev/zram{id}"))
        })();
        match file {
            Ok(file) => Ok(Zram { id, file }),
            Err(e) => {
                fs::write("/sys/class/zram-control/hot_remove", &id)?;
                Err(e)
            }
        }
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        // the device cannot go while it is open
        if let Ok(null) = File::open("/dev/null") {
            self.file = null;
        }
        let removed = fs::write(format!("/sys/block/zram{}/reset", self.id), "1")
            .and_then(|()| fs::write("/sys/class/zram-control/hot_remove", &self.id));
        if let Err(e) = removed {
            eprintln!("store-costs: /dev/zram{} could not be removed: {e}", self.id);
        }
    }
}

fn main() -> io::Result<()> {
    let zram = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--zram") => true,
        Some(other) => {
            eprintln!("store-costs: what is {other:?}? There is --zram, or nothing");
            std::process::exit(2);
        }
    };
    check_and_seal();
    println!("| pages | pack | unpack | store | load, random | ratio in the arena | ratio with tables | more than the content |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (name, fill) in [("text", text as Fill), ("heap", heap)] {
        for (algorithm, beside_zram) in
            [(Algorithm::Lz4, zram), (Algorithm::Zstd(1), zram), (Algorithm::Zstd(3), false), (Algorithm::Zstd(7), false)]
        {
            compression(name, fill, algorithm, beside_zram)?;
        }
    }
    Ok(())
}
