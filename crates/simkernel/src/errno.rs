//! The kernel's error numbers that the rules use, as on every Linux architecture.

/// A positive error number.
pub type Errno = i32;

/// Not allowed: the mapping is sealed.
pub const EPERM: Errno = 1;
/// No such page, or not registered.
pub const ENOENT: Errno = 2;
/// Try again: an event is under way.
pub const EAGAIN: Errno = 11;
/// Not all of the range is mapped.
pub const ENOMEM: Errno = 12;
/// A bad address.
pub const EFAULT: Errno = 14;
/// Shared, pinned, isolated, or registered on another userfaultfd.
pub const EBUSY: Errno = 16;
/// Something is there.
pub const EEXIST: Errno = 17;
/// The mapping does not allow it.
pub const EINVAL: Errno = 22;
/// A page was lost.
pub const EHWPOISON: Errno = 133;
