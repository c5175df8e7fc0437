//! Use-once with a window: all references to a page that has only just come in count as one.
//!
//! Source: the criticism in the use-once thread (Rik van Riel, Daniel Phillips, 24 July 2001): "counting only the very first
//! reference will fail if we do eg. sequential IO with non-page aligned read() calls". The remedy named there is "a special - small
//! fixed size - page list and all references to the page while on that list are ignored", which also serves memory-mapped files. A
//! new page goes through that list, first in, first out. From the list's old end it goes to the inactive queue, unreferenced, and
//! from there on it is `use-once`. Live, a page that is soon back skips the list, as it skips the inactive queue in `use-once`
//! (`refault`). The lists are in `ages.rs`.
//!
//! The window must be longer than one use of a page takes, and its pages are lost to the rest. The thread says "a few per cent" of
//! memory; 0.03 is a guess in that range (`docs/POLICIES.md` has 0.01, 0.03 and 0.1 on the thread's examples). Bad where a page's
//! second real use falls into the window, and where `use-once` is bad.

use super::ages::{Aged, INACTIVE, QUEUE, REFAULT, Rule, Start};
use super::{Arrival, Param, Values};

/// See the module.
pub type UseOnceWindow = Aged<UseOnceWindowRule>;

/// See the module.
#[derive(Clone, Debug)]
pub struct UseOnceWindowRule;

impl Rule for UseOnceWindowRule {
    const NAME: &'static str = "use-once-window";
    const ABOUT: &'static str = "use-once, with references to the newest few per cent of the pages counted as one";
    const PARAMS: &'static [Param] = &[
        INACTIVE,
        QUEUE,
        Param {
            key: "window",
            default: "0.03",
            values: Values::Number(0.001, 0.5),
            help: "length of the list of new pages, as a share of the memory; a guess: the thread's \"small\"",
        },
        REFAULT,
    ];
    const SPARES: bool = true;

    fn start(_: Arrival) -> Start {
        Start::Window
    }
}
