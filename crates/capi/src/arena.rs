//! Arenas.

use crate::border::{Failure, ask, call, free, give, hand_out, handle, here, place, policy};
use overspill::{Arena, Pager};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

/// The alignment of `max_align_t`.
const ALIGN: usize = 16;

/// A new arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_new(pager: *const Pager, bytes: usize, arena: *mut *mut Arena) -> c_int {
    call(|| {
        place(arena)?;
        // SAFETY: the header's contract.
        unsafe { give(arena, here(handle(pager, "pager")?)?.arena(bytes)?) };
        Ok(())
    })
}

/// Unmaps an arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_free(arena: *mut Arena) {
    // SAFETY: the header's contract.
    unsafe { free(arena) };
}

/// Its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_capacity(arena: *const Arena) -> usize {
    // SAFETY: the header's contract.
    unsafe { arena.as_ref() }.map_or(0, Arena::capacity)
}

/// What is used of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_used(arena: *const Arena) -> u64 {
    // SAFETY: the header's contract.
    ask(0, || unsafe { arena.as_ref() }.map_or(0, Arena::used))
}

fn aligned(align: usize) -> Result<usize, Failure> {
    match align {
        0 => Ok(ALIGN),
        n if n.is_power_of_two() => Ok(n),
        n => Err(Failure::argument(format!("the alignment {n} is not a power of two"))),
    }
}

/// An arena of this process.
///
/// # Safety
/// The header's contract.
unsafe fn arena_of<'a>(arena: *const Arena) -> Result<&'a Arena, Failure> {
    // SAFETY: the caller's promise.
    let arena = unsafe { handle(arena, "arena")? };
    here(arena.pager())?;
    Ok(arena)
}

/// Gives it a policy of its own, or the pager's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_set_policy(arena: *const Arena, name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header's contract.
        let (arena, policy) = unsafe { (arena_of(arena)?, policy(name)?) };
        Ok(policy.map_or_else(|| arena.reset_policy(), |policy| arena.set_policy(&policy))?)
    })
}

/// Its policy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_policy(arena: *const Arena, to: *mut c_char, size: usize, length: *mut usize) -> c_int {
    // SAFETY: the header's contract.
    call(|| unsafe { hand_out(&arena_of(arena)?.policy(), to, size, length) })
}

/// A block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_alloc(arena: *const Arena, size: usize, align: usize, block: *mut *mut c_void) -> c_int {
    call(|| {
        place(block)?;
        // SAFETY: the header's contract.
        unsafe { block.write(arena_of(arena)?.alloc(size.max(1), aligned(align)?)?.cast().as_ptr()) };
        Ok(())
    })
}

/// A block of zeroes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_zalloc(arena: *const Arena, size: usize, align: usize, block: *mut *mut c_void) -> c_int {
    call(|| {
        place(block)?;
        // SAFETY: the header's contract.
        unsafe { block.write(arena_of(arena)?.alloc_zeroed(size.max(1), aligned(align)?)?.cast().as_ptr()) };
        Ok(())
    })
}

/// A block of another size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_realloc(arena: *const Arena, block: *mut *mut c_void, size: usize, align: usize) -> c_int {
    call(|| {
        place(block)?;
        // SAFETY: the header's contract: the block is the caller's.
        unsafe {
            let (arena, size, align) = (arena_of(arena)?, size.max(1), aligned(align)?);
            let new = match NonNull::new(*block) {
                Some(old) => arena.realloc(old.cast(), size, align)?,
                None => arena.alloc(size, align)?,
            };
            block.write(new.cast().as_ptr());
        }
        Ok(())
    })
}

/// Frees a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_dealloc(arena: *const Arena, block: *mut c_void) -> c_int {
    call(|| {
        // SAFETY: the header's contract: the block is the caller's to free.
        unsafe {
            let arena = arena_of(arena)?;
            NonNull::new(block).map_or(Ok(()), |block| Ok(arena.free(block.cast())?))
        }
    })
}

/// The size of a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_arena_block_size(arena: *const Arena, block: *const c_void, size: *mut usize) -> c_int {
    call(|| {
        place(size)?;
        // SAFETY: the header's contract.
        let arena = unsafe { arena_of(arena)? };
        let block = NonNull::new(block.cast_mut()).ok_or_else(|| Failure::argument("the block is NULL"))?;
        // SAFETY: the header's contract.
        unsafe { size.write(arena.block_size(block.cast())?) };
        Ok(())
    })
}
