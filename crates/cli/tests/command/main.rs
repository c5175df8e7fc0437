//! All tests of the command, as one program, so that it is linked once and tests of different files run side by side.
//!
//! `cargo test -p overspill-cli --test command paged::` runs the tests of one file. Most run C programs of `tests/programs` under
//! `overspill run` and wait much of their time, so `make test` runs more of them at a time than there are CPUs.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/running.rs"]
mod running;
#[path = "../common/runs.rs"]
mod runs;

mod address_calls;
mod address_space;
mod budget;
mod cli;
mod compressed;
mod credentials;
mod evictions;
mod forks;
mod lab;
mod limits;
mod locks;
mod measurements;
mod paged;
mod swap_devices;
mod swap_files;
mod tables;
mod threads;
