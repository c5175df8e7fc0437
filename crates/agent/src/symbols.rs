//! The addresses of symbols that may not exist.
//!
//! dlsym(3) would have its error messages freed by the program's allocator, and that of some programs works only from `main` on
//! (GCL, in which Maxima runs).

/// A table of this name with the addresses of these symbols, which the dynamic loader fills: 0 if nobody has one.
macro_rules! table_of_addresses {
    ($table:literal, $($symbol:literal),*) => {
        core::arch::global_asm!(
            ".pushsection .data.rel.ro, \"aw\"",
            ".balign 8",
            concat!(".hidden ", $table),
            concat!(".globl ", $table),
            concat!($table, ":"),
            $(concat!(".weak ", $symbol, "\n.quad ", $symbol),)*
            ".popsection",
        );
    };
}
pub(crate) use table_of_addresses;
