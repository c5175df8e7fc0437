//! Questions with more than one answer: Linux's answers must be among the model's, and the model must give each of its own.

mod linux;

use linux::LinuxLab;
use overspill_simkernel::model_lab::ModelLab;
use overspill_simkernel::rules::races::{self, MOVES_UNDER_ADVICE};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long Linux is asked. It gives the rare answers only on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(1);

#[test]
fn moves_under_advice() {
    let expected: BTreeSet<String> = MOVES_UNDER_ADVICE.map(str::to_string).into();
    assert_eq!(races::moves_under_advice(&mut ModelLab::new(), 1000), expected);
    let until = Instant::now() + PATIENCE;
    let mut seen = BTreeSet::new();
    while seen != expected && Instant::now() < until {
        let Some(mut linux) = LinuxLab::new() else { return };
        seen.extend(races::moves_under_advice(&mut linux, 1000));
        assert!(seen.is_subset(&expected), "{seen:?}");
    }
    println!("Linux: {seen:?}");
}
