//! Between C and Rust: panics, errors, texts, handles.

use overspill::{Error, Pager};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic was caught.
const PANIC: c_int = 103;

/// The names of all codes. Those up to 99 are numbered by [`Error::code`].
const NAMES: [(c_int, &CStr); 31] = [
    (0, c"OVERSPILL_OK"),
    (1, c"OVERSPILL_E_NO_BUDGET"),
    (2, c"OVERSPILL_E_BUDGET_TOO_SMALL"),
    (3, c"OVERSPILL_E_POLICY"),
    (4, c"OVERSPILL_E_USERFAULTFD"),
    (5, c"OVERSPILL_E_SWAP"),
    (6, c"OVERSPILL_E_DEVICE"),
    (7, c"OVERSPILL_E_ENGINE"),
    (8, c"OVERSPILL_E_KEY"),
    (9, c"OVERSPILL_E_RESOURCES"),
    (10, c"OVERSPILL_E_HANDLER"),
    (11, c"OVERSPILL_E_HANDLER_REPLACED"),
    (12, c"OVERSPILL_E_TOO_MANY_PAGERS"),
    (13, c"OVERSPILL_E_TOO_MANY_REGIONS"),
    (14, c"OVERSPILL_E_REGION_SIZE"),
    (15, c"OVERSPILL_E_MAP"),
    (16, c"OVERSPILL_E_WIRED_TOO_MUCH"),
    (17, c"OVERSPILL_E_IS_WIRED"),
    (18, c"OVERSPILL_E_LOST"),
    (19, c"OVERSPILL_E_ARENA_FULL"),
    (20, c"OVERSPILL_E_NOT_A_BLOCK"),
    (21, c"OVERSPILL_E_FORKED"),
    (22, c"OVERSPILL_E_FILE"),
    (23, c"OVERSPILL_E_FILE_ENDS"),
    (24, c"OVERSPILL_E_FILE_SHARED"),
    (25, c"OVERSPILL_E_ACCESS"),
    (26, c"OVERSPILL_E_TOO_MANY_POLICIES"),
    (100, c"OVERSPILL_E_ARGUMENT"),
    (101, c"OVERSPILL_E_IO"),
    (102, c"OVERSPILL_E_NOT_WIRED"),
    (PANIC, c"OVERSPILL_E_PANIC"),
];

/// Why a call failed.
pub struct Failure {
    code: c_int,
    errno: c_int,
    message: String,
}

impl Failure {
    /// An argument is not what the header asks for.
    pub fn argument(message: impl Into<String>) -> Failure {
        Failure { code: 100, errno: 0, message: message.into() }
    }
    /// There is no wire of that number.
    pub fn not_wired(wire: u64) -> Failure {
        Failure { code: 102, errno: 0, message: format!("the region has no wire of the number {wire}") }
    }
}

/// The errno that `error` comes from, or 0.
fn errno(error: &(dyn std::error::Error + 'static)) -> c_int {
    let mut next = Some(error);
    while let Some(e) = next {
        if let Some(number) = e.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error) {
            return number;
        }
        next = e.source();
    }
    0
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure { code: e.code(), errno: errno(&e), message: e.to_string() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        let ours = e.get_ref().and_then(|e| e.downcast_ref::<Error>());
        Failure { code: ours.map_or(101, Error::code), errno: e.raw_os_error().unwrap_or(0), message: e.to_string() }
    }
}

pub type Outcome = Result<(), Failure>;

thread_local! {
    /// The message and errno of the thread's last failure.
    static LAST: RefCell<(Option<CString>, c_int)> = const { RefCell::new((None, 0)) };
}

unsafe extern "C" {
    // glibc's, with an integer and a place for the old one
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Keeps the calling thread from being cancelled: a cancellation would unwind through this library.
struct NotCancelled(c_int);

impl NotCancelled {
    const DISABLE: c_int = 1;
    fn new() -> NotCancelled {
        let mut old = 0;
        // SAFETY: writes the old state to `old`.
        unsafe { pthread_setcancelstate(NotCancelled::DISABLE, &mut old) };
        NotCancelled(old)
    }
}

impl Drop for NotCancelled {
    fn drop(&mut self) {
        let mut old = 0;
        // SAFETY: as above; the state is one that was there before.
        unsafe { pthread_setcancelstate(self.0, &mut old) };
    }
}

/// Makes a call from C, and returns its code.
pub fn call(run: impl FnOnce() -> Outcome) -> c_int {
    let _not_cancelled = NotCancelled::new();
    // A panic may leave the pager in a state that nobody expects. Its locks survive that; the header says not to use it any more.
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            let message = format!("a mistake in Overspill: {}", text.unwrap_or("a panic without a message"));
            std::mem::forget(panic); // its drop might panic, too
            Failure { code: PANIC, errno: 0, message }
        }
    };
    let Failure { code, errno, message } = failure;
    let message = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // A thread that ends has no place for the message any more.
    let _ = LAST.try_with(|last| last.replace((Some(message), errno)));
    code
}

/// Makes a call that returns a value, or `otherwise` after a panic.
pub fn ask<T>(otherwise: T, run: impl FnOnce() -> T) -> T {
    let _not_cancelled = NotCancelled::new();
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        std::mem::forget(panic);
        otherwise
    })
}

/// What a handle stands for.
///
/// # Safety
/// NULL, or a live handle of that type.
pub unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::argument(format!("the {what} is NULL")))
}

/// The pager, if it is of this process.
pub fn here(pager: &Pager) -> Result<&Pager, Failure> {
    if pager.is_here() { Ok(pager) } else { Err(Error::Forked.into()) }
}

/// Refuses a NULL for a result before the call does anything.
pub fn place<T>(result: *mut T) -> Outcome {
    if result.is_null() { Err(Failure::argument("the place for the result is NULL")) } else { Ok(()) }
}

/// `length` bytes from `offset` on, if a region of `size` bytes has them.
pub fn within(offset: usize, length: usize, size: usize) -> Result<Range<usize>, Failure> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(offset..end),
        _ => Err(Failure::argument(format!("{length} bytes from {offset} on, of a region of {size} bytes"))),
    }
}

/// Wires pages by `keep`, and puts the wire's number at `wire`.
///
/// # Safety
/// `wire` is NULL or can be written.
pub unsafe fn wired(wire: *mut u64, keep: impl FnOnce() -> Result<u64, Error>) -> Outcome {
    place(wire)?;
    let number = keep()?;
    // SAFETY: not NULL, and the caller's promise.
    unsafe { wire.write(number) };
    Ok(())
}

/// A new handle at `result`.
///
/// # Safety
/// `result` can be written.
pub unsafe fn give<T>(result: *mut *mut T, value: T) {
    // SAFETY: the caller's promise.
    unsafe { result.write(Box::into_raw(Box::new(value))) };
}

/// Frees a handle.
///
/// # Safety
/// NULL, or a handle from [`give`] that nobody uses any more.
pub unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's promise.
        ask((), || drop(unsafe { Box::from_raw(handle) }));
    }
}

/// A text.
///
/// # Safety
/// NULL, or an address of a text that ends with a zero and does not change meanwhile.
pub unsafe fn bytes<'a>(text: *const c_char, what: &str) -> Result<&'a OsStr, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("the {what} is NULL")));
    }
    // SAFETY: the caller's promise.
    Ok(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

/// The same, of UTF-8; other bytes are replaced.
///
/// # Safety
/// As [`bytes`].
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<std::borrow::Cow<'a, str>, Failure> {
    // SAFETY: the caller's promise.
    unsafe { bytes(text, what) }.map(OsStr::to_string_lossy)
}

/// The policy that C asks for; `None` (NULL) is the pager's.
///
/// # Safety
/// As [`bytes`].
pub unsafe fn policy<'a>(text: *const c_char) -> Result<Option<std::borrow::Cow<'a, str>>, Failure> {
    // SAFETY: the caller's promise.
    if text.is_null() { Ok(None) } else { unsafe { self::text(text, "policy") }.map(Some) }
}

/// Hands a text out, as snprintf does.
///
/// # Safety
/// `size` bytes at `to` can be written, and `length` is NULL or can be written.
pub unsafe fn hand_out(text: &str, to: *mut c_char, size: usize, length: *mut usize) -> Outcome {
    if size > 0 {
        place(to)?;
        let n = text.len().min(size - 1);
        // SAFETY: the caller's promise: n + 1 bytes at most `size`.
        unsafe {
            to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), n);
            to.add(n).write(0);
        }
    }
    if !length.is_null() {
        // SAFETY: the caller's promise.
        unsafe { length.write(text.len()) };
    }
    Ok(())
}

/// The thread's last message.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_error_message() -> *const c_char {
    let message = LAST.try_with(|last| last.borrow().0.as_ref().map(|message| message.as_ptr()));
    message.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The errno that belongs to it.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_error_errno() -> c_int {
    LAST.try_with(|last| last.borrow().1).unwrap_or(0)
}

/// The name of a code.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_code_name(code: c_int) -> *const c_char {
    NAMES.iter().find(|(number, _)| *number == code).map_or(std::ptr::null(), |(_, name)| name.as_ptr())
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: the thread's own message.
        unsafe { CStr::from_ptr(overspill_error_message()) }.to_str().expect("UTF-8").to_owned()
    }

    /// Panics with a payload whose drop panics, too.
    struct Grenade;
    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("a second time");
        }
    }

    #[test]
    fn a_panic_becomes_an_error() {
        std::panic::set_hook(Box::new(|_| ()));
        assert_eq!(call(|| panic!("page {} is gone", 7)), PANIC);
        assert_eq!(message(), "a mistake in Overspill: page 7 is gone");
        assert_eq!(call(|| std::panic::panic_any(Grenade)), PANIC);
        assert_eq!(ask(5, || panic!("no answer")), 5);
        let _ = std::panic::take_hook();
    }

    #[test]
    fn an_error_is_the_threads_own() {
        let io = std::io::Error::from(Error::WiredTooMuch { bytes: 5, available: 4 });
        assert_eq!(call(|| Err(io.into())), 16); // a code of ours within an error of std's
        assert_eq!((message(), overspill_error_errno()), ("5 bytes cannot be wired: the budget allows 4 more".into(), 0));
        assert_eq!(call(|| Ok(())), 0);
        assert!(message().starts_with("5 bytes"), "a call that works changes nothing");
        std::thread::spawn(|| assert_eq!(message(), "")).join().expect("it passes");
        assert_eq!(call(|| Err(Error::Map(std::io::Error::from_raw_os_error(12)).into())), 15);
        assert_eq!(overspill_error_errno(), 12);
        assert_eq!(call(|| Err(Failure::argument("a\0b"))), 100);
        assert_eq!(message(), "a\\0b");
    }

    #[test]
    fn texts_are_cut_as_snprintf_does() {
        let (mut to, mut length) = ([b'x'; 4].map(|b| b as c_char), 0);
        // SAFETY: the sizes are those of the buffer.
        unsafe {
            assert!(hand_out("abcdef", to.as_mut_ptr(), 4, &mut length).is_ok());
            assert_eq!((to.map(|c| c as u8), length), (*b"abc\0", 6));
            assert!(hand_out("", to.as_mut_ptr(), 1, std::ptr::null_mut()).is_ok());
            assert_eq!(to[0], 0);
            assert!(hand_out("abc", std::ptr::null_mut(), 0, &mut length).is_ok());
            assert!(hand_out("abc", std::ptr::null_mut(), 1, &mut length).is_err());
        }
    }
}
