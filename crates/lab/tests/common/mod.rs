//! Reading the reference traces. A minimal loader, for the formats that occur there.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A decoded trace: dense page ids, how many there are, and write bits.
pub struct Trace {
    pub pages: Vec<u32>,
    pub unique: u32,
    pub writes: Vec<u64>,
}

impl Trace {
    pub fn references(&self) -> overspill_lab::References<'_> {
        overspill_lab::References::new(&self.pages, self.unique, Some(&self.writes))
    }
}

/// Where the traces are: `OVERSPILL_TRACES`, or beside the repository.
pub fn directory() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let place = std::env::var_os("OVERSPILL_TRACES").map_or(beside, PathBuf::from);
    place.join("reference_misses.csv").is_file().then_some(place)
}

pub fn unpack(path: &Path) -> Vec<u8> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    match path.extension().and_then(|e| e.to_str()) {
        Some("gz") => flate2::read::GzDecoder::new(file).read_to_end(&mut bytes),
        Some("zst") => zstd::Decoder::new(file).expect("zstd").read_to_end(&mut bytes),
        _ => panic!("{}: neither .gz nor .zst", path.display()),
    }
    .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes
}

pub fn load(path: &Path) -> Trace {
    let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
    let bytes = unpack(path);
    let mut trace = Trace { pages: Vec::new(), unique: 0, writes: Vec::new() };
    let mut ids: HashMap<u64, u32> = HashMap::new();
    let mut add = |page: u64, write: bool| {
        let next = ids.len() as u32;
        let id = *ids.entry(page).or_insert(next);
        let n = trace.pages.len();
        if n.is_multiple_of(64) {
            trace.writes.push(0);
        }
        trace.writes[n / 64] |= (write as u64) << (n % 64);
        trace.pages.push(id);
    };
    if name.ends_with(".vscsi.zst") {
        for record in bytes.chunks_exact(32) {
            add(u64::from_le_bytes(record[16..24].try_into().expect("eight bytes")), false);
        }
    } else {
        for line in String::from_utf8(bytes).expect("text").lines() {
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            if name.starts_with("arc_") {
                let (start, count): (u64, u64) = (first.parse().expect("start"), words.next().expect("n").parse().expect("n"));
                (start..start + count).for_each(|page| add(page, false));
            } else if name.starts_with("lirs_") {
                if first != "*" {
                    add(first.parse().expect("a block"), false);
                }
            } else if name.starts_with("addr_") {
                let address = words.next().and_then(|a| a.strip_prefix("0x")).expect("an address");
                add(u64::from_str_radix(address, 16).expect("hex") >> 12, first == "s");
            } else {
                add(u64::from_str_radix(words.next().expect("a page"), 16).expect("hex"), first == "w");
            }
        }
    }
    trace.unique = ids.len() as u32;
    trace
}

/// A row of a table of expected counts.
pub struct Row {
    pub trace: String,
    pub policy: String,
    pub memory: u32,
    pub references: u64,
    pub faults: u64,
    pub exact: bool,
    pub origin: String,
}

pub fn rows(csv: &str) -> Vec<Row> {
    csv.lines()
        .skip(1)
        .map(|line| {
            let cells: Vec<&str> = line.split(',').collect();
            let [trace, policy, memory, references, faults, kind, origin] = cells[..] else { panic!("{line}") };
            Row {
                trace: trace.to_owned(),
                policy: policy.to_owned(),
                memory: memory.parse().expect("pages"),
                references: references.parse().expect("references"),
                faults: faults.parse().expect("faults"),
                exact: kind == "exact",
                origin: origin.to_owned(),
            }
        })
        .collect()
}
