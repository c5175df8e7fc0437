//! The effect of forks on devices: the child reads the parent's, and slots that it may still read wait for its end.

use crate::bitmap::WORD_BITS;
use crate::device::{Device, set};
use crate::devices::Devices;
use crate::fork_epochs::{Epochs, Renumbered};
use overspill_vm::types::{DeviceId, Slot};

impl Device {
    /// Frees slots that do not wait for any child any more.
    fn thaw(&mut self, epochs: &Epochs) {
        if self.waiting_count() == 0 {
            return;
        }
        for index in 0..self.words() {
            let (first, mut bits) = (index as u32 * WORD_BITS, self.deferred.word(index));
            let mut left = bits;
            while bits != 0 {
                let at = first + bits.trailing_zeros();
                if !epochs.waits(self.births[at as usize], self.deaths[at as usize]) {
                    left &= !(1 << (at - first));
                }
                bits &= bits - 1;
            }
            let mut free = self.deferred.word(index) & !left;
            while free != 0 {
                let at = free.trailing_zeros();
                let count = (free >> at).trailing_ones();
                self.blist.free_run(first + at, count);
                self.deferred_count -= count;
                free &= !((u64::MAX >> (WORD_BITS - count)) << at);
            }
            self.deferred.set_word(index, left);
        }
        self.assert_counts();
    }

    /// Follows a renumbering of the epochs.
    fn renumber(&mut self, to: &Renumbered) {
        let len = self.blist.len() as usize;
        self.births[..len].iter_mut().for_each(|epoch| set(epoch, to.births[*epoch as usize]));
        self.deaths[..len].iter_mut().for_each(|epoch| set(epoch, to.deaths[*epoch as usize]));
    }

    /// Makes the device read-only, in a child. A memory device stays writable: the child has a copy of it.
    fn inherit(&mut self) {
        self.own = self.memory.is_some() && self.own;
        self.stay();
        self.failed = false; // the child empties it itself if it fails there, too
        (self.taken_count, self.reading, self.growing) = (0, 0, false);
    }
}

impl Devices {
    /// Slots that were given back but wait for [`Devices::child_gone`]. They count in [`Devices::used`].
    pub fn deferred(&self) -> u64 {
        self.own().map(|d| u64::from(d.waiting_count())).sum()
    }

    /// Whether the slot was in use at a fork, so that parent or children may read it as well.
    pub(crate) fn is_common(&self, slot: Slot) -> bool {
        let (index, at) = self.split(slot);
        let device = &self.all[index];
        match device.own {
            true => device.forked && device.memory.is_none() && self.epochs.waits(device.births[at as usize], u8::MAX),
            false => true,
        }
    }

    /// To be called in the parent before a fork. No slot that has a page now is overwritten until [`Devices::child_gone`] is called
    /// with the returned number.
    ///
    /// After many forks in a row it costs a pass over two bytes per slot; does not allocate.
    pub fn fork_parent(&mut self) -> u64 {
        let Devices { all, epochs, .. } = self;
        let own = |d: &&mut Device| d.slots > 0 && d.own && d.memory.is_none();
        if epochs.is_full() {
            let to = epochs.renumber();
            all.iter_mut().filter(own).for_each(|device| device.renumber(&to));
        }
        all.iter_mut().filter(own).for_each(|device| device.forked = true);
        epochs.fork()
    }

    /// To be called once for each fork, when neither its child nor that child's descendants can read slots of this process any
    /// more: they have ended or exec'd, or the fork failed. Frees the slots that waited for them alone; does not allocate.
    ///
    /// # Panics
    /// If there was no such fork, or this was called for it before.
    pub fn child_gone(&mut self, fork: u64) {
        let Devices { all, epochs, .. } = self;
        if epochs.child_gone(fork) {
            all.iter_mut().filter(|d| d.slots > 0 && d.own).for_each(|device| device.thaw(epochs));
        }
    }

    /// To be called in the child of a fork. All devices become read-only, and a swapoff of the parent's ends here. Until a device
    /// of its own is added, the child can read stored pages, but store none. Does not allocate.
    pub fn inherit(&mut self) {
        self.all.iter_mut().for_each(Device::inherit);
        self.epochs.forked();
        self.changed();
    }

    /// [`Devices::inherit`], and then adds a device of the child's own, of `slots` slots. `None` if that failed
    /// ([`Devices::add_device`]).
    pub fn fork_child(&mut self, slots: u32) -> Option<DeviceId> {
        self.inherit();
        self.add_device(slots, 0).ok()
    }
}
