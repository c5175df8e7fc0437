//! A packet of bytes, stored in place: a message for users, written without allocating.

use core::fmt::{self, Write};

/// The longest packet in bytes, in either direction: a device with the longest name, and numbers of twenty digits each.
pub const PACKET_MAX: usize = 2560;
/// A packet that is being written. Bytes that do not fit are cut off.
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
    /// The bytes written so far.
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

/// A table of numbers that are sent as `KEY=VALUE`. The names are in order, with units last.
#[macro_export]
macro_rules! figures {
    ($(#[$doc:meta])* $type:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct $type {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $type {
            /// Each name and its value.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
            /// Sets the field of that name.
            pub fn set(&mut self, key: &[u8], value: u64) {
                $(if key == stringify!($field).as_bytes() {
                    self.$field = value;
                })*
            }
        }

        impl ::core::fmt::Display for $type {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $(write!(f, " {}={}", stringify!($field), self.$field)?;)*
                Ok(())
            }
        }
    };
}
