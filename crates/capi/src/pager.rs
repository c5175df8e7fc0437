//! Pagers and their swap devices.

use crate::border::{Failure, bytes, call, free, hand_out, handle, here, place, text};
use overspill::{Delivery, Pager, PolicyCounts, SwapDevice, SwapoffProgress};
use std::ffi::{CString, c_char, c_int, c_void};

/// Gives a handle up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_free(pager: *mut Pager) {
    // SAFETY: the header's contract.
    unsafe { free(pager) };
}

/// Whether this process made it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_is_here(pager: *const Pager) -> bool {
    // SAFETY: the header's contract.
    unsafe { pager.as_ref() }.is_some_and(Pager::is_here)
}

/// How faults are delivered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_delivery(pager: *const Pager, delivery: *mut c_int) -> c_int {
    call(|| {
        place(delivery)?;
        // SAFETY: the header's contract.
        let pager = here(unsafe { handle(pager, "pager")? })?;
        // SAFETY: the header's contract.
        unsafe { delivery.write((pager.delivery() == Delivery::Threads).into()) };
        Ok(())
    })
}

/// Changes the policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_set_policy(pager: *const Pager, policy: *const c_char) -> c_int {
    // SAFETY: the header's contract.
    call(|| unsafe { Ok(here(handle(pager, "pager")?)?.set_policy(&text(policy, "policy")?)?) })
}

/// The policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_policy(pager: *const Pager, to: *mut c_char, size: usize, length: *mut usize) -> c_int {
    // SAFETY: the header's contract.
    call(|| unsafe { hand_out(&here(handle(pager, "pager")?)?.policy(), to, size, length) })
}

/// `overspill_policy_use`.
#[repr(C)]
pub struct PolicyUse {
    policy: *const c_char,
    resident: u64,
    share: u64,
    victims: u64,
    rescued: u64,
    evicted: u64,
    refaults: u64,
    region: *const c_char,
}

/// Lists policies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_policies(
    pager: *const Pager,
    each: Option<extern "C" fn(*const PolicyUse, *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let pager = here(unsafe { handle(pager, "pager")? })?;
        let each = each.ok_or_else(|| Failure::argument("the function to call is NULL"))?;
        for used in pager.policies() {
            let [policy, region] = [used.policy, used.region].map(|text| CString::new(text).unwrap_or_default()); // without zeroes
            let PolicyCounts { resident, share, victims, rescued, evicted, refaults, .. } = used.counts;
            let (policy, region) = (policy.as_ptr(), region.as_ptr());
            each(&PolicyUse { policy, resident, share, victims, rescued, evicted, refaults, region }, context);
        }
        Ok(())
    })
}

/// The first loss.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_first_loss(
    pager: *const Pager,
    to: *mut c_char,
    size: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the header's contract.
    call(|| unsafe { hand_out(&here(handle(pager, "pager")?)?.first_loss().unwrap_or_default(), to, size, length) })
}

/// The size of the pager's tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_metadata_bytes(pager: *const Pager, result: *mut u64) -> c_int {
    call(|| {
        place(result)?;
        // SAFETY: the header's contract.
        unsafe { result.write(here(handle(pager, "pager")?)?.metadata_bytes()) };
        Ok(())
    })
}

/// `overspill_swap`.
#[repr(C)]
pub struct Swap {
    name: *const c_char,
    kind: *const c_char,
    state: *const c_char,
    priority: i64,
    size_bytes: u64,
    used_bytes: u64,
    pages_in: u64,
    pages_out: u64,
    bytes_in: u64,
    bytes_out: u64,
    reads: u64,
    writes: u64,
    read_errors: u64,
    write_errors: u64,
    read_p50_ns: u64,
    read_p99_ns: u64,
    write_p50_ns: u64,
    write_p99_ns: u64,
}

/// Calls `each` with a device.
fn show(device: &SwapDevice, each: extern "C" fn(*const Swap, *mut c_void), context: *mut c_void) {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default(); // a name of a file has no zero
    let (name, kind, state) = (text(&device.name), text(device.kind.as_bytes()), text(device.state.as_bytes()));
    let figures = device.figures;
    let swap = Swap {
        name: name.as_ptr(),
        kind: kind.as_ptr(),
        state: state.as_ptr(),
        priority: device.priority.into(),
        size_bytes: figures.size_bytes,
        used_bytes: figures.used_bytes,
        pages_in: figures.pages_in,
        pages_out: figures.pages_out,
        bytes_in: figures.bytes_in,
        bytes_out: figures.bytes_out,
        reads: figures.reads,
        writes: figures.writes,
        read_errors: figures.read_errors,
        write_errors: figures.write_errors,
        read_p50_ns: figures.read_p50_ns,
        read_p99_ns: figures.read_p99_ns,
        write_p50_ns: figures.write_p50_ns,
        write_p99_ns: figures.write_p99_ns,
    };
    each(&swap, context);
}

/// Lists devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_swaps(
    pager: *const Pager,
    each: Option<extern "C" fn(*const Swap, *mut c_void)>,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let pager = here(unsafe { handle(pager, "pager")? })?;
        let each = each.ok_or_else(|| Failure::argument("the function to call is NULL"))?;
        pager.swaps().iter().for_each(|device| show(device, each, context));
        Ok(())
    })
}

/// Adds a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_swapon(pager: *const Pager, text: *const c_char) -> c_int {
    // SAFETY: the header's contract.
    call(|| unsafe { Ok(here(handle(pager, "pager")?)?.swap_on(crate::options::device(bytes(text, "device")?)?)?) })
}

/// `overspill_progress`.
#[repr(C)]
pub struct Progress {
    left_pages: u64,
    moved_pages: u64,
    memory_pages: u64,
    lost_pages: u64,
    reads: u64,
    writes: u64,
    nanoseconds: u64,
}

/// Removes a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_swapoff(
    pager: *const Pager,
    name: *const c_char,
    goes_on: Option<extern "C" fn(*const Progress, *mut c_void) -> bool>,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let (pager, name) = unsafe { (here(handle(pager, "pager")?)?, bytes(name, "name")?) };
        let tell = |progress: &SwapoffProgress| {
            let SwapoffProgress { left_pages, moved_pages, memory_pages, lost_pages, reads, writes, nanoseconds, .. } = *progress;
            let progress = Progress { left_pages, moved_pages, memory_pages, lost_pages, reads, writes, nanoseconds };
            goes_on.is_none_or(|goes_on| goes_on(&progress, context))
        };
        tell(&pager.swap_off_while(name, tell)?);
        Ok(())
    })
}
