//! Random sequences of the actions of a program and its pager, and how they are shrunk to the few steps that matter.
//!
//! A sequence must have only one outcome, however its threads are scheduled. So one thread touches memory and may wait for a page.
//! The others change the address space and wait for their messages, which are read one at a time.

use crate::call::{Advice, Call, Progress, READ, READ_WRITE, READ_WRITE_EXEC};
use crate::lab::{self, Answer, Lab, Op, PARKING, THREADS, page};
use crate::model_lab::ModelLab;
use crate::pmap::{Message, PAGE, Present};
use crate::rng::Rng;

/// Pages that a sequence uses, from the first.
const FIELD: usize = 14;
/// Places that a sequence uses.
const PLACES: usize = 8;
/// The most forks in a sequence.
const FORKS: usize = 2;

/// Performs one step, unless it makes no sense: its thread is in a call, or the place to copy from is empty (the copy would wait
/// for itself).
pub fn step(lab: &mut dyn Lab, threads: &mut usize, op: Op) -> Option<Answer> {
    match op {
        Op::Call(thread, _) if thread >= *threads || !matches!(lab.progress(thread), Progress::Done(_)) => return None,
        Op::Kill(thread) if thread >= *threads || lab.progress(thread) == Progress::Dead => return None,
        Op::Restore(_, from, pages) => {
            let there = |n: usize| PARKING + n * PAGE;
            if !(from..from + pages).all(|n| matches!(lab.present(there(n)), Present::Page { .. })) {
                return None;
            }
        }
        _ => {}
    }
    *threads += usize::from(matches!(op, Op::Call(_, Call::Fork)));
    Some(lab::act(lab, op))
}

/// Performs all steps. Returns the answer of each (none for a step that was left out), and what can be seen of the memory in the
/// end.
pub fn run(lab: &mut dyn Lab, ops: &[Op]) -> (Vec<Option<Answer>>, String) {
    let mut threads = THREADS;
    let answers = ops.iter().map(|op| step(lab, &mut threads, *op)).collect();
    (answers, lab::state(lab))
}

/// A sequence of `steps` steps. They are chosen by their effects on the model; otherwise most would be refused.
pub fn sequence(seed: u64, steps: usize) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let mut model = ModelLab::new();
    let mut threads = THREADS;
    let pages = 1 + rng.below(FIELD - 4);
    let start = [
        Op::Call(0, Call::Map { at: page(0), len: pages * PAGE, prot: READ_WRITE, replace: false }),
        Op::Register(0, 1 + rng.below(pages), rng.below(2) == 0),
    ];
    let mut ops = Vec::new();
    // the page that the first thread waits for
    let mut fault = None;
    while ops.len() < steps {
        let op = start.get(ops.len()).copied().unwrap_or_else(|| choose(&mut rng, &mut model, threads, fault));
        if let Some(answer) = step(&mut model, &mut threads, op) {
            if let Answer::Messages(list) = answer
                && let Some(Message::Fault { at, .. }) = list.first()
            {
                fault = Some((at - lab::BASE) / PAGE);
            }
            ops.push(op);
        }
    }
    ops
}

fn choose(rng: &mut Rng, model: &mut ModelLab, threads: usize, fault: Option<usize>) -> Op {
    // threads that can make a call: the first one any call, the others only calls that never wait for a page
    let idle = |model: &mut ModelLab, thread: usize| matches!(model.progress(thread), Progress::Done(_));
    let toucher = idle(model, 0);
    let changer = (0..THREADS).find(|t| idle(model, *t));
    match rng.below(100) {
        // (rarely, because most sequences should have all threads)
        99 if rng.below(4) == 0 => Op::Kill(1 + rng.below(THREADS - 1)),
        0..44 if toucher || changer.is_some() => {
            let call = call(rng, threads < THREADS + FORKS);
            let touches = matches!(
                call,
                Call::Read { .. }
                    | Call::Write { .. }
                    | Call::KernelRead { .. }
                    | Call::Lock { .. }
                    | Call::Fork
                    | Call::Remap { .. }
                    | Call::Advise { advice: Advice::PopulateRead | Advice::PopulateWrite, .. }
            );
            match (touches, toucher, changer) {
                (true, true, _) => Op::Call(0, call),
                (false, _, Some(thread)) => Op::Call(thread, call),
                _ => Op::Read(1),
            }
        }
        // serve the fault
        0..52 if fault.is_some() && !toucher => {
            let at = fault.expect("just asked");
            rng.pick(&[Op::CopyIn(at, 1, 50), Op::Wake(at, 1), Op::Wake(at, 1), Op::ZeroIn(at, 1), Op::Protect(at, 1, false)])
        }
        0..58 if threads > THREADS => {
            let child = THREADS + rng.below(threads - THREADS);
            let at = page(rng.below(FIELD));
            match rng.below(8) {
                0 => Op::Kill(child),
                1 | 2 => Op::Call(child, Call::Write { at, byte: 60 }),
                3 => Op::Call(child, Call::Unmap { at, len: PAGE }),
                _ => Op::Call(child, Call::Read { at }),
            }
        }
        0..70 => Op::Read(1),
        _ => pager(rng),
    }
}

fn call(rng: &mut Rng, forks: bool) -> Call {
    let number = rng.below(FIELD);
    let at = page(number);
    // now and then an unaligned address, or an empty range
    let at = if rng.below(60) == 0 { at + 8 } else { at };
    let len = if rng.below(60) == 0 { 0 } else { (1 + rng.below(4)) * PAGE };
    let prot = rng.pick(&[READ_WRITE, READ_WRITE, READ_WRITE, READ, 0, READ_WRITE_EXEC]);
    match rng.below(100) {
        0..10 => Call::Map { at, len, prot: if rng.below(2) == 0 { READ_WRITE } else { prot }, replace: rng.below(4) > 0 },
        10..18 => Call::Unmap { at, len },
        18..36 => {
            let new_len = rng.pick(&[len, len, len + PAGE, len.saturating_sub(PAGE), len + 3 * PAGE]);
            let to = (rng.below(3) > 0).then(|| page(rng.below(FIELD + 6)));
            Call::Remap { from: at, len, new_len, to, keep: to.is_some() && rng.below(5) == 0 }
        }
        36..46 => Call::Protect { at, len, prot },
        46..70 => {
            use Advice::*;
            let often = [DontNeed, DontNeed, DontNeed, Free, PopulateWrite, GuardInstall];
            let rest = [Cold, DontFork, DoFork, WipeOnFork, KeepOnFork, PopulateRead, GuardRemove];
            Call::Advise { at, len, advice: if rng.below(2) == 0 { rng.pick(&often) } else { rng.pick(&rest) } }
        }
        70..73 => Call::Lock { at, len },
        73..77 => Call::Unlock { at, len },
        77..85 => Call::Read { at },
        85..94 => Call::Write { at, byte: 70 + number as u8 },
        94..96 => Call::KernelRead { at },
        _ if forks => Call::Fork,
        _ => Call::Read { at },
    }
}

fn pager(rng: &mut Rng) -> Op {
    let (at, pages) = (rng.below(FIELD), 1 + rng.below(3));
    let place = rng.below(PLACES);
    match rng.below(100) {
        0..20 => Op::CopyIn(at, pages, 10 + at as u8),
        20..26 => Op::ZeroIn(at, pages),
        26..34 => Op::Restore(at, place, pages),
        34..54 => Op::Take(at, place, pages),
        54..62 => Op::GiveBack(at, place, pages),
        62..66 => Op::ParkCopy(place, 30 + place as u8),
        66..72 => Op::DropParked(place),
        72..82 => Op::Register(at, 1 + rng.below(8), rng.below(2) == 0),
        82..84 => Op::Unregister(at, pages),
        84..88 => Op::Poison(at, pages),
        88..93 => Op::Protect(at, pages, rng.below(3) > 0),
        93..96 => Op::Wake(at, 1),
        _ => Op::Unshare(at),
    }
}

/// The shortest sequence for which `differs` still holds that leaving steps out leads to.
pub fn shrink(ops: &[Op], mut differs: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut ops = ops.to_vec();
    let mut chunk = ops.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < ops.len() {
            let fewer: Vec<Op> = [&ops[..at], &ops[(at + chunk).min(ops.len())..]].concat();
            if differs(&fewer) {
                ops = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    ops
}
