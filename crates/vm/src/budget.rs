//! The budget: the pages charged to it, and how much is free.

use crate::frames::INACTIVE;
use crate::pager::Pager;
use crate::pool_size::Compressibility;
use crate::types::{PAGE_SIZE, Tag};
use crate::vm::Vm;

/// The most pages of the budget that are left to soft faults. (There is a handler per CPU, sixteen at most. With in-thread delivery
/// more threads may have a soft fault at a time; then some wait.)
const COPIES: u32 = 8;

impl<P: Pager> Vm<P> {
    /// The budget, in pages.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The budget that the process has been promised, in pages. [`Vm::limit`] is lower while the process works towards less.
    pub fn promised(&self) -> u32 {
        self.promised
    }

    /// The largest budget that it can have, in pages.
    pub fn budget_max(&self) -> u32 {
        self.config.memory_pages
    }

    /// Changes the budget (processes that came from each other by fork share one). In pages.
    pub fn set_limit(&mut self, pages: u32) {
        self.promised = pages.min(self.config.memory_pages);
        self.counters.memory_limit_bytes.set(self.promised as u64 * PAGE_SIZE as u64);
        self.set_reclaim_target(pages);
    }

    /// Works towards `pages` until the next [`Vm::set_limit`], without promising it. Before a fork shares the budget out, the
    /// process still has all of it. So pages that faults take above the reclaim target are not over budget.
    pub fn set_reclaim_target(&mut self, pages: u32) {
        self.limit = pages.min(self.promised);
        self.policies.resize(self.limit);
    }

    /// Limits how many pages stay mapped, in pages; `u32::MAX`: no limit. For the moment that the page daemon needs there may be
    /// more. Touches of mapped pages are not seen, so the limit decides how fine a recording is.
    pub fn set_mapped_max(&mut self, pages: u32) {
        self.mapped_max = pages;
    }

    /// From now on writes what is in memory to devices, once, and leaves it there, inactive; or stops that. After a fork both sides
    /// then have these pages in slots that they share. (Where the kernel tells references, nothing is saved: the policy's victims
    /// are watched first.)
    pub fn save(&mut self, on: bool) {
        self.to_save = (on && !self.watches()).then_some(self.listed);
    }

    /// Whether nothing is left to be saved.
    pub fn is_saved(&self) -> bool {
        self.to_save.is_none_or(|left| left == 0 && self.frames.queues.is_empty(INACTIVE) && self.laundering == 0)
    }

    /// Pages charged to the budget: frames, second copies, buffers, address space left to the kernel.
    pub fn charge_total(&self) -> u64 {
        self.used as u64 + self.charged as u64 + self.reserved
    }

    /// Frames in use, in pages.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// How many pages may still be charged.
    pub fn available(&self) -> u32 {
        (self.limit as u64).saturating_sub(self.charge_total()) as u32
    }

    /// How many frames faults may take. The last few pages of the budget are left to soft faults, each of which has a second copy
    /// of its page for a moment.
    pub fn room(&self) -> u32 {
        self.available().saturating_sub(self.copies())
    }

    /// How many pages are left to soft faults.
    fn copies(&self) -> u32 {
        (self.limit / 256).min(COPIES)
    }

    /// Whether the parked copies of pages that are mapped again take room that the next soft fault needs. (It may take all that the
    /// process has been promised, also while the process works towards less.)
    pub fn copies_are_tight(&self) -> bool {
        self.charge_total() + u64::from(self.copies()) > u64::from(self.promised)
    }

    /// The machine has buffers for so many pages that are read ahead of a reader who has to wait for them. One read of a file may
    /// bring `long` of them.
    pub fn set_under_way_max(&mut self, pages: u32, long: u32) {
        self.reads.set_under_way_max(pages, long);
    }

    /// Charges `pages` of the machine's own (buffers, parked copies that outlive their page).
    pub fn charge(&mut self, pages: u32) {
        self.charged += pages;
        self.note_usage();
    }

    /// The inverse of [`Vm::charge`].
    pub fn uncharge(&mut self, pages: u32) {
        self.charged = self.charged.checked_sub(pages).expect("uncharged more than was charged");
        self.note_usage();
    }

    /// Pages of address space that are left to the kernel and charged in full.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Sets [`Vm::reserved`].
    pub fn set_reserved(&mut self, pages: u64) {
        self.reserved = pages;
        self.counters.memory_native_bytes.set(pages * PAGE_SIZE as u64);
        self.note_usage();
    }

    /// The frames that are kept for whoever waits for one.
    pub(crate) fn least_free(&self) -> u32 {
        (self.limit / 256).clamp(32, 2048)
    }

    /// What is read ahead of readers that have to wait for it takes frames in great numbers at a time.
    fn free_for_readers(&self) -> u32 {
        self.reads.under_way().min(self.limit / 32)
    }

    /// Below this many available pages the page daemon starts.
    pub fn free_low(&self) -> u32 {
        self.least_free() + self.free_for_readers() / 2
    }

    /// The page daemon works until this many pages are available.
    pub fn free_high(&self) -> u32 {
        self.least_free() * 2 + self.free_for_readers()
    }

    pub(crate) fn note_usage(&self) {
        let bytes = self.charge_total() * PAGE_SIZE as u64;
        self.counters.memory_used_bytes.set(bytes);
        self.counters.memory_peak_bytes.raise(bytes);
    }

    /// Bytes of the core's and the pager's tables; also sets the counter.
    pub fn metadata_bytes(&self) -> u64 {
        let per_frame = 8 + 1 + 8 + self.policies.frame_bytes();
        let bytes = self.table.bytes()
            + self.frames.taken() as u64 * per_frame
            + (self.base.len() * size_of::<Tag>()) as u64
            + self.pager.metadata_bytes();
        self.counters.metadata_bytes.set(bytes);
        bytes
    }

    /// A frame is about to be taken.
    pub(crate) fn count_over_budget(&self) {
        if self.charge_total() >= self.promised as u64 {
            self.counters.over_budget.add(1);
        }
    }

    /// The size that compressed memory should have from now on, in pages, if there is something new to judge by.
    pub fn judge_pool_size(&mut self, pages: impl FnOnce() -> Compressibility) -> Option<u32> {
        let budget = self.limit;
        self.pool_size.is_due(budget).then(|| self.pool_size.judge(pages(), budget))
    }

    /// Compressed memory is to have no size from now on, or may have one again.
    pub fn shut_pool(&mut self, shut: bool) {
        self.pool_size.set_shut(shut);
    }

    /// There is no compressed memory any more. (Else each page that is evicted would be written again, unchanged, as if it could go
    /// there.)
    pub fn pool_gone(&mut self) {
        self.pool_size.close();
    }

    /// A page that a thread waited for, read or unpacked by itself, took so many nanoseconds.
    pub fn page_in_took(&mut self, in_memory: bool, ns: u64) {
        match in_memory {
            true => self.pool_size.unpacking_took(ns),
            false => self.pool_size.read_took(ns),
        }
    }

    /// Packing a page took so many nanoseconds.
    pub fn packing_took(&mut self, ns: u64) {
        self.pool_size.packing_took(ns);
    }

    /// What reading a page from a device and unpacking one take lately, in nanoseconds; 0: not known.
    pub fn page_in_times(&self) -> (u64, u64) {
        self.pool_size.times()
    }
}
