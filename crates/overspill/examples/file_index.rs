//! An index in a file of eight times the budget: it is built in place, looked up, changed, and read again from the file.
//!
//! ```console
//! $ cargo run --release -p overspill --example file_index
//! ```

use overspill::{Access, Error, FileOptions, FileRegion, Pager};

/// A record: a key and a value.
const RECORD: usize = 16;
const RECORDS: usize = 4 << 20;

fn record(index: &FileRegion, i: usize) -> Result<(u64, u64), Error> {
    let mut bytes = [0; RECORD];
    index.read_at(&mut bytes, i * RECORD)?;
    let [key, value] = bytes.as_chunks::<8>().0 else { unreachable!("16 bytes") };
    Ok((u64::from_le_bytes(*key), u64::from_le_bytes(*value)))
}

/// The record with this key, by bisection.
fn find(index: &FileRegion, key: u64) -> Result<Option<usize>, Error> {
    let (mut from, mut to) = (0, RECORDS);
    while from < to {
        let middle = from + (to - from) / 2;
        match record(index, middle)?.0.cmp(&key) {
            std::cmp::Ordering::Equal => return Ok(Some(middle)),
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Greater => to = middle,
        }
    }
    Ok(None)
}

fn main() -> Result<(), Error> {
    let path = std::env::temp_dir().join(format!("overspill-index-{}", std::process::id()));
    let pager = Pager::builder().memory(8 << 20).build()?;
    let mut index = FileOptions::new(Access::ReadWrite).create(true).len(RECORDS * RECORD).open(&pager, &path)?;
    for i in 0..RECORDS {
        index.write_at(&(3 * i as u64).to_le_bytes(), i * RECORD)?; // every third key is there
    }
    let mut found = 0;
    for key in (0..3 * RECORDS as u64).step_by(100_003) {
        if let Some(i) = find(&index, key)? {
            index.write_at(&key.to_le_bytes(), i * RECORD + 8)?;
            found += 1;
        }
    }
    index.flush(..)?; // whatever happens now, the file has it
    drop(index);
    let index = pager.open_file(&path, Access::ReadOnly)?;
    let mut marked = 0;
    for i in 0..RECORDS {
        let (key, value) = record(&index, i)?;
        assert!(value == 0 || value == key);
        marked += usize::from(value != 0);
    }
    let c = pager.counters();
    println!("{found} keys found, {marked} marked in the file (key 0 has no mark)");
    println!("{} pages read from the file, {} written to it", c.file_pages_in.get(), c.file_pages_out.get());
    assert_eq!(found, marked + 1);
    drop(index);
    let _ = std::fs::remove_file(&path);
    Ok(())
}
