//! Tests of a fork's budget.

use super::*;
use crate::tests::machine;

/// A machine that is charged for `charge` pages, in a family of 2048 pages, of which it has `pages`.
pub(super) fn charged(name: &str, charge: u64, pages: u32) -> Option<(Machine, Family)> {
    let (machine, _) = machine(name)?;
    let family = Family::new(2048, 100, 24).expect("memory");
    family.shares.give(family.id(), 2048 - pages, MemberId::NOBODY);
    {
        let (map, mut core) = (machine.map.read(), machine.core.lock());
        core.vm.set_reserved(charge);
        family.apply(&map, &mut core);
    }
    Some((machine, family))
}

/// What a fork does first.
fn make_room(machine: &Machine, family: &Family, child: MemberId) -> Result<(), u64> {
    machine.fits_twice(|core| family.gather(child, core), |map, core| family.halve(child, map, core))
}

/// A fork found room for two, and another process took it before the child had its part: the child had 224 pages, and was charged
/// for 800. Or its parent grew meanwhile.
#[test]
fn what_a_fork_has_found_is_the_childs() {
    let Some((machine, family)) = charged("heir", 800, 1024) else { return };
    let other = family.shares.reserve(MemberId::NOBODY).expect("room");
    let child = family.reserve().expect("room");
    assert_eq!(make_room(&machine, &family, child), Ok(()));
    family.shares.take(other, 2048);
    let (map, mut core) = (machine.map.read(), machine.core.lock());
    assert!(core.vm.limit() >= 800 && core.vm.limit() <= family.shares.pages(child));
    let excess = family.endow(child, &map, &core);
    family.apply(&map, &mut core);
    assert!(family.shares.pages(child) >= 800 && core.vm.limit() >= 800 && excess == 0);
}

/// Of a fork that fails nothing is left, whether the child's descriptors could not be sent or the kernel refused the call.
#[test]
fn a_child_that_is_not_made_takes_nothing() {
    for is_endowed in [false, true] {
        let Some((machine, family)) = charged("unborn", 800, 1024) else { return };
        let child = family.reserve().expect("room");
        assert_eq!(make_room(&machine, &family, child), Ok(()));
        let (map, mut core) = (machine.map.read(), machine.core.lock());
        if is_endowed {
            family.endow(child, &map, &core);
        }
        family.take_back(child, &map, &mut core);
        assert!(core.vm.limit() >= 1024 && core.vm.limit() + family.shares.free() == 2048 && family.view().members == 1);
        assert!(!family.forking.load(Relaxed));
    }
}

/// A child's parent died before the child had its entry, and another process took a part of its units. It kept the limit that it
/// had with them for good.
#[test]
fn a_child_whose_part_is_gone_has_the_limit_of_what_it_gets() {
    for (others, gets) in [(400, 900), (1500, 544)] {
        let Some((machine, family)) = charged("orphan", 900, 2048) else { return };
        let parent = family.id();
        let child = family.reserve().expect("room");
        let (map, mut core) = (machine.map.read(), machine.core.lock());
        family.endow(child, &map, &core);
        family.forked(child, 0);
        family.apply(&map, &mut core);
        assert!(core.vm.limit() >= 900);
        let other = family.shares.reserve(MemberId::NOBODY).expect("room");
        family.shares.bury(parent);
        // all of them, and then it gives back what it does not need
        assert!(family.shares.take(other, u32::MAX) > 0 && family.shares.give(other, 2048 - others, MemberId::NOBODY) > 0);
        family.claim().expect("room"); // until this thread ends
        family.complete(&map, &mut core);
        assert!(family.id() != child);
        assert_eq!(core.vm.promised(), family.shares.pages(family.id()));
        assert!((gets..gets + 32).contains(&core.vm.promised()), "{}", core.vm.promised());
    }
}

/// Of six processes that were killed and whose memory was taken away at once, three counted as living for ever, with their parts of
/// the budget: the kernel could not follow a robust list in private memory.
#[test]
fn the_robust_list_outlives_private_memory() {
    let Some((_machine, family)) = charged("list", 900, 1024) else { return };
    let list = &raw const *family.robust as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let holds = |line: &&str| {
        let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let at = |word| usize::from_str_radix(word, 16).expect("an address");
        (at(start)..at(end)).contains(&list)
    };
    assert!(maps.lines().find(holds).is_some_and(|line| line.contains(" rw-s ")), "{maps}");
}

/// A machine of a process that has come by exec and finds its family here. The calling thread is its page daemon.
/// It has no time to wait for others.
fn arrived(name: &str, file: &FamilyFile) -> Option<Machine> {
    let (mut machine, _) = machine(name)?;
    let family = Family::join(&file.path(), 2048, 100, true).expect("a family with this budget");
    family.claim().expect("room");
    machine.host.family = Some(family);
    family_of(&machine).arrive_until(&machine, 0);
    Some(machine)
}

fn family_of(machine: &Machine) -> &Family {
    machine.host.family.as_ref().expect("it has one")
}

fn limit(machine: &Machine) -> u32 {
    machine.core.lock().vm.promised()
}

/// Each program that was started by exec had the whole budget: a build with eight compilers had it eight times.
///
/// On a busy machine a program did not ask for its part when it came: the time for that was over before it began.
#[test]
fn programs_share_one_budget() {
    let file = &FamilyFile::create().expect("memory");
    let (ask, asked) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let Some(machine) = arrived("first", file) else { return };
            assert_eq!(limit(&machine), 2048, "it is alone");
            machine.core.lock().vm.set_reserved(300);
            let mut sharing = sharing::Sharing::default();
            while asked.recv().is_ok() {
                overspill_machine::daemon::Sharing::step(&mut sharing, &machine);
                tell.send(limit(&machine)).expect("the other thread waits");
            }
        });
        let _ = ask.send(());
        let Ok(2048) = told.recv() else { return }; // it cannot run here
        assert!(Family::join(&file.path(), 1024, 100, true).is_none(), "another budget");

        let machine = arrived("second", file).expect("as the first");
        assert_eq!(limit(&machine), family_of(&machine).least(), "the first has not given anything yet");
        ask.send(()).expect("the other thread waits");
        let first = told.recv().expect("it looks");
        assert!((300..1024).contains(&first), "{first}: it keeps what it uses");
        assert!(Family::obtain(&machine, 1000) && !Family::obtain(&machine, 2000));
        assert!(limit(&machine) >= 1000 && limit(&machine) + first <= 2048);
        assert!(!family_of(&machine).has_kin() && family_of(&machine).view().kin == 1);
        drop(ask);
        while !Family::take_if_alone(&machine) {
            std::thread::yield_now();
        }
        assert_eq!(limit(&machine), 2048);
    });
}
