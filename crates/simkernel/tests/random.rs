//! Random sequences on the simulated kernel and on Linux: all answers, and all that is left in the end, must be the same.
//!
//! `OVERSPILL_SEEDS` says how many, `OVERSPILL_SEED` which one.

mod linux;

use linux::LinuxLab;
use overspill_simkernel::lab::Op;
use overspill_simkernel::model_lab::ModelLab;
use overspill_simkernel::random::{run, sequence, shrink};

/// So many sequences of so many steps.
const SEEDS: u64 = 1000;
const STEPS: usize = 40;

fn logs(ops: &[Op]) -> Option<(Vec<String>, Vec<String>)> {
    let model = run(&mut ModelLab::new(), ops);
    let linux = run(&mut LinuxLab::new()?, ops);
    Some((model, linux))
}

#[test]
fn random_sequences_end_alike() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("OVERSPILL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OVERSPILL_SEEDS").unwrap_or(SEEDS),
    };
    for seed in seeds {
        let ops = std::panic::catch_unwind(|| sequence(seed, STEPS)).unwrap_or_else(|_| panic!("seed {seed}"));
        let Some((model, linux)) = logs(&ops) else { return };
        if model != linux {
            let few = shrink(&ops, |few| logs(few).is_some_and(|(model, linux)| model != linux));
            let (model, linux) = logs(&few).expect("as before");
            let line = model.iter().zip(&linux).position(|(a, b)| a != b).unwrap_or(model.len() - 1);
            let before = model[..line].join("\n  ");
            panic!("seed {seed} (numbers in hexadecimal): after\n  {before}\nthe model:\n{}\nLinux:\n{}", model[line], linux[line]);
        }
    }
}
