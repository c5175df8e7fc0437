//! Pager threads that stay on the CPU of the same-CPU handler, or off it.

use crate::sys;
use crate::wake_policy::WakePolicy;
use core::sync::atomic::Ordering::Relaxed;

/// Keeps a pager thread on the same-CPU handler's CPU, or off it, until this is dropped.
#[derive(Debug)]
pub struct Stays {
    on: bool,
    anywhere: [u64; 16],
    /// As in [`SameCpu`].
    cpu: u32,
}

impl Stays {
    /// The calling thread stays on that CPU. For the page daemon: a move flushes the TLB of each CPU on which the program runs, and
    /// an interrupt for another CPU takes six times as long as the rest of the move.
    pub fn on() -> Self {
        Stays { on: true, anywhere: sys::allowed_cpus(), cpu: 0 }
    }

    /// The calling thread stays off it. The scheduler takes that CPU for idle, so it would prefer it for the thread, and the
    /// handler would wait.
    pub fn off() -> Self {
        Stays { on: false, ..Stays::on() }
    }

    /// Follows a change of the same-CPU handler's CPU. To be called by the same thread, now and then.
    pub fn update(&mut self, policy: &WakePolicy) {
        let cpu = policy.same_cpu.cpu.load(Relaxed);
        if cpu != self.cpu {
            self.cpu = cpu;
            let cpus = match cpu.checked_sub(1).map(|cpu| cpu as usize) {
                None => self.anywhere,
                Some(cpu) if self.on => {
                    let only = sys::only_cpu(cpu);
                    core::array::from_fn(|i| self.anywhere[i] & only[i])
                }
                Some(cpu) => sys::without_cpu(self.anywhere, cpu),
            };
            // if no CPU is left, the kernel refuses, and the thread stays where it may run now
            sys::set_affinity(&cpus);
        }
    }
}

impl Drop for Stays {
    /// Lets the thread run on all its CPUs again.
    fn drop(&mut self) {
        if self.cpu != 0 {
            sys::set_affinity(&self.anywhere);
        }
    }
}
