//! The simulated kernel: address spaces, userfaultfds, and tasks that run or wait.
//!
//! A call is a list of steps. A step is done at once, or the task waits there. It waits for a page until its address is woken; then
//! it takes the step again. Or it waits for a message to be read; then it goes on, and only then does the call count as over. The
//! driver of the kernel chooses which task goes on next: [`Kernel::run`].

use crate::call::{Advice, Call, Outcome, Progress, SIGBUS};
use crate::errno::*;
use crate::fault::Access;
use crate::pmap::{Message, PAGE};
use crate::remap::Remap;
use crate::rng::Rng;
use crate::space::{Notice, Space};
use crate::table::Entry;
use crate::uffd::{Fault, Uffd};
use crate::vma::*;
use std::collections::VecDeque;

/// The next step of a task.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A message is sent, and the task waits until it is read.
    Send(Notice),
    /// A byte is read.
    Read { at: usize, in_kernel: bool },
    /// A byte is written.
    Write { at: usize, byte: u8 },
    /// Advice, mapping by mapping, from `at` on. `hole`: there was a hole before.
    Advise { at: usize, end: usize, advice: Advice, hole: bool },
    /// A discard whose message was read is carried out, as far as the memory is still mapped. Then the next mapping is looked at.
    Discard { at: usize, until: usize, end: usize, advice: Advice, hole: bool },
    /// Pages are brought in.
    Populate { at: usize, end: usize, how: Populate },
}

/// Why pages are brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Populate {
    /// MADV_POPULATE_READ and _WRITE: a page that cannot be brought in is an error.
    Advised { write: bool },
    /// mlock: writable memory, for writing.
    Locked,
    /// A mapping that has grown: errors are ignored.
    Grown,
}

/// The state of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Runs,
    Waits,
    /// Its message was read: it goes on as soon as it runs.
    Released(usize),
    Done,
    Dead,
}

/// A thread of a program.
#[derive(Clone, Debug)]
struct Task {
    space: usize,
    state: State,
    steps: VecDeque<Step>,
    outcome: Outcome,
}

/// The kernel.
#[derive(Clone, Default, Debug)]
pub struct Kernel {
    /// Address spaces.
    pub spaces: Vec<Space>,
    /// Userfaultfds.
    pub uffds: Vec<Uffd>,
    tasks: Vec<Task>,
    /// If set, pages are isolated for moments and their entries change, at random. A move may then be refused for no lasting
    /// reason, or denied although it was made.
    pub disturbed: Option<Rng>,
    /// If set, writes fill their page, or a part of it, with noise from this. Some of the noise is addresses.
    pub noise: Option<Rng>,
}

impl Kernel {
    /// Makes an empty address space. Returns its number.
    pub fn new_space(&mut self) -> usize {
        self.spaces.push(Space::default());
        self.spaces.len() - 1
    }

    /// Makes a thread in an address space. Returns its number.
    pub fn new_task(&mut self, space: usize) -> usize {
        self.tasks.push(Task { space, state: State::Done, steps: VecDeque::new(), outcome: Outcome::Ok(0) });
        self.tasks.len() - 1
    }

    /// Makes a userfaultfd for an address space. Returns its number.
    pub fn new_uffd(&mut self, space: usize, events: bool) -> usize {
        self.uffds.push(Uffd { space, events, ..Uffd::default() });
        self.uffds.len() - 1
    }

    /// The address space of a task.
    pub fn space_of(&self, task: usize) -> usize {
        self.tasks[task].space
    }

    /// Whether a task can go on.
    pub fn can_run(&self, task: usize) -> bool {
        matches!(self.tasks[task].state, State::Runs | State::Released(_))
    }

    /// All tasks that can go on.
    pub fn runnable(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.tasks.len()).filter(|task| self.can_run(*task))
    }

    /// The state of a task. (A task that can go on counts as waiting.)
    pub fn progress(&self, task: usize) -> Progress {
        match self.tasks[task].state {
            State::Done => Progress::Done(self.tasks[task].outcome),
            State::Dead => Progress::Dead,
            State::Runs | State::Waits | State::Released(_) => Progress::Waits,
        }
    }

    /// A task begins a call, up to its act: the changes are made, but no message is sent yet.
    ///
    /// # Panics
    /// If it is in a call already.
    pub fn start(&mut self, task: usize, call: Call) {
        assert_eq!(self.tasks[task].state, State::Done, "{call:?}");
        self.tasks[task].state = State::Runs;
        let number = self.tasks[task].space;
        let space = &mut self.spaces[number];
        let mut notices = Vec::new();
        let mut steps = VecDeque::new();
        let result = match call {
            Call::Map { at, len, prot, replace } => space.map(at, len, prot, replace, &mut notices),
            Call::Unmap { at, len } => space.unmap(at, len, &mut notices),
            Call::Remap { from, len, new_len, to, keep } => {
                let remapped = space.remap(Remap { from, len, new_len, to, keep });
                steps.extend(remapped.populate.map(|(at, end)| Step::Populate { at, end, how: Populate::Grown }));
                notices = remapped.notices;
                remapped.result
            }
            Call::Protect { at, len, prot } => {
                let mut populate = Vec::new();
                let result = space.protect(at, len, prot, &mut populate);
                for (start, end) in populate {
                    // as far as that does not wait for a handler
                    let _ = (start..end).step_by(PAGE).try_for_each(|at| match space.fault(at, true) {
                        Access::Allowed => Ok(()),
                        _ => Err(()),
                    });
                }
                result
            }
            Call::Advise { at, len, .. } if !at.is_multiple_of(PAGE) || at.checked_add(len).is_none() => Err(EINVAL),
            Call::Advise { at, len, advice } => {
                let end = at + len.next_multiple_of(PAGE);
                steps.push_back(match advice {
                    Advice::PopulateRead => Step::Populate { at, end, how: Populate::Advised { write: false } },
                    Advice::PopulateWrite => Step::Populate { at, end, how: Populate::Advised { write: true } },
                    _ => Step::Advise { at, end, advice, hole: false },
                });
                Ok(0)
            }
            Call::Lock { at, len } => {
                let result = space.flag_range(at, len, LOCKED, 0);
                let (at, end) = (at / PAGE * PAGE, (at + len).next_multiple_of(PAGE));
                if result.is_ok() {
                    steps.push_back(Step::Populate { at, end, how: Populate::Locked });
                }
                result
            }
            Call::Unlock { at, len } => space.flag_range(at, len, 0, LOCKED),
            Call::Seal { at, len } => space.flag_range(at, len, SEALED, 0),
            Call::Read { at } => {
                steps.push_back(Step::Read { at, in_kernel: false });
                Ok(0)
            }
            Call::KernelRead { at } => {
                steps.push_back(Step::Read { at, in_kernel: true });
                Ok(0)
            }
            Call::Write { at, byte } => {
                steps.push_back(Step::Write { at, byte });
                Ok(0)
            }
            Call::Fork => {
                let child = space.fork();
                self.spaces.push(child);
                Ok(self.new_task(self.spaces.len() - 1))
            }
            Call::CopyIn { at, byte } => match self.copy(0, at, &[[byte; PAGE]]) {
                crate::pmap::Moved { error: Some(e), .. } => Err(e),
                crate::pmap::Moved { bytes, .. } => Ok(bytes),
            },
        };
        for (uffd, message) in notices {
            self.uffds[uffd].changing += 1;
            steps.push_back(Step::Send((uffd, message)));
        }
        let task = &mut self.tasks[task];
        (task.steps, task.outcome) = (steps, result.map_or_else(Outcome::Err, Outcome::Ok));
    }

    /// Lets a task that can go on do so, until it waits or its call has returned.
    pub fn run(&mut self, task: usize) {
        if let State::Released(uffd) = self.tasks[task].state {
            self.uffds[uffd].changing -= 1;
            self.tasks[task].state = State::Runs;
        }
        while self.tasks[task].state == State::Runs {
            match self.tasks[task].steps.pop_front() {
                Some(step) => self.step(task, step),
                None => self.tasks[task].state = State::Done,
            }
        }
    }

    fn step(&mut self, task: usize, step: Step) {
        let number = self.tasks[task].space;
        let answer = |access| match access {
            Access::Waits(uffd) if self.uffds[uffd].signals => Access::Signal(SIGBUS),
            access => access,
        };
        match step {
            Step::Send((uffd, message)) => {
                self.uffds[uffd].notices.push_back((task, message));
                self.tasks[task].state = State::Waits;
            }
            Step::Read { at, in_kernel } => match answer(self.spaces[number].fault(at, false)) {
                Access::Allowed => self.tasks[task].outcome = Outcome::Ok(self.spaces[number].bytes(at)[at % PAGE] as usize),
                Access::Signal(_) if in_kernel => self.tasks[task].outcome = Outcome::Err(EFAULT),
                Access::Signal(signal) => self.tasks[task].outcome = Outcome::Signal(signal),
                Access::Waits(uffd) => self.wait_for_page(task, step, uffd, at, false),
            },
            Step::Write { at, byte } => match answer(self.spaces[number].fault(at, true)) {
                Access::Allowed => {
                    let bytes = self.spaces[number].bytes_mut(at);
                    if let Some(noise) = &mut self.noise {
                        let words = noise.below(PAGE / 4); // in half of the cases the whole page
                        bytes.as_chunks_mut().0.iter_mut().take(words).for_each(|word| {
                            let near = noise.below(8) == 0;
                            *word = if near { (at + noise.below(1 << 20)) as u64 } else { noise.bits() }.to_ne_bytes();
                        });
                    }
                    bytes[at % PAGE] = byte;
                }
                Access::Signal(signal) => self.tasks[task].outcome = Outcome::Signal(signal),
                Access::Waits(uffd) => self.wait_for_page(task, step, uffd, at, true),
            },
            Step::Advise { at, end, advice, hole } => self.advise(task, at, end, advice, hole),
            Step::Discard { at, until, end, advice, hole } => self.discard(task, at, until, end, advice, hole),
            Step::Populate { at, end, how } => self.populate(task, at, end, how),
        }
    }

    /// Sends a fault message for the task, which waits. When it is woken, it takes the step again.
    fn wait_for_page(&mut self, task: usize, step: Step, uffd: usize, at: usize, write: bool) {
        let message = Message::Fault { at: at / PAGE * PAGE, write };
        self.uffds[uffd].pending.push_back(Fault { task, message });
        self.tasks[task].steps.push_front(step);
        self.tasks[task].state = State::Waits;
    }

    fn advise(&mut self, task: usize, at: usize, end: usize, advice: Advice, hole: bool) {
        let space = &mut self.spaces[self.tasks[task].space];
        let Some(vma) = space.first_in(at, end).cloned() else {
            if hole || at < end {
                self.tasks[task].outcome = Outcome::Err(ENOMEM);
            }
            return;
        };
        let hole = hole || at < vma.start;
        let (start, until) = (vma.start.max(at), vma.end.min(end));
        let takes = matches!(advice, Advice::DontNeed | Advice::Free | Advice::Cold | Advice::GuardInstall);
        if takes && vma.is(LOCKED) {
            self.tasks[task].outcome = Outcome::Err(EINVAL);
            return;
        }
        let mut rest = Step::Advise { at: until, end, advice, hole };
        match advice {
            Advice::DontNeed | Advice::Free => {
                rest = Step::Discard { at: start, until, end, advice, hole };
                if let Some(r) = vma.uffd.filter(|r| r.events) {
                    self.uffds[r.uffd].changing += 1;
                    let notice = (r.uffd, Message::Remove { start, end: until });
                    self.tasks[task].steps.extend([Step::Send(notice), rest]);
                    return;
                }
            }
            Advice::Cold | Advice::PopulateRead | Advice::PopulateWrite => {}
            Advice::DontFork => drop(space.set_flags(start, until, DONT_FORK, 0)),
            Advice::DoFork => drop(space.set_flags(start, until, 0, DONT_FORK)),
            Advice::WipeOnFork => drop(space.set_flags(start, until, WIPE_ON_FORK, 0)),
            Advice::KeepOnFork => drop(space.set_flags(start, until, 0, WIPE_ON_FORK)),
            Advice::GuardInstall => {
                space.prepare(start);
                (start..until).step_by(PAGE).for_each(|at| drop(space.table.insert(at, Entry::Guard)));
            }
            Advice::GuardRemove => {
                let guards = (start..until).step_by(PAGE).filter(|at| matches!(space.table.get(at), Some(Entry::Guard)));
                guards.collect::<Vec<_>>().iter().for_each(|at| drop(space.table.remove(at)));
            }
        }
        self.tasks[task].steps.push_front(rest);
    }

    /// Carries out a discard. Its mapping may have gone, or become shorter, while its message waited to be read.
    fn discard(&mut self, task: usize, at: usize, until: usize, end: usize, advice: Advice, hole: bool) {
        let space = &mut self.spaces[self.tasks[task].space];
        let Some(vma) = space.find(at) else {
            self.tasks[task].outcome = Outcome::Err(ENOMEM);
            return;
        };
        let until = until.min(vma.end);
        if vma.is(LOCKED) {
            self.tasks[task].outcome = Outcome::Err(EINVAL);
            return;
        }
        let there: Vec<usize> = space.table.range(at..until).map(|(at, _)| *at).collect();
        for page in there {
            let goes = match (&space.table[&page], advice) {
                (Entry::Guard, _) => false,
                (Entry::Poison | Entry::Page { swapped: true, .. }, _) => true,
                // the pages stay until memory is short, and for good if they are written again
                (_, Advice::Free) => false,
                _ => true,
            };
            if goes {
                space.table.remove(&page);
            }
        }
        self.tasks[task].steps.push_front(Step::Advise { at: until, end, advice, hole });
    }

    fn populate(&mut self, task: usize, at: usize, end: usize, how: Populate) {
        let number = self.tasks[task].space;
        let mut at = at;
        while at < end {
            let vma = self.spaces[number].find(at).cloned();
            if vma.is_none() && !matches!(how, Populate::Advised { .. }) {
                // unmapped meanwhile
                at = self.spaces[number].first_in(at, end).map_or(end, |next| next.start);
                continue;
            }
            let write = match how {
                Populate::Advised { write } => write,
                Populate::Locked | Populate::Grown => vma.as_ref().is_some_and(Vma::writable),
            };
            match self.spaces[number].fault(at, write) {
                Access::Allowed => at += PAGE,
                Access::Waits(uffd) => {
                    return self.wait_for_page(task, Step::Populate { at, end, how }, uffd, at, write);
                }
                Access::Signal(signal) => {
                    let allowed = vma.as_ref().is_some_and(|vma| if write { vma.writable() } else { vma.prot != 0 });
                    let error = match how {
                        Populate::Grown => return,
                        Populate::Locked => ENOMEM,
                        Populate::Advised { .. } if signal == SIGBUS => EHWPOISON,
                        Populate::Advised { .. } if vma.is_none() => ENOMEM,
                        Populate::Advised { .. } if allowed => EFAULT, // a guard
                        Populate::Advised { .. } => EINVAL,
                    };
                    self.tasks[task].outcome = Outcome::Err(error);
                    return;
                }
            }
        }
    }

    /// UFFDIO_WAKE.
    pub fn wake(&mut self, uffd: usize, at: usize, len: usize) {
        for task in self.uffds[uffd].woken(at, len) {
            self.tasks[task].state = State::Runs;
        }
    }

    /// Reads one message, faults first. After an event its sender goes on as soon as it runs.
    pub fn read_message(&mut self, uffd: usize) -> Option<Message> {
        if let Some(fault) = self.uffds[uffd].pending.pop_front() {
            self.uffds[uffd].told.push(fault);
            return Some(fault.message);
        }
        let (task, message) = self.uffds[uffd].notices.pop_front()?;
        self.tasks[task].state = State::Released(uffd);
        Some(message)
    }

    /// A fatal signal. An unread message of the task's is withdrawn, and later messages of its call are not sent. But a discard
    /// that it has begun is carried out.
    pub fn kill(&mut self, task: usize) {
        if let State::Released(uffd) = self.tasks[task].state {
            self.uffds[uffd].changing -= 1;
        }
        for uffd in &mut self.uffds {
            uffd.changing -= uffd.notices.iter().filter(|(sender, _)| *sender == task).count() as u32;
            uffd.forget(task);
        }
        while let Some(step) = self.tasks[task].steps.pop_front() {
            match step {
                Step::Send((uffd, _)) => self.uffds[uffd].changing -= 1,
                Step::Advise { .. } | Step::Discard { .. } => self.step(task, step),
                Step::Read { .. } | Step::Write { .. } | Step::Populate { .. } => {}
            }
        }
        self.tasks[task].state = State::Dead;
    }
}
