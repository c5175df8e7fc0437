//! Random sequences on the simulated kernel and on Linux: all answers, and the state in the end, must be the same.
//!
//! `OVERSPILL_SEEDS` sets the number of sequences, `OVERSPILL_SEED` a single one.

mod linux;

use linux::LinuxLab;
use overspill_simkernel::call::{Advice, Call};
use overspill_simkernel::lab::Op;
use overspill_simkernel::model_lab::ModelLab;
use overspill_simkernel::random::{run, sequence, shrink};

/// The number of sequences, and of steps in each.
const SEEDS: u64 = 1000;
const STEPS: usize = 40;

#[test]
fn random_sequences_end_alike() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("OVERSPILL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OVERSPILL_SEEDS").unwrap_or(SEEDS),
    };
    let both = |ops: &[Op]| Some((run(&mut ModelLab::new(), ops), run(&mut LinuxLab::new()?, ops)));
    for seed in seeds {
        let ops = std::panic::catch_unwind(|| sequence(seed, STEPS)).unwrap_or_else(|_| panic!("seed {seed}"));
        let Some((model, linux)) = both(&ops) else { return };
        if model != linux {
            let few = shrink(&ops, |few| both(few).is_some_and(|(model, linux)| model != linux));
            let ((model, model_left), (linux, linux_left)) = both(&few).expect("as before");
            let lines = few.iter().zip(model.iter().zip(&linux)).map(|(op, (model, linux))| {
                let differs = if model == linux { String::new() } else { format!("\n    Linux: {linux:x?}") };
                format!("  {op:x?} -> {model:x?}{differs}\n")
            });
            let lines: String = lines.collect();
            panic!("seed {seed} (numbers in hexadecimal):\n{lines}left by the model:\n{model_left}by Linux:\n{linux_left}");
        }
    }
}

/// Checks that a difference would be noticed. Here the other kernel is the model, too, but for one kind of step it does another.
#[test]
fn a_difference_is_found_and_shrunk() {
    type Mistake = fn(Op) -> Op;
    const MISTAKES: [(&str, Mistake); 6] =
        [
            ("freed pages go at once", |op| advice_instead(op, Advice::Free, Advice::DontNeed)),
            ("guards are taken for a discard", |op| advice_instead(op, Advice::GuardInstall, Advice::DontNeed)),
            ("a wiped range is not", |op| advice_instead(op, Advice::WipeOnFork, Advice::KeepOnFork)),
            ("what is moved is always unmapped", |op| match op {
                Op::Call(thread, Call::Remap { from, len, new_len, to, .. }) => {
                    Op::Call(thread, Call::Remap { from, len, new_len, to, keep: false })
                }
                op => op,
            }),
            ("a page of zeroes takes the place of marks", |op| {
                if let Op::ZeroIn(at, pages) = op { Op::CopyIn(at, pages, 0) } else { op }
            }),
            ("all that is registered protects", |op| {
                if let Op::Register(at, pages, _) = op { Op::Register(at, pages, true) } else { op }
            }),
        ];
    for (name, mistake) in MISTAKES {
        let differs = |ops: &[Op]| {
            let wrong: Vec<Op> = ops.iter().map(|op| mistake(*op)).collect();
            run(&mut ModelLab::new(), ops) != run(&mut ModelLab::new(), &wrong)
        };
        let found = (0..SEEDS).map(|seed| sequence(seed, STEPS)).find(|ops| differs(ops));
        let few = shrink(&found.unwrap_or_else(|| panic!("{name}: not found")), differs);
        assert!(few.len() <= 8, "{name}: {few:x?}");
        println!("{name}: {} steps", few.len());
    }
}

/// Replaces one piece of advice by another.
fn advice_instead(op: Op, from: Advice, to: Advice) -> Op {
    match op {
        Op::Call(thread, Call::Advise { at, len, advice }) if advice == from => {
            Op::Call(thread, Call::Advise { at, len, advice: to })
        }
        op => op,
    }
}
