//! Watched pages (UFFDIO_RWPROTECT, asynchronous), in the model alone: no Linux that could be asked has them yet. The answers are
//! those of version 10 of the series "userfaultfd: working set tracking for VM guest memory".

use overspill_simkernel::call::{Call, READ_WRITE};
use overspill_simkernel::errno::{EBUSY, EINVAL, ENOENT, Errno};
use overspill_simkernel::kernel::Kernel;
use overspill_simkernel::pmap::PAGE;
use overspill_simkernel::vma::Registration;

const AT: usize = 0x10000 * PAGE;

fn page(number: usize) -> usize {
    AT + number * PAGE
}

fn register(kernel: &mut Kernel, number: usize, pages: usize, protects: bool, watches: bool) -> Result<(), Errno> {
    let with = Registration { uffd: 0, events: true, protects, watches };
    kernel.spaces[0].register(page(number), pages * PAGE, with)
}

/// Eight pages that can be watched; the first six are there.
fn kernel() -> Kernel {
    let mut kernel = Kernel::default();
    kernel.new_space();
    kernel.new_task(0);
    kernel.new_uffd(0, true);
    kernel.spaces[0].map(AT, 8 * PAGE, READ_WRITE, false, &mut Vec::new()).expect("nothing is there");
    assert_eq!(register(&mut kernel, 0, 8, false, true), Ok(()));
    assert_eq!(kernel.copy(0, AT, &[[1; PAGE]; 6]).bytes, 6 * PAGE);
    kernel
}

fn call(kernel: &mut Kernel, call: Call) {
    kernel.start(0, call);
    while kernel.can_run(0) {
        kernel.run(0);
    }
}

fn touched(kernel: &Kernel, space: usize) -> Vec<usize> {
    kernel.spaces[space].touched(AT, page(32)).iter().map(|at| (at - AT) / PAGE).collect()
}

#[test]
fn any_touch_is_told() {
    let mut kernel = kernel();
    assert_eq!(touched(&kernel, 0), [0, 1, 2, 3, 4, 5], "never watched");
    assert_eq!(kernel.watch(0, AT, 8 * PAGE), Ok(()));
    assert_eq!(touched(&kernel, 0), []);
    call(&mut kernel, Call::Read { at: page(1) });
    call(&mut kernel, Call::Write { at: page(2), byte: 3 });
    call(&mut kernel, Call::KernelRead { at: page(3) });
    assert_eq!(touched(&kernel, 0), [1, 2, 3]);
    // pages that come are not watched, and those that go are not told
    assert_eq!(kernel.copy(0, page(6), &[[1; PAGE]]).bytes, PAGE);
    kernel.spaces[0].unmap(page(1), PAGE, &mut Vec::new()).expect("aligned");
    assert_eq!(touched(&kernel, 0), [2, 3, 6]);
}

#[test]
fn a_page_is_watched_wherever_it_moves_but_not_in_a_child() {
    let mut kernel = kernel();
    assert_eq!(kernel.watch(0, AT, 6 * PAGE), Ok(()));
    let child = kernel.spaces[0].fork();
    kernel.spaces.push(child);
    assert_eq!(touched(&kernel, 1), [], "it is not registered there");
    let with = Registration { uffd: 7, events: true, protects: false, watches: true };
    assert_eq!(kernel.spaces[1].register(AT, 8 * PAGE, with), Ok(()));
    assert_eq!(touched(&kernel, 1), [0, 1, 2, 3, 4, 5]);
    call(&mut kernel, Call::Remap { from: AT, len: 8 * PAGE, new_len: 8 * PAGE, to: Some(page(16)), keep: false });
    while kernel.read_message(0).is_some() {
        kernel.run(0);
    }
    call(&mut kernel, Call::Read { at: page(17) });
    assert_eq!(touched(&kernel, 0), [17]);
}

#[test]
fn what_cannot_be_watched() {
    let mut kernel = kernel();
    assert_eq!(register(&mut kernel, 0, 8, true, false), Err(EBUSY), "protection and watching are one bit");
    assert_eq!(register(&mut kernel, 0, 8, false, false), Err(EBUSY));
    kernel.spaces[0].map(page(8), 4 * PAGE, 0, false, &mut Vec::new()).expect("nothing is there");
    assert_eq!(register(&mut kernel, 6, 6, false, true), Err(EINVAL), "a part is not accessible");
    assert_eq!(register(&mut kernel, 8, 4, false, false), Ok(()));
    assert_eq!(kernel.watch(0, page(5), 4 * PAGE), Err(ENOENT), "a part cannot be watched");
    assert_eq!(touched(&kernel, 0), [0, 1, 2, 3, 4, 5], "then nothing is");
    // made inaccessible later, it stays as it was
    kernel.spaces[0].protect(AT, 4 * PAGE, 0, &mut Vec::new()).expect("mapped");
    assert_eq!(kernel.watch(0, AT, 8 * PAGE), Ok(()));
}
