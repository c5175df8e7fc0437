//! Sanitizers: compilers build programs with them that get their memory past libc.

/// Sanitizers that a program cannot be paged with: what each is called, its library's name, and a symbol of it if that is part of
/// the program.
pub const SANITIZERS: [(&str, &[u8], &core::ffi::CStr); 5] = [
    ("AddressSanitizer", b"libasan.so", c"__asan_init"),
    ("HWAddressSanitizer", b"libhwasan.so", c"__hwasan_init"),
    ("ThreadSanitizer", b"libtsan.so", c"__tsan_init"),
    ("MemorySanitizer", b"libmsan.so", c"__msan_init"),
    ("LeakSanitizer", b"liblsan.so", c"__lsan_init"),
];
