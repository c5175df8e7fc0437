//! The library that `overspill run` preloads into a program: it adopts the program's anonymous memory before `main`.
//!
//! ```text
//!   lib.rs     constructor: reads the environment, starts the agent or leaves a message and exits with 125
//!   agent.rs   the agent: machine, pager threads, the helper thread, and forks
//!     hooks.rs   follows the program's system calls for memory, forks and threads from inside libc
//!   arena.rs   the agent's own allocator
//!   symbols.rs   the addresses of symbols that may not exist
//! ```
//!
//! Rules of this crate:
//!
//! - The program's heap and stacks may be paged out at any moment, so pager threads never touch them.
//! - Pager threads are not libc threads, so they use no thread-local storage.
//! - Nothing is allocated after set-up.

mod agent;
mod arena;
mod hooks;
mod symbols;

#[global_allocator]
static ARENA: arena::Arena = arena::Arena::new();

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    agent::start();
}
