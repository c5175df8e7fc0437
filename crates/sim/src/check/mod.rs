//! The checkers: one property each, by looking at a process from outside. They panic; `run` catches it and adds the seed and the
//! log.

pub mod budget;
pub mod contents;
pub mod frames;
pub mod leaks;
pub mod pool;
pub mod progress;
pub mod reads;
pub mod slots;
