//! Shows on standard error how far long work is: a line that changes on a terminal, else a line from time to time.

use crate::printable;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Work that ends sooner shows nothing.
const SILENT: Duration = Duration::from_millis(500);
/// The time between two prints on a terminal.
const TERMINAL_STEP: Duration = Duration::from_millis(200);
/// The time between two lines elsewhere: in a log file or under another program.
const LOG_STEP: Duration = Duration::from_secs(10);

/// Shows progress.
pub struct Meter {
    what: String,
    next: Instant,
    terminal: bool,
    shown: bool,
}

impl Meter {
    /// Begins work of that name.
    pub fn new(what: impl Into<String>) -> Self {
        let what: String = what.into();
        let terminal = std::io::stderr().is_terminal();
        let next = Instant::now() + if terminal { SILENT } else { LOG_STEP };
        Meter { what: printable(&what), next, terminal, shown: false }
    }

    /// Shows that `done` of `total` parts are done; a total of 0 means unknown.
    pub fn show(&mut self, done: u64, total: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + if self.terminal { TERMINAL_STEP } else { LOG_STEP };
        // Not above 100 if a file grows while it is read.
        let share = (done as f64 / total as f64 * 100.0).min(100.0);
        let text = if total == 0 { self.what.clone() } else { format!("{}: {share:.0}%", self.what) };
        let mut stderr = std::io::stderr();
        // It does not matter if standard error is closed.
        let _ = if self.terminal { write!(stderr, "\r\x1b[K{text}") } else { writeln!(stderr, "overspill: {text}") };
        let _ = stderr.flush();
        self.shown = true;
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.terminal && self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
