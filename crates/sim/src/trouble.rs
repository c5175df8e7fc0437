//! The fault model: what can go wrong with devices.

/// What can go wrong with a device, in thousandths of the operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct Trouble {
    /// Reads that fail.
    pub read_error: usize,
    /// Writes that fail.
    pub write_error: usize,
    /// Writes that find the device full.
    pub no_space: usize,
    /// Transfers that do only a part.
    pub short: usize,
    /// Transfers of the control thread's that take longer than anybody's patience.
    pub stall: usize,
    /// Writes of the control thread's that are refused.
    pub refused: usize,
    /// Pages that come back other than they were written: changed on their way or on the device, never written although that was
    /// said, or written somewhere else.
    pub corrupt: usize,
    /// Of the control thread's steps: a device dies. From then on no write to it succeeds.
    pub deaths: usize,
}

impl Trouble {
    /// Devices that are without.
    pub const NONE: Trouble =
        Trouble { read_error: 0, write_error: 0, no_space: 0, short: 0, stall: 0, refused: 0, corrupt: 0, deaths: 0 };

    /// Whether transfers fail.
    pub fn fails(&self) -> bool {
        let Trouble { read_error, write_error, no_space, refused, corrupt, deaths, short: _, stall: _ } = *self;
        read_error + write_error + no_space + refused + corrupt + deaths > 0
    }

    /// Whether transfers take longer than anybody's patience.
    pub fn stalls(&self) -> bool {
        self.stall > 0
    }
}
