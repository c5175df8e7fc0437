//! Page replacement policies: one trait, one file each, and the same code live and in the lab.
//!
//! ```text
//!                          what happens to a page                       what the policy is told
//!   lab, every reference   touched, in memory                           reference  (true)
//!                          touched, not in memory                       reference  (false), expect, [victim, evicted,] admit
//!   live, faults only      a batch is needed                            victim, victim, ...   (each is inactive then)
//!                          touched while inactive                       rescued
//!                          not touched while inactive                   evicted
//!                          read back, filled, adopted                   expect (if it has a ghost), admit
//!   both                   written (as far as that is seen)             dirtied
//! ```
//!
//! Linux gives user space no referenced bit, so live a policy is told of a reference only when an *inactive* page is touched. The
//! page daemon asks for victims, parks them, and keeps them for a while. A touch in that time is a soft fault and a rescue. A page
//! that is not touched in time is evicted. In the lab the policy is told every reference, and a victim is evicted at once, as
//! papers count.
//!
//! A policy orders *nodes*: numbers of its own records, one for each page in its lists or among its ghosts. (A *ghost* is a record
//! of a page that was evicted.) It sees no memory, no addresses, no clock. Live, [`live::Live`] gives out the nodes, and finds
//! ghosts in a table of fixed size. In the lab a page's node is its dense number. A policy allocates only in `new`.
//!
//! Adding a policy: one file here, its `mod` line, and one line in the table at `policies!` below.

mod ages;
mod aging;
mod arc;
mod car;
mod clock;
mod clock_pro;
mod cost;
mod drop_behind;
mod fifo;
mod lirs;
pub mod live;
mod lru;
mod lru_2;
mod mglru;
mod s3_fifo;
mod sieve;
mod spec;
mod two_queues;
mod use_once;
mod use_once_window;

use crate::types::{FrameId, PageId};
pub use live::LivePolicy;
pub use spec::{Args, PARAMS_MAX, Param, Spec, SpecError, Values};

/// A policy's own number for a page.
pub type Node = u32;

/// Why a page was given a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// The program touched it for the first time.
    FirstTouch,
    /// It was filled next to such a touch.
    ZeroAhead,
    /// The program touched it and it was read.
    HardFault,
    /// It was read next to such a touch.
    Readahead,
    /// The program read or wrote the page of a file, and it was not in memory: for the first time, or again after its eviction. The
    /// lab uses this for traces of files and disks. Live it does not occur, because there are no pages of files.
    FileRead,
    /// It was present before the pager managed it.
    Adopted,
    /// It was read for somebody who reads a file in order, far.
    Passing,
}

impl Admit {
    /// Whether the page may have been evicted before. (A page of a file need not have been.)
    pub const fn is_refault(self) -> bool {
        matches!(self, Admit::HardFault | Admit::Readahead | Admit::FileRead | Admit::Passing)
    }
    /// Whether it came in without a touch.
    pub const fn is_ahead(self) -> bool {
        matches!(self, Admit::ZeroAhead | Admit::Readahead | Admit::Passing)
    }
}

/// How a page came into memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The reason.
    pub why: Admit,
    /// For a page that was evicted before: how many evictions ago, in pages. `None` if that is not known.
    pub distance: Option<u32>,
}

/// The references that a policy is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum See {
    /// All: [`Policy::reference`] (the lab, as papers count).
    All,
    /// Only those to inactive pages: [`Policy::rescued`] (live).
    Trials,
}

/// The setting that a policy is made for.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The memory to be shared out, in pages.
    pub memory: u32,
    /// Nodes are `0..nodes`.
    pub nodes: u32,
    /// The most ghosts it may keep.
    pub ghosts: u32,
    /// The references that it is told of.
    pub see: See,
}

/// Where a policy reports the ghosts that it forgets.
pub trait Ghosts {
    /// The evicted page of `node` is on no list of the policy any more; the number may be used for another page.
    fn forget(&mut self, node: Node);
}

/// A replacement policy, written once for the lab and for the live core. Each call is O(1) amortised; only `new` allocates.
///
/// The lab replays a hundred million references a second only if `reference`, `victim`, `evicted` and `admit` become one loop. The
/// compiler judges them too large for that, hence `#[inline(always)]` in the policies where it pays.
///
/// A node is *listed* (its page is in memory), *taken* (its page is inactive, or about to be evicted), a *ghost* (its page was
/// evicted, and the policy keeps the record) or unknown. `=>` says what holds before a call.
pub trait Policy: Clone + Send + Sized + 'static {
    /// The name that `--policy` takes.
    const NAME: &'static str;
    /// One line for a list of policies.
    const ABOUT: &'static str;
    /// Its parameters.
    const PARAMS: &'static [Param] = &[];
    /// The most ghosts kept live, in thousandths of the memory.
    const GHOSTS_PERMILLE: u32 = 0;
    /// Names of the counters of [`Policy::transitions`], in its order.
    const TRANSITIONS: &'static [&'static str];
    /// Memory per node, in bytes.
    const NODE_BYTES: usize;
    /// Whether it uses [`Arrival::distance`].
    const WANTS_DISTANCE: bool = false;

    /// Makes an empty one. Allocates everything that it will ever use.
    fn new(args: &Args, setup: &Setup) -> Self;
    /// Sets the memory to be shared out, in pages.
    fn resize(&mut self, _memory: u32) {}

    /// Lab: `node` is referenced. Returns whether it is listed. If it is not, nothing has changed.
    fn reference(&mut self, node: Node) -> bool;
    /// Lab: `node` will be referenced soon: begins to bring its record into the cache.
    fn prefetch(&self, node: Node);
    /// Lab: the same for the neighbours of `node`, whose own record is in the cache by then.
    fn prefetch_beside(&self, _node: Node) {}
    /// `node`, a ghost or unknown, will be admitted next. Victims may be asked for before that. => not listed, not taken
    fn expect(&mut self, _node: Node) {}
    /// The page of `node` is in memory from now on. => expected
    fn admit<G: Ghosts>(&mut self, ghosts: &mut G, node: Node, arrival: Arrival);
    /// Takes the next victim, the worst; `None` only if none is listed.
    fn victim(&mut self) -> Option<Node>;
    /// The caller has chosen `node`: takes it as [`Policy::victim`] would. => listed
    fn take(&mut self, node: Node);
    /// Live: the page of a taken node was touched, and stays.
    fn rescued(&mut self, node: Node);
    /// Live: somebody has begun to read far in order. What was [`Admit::Passing`] before is so no more.
    fn run_begins(&mut self) {}
    /// Live: so many of these pages, the latest, are not to be taken unless there are few others: readers have not come to them.
    fn keep_passing(&mut self, _least: u32) {}
    /// Live: how many pages need not be parked before they are evicted, because a reader has passed them.
    fn passing(&self) -> u32 {
        0
    }
    /// Live: takes one of them, the oldest.
    fn passing_victim(&mut self) -> Option<Node> {
        None
    }
    /// Live: the page of a taken node could not be parked (pinned, locked): the policy should look elsewhere for a while.
    fn refused(&mut self, node: Node) {
        self.rescued(node);
    }
    /// The page of a taken node has left memory: the policy keeps a ghost or forgets the node.
    fn evicted<G: Ghosts>(&mut self, ghosts: &mut G, node: Node) {
        ghosts.forget(node);
    }
    /// Live: the page of an unknown node is in memory and inactive, though it was never listed. => taken from now on
    fn arrived_taken(&mut self, _node: Node) {}
    /// The page is given up or wired: the node is unknown from now on. => listed or taken
    fn remove(&mut self, node: Node);
    /// The page of a ghost is given up: the node is unknown from now on.
    fn forget_ghost(&mut self, _node: Node) {}
    /// The page has been written. => listed or taken
    fn dirtied(&mut self, _node: Node) {}

    /// Calls `each` with each listed node, the worst first, and whether the policy counts its page as in frequent use.
    fn worst_first(&self, each: &mut dyn FnMut(Node, bool));
    /// As `admit`, but the page was listed by another policy; `hot` as in [`Policy::worst_first`].
    fn inherit<G: Ghosts>(&mut self, ghosts: &mut G, node: Node, hot: bool);
    /// Live: whether it learns from touches of inactive pages. If not, no more than a batch is inactive at a time.
    fn learns_inactive(&self) -> bool {
        true
    }
    /// The counts of the transitions between its queues.
    fn transitions(&self) -> &[u64];
}

/// The least share of the budget that is inactive, in thousandths, for every policy that orders pages by references (see
/// `inactive_share.rs` for more). Where the program's threads keep all CPUs busy, a soft fault costs three times as much as on an
/// idle machine (30 us instead of 10).
///
/// Measured with 60 against 120, by turns. It halves the soft faults and adds 2 to 4 % of hard ones (20 % for a sort that nearly
/// fits). `xz -T2` in half of its memory takes 39 and 46 s instead of 93 and 75. A sort takes 10.0 and 11.4 s instead of 11.2 and
/// 10.8. With 40, 25 and 10, xz did not end in 100 s except for one run of 68 s. Before refaults were judged, 60 lost a hot set of
/// 40 % of memory alongside a scan. Now its hard faults are the same with `use-once`, and 4 % more with `clock` and `aging`.
pub const PARKED_PERMILLE: u32 = 60;

/// An action on a policy of any type.
pub trait Visitor {
    /// Its result.
    type Out;
    /// Does it.
    fn visit<P: Policy>(self, policy: P) -> Self::Out;
}

/// A row of the table of policies.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// The name that `--policy` takes.
    pub name: &'static str,
    /// One line.
    pub about: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
    /// Memory per tracked page in the lab, and per frame live. Live, a policy that keeps ghosts takes 16 bytes more for each frame,
    /// and each ghost takes as much as a node and 28 bytes more.
    pub node_bytes: usize,
    /// The most ghosts kept live, in thousandths of the memory.
    pub ghosts_permille: u32,
    /// Names of the counters of transitions between its queues.
    pub transitions: &'static [&'static str],
}

macro_rules! policies {
    ($($module:ident::$name:ident,)*) => {
        $(pub use $module::$name;)*

        /// The policies, in the order in which they are listed to users.
        pub const TABLE: &[Info] = &[$(Info {
            name: $name::NAME,
            about: $name::ABOUT,
            params: $name::PARAMS,
            node_bytes: $name::NODE_BYTES,
            ghosts_permille: $name::GHOSTS_PERMILLE,
            transitions: $name::TRANSITIONS,
        },)*];
        /// Their names, as `--policy` takes them.
        pub const NAMES: &[&str] = &[$($name::NAME,)*];

        impl Spec {
            /// Makes the policy and passes it to `visitor`, with its type known.
            pub fn visit<V: Visitor>(&self, setup: &Setup, visitor: V) -> V::Out {
                $(if self.name() == $name::NAME {
                    return visitor.visit($name::new(&self.args(), setup));
                })*
                unreachable!("a spec is of a policy in the table")
            }
        }
    };
}

policies! {
    use_once::UseOnce,
    use_once_window::UseOnceWindow,
    fifo::Fifo,
    lru::Lru,
    clock::Clock,
    aging::Aging,
    drop_behind::DropBehind,
    lru_2::LruTwo,
    two_queues::TwoQueues,
    arc::Arc,
    car::Car,
    clock_pro::ClockPro,
    lirs::Lirs,
    s3_fifo::S3Fifo,
    sieve::Sieve,
    mglru::MgLru,
    cost::Cost,
}

/// The default.
pub const DEFAULT: &str = UseOnce::NAME;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ObjectId;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn page(n: u32) -> PageId {
        PageId::new(ObjectId(0), n as u64)
    }

    fn specs() -> impl Strategy<Value = Spec> {
        (0..NAMES.len()).prop_map(|n| Spec::named(NAMES[n]).expect("known"))
    }

    /// The frames of a policy as the core sees them.
    #[derive(Default)]
    struct Model {
        listed: BTreeSet<FrameId>,
        parked: BTreeSet<FrameId>,
        page_of: BTreeMap<FrameId, u32>,
    }

    impl Model {
        fn is_in_memory(&self, page: u32) -> bool {
            self.page_of.values().any(|p| *p == page)
        }
    }

    fn step(p: &mut dyn LivePolicy, model: &mut Model, op: u8, f: u32, n: u32) -> Result<(), TestCaseError> {
        let frame = FrameId(f);
        let known = model.page_of.contains_key(&frame);
        match op {
            0 | 1 if !known && !model.is_in_memory(n) => {
                use Admit::*;
                let why = [HardFault, FirstTouch, Readahead, ZeroAhead, Adopted, FileRead, Passing][n as usize % 7];
                p.admit(frame, page(n), why, why.is_refault().then_some(n));
                model.listed.insert(frame);
                model.page_of.insert(frame, n);
            }
            2 if !known && !model.is_in_memory(n) => {
                p.arrived_parked(frame, page(n));
                model.parked.insert(frame);
                model.page_of.insert(frame, n);
            }
            3 if model.parked.remove(&frame) => {
                p.referenced(frame);
                model.listed.insert(frame);
            }
            4 if model.parked.remove(&frame) => {
                p.refused(frame);
                model.listed.insert(frame);
            }
            5 | 6 if model.parked.remove(&frame) => {
                let was = model.page_of.remove(&frame).expect("it has a page");
                p.evicted(frame, page(was));
            }
            7 if known => {
                p.remove(frame);
                model.listed.remove(&frame);
                model.parked.remove(&frame);
                model.page_of.remove(&frame);
            }
            8 if model.listed.remove(&frame) => {
                p.take(frame);
                model.parked.insert(frame);
            }
            9 if !model.is_in_memory(n) => p.forget(page(n)),
            10 if known => p.dirtied(frame),
            16 if model.parked.remove(&frame) => {
                p.reached(frame, page(model.page_of[&frame]), [Admit::Passing, Admit::HardFault][n as usize % 2]);
                model.listed.insert(frame);
            }
            17 => {
                let mut out = [FrameId(0); 5];
                let most = p.passing().min(5) as usize;
                let got = p.passing_victims(&mut out);
                prop_assert_eq!(got, most);
                for v in &out[..got] {
                    prop_assert!(model.listed.remove(v), "{v:?} was not listed");
                    prop_assert!(model.parked.insert(*v));
                }
            }
            11 => p.resize(8 + n % 25),
            12..=15 => {
                let mut out = [FrameId(0); 5];
                let got = p.victims(&mut out);
                prop_assert!(got == 5 || got == model.listed.len());
                for v in &out[..got] {
                    prop_assert!(model.listed.remove(v), "{v:?} was not listed");
                    prop_assert!(model.parked.insert(*v));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn listed(p: &dyn LivePolicy) -> Result<BTreeSet<FrameId>, TestCaseError> {
        let mut all = BTreeSet::new();
        let mut twice = None;
        p.worst_first(&mut |frame, _| {
            if !all.insert(frame) {
                twice = Some(frame);
            }
        });
        prop_assert_eq!(twice, None);
        Ok(all)
    }

    fn steps(n: usize) -> impl Strategy<Value = Vec<(u8, u32, u32)>> {
        proptest::collection::vec((0u8..18, 0u32..32, 0u32..80), 0..n)
    }

    proptest! {
        /// In any order of calls no frame is lost, none is given twice, and the ghosts stay within their number.
        #[test]
        fn frames_are_conserved(spec in specs(), ops in steps(600)) {
            let mut p = live::make(&spec, 32, 32);
            let mut model = Model::default();
            for (op, f, n) in ops {
                step(&mut *p, &mut model, op, f, n)?;
            }
            prop_assert_eq!(&listed(&*p)?, &model.listed);
            prop_assert_eq!(&listed(&*p.clone_box())?, &model.listed);
            let mut out = [FrameId(0); 64];
            let n = p.victims(&mut out);
            prop_assert_eq!(out[..n].iter().copied().collect::<BTreeSet<_>>(), model.listed);
        }

        /// After each change to another policy the same frames are listed.
        #[test]
        fn nothing_is_lost_between_policies(switches in proptest::collection::vec((specs(), steps(80)), 1..8)) {
            let mut p = live::make(&Spec::default(), 32, 32);
            let mut model = Model::default();
            for (spec, ops) in switches {
                let mut next = live::make(&spec, 32, 32);
                p.worst_first(&mut |frame, hot| next.inherit(frame, hot));
                for frame in &model.parked {
                    next.arrived_parked(*frame, page(model.page_of[frame]));
                }
                p = next;
                prop_assert_eq!(&listed(&*p)?, &model.listed);
                for (op, f, n) in ops {
                    step(&mut *p, &mut model, op, f, n)?;
                }
            }
            prop_assert_eq!(&listed(&*p)?, &model.listed);
        }
    }

    /// A page that was left parked to notice its reader counts as used once. It was "rescued": fifo put it at the old end, and it
    /// was parked again before its thread ran. Others took each such page of a scan for one in use.
    #[test]
    fn a_page_that_its_reader_reaches_is_new() {
        for info in TABLE {
            let spec = Spec::named(info.name).expect("known");
            let reach = |p: &mut dyn LivePolicy, n: u32| {
                p.arrived_parked(FrameId(n), page(n));
                p.reached(FrameId(n), page(n), Admit::HardFault);
            };
            let mut p = live::make(&spec, 32, 32);
            (0..8).for_each(|n| p.admit(FrameId(n), page(n), Admit::HardFault, None));
            reach(&mut *p, 8);
            let mut first = [FrameId(0); 4];
            assert_eq!(p.victims(&mut first), 4);
            assert!(!first.contains(&FrameId(8)), "{}: {first:?}", info.name);

            let mut p = live::make(&spec, 32, 32);
            for n in 0..8 {
                p.admit(FrameId(n), page(n), Admit::HardFault, None);
                p.take(FrameId(n));
                p.referenced(FrameId(n));
            }
            (8..24).for_each(|n| reach(&mut *p, n));
            assert_eq!(p.victims(&mut first), 4);
            if ["use-once", "lru-2", "2q", "arc", "car", "s3-fifo"].contains(&info.name) {
                assert_eq!(first, [8, 9, 10, 11].map(FrameId), "{}: a scan takes the place of pages in use", info.name);
            }
        }
    }

    #[test]
    fn every_name_makes_its_policy() {
        for info in TABLE {
            let spec = Spec::named(info.name).expect("known");
            let p = live::make(&spec, 8, 8);
            assert_eq!(p.spec(), spec);
            let mut names = BTreeSet::new();
            p.transitions(&mut |name, count| assert!(names.insert(name) && count == 0, "{}: {name}", info.name));
            assert!(!names.is_empty());
            assert!(info.transitions.len() <= crate::status::TRANSITIONS_MAX, "{}: they have no room in a status block", info.name);
            assert!(info.node_bytes <= 60, "{}: the bound is 64 bytes per page, with what the lab keeps", info.name);
        }
        assert!(Spec::named("best").is_none());
        assert!(NAMES.contains(&DEFAULT));
    }
}
