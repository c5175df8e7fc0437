//! A packet of bytes, in place: for what is said to people without allocating.

use core::fmt::{self, Write};

/// The longest packet, in bytes, either way: a device of the longest name, each of whose numbers has twenty digits.
pub const PACKET_MAX: usize = 2560;
/// A packet that is being written. What does not fit is cut off.
#[derive(Clone, Copy)]
pub struct Packet {
    bytes: [u8; PACKET_MAX],
    len: usize,
}

impl Packet {
    /// Empty.
    pub const fn new() -> Self {
        Packet { bytes: [0; PACKET_MAX], len: 0 }
    }
    /// What was written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    /// Writes bytes, which need not be text.
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        let n = bytes.len().min(PACKET_MAX - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
        self
    }
}

impl Default for Packet {
    fn default() -> Self {
        Packet::new()
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes().escape_ascii())
    }
}

impl Write for Packet {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}
