//! Options of a pager.

use crate::border::{Failure, Outcome, bytes, call, free, handle, text};
use overspill::{Builder, Delivery, Engine, Pager, device_spec};
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// New options.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_options_new() -> *mut Builder {
    crate::border::ask(std::ptr::null_mut(), || Box::into_raw(Box::new(Pager::builder())))
}

/// Frees options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_options_free(options: *mut Builder) {
    // SAFETY: the header's contract.
    unsafe { free(options) };
}

/// Changes options.
///
/// # Safety
/// The header's contract.
unsafe fn change(options: *mut Builder, to: impl FnOnce(Builder) -> Result<Builder, Failure>) -> c_int {
    call(|| {
        // SAFETY: the caller's promise; nobody else uses the options meanwhile.
        unsafe {
            let changed = to(handle(options, "options")?.clone())?;
            *options = changed;
        }
        Ok(())
    })
}

/// Functions that set an option to a number.
macro_rules! numbers {
    ($($name:ident($type:ty) $set:ident;)*) => { $(
        #[doc = concat!("`Builder::", stringify!($set), "`.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(options: *mut Builder, value: $type) -> c_int {
            // SAFETY: the header's contract.
            unsafe { change(options, |o| Ok(o.$set(value))) }
        }
    )* };
}

numbers! {
    overspill_options_memory(u64) memory;
    overspill_options_swap_limit(u64) swap_limit;
    overspill_options_encrypt(bool) encrypt;
    overspill_options_load_control(bool) load_control;
    overspill_options_follow_pointers(bool) follow_pointers;
    overspill_options_regions_max(u16) regions_max;
    overspill_options_managed_max(u64) managed_max;
}

/// Where pages go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_options_swap(options: *mut Builder, place: *const c_char) -> c_int {
    // SAFETY: the header's contract.
    unsafe { change(options, |o| Ok(o.swap(Path::new(bytes(place, "place")?)))) }
}

/// A device from its text.
pub fn device(text: &OsStr) -> Result<overspill::DeviceSpec, Failure> {
    let wrong = |why| overspill::Error::Device(format!("the swap device {} {why}", String::from_utf8_lossy(text.as_bytes())));
    device_spec::parse(text).map_err(|why| wrong(why).into())
}

/// When changes of files are written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_options_write_back(options: *mut Builder, milliseconds: u64, changed_bytes: u64) -> c_int {
    // SAFETY: the header's contract.
    unsafe { change(options, |o| Ok(o.write_back(Duration::from_millis(milliseconds), changed_bytes))) }
}

/// One more swap device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_options_swap_device(options: *mut Builder, text: *const c_char) -> c_int {
    // SAFETY: the header's contract.
    unsafe { change(options, |o| Ok(o.swap_device(device(bytes(text, "device")?)?))) }
}

/// The policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_options_policy(options: *mut Builder, policy: *const c_char) -> c_int {
    // SAFETY: the header's contract.
    unsafe { change(options, |o| Ok(o.policy(text(policy, "policy")?))) }
}

/// The delivery.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_options_delivery(options: *mut Builder, delivery: c_int) -> c_int {
    let delivery = match delivery {
        0 => Ok(Delivery::InThread),
        1 => Ok(Delivery::Threads),
        n => Err(Failure::argument(format!("there is no delivery {n}"))),
    };
    // SAFETY: the header's contract.
    unsafe { change(options, |o| Ok(o.delivery(delivery?))) }
}

/// The engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_options_engine(options: *mut Builder, engine: c_int) -> c_int {
    let engine = match engine {
        0 => Ok(Engine::Auto),
        1 => Ok(Engine::Uring),
        2 => Ok(Engine::Psync),
        n => Err(Failure::argument(format!("there is no engine {n}"))),
    };
    // SAFETY: the header's contract.
    unsafe { change(options, |o| Ok(o.engine(engine?))) }
}

/// A pager with these options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_pager_new(options: *const Builder, pager: *mut *mut Pager) -> c_int {
    call(|| -> Outcome {
        crate::border::place(pager)?;
        // SAFETY: the header's contract.
        unsafe { crate::border::give(pager, handle(options, "options")?.clone().build()?) };
        Ok(())
    })
}
