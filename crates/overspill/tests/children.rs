//! How processes end. Each case is a child of its own, started from this binary with the case's name.

mod common;

use common::*;
use overspill::{Delivery, DeviceSpec, Error, Pager, Region};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::mpsc;
use std::time::Instant;

fn pager(name: &str) -> Pager {
    let delivery = if name.ends_with("threads") { Delivery::Threads } else { Delivery::InThread };
    let limit = if name.starts_with("full") { 4 << 20 } else { 0 };
    match Pager::builder().memory(BUDGET).delivery(delivery).swap_limit(limit).build() {
        Ok(pager) => pager,
        Err(e @ Error::Userfaultfd(_)) => {
            println!("CANNOT: {e}");
            std::process::exit(0)
        }
        Err(e) => panic!("{e}"),
    }
}

fn fill(region: &mut Region) {
    for (i, word) in region.as_mut_slice_of::<u64>().iter_mut().enumerate() {
        *word = i as u64 + 1;
    }
}

fn sum(region: &Region) {
    for (i, word) in region.as_slice_of::<u64>().iter().enumerate().step_by(512) {
        assert_eq!(*word, i as u64 + 1, "a wrong page was handed out");
    }
}

static BUS_CODE: AtomicUsize = AtomicUsize::new(usize::MAX);
static BUS_ADDR: AtomicUsize = AtomicUsize::new(0);
static mut BACK: [u64; 64] = [0; 64];
unsafe extern "C" {
    fn __sigsetjmp(env: *mut u64, save_mask: i32) -> i32;
    fn siglongjmp(env: *mut u64, value: i32) -> !;
}
extern "C" fn embedder(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's structure, or the pager's copy of it.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr()) };
    BUS_CODE.store(code as usize, SeqCst);
    BUS_ADDR.store(addr as usize, SeqCst);
    // SAFETY: the marked frame still exists: it is that of `case`, which waits for this.
    unsafe { siglongjmp(&raw mut BACK as *mut u64, 1) }
}

fn embedders_action() -> libc::sigaction {
    // SAFETY: an all-zero action is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = embedder as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    action
}

/// Sets the action for SIGBUS. Returns the one before.
fn set_action(action: &libc::sigaction) -> libc::sigaction {
    // SAFETY: the action is one of the system's, or a handler that leaves by a jump. An all-zero action is valid.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGBUS, action, &mut before), 0);
        before
    }
}

/// Sends this process a SIGBUS. Returns whether it came to `embedder`.
fn sent_to_embedder() -> bool {
    BUS_CODE.store(0, SeqCst);
    // SAFETY: the buffer is larger than a jump buffer; nothing with a destructor lives between the mark and the jump.
    if unsafe { __sigsetjmp(&raw mut BACK as *mut u64, 1) } == 0 {
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGBUS) };
    }
    BUS_CODE.load(SeqCst) as i32 == libc::SI_TKILL
}

/// Checks what a forked child may do with its parent's pager.
fn in_a_child(pager: &Pager, region: &mut Region, name: &str) {
    let file = std::fs::File::open("/proc/self/exe").expect("this program");
    let answers = [
        region.wire(..PAGE).map(drop),
        region.wire_mut(..PAGE).map(drop),
        region.discard(..),
        region.advise(.., overspill::Advice::WillNeed),
        pager.region(PAGE).map(drop),
        pager.set_policy("2q"),
        region.set_policy("2q"),
        pager.swap_on(DeviceSpec::file(std::env::temp_dir())),
        pager.swap_off(std::env::temp_dir()).map(drop),
    ];
    for (i, answer) in answers.into_iter().enumerate() {
        assert!(matches!(answer, Err(Error::Forked)), "{i}: {answer:?}");
    }
    let told = |e: std::io::Error| assert!(e.to_string().contains("forked"), "{e}");
    told(region.read_at(&file, ..PAGE, 0).expect_err("no file is read"));
    told(region.write_at(&file, ..PAGE, 0).expect_err("no file is written"));
    std::panic::set_hook(Box::new(|_| ()));
    let calls: [&dyn Fn(); 10] = [
        &|| region.prefetch(..),
        &|| region.unwire(..),
        &|| _ = region.counters().hard_faults.get(),
        &|| _ = pager.policy(),
        &|| _ = region.policy(),
        &|| _ = pager.policies(),
        &|| _ = pager.first_loss(),
        &|| _ = pager.metadata_bytes(),
        &|| _ = pager.swaps(),
        &|| _ = pager.check(),
    ];
    for (i, call) in calls.iter().enumerate() {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).expect_err("a panic");
        assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("forked")), "call {i}");
    }
    let _ = std::panic::take_hook();
    assert_eq!(format!("{pager:?}"), "Pager(of the process that forked)");
    let theirs = region.as_ptr() as usize..region.as_ptr() as usize + region.len();
    for shift in 0..5 {
        let block = vec![1u8; MIB << shift];
        assert!(!theirs.contains(&(block.as_ptr() as usize)) && !theirs.contains(&(block.as_ptr() as usize + block.len())));
        std::mem::forget(block);
    }
    // one of its own
    let own = self::pager(name);
    let mut region = own.region(24 * MIB).expect("24 MiB");
    fill(&mut region);
    sum(&region);
    own.check();
}

static SUMMED: AtomicPtr<Region> = AtomicPtr::new(std::ptr::null_mut());
static SUMS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_usr1(_: i32) {
    // SAFETY: null, or a region that is never dropped.
    if let Some(region) = unsafe { SUMMED.load(SeqCst).as_ref() } {
        sum(region);
        SUMS.fetch_add(1, SeqCst);
    }
}

/// Takes the only device off while there is room in memory, page by page. Meanwhile the caller's function, or a signal handler in
/// its thread, touches all pages. It waited for ever for a page whose read had ended: only its own thread could put that page in
/// place, in the next step of the swapoff.
fn touches_within_a_swapoff(name: &str) {
    let delivery = if name.ends_with("threads") { Delivery::Threads } else { Delivery::InThread };
    let pager = Pager::builder().memory(128 << 20).delivery(delivery).build().expect("a second pager");
    let region: &'static mut Region = Box::leak(Box::new(pager.region(112 * MIB).expect("112 MiB")));
    fill(region);
    let mut other = pager.region(124 * MIB).expect("124 MiB");
    fill(&mut other);
    drop(other);
    let region: &'static Region = region;
    let pages_out = || pager.swaps().first().map_or(0, |device| device.figures.used_bytes as usize / PAGE);
    let all = pages_out();
    assert!(all > 24_000, "{all} pages are out: it may be over before anyone is called");
    let signals = name.starts_with("signalled");
    if signals {
        SUMMED.store(region as *const Region as *mut Region, SeqCst);
        // SAFETY: the handler touches memory of a region and a counter.
        unsafe { libc::signal(libc::SIGUSR1, on_usr1 as *const () as libc::sighandler_t) };
    }
    let (ended, end) = mpsc::channel();
    let (who, worker) = mpsc::channel();
    let swapoff = std::thread::spawn({
        let pager = pager.clone();
        move || {
            // SAFETY: only asks.
            who.send(unsafe { libc::pthread_self() }).expect("the test waits");
            let mut calls = 0;
            let off = pager.swap_off_while(std::env::temp_dir(), |_| {
                calls += 1;
                if !signals {
                    sum(region);
                }
                true
            });
            ended.send(()).expect("the test waits");
            (off, calls)
        }
    });
    let worker = worker.recv().expect("the thread runs");
    if signals {
        while pages_out() > all / 2 && !swapoff.is_finished() {
            std::thread::yield_now();
        }
        // SAFETY: the thread is joined below, so it is there.
        assert_eq!(unsafe { libc::pthread_kill(worker, libc::SIGUSR1) }, 0);
    }
    end.recv_timeout(PATIENCE).expect("the swapoff ends");
    let (off, calls) = swapoff.join().expect("no panic");
    let off = off.expect("memory has room");
    assert!(off.memory_pages > 0 && pager.swaps().is_empty(), "{off:?}");
    let sums = if signals { SUMS.load(SeqCst) } else { calls };
    assert!(sums > 0, "it was over before anyone was called: {off:?}");
    sum(region);
    pager.check();
    println!("all pages were right {sums} times during the swapoff of {} ms", off.nanoseconds / 1_000_000);
}

/// What the child does. The parent knows how it has to end.
fn case(name: &str) {
    if name.starts_with("embedder") {
        set_action(&embedders_action());
    }
    if name.starts_with("sent") || name.starts_with("below") {
        // SAFETY: the default action. (Rust's own handler survives one SIGBUS that was sent.)
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
    let pager = pager(name);
    let mut region = pager.region(24 * MIB).expect("24 MiB");
    match name.split('-').next() {
        Some("eio" | "corrupt") => {
            fill(&mut region);
            sum(&region);
            println!("all pages were handed out");
        }
        Some("embedder") => {
            fill(&mut region);
            for round in 0..2 {
                BUS_CODE.store(0, SeqCst);
                // SAFETY: the buffer is larger than a jump buffer; nothing with a destructor lives between the mark and the jump.
                if unsafe { __sigsetjmp(&raw mut BACK as *mut u64, 1) } == 0 {
                    sum(&region);
                    panic!("all pages were handed out");
                }
                assert_eq!(BUS_CODE.load(SeqCst), 4, "round {round}: BUS_MCEERR_AR");
            }
            let at = BUS_ADDR.load(SeqCst) - region.as_ptr() as usize;
            assert!(matches!(region.wire(at..=at), Err(Error::Lost)));
            let null = std::fs::File::create("/dev/null").expect("/dev/null");
            let e = region.write_at(&null, at..at + 1, 0).expect_err("it is lost");
            assert_eq!(e.raw_os_error(), Some(libc::EIO));
            region.discard(at / PAGE * PAGE..(at / PAGE + 1) * PAGE).expect("nothing is wired");
            assert_eq!(region[at], 0, "a discarded page is new");
            assert!(pager.counters().read_errors.get() > 0);
            let loss = pager.first_loss().expect("it is told of");
            assert!(loss.contains("could not be read back from byte") && loss.ends_with("error 9"), "{loss}");
            pager.check();
            println!("the embedder saw it");
        }
        Some("elsewhere") => {
            // a mapped file that was cut short: an error that does not concern the pager
            fill(&mut region);
            let path = std::env::temp_dir().join(format!("overspill-cut-{}", std::process::id()));
            let file = std::fs::OpenOptions::new().create_new(true).read(true).write(true).open(&path).expect("a file");
            std::fs::remove_file(&path).expect("its name");
            // SAFETY: a new shared mapping of an empty file; the test wants the error of touching it.
            unsafe {
                use std::os::fd::AsRawFd;
                let at = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
                assert_ne!(at, libc::MAP_FAILED);
                println!("{}", at.cast::<u8>().read_volatile());
            }
        }
        Some("sent") => {
            fill(&mut region);
            // SAFETY: a signal to ourselves.
            unsafe { libc::raise(libc::SIGBUS) };
            println!("still here");
        }
        Some("below") => {
            // A handler that came after the first pager replaced the pager's: the next fault ended the process.
            let install = |region: &Region, action: &libc::sigaction| {
                let before = overspill::with_handler_below(|| set_action(action)).expect("a handler");
                sum(region);
                before
            };
            fill(&mut region);
            let before = install(&region, &embedders_action());
            assert_eq!(before.sa_sigaction, libc::SIG_DFL, "what it finds is what was below the pager's");
            assert!(sent_to_embedder());
            overspill::with_handler_below(|| ()).expect("no change is no error");
            sum(&region);
            // A panic left the process without the pager's handler.
            let panics = || overspill::with_handler_below(|| std::panic::resume_unwind(Box::new(())));
            assert!(std::panic::catch_unwind(panics).is_err());
            sum(&region);
            assert!(sent_to_embedder());
            install(&region, &before);
            sent_to_embedder(); // ends this process
            println!("still here");
        }
        Some("away") => {
            // A child waited for ever for a thread of its parent's that had put the pager's handler away.
            fill(&mut region);
            let ((begin, begun), (end, ended)) = (mpsc::channel(), mpsc::channel());
            let changes = std::thread::spawn(move || {
                let change = || {
                    begin.send(()).expect("heard");
                    ended.recv().expect("told");
                };
                overspill::with_handler_below(change).expect("a handler");
            });
            begun.recv().expect("told");
            // SAFETY: the child does what the library promises that it may do, and ends. A hang ends by a signal.
            match unsafe { fork() } {
                0 => {
                    let mut own = self::pager(name).region(24 * MIB).expect("24 MiB");
                    fill(&mut own);
                    sum(&own);
                    // SAFETY: ends this child; the parent's threads are not here to be waited for.
                    unsafe { libc::_exit(0) };
                }
                pid => {
                    let status = status_of(pid);
                    assert_eq!(status, 0, "the child hangs or fails");
                }
            }
            end.send(()).expect("heard");
            changes.join().expect("no panic");
            sum(&region);
            println!("the child had a pager");
        }
        Some("full") => {
            fill(&mut region);
            println!("memory and swap had room for all");
        }
        Some("failed") => {
            // writes to the first device soon fail: the pager empties it while everything else goes on
            let spare = std::env::temp_dir().join(format!("overspill-spare-{}", std::process::id()));
            std::fs::create_dir(&spare).expect("a directory");
            pager.swap_on(DeviceSpec::file(&spare)).expect("a second device");
            assert_eq!(pager.swaps().len(), 2);
            let until = Instant::now() + PATIENCE;
            while pager.swaps().len() == 2 {
                fill(&mut region);
                sum(&region);
                assert!(Instant::now() < until, "{:?}", pager.swaps());
            }
            let left = &pager.swaps()[0];
            assert!(left.name == spare.as_os_str().as_encoded_bytes() && left.figures.used_bytes > 0, "{left:?}");
            sum(&region);
            assert!(pager.counters().write_errors.get() > 0);
            pager.check();
            drop((region, pager));
            std::fs::remove_dir(&spare).expect("nothing is in it");
            println!("the failing device is gone");
        }
        Some("called" | "signalled") => touches_within_a_swapoff(name),
        Some("fork" | "explained") => {
            fill(&mut region);
            if name.starts_with("explained") {
                overspill::explain_forks();
            }
            // SAFETY: the child only drops values, touches memory and ends.
            match unsafe { fork() } {
                0 => {
                    let at = region.as_ptr();
                    drop(region);
                    drop(pager);
                    // SAFETY: the address is not valid in this process, as the test wants: SIGSEGV.
                    println!("{}", unsafe { at.read_volatile() });
                    std::process::exit(0);
                }
                pid => {
                    let status = status_of(pid);
                    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
                }
            }
            sum(&region);
            drop(region);
            pager.check();
            println!("all is well");
        }
        Some("while") => {
            // A thread of the child came to lie where one of its parent's had been. It was taken to hold that one's locks.
            fill(&mut region);
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _end = SetAtEnd(&stop);
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        sum(&region);
                    }
                });
                for _ in 0..50 {
                    // SAFETY: the child uses locks of libc's and the pager's only, which are free in it.
                    match unsafe { fork() } {
                        0 => {
                            let own = self::pager(name);
                            let mut region = own.region(MIB).expect("1 MiB");
                            region[5] = 1;
                            // SAFETY: ends the process, without what only its parent should do.
                            unsafe { libc::_exit(0) }
                        }
                        pid => {
                            let status = status_of(pid);
                            assert_eq!(status, 0);
                        }
                    }
                }
            });
            println!("all children had pagers");
        }
        Some("building") => {
            // A child must not wait for a lock that another thread of its parent's held: of the set-up, or of the mappings.
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _end = SetAtEnd(&stop); // also after a child that hangs: the threads went on for ever, and so did the test
                for _ in 0..3 {
                    scope.spawn(|| {
                        while !stop.load(SeqCst) {
                            fill(&mut self::pager(name).region(MIB).expect("a region"));
                        }
                    });
                }
                for _ in 0..60 {
                    // SAFETY: the child does what the library promises that it may do, and ends. A hang ends by a signal.
                    match unsafe { fork() } {
                        0 => {
                            let own = self::pager(name);
                            fill(&mut own.region(MIB).expect("a region"));
                            drop(own);
                            // SAFETY: ends this child; the parent's threads are not here to be waited for.
                            unsafe { libc::_exit(0) };
                        }
                        pid => {
                            let status = status_of(pid);
                            assert_eq!(status, 0, "a child hangs or fails");
                        }
                    }
                }
            });
            println!("no child waited for ever");
        }
        Some("inherited") => {
            // Safe calls in a child acted on the parent's memory, through inherited descriptors: pages that the parent had filled
            // read as zero. And memory that the child allocated came to lie where its slices pointed.
            region.wire(0..PAGE).expect("wired").keep();
            let guard = region.wire_mut(..PAGE).expect("wired");
            let (mut wait, mut go) = std::io::pipe().expect("a pipe");
            // SAFETY: no other thread of this program holds a lock that the child needs.
            match unsafe { fork() } {
                0 => {
                    drop(go);
                    let _ = std::io::Read::read(&mut wait, &mut [0]);
                    drop(guard);
                    in_a_child(&pager, &mut region, name);
                    println!("{}", region[0]); // SIGSEGV
                    std::process::exit(0);
                }
                pid => {
                    drop(guard);
                    fill(&mut region);
                    std::io::Write::write_all(&mut go, &[1]).expect("a byte");
                    let status = status_of(pid);
                    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "status {status:#x}");
                }
            }
            sum(&region);
            region.unwire(..);
            region.wire(..MIB).expect("nothing is wired");
            pager.check();
            println!("the child could do nothing");
        }
        Some("plain") => {
            fill(&mut region);
            sum(&region);
            region.prefetch(..);
            let wired = region.wire(0..MIB).expect("wired");
            drop(wired);
            let file = std::fs::File::open("/proc/self/exe").expect("this program");
            region.read_at(&file, 0..MIB, 0).expect("read");
            assert_eq!(&region[1..4], b"ELF");
            assert_budget(&pager, 1);
            println!("all is well as user {}", {
                // SAFETY: only asks.
                unsafe { libc::geteuid() }
            });
        }
        Some("many") => {
            let build = || Pager::builder().memory(BUDGET).managed_max(BUDGET).build();
            let many: Vec<Pager> = (0..70).map_while(|_| build().ok()).collect();
            assert!(matches!(build(), Err(Error::TooManyPagers)));
            println!("{} pagers beside the first", many.len());
            drop(many);
            drop(build().expect("there is room again"));
        }
        _ => panic!("no case {name}"),
    }
}

fn child(name: &str, inject: &str, user: Option<u32>) -> Option<Output> {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    if user.is_some() {
        command = Command::new("/proc/self/exe"); // reachable whatever the modes of the directories above it
        command.current_dir("/");
    }
    command.env("OVERSPILL_CASE", name).env("OVERSPILL_INJECT", inject);
    if let Some(id) = user {
        // SAFETY: a few system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let zero = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &zero);
                if libc::setgroups(0, std::ptr::null()) != 0 || libc::setgid(id) != 0 || libc::setuid(id) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
    } else {
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                let zero = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &zero);
                Ok(())
            });
        }
    }
    let output = command.output().expect("a child");
    could_be_tested(name, &output).then_some(output)
}

fn main() {
    if let Ok(name) = std::env::var("OVERSPILL_CASE") {
        return case(&name);
    }
    let ends_by = |name: &str, inject: &str, signal: i32| {
        let Some(output) = child(name, inject, None) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(signal), "{name}: {output:?}");
        assert!(output.stdout.is_empty() && !said.contains("panicked"), "{name}: {output:?}");
        if name.starts_with("full") {
            assert!(said.contains("memory and swap are both full"), "{name}: {said}");
        }
        println!("{name}: ended by signal {signal}, as it must");
    };
    let says = |name: &str, inject: &str, user: Option<u32>, word: &str| {
        let Some(output) = child(name, inject, user) else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(word), "{name}: {output:?}");
        println!("{name}: {}", said.trim());
    };
    for delivery in ["inthread", "threads"] {
        ends_by(&format!("eio-{delivery}"), "read=100", libc::SIGBUS);
        ends_by(&format!("corrupt-{delivery}"), "flip=100", libc::SIGBUS);
        ends_by(&format!("full-{delivery}"), "", libc::SIGKILL);
        says(&format!("plain-{delivery}"), "", None, "all is well as user");
        says(&format!("fork-{delivery}"), "", None, "all is well");
        says(&format!("inherited-{delivery}"), "", None, "the child could do nothing");
        says(&format!("while-{delivery}"), "", None, "all children had pagers");
        says(&format!("building-{delivery}"), "", None, "no child waited for ever");
        says(&format!("called-{delivery}"), "swapoff_pages=1", None, "all pages were right");
        says(&format!("signalled-{delivery}"), "swapoff_pages=1", None, "all pages were right");
        says(&format!("failed-{delivery}"), "write=40,write_device=1", None, "the failing device is gone");
    }
    says("many-inthread", "", None, "63 pagers beside the first");
    says("embedder-inthread", "read=100", None, "the embedder saw it");
    ends_by("elsewhere-inthread", "", libc::SIGBUS);
    ends_by("sent-inthread", "", libc::SIGBUS);
    ends_by("below-inthread", "", libc::SIGBUS);
    says("away-inthread", "", None, "the child had a pager");
    for delivery in ["inthread", "threads"] {
        let Some(output) = child(&format!("explained-{delivery}"), "", None) else { continue };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("this process was forked and touches memory"), "{output:?}");
    }
    // SAFETY: only asks.
    if unsafe { libc::geteuid() } == 0 {
        says("plain-inthread", "", Some(65534), "all is well as user 65534");
        if std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|s| s.trim() == "0") {
            let refused = Command::new("/proc/self/exe").env("OVERSPILL_CASE", "plain-threads").uid(65534).gid(65534).output();
            let said = refused.expect("a child").stdout;
            assert!(
                String::from_utf8_lossy(&said).contains("CANNOT: userfaultfd is not permitted"),
                "handler threads need privileges"
            );
        }
    } else {
        println!("SKIPPED: only root can become another user");
    }
}
