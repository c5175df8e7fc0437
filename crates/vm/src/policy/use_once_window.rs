//! Use-once with a window: references to a page that has only just come in count as one.
//!
//! Source: the criticism in the use-once thread (Rik van Riel, Daniel Phillips, 24 July 2001): "counting only the very first reference
//! will fail if we do eg. sequential IO with non-page aligned read() calls"; the remedy named there is "a special - small fixed size -
//! page list and all references to the page while on that list are ignored", which also serves memory-mapped files. A new page goes
//! through that list, first in, first out, and from its old end to the inactive queue, unreferenced; from there on it is `use-once`.
//! The lists are in `ages.rs`.
//!
//! The window is a few per cent of memory; 0.03 is a guess in that range, and `docs/POLICIES.md` shows that 0.01 to 0.1 differ little
//! where the uses of a page are far apart. Bad where a page's second real use falls into the window, and where `use-once` is bad.

use super::ages::{Aged, INACTIVE, Rule, Start};
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
        Param {
            key: "window",
            default: "0.03",
            values: Values::Number(0.001, 0.5),
            help: "length of the list of new pages, as a share of the memory; a guess: the thread's \"small\"",
        },
    ];

    fn start(_: Arrival) -> Start {
        Start::Window
    }
}
