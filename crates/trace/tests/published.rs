//! The published traces: each file gives the numbers in its README (references, unique pages).
//!
//! The files are not part of the repository. The directory is that of the environment variable `OVERSPILL_TRACES`, or
//! `../shared/traces` next to the repository.

use overspill_trace::{Format, Options, read};
use std::io::Write;
use std::path::{Path, PathBuf};

/// File, format, references, unique pages.
const TRACES: [(&str, Format, u64, usize); 16] = [
    ("arc_OLTP.lis.zst", Format::Arc, 914_145, 186_880),
    ("arc_P3.lis.zst", Format::Arc, 3_912_296, 762_543),
    ("arc_P6.lis.zst", Format::Arc, 12_672_123, 773_770),
    ("cloudPhysicsIO.vscsi.zst", Format::Vscsi, 113_872, 48_974),
    ("lirs_2_pools.trace.gz", Format::Lirs, 100_000, 9_939),
    ("lirs_cpp.trace.gz", Format::Lirs, 9_047, 1_223),
    ("lirs_gli.trace.gz", Format::Lirs, 6_015, 2_529),
    ("lirs_loop.trace.gz", Format::Lirs, 505_500, 1_011),
    ("lirs_multi1.trace.gz", Format::Lirs, 15_858, 2_606),
    ("lirs_multi2.trace.gz", Format::Lirs, 26_311, 5_684),
    ("lirs_scan.trace.gz", Format::Lirs, 50_025, 2_001),
    ("lirs_sprite.trace.gz", Format::Lirs, 133_996, 7_075),
    ("addr_gcc.trace.gz", Format::Addr, 515_683, 294),
    ("addr_mcf.trace.gz", Format::Addr, 727_230, 1_442),
    ("vg_cc1.sad16.txt.zst", Format::Pages, 1_569_002, 1_991),
    ("vg_sqlite.sad16.txt.zst", Format::Pages, 6_634_329, 740),
];

fn directory() -> Option<PathBuf> {
    let directory = match std::env::var_os("OVERSPILL_TRACES") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces"),
    };
    directory.is_dir().then_some(directory)
}

#[test]
fn counts_and_formats() {
    let Some(directory) = directory() else {
        // Not by eprintln!, because the test runner would hide it.
        let _ = writeln!(std::io::stderr(), "NOT RUN: there is no directory with the published traces; set OVERSPILL_TRACES");
        return;
    };
    for (file, format, references, unique) in TRACES {
        let trace = read(&directory.join(file), &Options::default(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(trace.format(), format, "{file}: guessed");
        assert_eq!((trace.references_total, trace.numbers.len()), (references, unique), "{file}");
        assert_eq!(trace.pages.len() as u64, references, "{file}");
    }
}
