//! What a fork does to devices: the child reads the parent's, and slots that it may still read wait for it.

use crate::bitmap::WORD_BITS;
use crate::device::{Device, set};
use crate::devices::Devices;
use crate::fork_epochs::{Epochs, Renumbered};
use overspill_vm::types::DeviceId;

impl Device {
    /// Frees what waits for nobody any more.
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

    /// The epochs have other numbers.
    fn renumber(&mut self, to: &Renumbered) {
        let len = self.blist.len() as usize;
        self.births[..len].iter_mut().for_each(|epoch| set(epoch, to.births[*epoch as usize]));
        self.deaths[..len].iter_mut().for_each(|epoch| set(epoch, to.deaths[*epoch as usize]));
    }

    /// This process is a child: it may only read what is there. Memory it has a copy of.
    fn inherit(&mut self) {
        self.own = self.memory.is_some() && self.own;
        self.leaving = None;
        (self.taken_count, self.reading) = (0, 0);
    }
}

impl Devices {
    /// Slots that were given back but wait for [`Devices::child_gone`]; they are part of [`Devices::used`].
    pub fn deferred(&self) -> u64 {
        self.own().map(|d| u64::from(d.waiting_count())).sum()
    }

    /// This process forks, parent's side: no slot that has a page now is overwritten until [`Devices::child_gone`] for the number
    /// that this returns.
    ///
    /// To be called before the fork. After many forks in a row it costs a pass over two bytes per slot; does not allocate.
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

    /// Neither the child of this fork nor any child of its own can read slots of this process any more: they have ended or exec'd,
    /// or the fork failed. Once for each fork. Frees what waited for them alone; does not allocate.
    ///
    /// # Panics
    /// If there was no such fork, or it has been told before.
    pub fn child_gone(&mut self, fork: u64) {
        let Devices { all, epochs, .. } = self;
        if epochs.child_gone(fork) {
            all.iter_mut().filter(|d| d.slots > 0 && d.own).for_each(|device| device.thaw(epochs));
        }
    }

    /// This process is the child of a fork: all devices become read-only, and a swapoff of the parent's is none here. A device of
    /// its own is to be added. Until then the child can read back what is stored, but store nothing. Does not allocate.
    pub fn inherit(&mut self) {
        self.all.iter_mut().for_each(Device::inherit);
        self.epochs.forked();
        self.changed();
    }

    /// [`Devices::inherit`], and a device of its own, of `slots` slots. `None` if it could not be added
    /// ([`Devices::add_device`]).
    pub fn fork_child(&mut self, slots: u32) -> Option<DeviceId> {
        self.inherit();
        self.add_device(slots, 0).ok()
    }
}
