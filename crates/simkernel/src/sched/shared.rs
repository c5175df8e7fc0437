//! The simulated kernel among actors: program threads make calls on it and wait in them; pager threads act on it and wait for
//! messages.

use super::{Timeout, Word, turn};
use crate::call::{Call, Outcome, Progress};
use crate::kernel::Kernel;
use std::sync::Mutex;

/// A kernel that actors share. Each entry is atomic, as if the kernel had one lock. Another actor may go on before each entry.
#[derive(Debug)]
pub struct Shared {
    kernel: Mutex<Kernel>,
    /// For each task, how often it could go on.
    tasks: Vec<Word>,
    /// How often there was something to read.
    messages: Word,
}

impl Shared {
    /// Shares a kernel with this many tasks.
    pub fn new(kernel: Kernel, tasks: usize) -> Self {
        Shared { kernel: Mutex::new(kernel), tasks: (0..tasks).map(|_| Word::new(0)).collect(), messages: Word::new(0) }
    }

    /// Performs an action on the kernel, and wakes every actor that can go on because of it.
    pub fn enter<T>(&self, act: impl FnOnce(&mut Kernel) -> T) -> T {
        turn();
        let mut kernel = self.kernel.lock().expect("no actor panics in here and goes on");
        let readable = |kernel: &Kernel| kernel.uffds.iter().any(|uffd| uffd.readable());
        let result = act(&mut kernel);
        let able: Vec<usize> = kernel.runnable().collect();
        let told = readable(&kernel);
        drop(kernel);
        for word in able.iter().map(|task| &self.tasks[*task]).chain(told.then_some(&self.messages)) {
            word.add(1);
            word.wake(usize::MAX);
        }
        result
    }

    /// A task makes a call, and waits until it returns.
    pub fn call(&self, task: usize, call: Call) -> Outcome {
        self.call_if(task, call, |_| true).expect("it may")
    }

    /// The same, if `may` agrees to the state of the kernel at the moment when the call begins.
    pub fn call_if(&self, task: usize, call: Call, may: impl FnOnce(&Kernel) -> bool) -> Option<Outcome> {
        let begun = self.enter(|kernel| {
            let may = may(kernel);
            if may {
                kernel.start(task, call);
            }
            may
        });
        if !begun {
            return None;
        }
        loop {
            let seen = self.tasks[task].load();
            let progress = self.enter(|kernel| {
                if kernel.can_run(task) {
                    kernel.run(task);
                }
                kernel.progress(task)
            });
            match progress {
                Progress::Done(outcome) => return Some(outcome),
                Progress::Waits | Progress::Dead => self.tasks[task].wait(seen, Timeout::Never),
            };
        }
    }

    /// The argument for [`Shared::await_message`], to be read before messages are.
    pub fn messages_seen(&self) -> u32 {
        self.messages.load()
    }

    /// Waits until there has been something to read since.
    pub fn await_message(&self, seen: u32) {
        self.await_message_until(seen, Timeout::Never);
    }

    /// The same, with a time-out.
    pub fn await_message_until(&self, seen: u32, timeout: Timeout) {
        self.messages.wait(seen, timeout);
    }
}
