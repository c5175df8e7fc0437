//! The fault model: what can go wrong with devices.

/// The failures of devices, in thousandths of the operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct Trouble {
    /// Reads that fail.
    pub read_error: usize,
    /// Writes that fail.
    pub write_error: usize,
    /// Writes that find the device full.
    pub no_space: usize,
    /// Transfers that do only a part of the pages.
    pub short: usize,
    /// Transfers of the control thread's that take longer than a swapoff's patience.
    pub stall: usize,
    /// Writes of the control thread's that are refused.
    pub refused: usize,
    /// Pages that come back changed: damaged on the way or on the device, never written although the device reported success, or
    /// written to another place.
    pub corrupt: usize,
    /// Steps of the control thread at which a device dies. From then on every write to it fails.
    pub deaths: usize,
    /// Swapoffs whose device cannot be read for up to nine seconds.
    pub outages: usize,
}

impl Trouble {
    /// Devices that never fail.
    pub const NONE: Trouble =
        Trouble { read_error: 0, write_error: 0, no_space: 0, short: 0, stall: 0, refused: 0, corrupt: 0, deaths: 0, outages: 0 };

    /// Whether transfers fail.
    pub fn fails(&self) -> bool {
        let Trouble { read_error, write_error, no_space, refused, corrupt, deaths, outages, short: _, stall: _ } = *self;
        read_error + write_error + no_space + refused + corrupt + deaths + outages > 0
    }

    /// Whether transfers take longer than a swapoff's patience.
    pub fn stalls(&self) -> bool {
        self.stall > 0
    }
}
