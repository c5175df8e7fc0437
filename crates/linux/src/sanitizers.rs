//! Sanitizers: programs that are built with one get their memory without libc.

/// Sanitizers with which a program cannot be paged: the name of each, its library's name, and a symbol that shows it if it is
/// linked into the program.
pub const SANITIZERS: [(&str, &[u8], &core::ffi::CStr); 5] = [
    ("AddressSanitizer", b"libasan.so", c"__asan_init"),
    ("HWAddressSanitizer", b"libhwasan.so", c"__hwasan_init"),
    ("ThreadSanitizer", b"libtsan.so", c"__tsan_init"),
    ("MemorySanitizer", b"libmsan.so", c"__msan_init"),
    ("LeakSanitizer", b"liblsan.so", c"__lsan_init"),
];
