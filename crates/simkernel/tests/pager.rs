//! A toy pager on the simulated kernel, under the scheduler: two programs with a few pages each, a handler that serves faults and
//! follows events, a daemon that takes pages out. Seeds find defects that the real pager had.

mod toy;

use overspill_simkernel::call::{Advice, Call, Outcome, READ_WRITE};
use overspill_simkernel::errno::{EAGAIN, EEXIST};
use overspill_simkernel::kernel::Kernel;
use overspill_simkernel::lab::{BASE, PARKING, page};
use overspill_simkernel::pmap::{Message, PAGE};
use overspill_simkernel::rng::Rng;
use overspill_simkernel::sched::{self, Actor, Failure, Report, Role, Timeout, Word, shared::Shared};
use overspill_simkernel::table::Entry;
use overspill_simkernel::vma::Registration;
use std::sync::{Arc, Mutex};
use toy::Lock;

/// Pages of a program.
const PAGES: usize = 3;
const PROGRAMS: usize = 2;
/// The program's userfaultfd, and the parking area's.
const UFFD: usize = 0;
const PARK: usize = 1;

/// A mistake to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// A move that the kernel denies is believed to have failed: a Python program read zeroes.
    BelievesDenials,
    /// Pages of a discard are forgotten before the kernel has done it, and may be taken in between: discarded content came back.
    TakesWhatIsDiscarded,
    /// A parked page is dropped before its copy is known to be in place. The copy is refused while an event is unread: the page was
    /// lost.
    DropsBeforeTheCopy,
}

/// The place of a page, as far as the pager knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Nowhere,
    There,
    Parked,
}

struct Pager {
    kernel: Shared,
    lock: Lock,
    /// Under the lock. (A page's place in the parking area has the page's number.)
    at: Mutex<Vec<At>>,
    /// For each page, whether a discard was reported and may not have been done. Under the lock.
    discards: Mutex<Vec<bool>>,
    mistake: Mistake,
}

impl Pager {
    fn locked<T>(&self, act: impl FnOnce() -> T) -> T {
        self.lock.lock();
        let result = act();
        self.lock.unlock(true);
        result
    }

    fn get(&self, number: usize) -> At {
        self.at.lock().expect("whole")[number]
    }

    fn set(&self, number: usize, at: At) {
        self.at.lock().expect("whole")[number] = at;
    }

    fn drop_parked(&self, number: usize) {
        self.kernel.enter(|kernel| drop(kernel.spaces[0].table.remove(&(PARKING + number * PAGE))));
    }

    /// Serves a thread that waits for a page. Returns whether it must be tried again when messages have been read.
    fn serve(&self, number: usize) -> bool {
        let moved = match self.get(number) {
            At::Nowhere | At::There => self.kernel.enter(|kernel| kernel.zero(UFFD, page(number), PAGE)),
            At::Parked => self.kernel.enter(|kernel| {
                let parked = *kernel.spaces[0].bytes(PARKING + number * PAGE);
                kernel.copy(UFFD, page(number), &[parked])
            }),
        };
        if moved.error == Some(EAGAIN) {
            if self.mistake == Mistake::DropsBeforeTheCopy && self.get(number) == At::Parked {
                self.drop_parked(number);
                self.set(number, At::Nowhere);
            }
            return true;
        }
        if moved.error.is_none() || moved.error == Some(EEXIST) {
            if self.get(number) == At::Parked {
                self.drop_parked(number);
            }
            self.set(number, At::There);
        }
        self.kernel.enter(|kernel| kernel.wake(UFFD, page(number), PAGE));
        false
    }

    fn follow(&self, message: Message) {
        let Message::Remove { start, end } = message else { panic!("{message:?}") };
        for number in (start - BASE) / PAGE..(end - BASE) / PAGE {
            if self.get(number) == At::Parked {
                self.drop_parked(number);
            }
            self.set(number, At::Nowhere);
            self.discards.lock().expect("whole")[number] = true;
            if self.mistake == Mistake::TakesWhatIsDiscarded {
                self.set(number, At::There); // (its pages may be there until the kernel has done the discard)
            }
        }
    }

    fn handler(&self) {
        let mut later: Vec<usize> = Vec::new();
        loop {
            let seen = self.kernel.messages_seen();
            let message = self.locked(|| {
                let message = self.kernel.enter(|kernel| kernel.read_message(UFFD));
                if let Some(event) = message.filter(|m| !matches!(m, Message::Fault { .. })) {
                    self.follow(event);
                }
                message
            });
            let again = std::mem::take(&mut later);
            let fault = message.and_then(|m| if let Message::Fault { at, .. } = m { Some((at - BASE) / PAGE) } else { None });
            later.extend(again.into_iter().chain(fault).filter(|number| self.locked(|| self.serve(*number))));
            match (message, later.is_empty()) {
                (None, true) => self.kernel.await_message(seen),
                (None, false) => drop(Word::new(0).wait(0, Timeout::Tick(10_000))),
                _ => {}
            }
        }
    }

    fn daemon(&self, mut rng: Rng) {
        loop {
            let number = rng.below(PROGRAMS * PAGES);
            self.locked(|| {
                let pending = self.discards.lock().expect("whole")[number] && self.mistake != Mistake::TakesWhatIsDiscarded;
                if self.get(number) != At::There || pending {
                    return;
                }
                let moved = self.kernel.enter(|kernel| kernel.move_pages(PARK, PARKING + number * PAGE, page(number), PAGE));
                let gone = |kernel: &mut Kernel| {
                    !matches!(kernel.spaces[0].table.get(&page(number)), Some(Entry::Page { .. } | Entry::Zero { .. }))
                };
                let denied = moved.error == Some(EEXIST) && self.mistake != Mistake::BelievesDenials && self.kernel.enter(gone);
                if moved.error.is_none() || denied {
                    self.set(number, At::Parked);
                }
            });
            Word::new(0).wait(0, Timeout::Tick(3_000));
        }
    }

    fn program(&self, task: usize, mut rng: Rng) {
        let mut holds = [0u8; PAGES];
        for step in 1..40u8 {
            let which = rng.below(PAGES);
            let number = task * PAGES + which;
            let call = |call: Call| self.kernel.call(task, call);
            match rng.below(6) {
                0 => {
                    assert_eq!(call(Call::Advise { at: page(number), len: PAGE, advice: Advice::DontNeed }), Outcome::Ok(0));
                    self.locked(|| self.discards.lock().expect("whole")[number] = false); // the call's hook reports its end
                    holds[which] = 0;
                }
                1 | 2 => {
                    assert_eq!(call(Call::Write { at: page(number), byte: step }), Outcome::Ok(0));
                    holds[which] = step;
                }
                _ => assert_eq!(
                    call(Call::Read { at: page(number) }),
                    Outcome::Ok(holds[which] as usize),
                    "page {number} in step {step}"
                ),
            }
            sched::progress();
        }
    }
}

fn pager(seed: u64, mistake: Mistake) -> Result<Report, Failure> {
    let mut rng = Rng::new(!seed);
    let mut kernel = Kernel::default();
    let space = kernel.new_space();
    (0..PROGRAMS).for_each(|task| assert_eq!(kernel.new_task(space), task));
    assert_eq!([kernel.new_uffd(space, true), kernel.new_uffd(space, false)], [UFFD, PARK]);
    for (at, uffd) in [(BASE, UFFD), (PARKING, PARK)] {
        let len = PROGRAMS * PAGES * PAGE;
        kernel.spaces[space].map(at, len, READ_WRITE, false, &mut Vec::new()).expect("nothing is there");
        kernel.spaces[space]
            .register(at, len, Registration { uffd, events: uffd == UFFD, protects: false, watches: false })
            .expect("it is mapped");
    }
    kernel.disturbed = Some(Rng::new(seed));
    let pager = Arc::new(Pager {
        kernel: Shared::new(kernel, PROGRAMS),
        lock: Lock::default(),
        at: Mutex::new(vec![At::Nowhere; PROGRAMS * PAGES]),
        discards: Mutex::new(vec![false; PROGRAMS * PAGES]),
        mistake,
    });
    let mut actors = Vec::new();
    let mut add = |name, role, act: Box<dyn FnOnce(&Pager) + Send>| {
        let pager = Arc::clone(&pager);
        actors.push(Actor { name, role, act: Box::new(move || act(&pager)) });
    };
    add("handler", Role::Service, Box::new(Pager::handler));
    let chooses = Rng::new(rng.bits());
    add("daemon", Role::Service, Box::new(move |pager| pager.daemon(chooses)));
    for (task, name) in ["first", "second"].into_iter().enumerate() {
        let chooses = Rng::new(rng.bits());
        add(name, Role::Program, Box::new(move |pager| pager.program(task, chooses)));
    }
    sched::run(seed, actors)
}

#[test]
fn a_right_pager_passes() {
    const SEEDS: u64 = 300;
    let start = std::time::Instant::now();
    let mut turns = 0;
    for seed in 0..SEEDS {
        turns += pager(seed, Mistake::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure:?}")).turns;
    }
    println!("{:.0} runs a second, {} turns a run", SEEDS as f64 / start.elapsed().as_secs_f64(), turns / SEEDS);
}

#[test]
fn each_mistake_is_found() {
    use Mistake::*;
    for mistake in [BelievesDenials, TakesWhatIsDiscarded, DropsBeforeTheCopy] {
        let found = (0..300).find_map(|seed| Some((seed, pager(seed, mistake).err()?)));
        println!("{mistake:?}: {found:?}");
        assert!(found.is_some(), "{mistake:?} is not found");
    }
}
