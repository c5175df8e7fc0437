//! The handle of a pager, and the end of a pager.

use crate::error::Error;
use crate::fault;
use crate::quiet::Quiet;
use crate::reads;
use crate::shared::Shared;
use overspill_linux::machine::Delivery;
use overspill_machine::packet::Packet;
use overspill_vm::counters::Counters;
use overspill_vm::policy::Spec;
use overspill_vm::types::ObjectId;
use overspill_vm::{Decision, POLICIES_MAX, PolicyCounts};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A replacement policy in use, and what became of its pages.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PolicyUse {
    /// As [`Pager::set_policy`] takes it.
    pub policy: String,
    /// The region that has it for itself: the name of its file, or its size and place. Empty for the pager's policy.
    pub region: String,
    /// What became of its pages.
    pub counts: PolicyCounts,
}

/// What is left for regions.
pub struct Regions {
    /// Object numbers that no region uses.
    pub free: Vec<u16>,
    /// Pages that may still be managed.
    pub pages_left: u64,
    /// Pages that the program may still wire.
    pub wired_left: u64,
    /// Pages that copies and transfers may still wire while they are under way.
    pub moments_left: u64,
}

/// Owns the pager: its drop ends the threads.
pub struct Owner {
    pub shared: Arc<Shared>,
    pub place: usize,
    pub threads: Vec<JoinHandle<()>>,
    pub regions: Mutex<Regions>,
    /// [`Regions::moments_left`] has grown.
    pub moment_over: Condvar,
}

impl Owner {
    pub fn regions(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process made the pager. A forked child has a copy that it cannot use.
    pub fn is_alive(&self) -> bool {
        fault::is_here(self.place, &*self.shared)
    }

    /// The pager's shared state. It must not be used in a forked child: its descriptors act on the parent's memory, and its locks
    /// may be held by threads that do not exist there.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn here(&self) -> Result<&Shared, Error> {
        if self.is_alive() { Ok(&self.shared) } else { Err(Error::Forked) }
    }

    /// As [`Owner::here`], for calls that cannot return an error.
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
            // In a forked child: there are no threads to join, and the descriptors are shared with the parent's pager.
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
        self.shared.write_back.end();
        reads::ring(&self.shared.quit);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        fault::leave(self.place);
    }
}

/// A pager: a memory budget, a swap file, and the threads that keep regions within the budget.
///
/// This is a handle: clones are the same pager. When the last clone and the last [`Region`](crate::Region) are dropped, its threads
/// end and the swap file is gone.
///
/// In a forked child every call returns [`Error::Forked`], or panics with the same message if it cannot return an error. To drop
/// the pager and its regions is safe there.
#[derive(Clone)]
pub struct Pager(pub(crate) Arc<Owner>);

impl Pager {
    /// Whether this process built the pager. A forked child did not: there, calls return [`Error::Forked`] or panic.
    pub fn is_here(&self) -> bool {
        self.0.is_alive()
    }

    /// The pager's counters. The values go on changing; `overspill stat` shows them as well.
    pub fn counters(&self) -> &Counters {
        &self.0.must_be_here().machine.status.counters
    }

    /// Changes the replacement policy while regions are in use, except for those that have one of their own
    /// ([`Region::set_policy`](crate::Region::set_policy)): a name, or `NAME:KEY=VALUE,...`
    /// ([`Builder::policy`](crate::Builder::policy)). Every page stays where it is, and the order of eviction is kept. The old
    /// policy's history of pages that are out is lost.
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
    /// [`Error::Policy`], with the names of all policies, and [`Error::Forked`]. After an error nothing is changed.
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

    /// The replacement policies in use, and what became of their pages: first the pager's, then those of regions.
    pub fn policies(&self) -> Vec<PolicyUse> {
        let machine = &self.0.must_be_here().machine;
        let mut all = Vec::with_capacity(POLICIES_MAX);
        {
            let _quiet = Quiet::new();
            machine.core.lock().vm.each_policy(|spec, object, counts| all.push((spec, object, counts)));
        }
        let name = |object| {
            let (mut name, _quiet) = (Packet::new(), Quiet::new());
            machine.put_name(&machine.map.read(), object, &mut name);
            String::from_utf8_lossy(name.bytes()).into_owned()
        };
        let each = |(spec, object, counts): (Spec, Option<ObjectId>, PolicyCounts)| PolicyUse {
            policy: spec.to_string(),
            region: object.map_or(String::new(), name),
            counts,
        };
        all.into_iter().map(each).collect()
    }

    /// A message about the first page that was lost: its device and byte, and the reason. `None` if none was lost.
    pub fn first_loss(&self) -> Option<String> {
        let mut text = [0; 512];
        let n = self.0.must_be_here().machine.status.loss.copy_to(&mut text);
        (n > 0).then(|| String::from_utf8_lossy(&text[..n]).into_owned())
    }

    /// The bytes in use of the pager's own tables, which the budget does not cover. Walks some of the tables.
    pub fn metadata_bytes(&self) -> u64 {
        let machine = &self.0.must_be_here().machine;
        let _quiet = Quiet::new();
        machine.core.lock().vm.metadata_bytes()
    }

    /// Pages that may still be managed.
    pub(crate) fn pages_left(&self) -> u64 {
        self.0.regions().pages_left
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

    /// For tests: pages charged to the budget and slots in use now. Panics if an invariant of the core does not hold.
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
