//! Questions with more than one answer: it is not known which thread runs first, or the kernel isolates pages meanwhile. The result
//! is a set of answers. Linux's answers must be among the model's, and the model must give each of its own.

use super::*;
use crate::lab::{Lab, PARKING};
use crate::pmap::ParkPlace;
use std::collections::BTreeSet;

/// UFFDIO_MOVE while another thread's advice clears the pages' accessed bits and isolates them for moments. A page may be refused
/// for no lasting reason (EBUSY). And Linux 6.18 denies some moves that it has made: it says EEXIST, or fewer bytes than it moved.
/// The pager believed that, and a Python program read zeroes. A page whose move was denied is at the target. The pages go out and
/// back `tries` times.
pub fn moves_under_advice(lab: &mut dyn Lab, tries: usize) -> BTreeSet<String> {
    const RUN: usize = 16;
    let mut session = Session::new(lab);
    managed(&mut session, 0, RUN);
    session.transfer(Op::CopyIn(0, RUN, 5));
    let mut answers = BTreeSet::new();
    lab.disturb(true);
    for _ in 0..tries {
        for out in [true, false] {
            let to = if out { PARKING } else { page(0) };
            let mut done = 0;
            while done < RUN {
                let (at, place, left) = (page(done), ParkPlace(done), RUN - done);
                let moved = if out { lab.take(at, place, left) } else { lab.give_back(at, place, left) };
                let told = done + moved.bytes / PAGE;
                done = (told..RUN).find(|n| !lab.resident(to + n * PAGE)).unwrap_or(RUN);
                answers.insert(match moved.error {
                    None => String::from(if done == told { "done" } else { "fewer than it did" }),
                    Some(error) => format!("error {error}, {}", if done == told { "nothing done" } else { "and done" }),
                });
            }
        }
    }
    lab.disturb(false);
    assert!((0..RUN).all(|n| lab.peek(page(n)) == 5));
    answers
}

/// The model's answers.
pub const MOVES_UNDER_ADVICE: [&str; 4] = ["done", "error 16, nothing done", "error 17, and done", "fewer than it did"];
