//! A pager: the handle that programs have, and its end.

use crate::error::Error;
use crate::fault;
use crate::quiet::Quiet;
use crate::reads;
use crate::shared::Shared;
use overspill_linux::machine::Delivery;
use overspill_vm::Decision;
use overspill_vm::counters::Counters;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What regions have of the pager's.
pub struct Regions {
    /// Object numbers that no region has.
    pub free: Vec<u16>,
    /// Pages that may still be managed.
    pub pages_left: u64,
    /// Pages that may still be wired.
    pub wired_left: u64,
}

/// Who ends it all.
pub struct Owner {
    pub shared: Arc<Shared>,
    pub place: usize,
    pub threads: Vec<JoinHandle<()>>,
    pub regions: Mutex<Regions>,
}

impl Owner {
    pub fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process made the pager. A forked child has a copy that is good for nothing.
    pub fn is_alive(&self) -> bool {
        fault::is_here(self.place, &*self.shared)
    }

    /// What the pager works with. In a forked child that is the parent's: its descriptors act on the parent's memory, and its locks
    /// may be held by threads that are not there.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn here(&self) -> Result<&Shared, Error> {
        if self.is_alive() { Ok(&self.shared) } else { Err(Error::Forked) }
    }

    /// As [`Owner::here`], for calls that cannot answer with an error.
    ///
    /// # Panics
    /// In a forked child.
    pub fn must_be_here(&self) -> &Shared {
        self.here().unwrap_or_else(|e| panic!("{e}"))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.is_alive() {
            // In a forked child: the threads are not there to be joined, and the descriptors are shared with the parent's pager.
            std::mem::forget(self.shared.clone());
            std::mem::take(&mut self.threads).into_iter().for_each(std::mem::forget);
            return;
        }
        let machine = &self.shared.machine;
        machine.shutdown.begin();
        machine.host.wake_policy.call_everyone();
        machine.ring_daemon_anyway();
        self.shared.queue.wake();
        machine.failed_devices.end();
        reads::ring(&self.shared.quit);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        fault::leave(self.place);
    }
}

/// A pager: a budget of memory, a swap file, and the threads that keep the one within its limit by means of the other.
///
/// A handle: clones are the same pager. When the last one and the last [`Region`](crate::Region) are dropped, its threads end and
/// the swap file is gone.
///
/// A forked child has neither the pager nor its regions: every call answers [`Error::Forked`] there, or panics with those words
/// where it answers with no error; to drop them is safe.
#[derive(Clone)]
pub struct Pager(pub(crate) Arc<Owner>);

impl Pager {
    /// What the pager has done so far. The values go on changing; `overspill stat` shows them as well.
    pub fn counters(&self) -> &Counters {
        &self.0.must_be_here().machine.status.counters
    }

    /// Changes the replacement policy while regions are in use: a name, or `NAME:KEY=VALUE,...`
    /// ([`Builder::policy`](crate::Builder::policy)). Every page stays where it is and keeps its place in the order in which pages
    /// go; what the old policy remembers of pages that are out is lost.
    ///
    /// ```
    /// # use overspill::Pager;
    /// # fn main() -> Result<(), overspill::Error> {
    /// let pager = Pager::builder().memory(8 << 20).build()?;
    /// pager.set_policy("2q")?;
    /// assert_eq!(pager.policy(), "2q");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Policy`], with the names that there are, and [`Error::Forked`]; nothing is changed then.
    pub fn set_policy(&self, policy: &str) -> Result<(), Error> {
        let spec = policy.parse().map_err(Error::Policy)?;
        let machine = &self.0.here()?.machine;
        let _quiet = Quiet::new();
        machine.set_policy(&spec);
        Ok(())
    }

    /// The replacement policy, as [`Pager::set_policy`] takes it.
    pub fn policy(&self) -> String {
        let machine = &self.0.must_be_here().machine;
        let spec = {
            let _quiet = Quiet::new();
            machine.core.lock().vm.policy()
        };
        spec.to_string()
    }

    /// Where the first page that was lost had been (device and byte), and why it was, as a message; `None` as long as none was.
    pub fn first_loss(&self) -> Option<String> {
        let mut text = [0; 512];
        let n = self.0.must_be_here().machine.status.loss.copy_to(&mut text);
        (n > 0).then(|| String::from_utf8_lossy(&text[..n]).into_owned())
    }

    /// The bytes of the pager's own tables that are in use, which are not part of the budget. Walks some of them.
    pub fn metadata_bytes(&self) -> u64 {
        let machine = &self.0.must_be_here().machine;
        let _quiet = Quiet::new();
        machine.core.lock().vm.metadata_bytes()
    }

    /// How faults are delivered.
    pub fn delivery(&self) -> Delivery {
        self.0.shared.machine.config.delivery
    }

    /// For tests: the decisions that were remembered.
    #[doc(hidden)]
    pub fn decisions(&self) -> Vec<Decision> {
        let mut decisions = Vec::new();
        let machine = &self.0.must_be_here().machine;
        let _quiet = Quiet::new();
        decisions.extend_from_slice(machine.core.lock().vm.decisions());
        decisions
    }

    /// For tests: pages charged to the budget and slots in use now. Panics if the core does not add up.
    #[doc(hidden)]
    pub fn check(&self) -> (u64, u64) {
        let machine = &self.0.must_be_here().machine;
        let _quiet = Quiet::new();
        let map = machine.map.write(); // no page is under way
        let objects = map.origins.len() as u16;
        let core = machine.core.lock();
        core.vm.check(objects);
        (core.vm.charge_total(), core.vm.devices().used())
    }
}

impl fmt::Debug for Pager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_alive() {
            return f.write_str("Pager(of the process that forked)");
        }
        let c = self.counters();
        let (limit, used) = (c.memory_limit_bytes.get(), c.memory_used_bytes.get());
        write!(f, "Pager({} of {} MiB)", used >> 20, limit >> 20)
    }
}
