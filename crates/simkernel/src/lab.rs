//! The setting in which a question is asked: a program of a few threads, its pager, and a kernel below both, which is this crate's
//! model or Linux.
//!
//! The program's memory is [`PAGES`] pages at [`BASE`], all of them unmapped at first; the parking area is [`PLACES`] pages. Pages
//! and places are numbers here. The program has [`THREADS`] threads; a fork's child is one more.

use crate::call::{Call, Outcome, Progress};
use crate::errno::Errno;
use crate::pmap::{Message, Moved, PAGE, ParkPlace, Pmap, Present};
use std::fmt::Write;

/// The program's first address.
pub const BASE: usize = 1 << 40;
/// Pages that the program may map.
pub const PAGES: usize = 48;
/// The parking area's first address: in the same 2 MiB, so that both have one page table.
pub const PARKING: usize = BASE + 64 * PAGE;
/// Pages of the parking area.
pub const PLACES: usize = 32;
/// Threads of the program.
pub const THREADS: usize = 3;

/// The address of a page.
pub const fn page(number: usize) -> usize {
    BASE + number * PAGE
}

/// A program, its pager, and a kernel.
pub trait Lab: Pmap {
    /// A thread makes a call.
    fn start(&mut self, thread: usize, call: Call);
    /// Lets everybody go on who can, until nothing moves any more. Threads that are held stay.
    fn settle(&mut self);
    /// The state of a thread when nothing moves any more.
    fn progress(&mut self, thread: usize) -> Progress;
    /// Kills a thread alone, like a process of its own that shares the program's memory.
    fn kill(&mut self, thread: usize);
    /// Holds threads: one whose message was read does not run until the hold ends.
    fn hold(&mut self, on: bool);
    /// Has a device pin a page that is present, or release all.
    fn pin(&mut self, at: Option<usize>);
    /// Isolates pages for moments without anybody's knowledge, as advice, reclaim and tools that watch accesses do.
    fn disturb(&mut self, on: bool);
    /// The first byte of a page that is present, without a touch.
    fn peek(&mut self, at: usize) -> u8;
}

/// One action in a lab, by the program or by the pager. Pages and places are counted from the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A thread makes a call.
    Call(usize, Call),
    /// A thread is killed.
    Kill(usize),
    /// [`Pmap::copy_in`] of pages filled with a byte.
    CopyIn(usize, usize, u8),
    /// [`Pmap::zero_in`].
    ZeroIn(usize, usize),
    /// [`Pmap::restore`]: page, place, pages.
    Restore(usize, usize, usize),
    /// [`Pmap::take`]: page, place, pages.
    Take(usize, usize, usize),
    /// [`Pmap::give_back`]: page, place, pages.
    GiveBack(usize, usize, usize),
    /// [`Pmap::park_copy`] of a page filled with a byte.
    ParkCopy(usize, u8),
    /// [`Pmap::drop_parked`].
    DropParked(usize),
    /// [`Pmap::register`]: page, pages, whether it protects.
    Register(usize, usize, bool),
    /// [`Pmap::unregister`].
    Unregister(usize, usize),
    /// [`Pmap::poison`].
    Poison(usize, usize),
    /// [`Pmap::protect`]: page, pages, on.
    Protect(usize, usize, bool),
    /// [`Pmap::wake`].
    Wake(usize, usize),
    /// [`Pmap::unshare`].
    Unshare(usize),
    /// [`Pmap::messages`].
    Read(usize),
}

/// The answer to an action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Of a call, when nothing moves any more.
    Progress(Progress),
    /// Of a transfer.
    Moved(Moved),
    /// Of a change.
    Changed(Result<(), Errno>),
    /// Of a question.
    Is(bool),
    /// Of reading messages.
    Messages(Vec<Message>),
    /// Of an action without an answer.
    Nothing,
}

/// Performs an action, and lets everybody go on who can.
pub fn act(lab: &mut dyn Lab, op: Op) -> Answer {
    let answer = perform(lab, op);
    lab.settle();
    answer
}

fn perform(lab: &mut dyn Lab, op: Op) -> Answer {
    use Answer::*;
    let place = |number: usize| ParkPlace(number);
    match op {
        Op::Call(thread, call) => {
            lab.start(thread, call);
            Progress(lab.progress(thread))
        }
        Op::Kill(thread) => {
            lab.kill(thread);
            Progress(lab.progress(thread))
        }
        Op::CopyIn(at, pages, byte) => Moved(lab.copy_in(page(at), &vec![[byte; PAGE]; pages])),
        Op::ZeroIn(at, pages) => Moved(lab.zero_in(page(at), pages)),
        Op::Restore(at, from, pages) => Moved(lab.restore(page(at), place(from), pages)),
        Op::Take(at, to, pages) => Moved(lab.take(page(at), place(to), pages)),
        Op::GiveBack(at, from, pages) => Moved(lab.give_back(page(at), place(from), pages)),
        Op::ParkCopy(to, byte) => Moved(lab.park_copy(place(to), &[byte; PAGE])),
        Op::DropParked(at) => {
            lab.drop_parked(&[place(at)]);
            Nothing
        }
        Op::Register(at, pages, protects) => Changed(lab.register(page(at), pages * PAGE, protects)),
        Op::Unregister(at, pages) => Changed(lab.unregister(page(at), pages * PAGE)),
        Op::Poison(at, pages) => Changed(lab.poison(page(at), pages * PAGE)),
        Op::Protect(at, pages, on) => Changed(lab.protect(page(at), pages * PAGE, on)),
        Op::Wake(at, pages) => {
            lab.wake(page(at), pages * PAGE);
            Nothing
        }
        Op::Unshare(at) => Is(lab.unshare(page(at))),
        Op::Read(most) => Messages(lab.messages(most)),
    }
}

/// Everything that can be seen of the memory: the mappings, the content of each page, the parking area; one line each.
pub fn state(lab: &mut dyn Lab) -> String {
    let mut text = String::new();
    let number = |at: usize| (at - BASE) / PAGE;
    for m in lab.mappings(BASE, page(PAGES)) {
        let _ = writeln!(text, "mapping {}..{} {}", number(m.start), number(m.end), m.prot);
    }
    let places = (0..PLACES).map(|n| (format!("place {n}"), PARKING + n * PAGE));
    for (name, at) in (0..PAGES).map(|n| (format!("page {n}"), page(n))).chain(places) {
        let there = lab.present(at);
        let _ = match there {
            Present::Absent => Ok(()),
            Present::Page { protected } => {
                writeln!(text, "{name} holds {}{}", lab.peek(at), if protected { ", protected" } else { "" })
            }
            mark => writeln!(text, "{name} {mark:?}"),
        };
    }
    let _ = writeln!(text, "readable {} changing {}", lab.readable(), lab.changing());
    text
}

/// A lab in which a rule is asked. It logs the actions and their answers.
pub struct Session<'a> {
    /// The lab.
    pub lab: &'a mut dyn Lab,
    /// A line for each action.
    pub log: Vec<String>,
}

impl<'a> Session<'a> {
    /// A session in a fresh lab.
    pub fn new(lab: &'a mut dyn Lab) -> Self {
        Session { lab, log: Vec::new() }
    }

    /// Performs an action.
    pub fn act(&mut self, op: Op) -> Answer {
        let answer = act(self.lab, op);
        self.log.push(format!("{op:x?} -> {answer:x?}"));
        answer
    }

    /// Performs a transfer.
    pub fn transfer(&mut self, op: Op) -> Moved {
        match self.act(op) {
            Answer::Moved(moved) => moved,
            other => panic!("{op:?} is no transfer: {other:?}"),
        }
    }

    /// Performs a change by the pager.
    pub fn change(&mut self, op: Op) -> Result<(), Errno> {
        match self.act(op) {
            Answer::Changed(result) => result,
            other => panic!("{op:?} is no change: {other:?}"),
        }
    }

    /// Has a thread make a call.
    pub fn call(&mut self, thread: usize, call: Call) -> Progress {
        match self.act(Op::Call(thread, call)) {
            Answer::Progress(progress) => progress,
            other => panic!("{other:?}"),
        }
    }

    /// Has the first thread make a call that does not wait.
    pub fn now(&mut self, call: Call) -> Outcome {
        match self.call(0, call) {
            Progress::Done(outcome) => outcome,
            waits => panic!("{call:x?}: {waits:?}"),
        }
    }

    /// The state of a thread.
    pub fn progress(&mut self, thread: usize) -> Progress {
        let progress = self.lab.progress(thread);
        self.log.push(format!("thread {thread}: {progress:x?}"));
        progress
    }

    /// Reads one message.
    pub fn message(&mut self) -> Option<Message> {
        match self.act(Op::Read(1)) {
            Answer::Messages(list) => list.first().copied(),
            other => panic!("{other:?}"),
        }
    }

    /// What is at a page's address.
    pub fn present(&mut self, number: usize) -> Present {
        let present = self.lab.present(page(number));
        self.log.push(format!("page {number}: {present:?}"));
        present
    }

    /// The first byte of a page that is present.
    pub fn peek(&mut self, number: usize) -> u8 {
        let byte = self.lab.peek(page(number));
        self.log.push(format!("page {number} holds {byte}"));
        byte
    }

    /// Whether a call that changes mappings is under way.
    pub fn changing(&mut self) -> bool {
        let changing = self.lab.changing();
        self.log.push(format!("changing: {changing}"));
        changing
    }

    /// Logs everything that can be seen.
    pub fn note_state(&mut self) {
        let state = state(self.lab);
        self.log.extend(state.lines().map(str::to_string));
    }
}
