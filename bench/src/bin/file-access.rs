//! Access patterns on files: one contender and one pattern per process, so that each has a memory cgroup to itself.
//!
//! ```text
//! file-access HOW PATTERN FILE MEMORY ACCESSES [SCANNED]
//!
//! HOW       region[:POLICY[/SCANNED'S]]   a region of a pager with a budget of MEMORY bytes; SCANNED may have a policy of its own
//!           mmap[:random|:sequential]   the kernel's mapping, with that advice; its memory is limited from outside
//!           read              read(2), page by page, from the kernel's cache
//! PATTERN   prepare           writes the file, MEMORY bytes long, and drops it from the cache
//!           random            words of pages drawn evenly
//!           sequential        every word, from the first page to the last, ACCESSES times
//!           hot               words of pages drawn evenly, after two passes; after each, one page of SCANNED is read in two
//!                             pieces, in order, until its end. ACCESSES is not used
//!           sort              sorts the words of the file in place
//! ```
//!
//! The first word of each page tells its number, and is checked. The one line of JSON has the seconds; for `hot` also how many of
//! the lookups took longer than [`MISS_NS`], which no page in memory takes on a machine that is idle otherwise.

use overspill::{Access, FileRegion, Pager};
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// A page that is read from the disk here takes 60 us and more. A soft fault takes 5 to 12 us.
const MISS_NS: u128 = 30_000;

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// A file, open in one of the ways.
enum Open {
    Region(FileRegion),
    Mapping(*mut u64, usize),
    Read(File, usize),
}

impl Open {
    fn new(how: &str, pager: Option<&Pager>, path: &str, writes: bool) -> io::Result<Open> {
        let file = OpenOptions::new().read(true).write(writes).open(path)?;
        drop_cache(&file)?;
        let len = file.metadata()?.len() as usize;
        let (kind, advice) = how.split_once(':').unwrap_or((how, ""));
        if kind == "read" {
            return Ok(Open::Read(file, len / PAGE));
        }
        if let Some(pager) = pager {
            let access = if writes { Access::ReadWrite } else { Access::ReadOnly };
            return pager.open_file(path, access).map(Open::Region).map_err(io::Error::other);
        }
        let protection = libc::PROT_READ | if writes { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping of a file that nobody changes meanwhile.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let advice = match advice {
            "" => libc::MADV_NORMAL,
            "random" => libc::MADV_RANDOM,
            "sequential" => libc::MADV_SEQUENTIAL,
            _ => return Err(io::Error::other("no such advice")),
        };
        // SAFETY: the mapping from above; advice changes no content.
        unsafe { libc::madvise(at, len, advice) };
        Ok(Open::Mapping(at.cast(), len / PAGE))
    }

    fn pages(&self) -> usize {
        match self {
            Open::Region(region) => region.len() / PAGE,
            Open::Mapping(_, pages) | Open::Read(_, pages) => *pages,
        }
    }

    /// The words of a page; `buffer` is for read(2).
    fn page<'a>(&'a self, page: usize, buffer: &'a mut [u64; WORDS]) -> &'a [u64; WORDS] {
        assert!(page < self.pages());
        let start = match self {
            Open::Region(region) => region.as_ptr().cast::<u64>(),
            Open::Mapping(start, _) => *start,
            Open::Read(file, _) => {
                // SAFETY: plain words, exclusively borrowed, and any bytes are words.
                let bytes = unsafe { &mut *std::ptr::from_mut(buffer).cast::<[u8; PAGE]>() };
                file.read_exact_at(bytes, (page * PAGE) as u64).expect("a page");
                return buffer;
            }
        };
        // SAFETY: a page of the file, aligned; nobody changes it meanwhile.
        unsafe { &*start.add(page * WORDS).cast() }
    }

    fn words(&mut self) -> &mut [u64] {
        match self {
            // SAFETY: nobody else uses the file.
            Open::Region(region) => unsafe {
                let pages = region.len() / PAGE;
                std::slice::from_raw_parts_mut(region.as_mut_ptr().expect("read-write").cast(), pages * WORDS)
            },
            // SAFETY: as above; the mapping is writable.
            Open::Mapping(start, pages) => unsafe { std::slice::from_raw_parts_mut(*start, *pages * WORDS) },
            Open::Read(..) => panic!("it has no memory"),
        }
    }

    fn flush(&self) {
        match self {
            Open::Region(region) => region.flush(..).expect("flushed"),
            Open::Mapping(start, pages) => {
                // SAFETY: the mapping; only writes its pages.
                let synced = unsafe { libc::msync(start.cast(), pages * PAGE, libc::MS_SYNC) };
                assert_eq!(synced, 0);
            }
            Open::Read(..) => {}
        }
    }
}

fn drop_cache(file: &File) -> io::Result<()> {
    file.sync_all()?;
    // SAFETY: advice.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

fn prepare(path: &str, bytes: usize) -> io::Result<()> {
    let mut file = io::BufWriter::with_capacity(1 << 20, File::create(path)?);
    for page in 0..bytes / PAGE {
        for word in 0..WORDS {
            let value = if word == 0 { page as u64 } else { mix((page * WORDS + word) as u64) };
            file.write_all(&value.to_ne_bytes())?;
        }
    }
    drop_cache(&file.into_inner()?)
}

fn check(words: &[u64; WORDS], page: usize) {
    assert_eq!(words[0], page as u64, "a wrong page");
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [how, pattern, path, memory, accesses, rest @ ..] = &arguments[..] else {
        eprintln!("usage: file-access HOW PATTERN FILE MEMORY ACCESSES [SCANNED]");
        std::process::exit(2)
    };
    let number = |text: &str| text.parse::<usize>().map_err(io::Error::other);
    let (memory, accesses) = (number(memory)?, number(accesses)?);
    if pattern == "prepare" {
        return prepare(path, memory);
    }
    let pager = match how.split_once(':').unwrap_or((how, "use-once")) {
        ("region", policies) => {
            let policy = policies.split('/').next().unwrap_or_default();
            Some(Pager::builder().memory(memory as u64).policy(policy).build().map_err(io::Error::other)?)
        }
        _ => None,
    };
    let mut open = Open::new(how, pager.as_ref(), path, pattern == "sort")?;
    let mut buffer = [0; WORDS];
    let pages = open.pages();
    let mut drawn = (0..).map(|i| (mix(i) % pages as u64) as usize);
    let mut more = Map::new();
    let begun = match pattern.as_str() {
        "random" => {
            let begun = Instant::now();
            for page in drawn.take(accesses) {
                check(open.page(page, &mut buffer), page);
            }
            begun
        }
        "sequential" => {
            let begun = Instant::now();
            for page in (0..accesses).flat_map(|_| 0..pages) {
                let words = open.page(page, &mut buffer);
                check(words, page);
                std::hint::black_box(words.iter().fold(0, |a, word| a ^ word));
            }
            begun
        }
        "hot" => {
            let path = rest.first().ok_or_else(|| io::Error::other("which file is scanned?"))?;
            let scanned = Open::new(how, pager.as_ref(), path, false)?;
            if let (Open::Region(region), Some((_, policy))) = (&scanned, how.split_once('/')) {
                region.set_policy(policy).map_err(io::Error::other)?;
            }
            for page in (0..pages).chain(0..pages) {
                check(open.page(page, &mut buffer), page);
            }
            for page in (&mut drawn).take(2 * pages) {
                check(open.page(page, &mut buffer), page);
            }
            let (mut misses, mut lookups_ns) = (0, 0);
            let begun = Instant::now();
            for page in 0..scanned.pages() {
                let hot = drawn.next().expect("no end");
                let since = Instant::now();
                check(open.page(hot, &mut buffer), hot);
                let ns = since.elapsed().as_nanos();
                misses += u64::from(ns > MISS_NS);
                lookups_ns += ns as u64;
                check(scanned.page(page, &mut buffer), page);
                std::hint::black_box(scanned.page(page, &mut buffer)[WORDS / 2]);
            }
            let lookups = scanned.pages() as u64;
            more.extend([("lookups".into(), json!(lookups)), ("misses".into(), json!(misses))]);
            more.insert("lookup_seconds".into(), json!(lookups_ns as f64 / 1e9));
            begun
        }
        "sort" => {
            let begun = Instant::now();
            let words = open.words();
            words.sort_unstable();
            assert!(words.is_sorted());
            open.flush();
            begun
        }
        _ => return Err(io::Error::other("no such pattern")),
    };
    more.insert("seconds".into(), json!(begun.elapsed().as_secs_f64()));
    if let Some(pager) = &pager {
        let mut counters = Map::new();
        pager.counters().for_each(|info, value| _ = counters.insert(info.name.into(), Value::from(value)));
        more.insert("counters".into(), Value::Object(counters));
    }
    println!("{}", Value::Object(more));
    Ok(())
}
