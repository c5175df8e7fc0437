//! A hash table that is several times as large as its memory.
//!
//! ```text
//! cargo run --release -p overspill --example hash_table -- 256 64    # MiB of table, MiB of memory
//! ```

use overspill::{Pager, RegionOf};
use std::error::Error;
use std::time::Instant;

/// An open-addressed table from numbers to numbers. A cell of key 0 is empty.
struct Table {
    cells: RegionOf<[u64; 2]>,
}

impl Table {
    /// The cell of `key`, or the one where it belongs.
    fn cell(&mut self, key: u64) -> &mut [u64; 2] {
        let len = self.cells.len();
        let mut at = (mix(key) % len as u64) as usize;
        while self.cells[at][0] != 0 && self.cells[at][0] != key {
            at = (at + 1) % len;
        }
        &mut self.cells[at]
    }
}

/// splitmix64.
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut sizes = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let table_mib = sizes.next().unwrap_or(Ok(64))?;
    let memory_mib = sizes.next().unwrap_or(Ok(16))?;

    let pager = Pager::builder().memory(memory_mib << 20).build()?;
    let mut table = Table { cells: pager.region_of(table_mib as usize * 65_536)? };
    let keys = table.cells.len() as u64 / 2; // half full
    println!("{keys} keys in {table_mib} MiB, of which {memory_mib} MiB in memory");

    // In the order of their cells, as after sorting: in any other order each key costs a page, on any device.
    let start = Instant::now();
    let mut order: Vec<u64> = (1..=keys).collect();
    order.sort_unstable_by_key(|key| mix(*key) % (keys * 2));
    for &key in &order {
        *table.cell(key) = [key, key * key];
    }
    println!("filled in {:.2?}", start.elapsed());

    let start = Instant::now();
    let looks = keys.min(20_000);
    for n in 0..looks {
        let key = mix(n) % keys + 1;
        assert_eq!(table.cell(key)[1], key * key, "key {key}");
    }
    println!("{looks} keys looked up at random in {:.2?}", start.elapsed());

    let start = Instant::now();
    let sum = table.cells.iter().fold(0u64, |sum, cell| sum.wrapping_add(cell[1]));
    assert_eq!(sum, (1..=keys).fold(0u64, |sum, key| sum.wrapping_add(key * key)));
    println!("verified in {:.2?}", start.elapsed());

    pager.counters().for_each(|info, value| {
        if value > 0 {
            println!("{:>24} {value:>12} {}", info.name, info.unit);
        }
    });
    Ok(())
}
