//! Programs that lock memory, under `overspill run`.

use crate::common::{able, build, place};
use crate::runs::{no_swap_file_left, run, swap_option};

/// One mlock of more than a quarter of the budget was refused with EPERM, but several that together exceeded the budget were not.
/// mlock2 was not followed, and no mlockall was possible. So programs that lock their memory, such as real-time programs and
/// keepers of secrets, did not run. munlockall unlocked the page of the pager's keys.
#[test]
fn what_fits_is_locked() {
    if !able() {
        return;
    }
    let dir = place("locks");
    let program = build(&dir, "locks.c");
    let swap = swap_option(&dir, "");
    let r = run(&dir, &["--memory", "16M", "--swap", &swap], None, &program, &[]);
    assert_eq!(String::from_utf8_lossy(&r.output.stdout), "all as it should be\n", "{:?}", r.output);
    assert!(r.output.status.success() && r.stat("pages_out") > 1000, "{}", r.stats);
    no_swap_file_left(&dir);
    std::fs::remove_dir_all(&dir).expect("cleanup");
}
