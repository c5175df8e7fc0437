//! Counters and names of policies.

use crate::border::{Failure, bytes, call, handle, here, place};
use overspill::{POLICIES, Pager};
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

/// A counter's name, unit and help.
type Row = [CString; 3];

/// The table of counters for C.
fn table() -> &'static [Row] {
    static TABLE: OnceLock<Vec<Row>> = OnceLock::new();
    let row = |info: &overspill::CounterInfo| [info.name, info.unit, info.help].map(|t| CString::new(t).expect("no zero in it"));
    TABLE.get_or_init(|| overspill::COUNTERS.iter().map(row).collect())
}

fn text(counter: usize, column: usize) -> *const c_char {
    crate::border::ask(ptr::null(), || table().get(counter).map_or(ptr::null(), |row| row[column].as_ptr()))
}

/// How many there are.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_counters_count() -> usize {
    overspill::COUNTERS.len()
}

/// The name of one.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_counter_name(counter: usize) -> *const c_char {
    text(counter, 0)
}

/// Its unit.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_counter_unit(counter: usize) -> *const c_char {
    text(counter, 1)
}

/// What it counts.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_counter_help(counter: usize) -> *const c_char {
    text(counter, 2)
}

/// One counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_counter(pager: *const Pager, name: *const c_char, value: *mut u64) -> c_int {
    call(|| {
        place(value)?;
        // SAFETY: the header's contract.
        let (pager, name) = unsafe { (here(handle(pager, "pager")?)?, bytes(name, "name")?) };
        let mut found = None;
        pager.counters().for_each(|info, value| {
            if name == info.name {
                found = Some(value);
            }
        });
        let found = found.ok_or_else(|| Failure::argument(format!("there is no counter {}", name.display())))?;
        // SAFETY: the header's contract.
        unsafe { value.write(found) };
        Ok(())
    })
}

/// All counters.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_counters(pager: *const Pager, values: *mut u64, count: usize) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let pager = here(unsafe { handle(pager, "pager")? })?;
        if count > overspill_counters_count() {
            return Err(Failure::argument(format!("{count} counters, of {}", overspill_counters_count())));
        }
        if count > 0 {
            place(values)?;
        }
        let mut at = 0;
        pager.counters().for_each(|_, value| {
            if at < count {
                // SAFETY: the header's contract: `count` values.
                unsafe { values.add(at).write(value) };
            }
            at += 1;
        });
        Ok(())
    })
}

/// The name of a policy.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_policy_name(index: usize) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let name = |name: &&str| CString::new(*name).expect("no zero in it");
    crate::border::ask(ptr::null(), || {
        NAMES.get_or_init(|| POLICIES.iter().map(name).collect()).get(index).map_or(ptr::null(), |name| name.as_ptr())
    })
}
