//! The gate for calls that unmap or move memory. No call begins while a fork is about to happen, and one thread at a time moves
//! memory.
//!
//! The decision is made under the map lock, which guards the list of the calls under way
//! ([`Remaps`](crate::space::remaps::Remaps)). A thread that may not begin waits here, without a lock.

use crate::futex::{Futex, Limit};
use core::sync::atomic::Ordering::*;

/// The gate. Lock key: (F) a word that threads sleep on, atomic.
#[derive(Debug)]
pub(crate) struct RemapGate<W> {
    /// (F) 1: a fork is about to happen.
    forks: W,
    /// (F) 1: a thread moves memory. Stored under the exclusive map lock.
    moves: W,
}

impl<W: Futex> RemapGate<W> {
    pub(super) const fn new() -> Self {
        RemapGate { forks: W::ZERO, moves: W::ZERO }
    }
    /// A fork is about to happen.
    pub(crate) fn begin_fork(&self) {
        self.forks.store(1, SeqCst);
    }
    /// Whether a fork is about to happen.
    pub(crate) fn forks(&self) -> bool {
        self.forks.load(SeqCst) != 0
    }
    /// The fork is over.
    pub(crate) fn end_fork(&self) {
        self.forks.store(0, Relaxed);
        self.forks.wake(i32::MAX as u32);
    }
    /// A thread moves memory. => the map is held exclusively
    pub(crate) fn begin_move(&self) {
        self.moves.store(1, Relaxed);
    }
    /// The move is over. => the map is held exclusively
    pub(crate) fn end_move(&self) {
        self.moves.store(0, Relaxed);
        self.moves.wake(i32::MAX as u32);
    }
    /// Waits until no fork is about to happen and no thread moves memory; for the latter at most `ns` nanoseconds. `is_inside`: not
    /// for a fork, which waits for the calling thread.
    pub(crate) fn wait(&self, ns: u64, is_inside: bool) {
        if !is_inside {
            self.forks.wait(1);
        }
        self.moves.wait_for(1, Limit::Tick(ns));
    }
    /// In a copy of the machine: as in the original.
    pub(crate) fn copy(&self, from: &Self) {
        self.forks.store(from.forks.load(Relaxed), Relaxed);
        self.moves.store(from.moves.load(Relaxed), Relaxed);
    }
    /// In a fork's child: no other thread exists here.
    pub(crate) fn forked(&self) {
        self.forks.store(0, Relaxed);
        self.moves.store(0, Relaxed);
    }
}
