//! The error numbers that the machine tells apart, with Linux's values.

/// An error number.
pub type Errno = i32;

/// No such thing: a page is missing, nothing is registered.
pub const ENOENT: Errno = 2;
/// The device failed.
pub const EIO: Errno = 5;
/// Not now, because an event is unread.
pub const EAGAIN: Errno = 11;
/// There is no memory.
pub const ENOMEM: Errno = 12;
/// There is no such address, or the wrong thing is there.
pub const EFAULT: Errno = 14;
/// Another user has it too, or holds it.
pub const EBUSY: Errno = 16;
/// Something is there already.
pub const EEXIST: Errno = 17;
/// The request does not fit the memory it is for.
pub const EINVAL: Errno = 22;
/// The file may not be so long.
pub const EFBIG: Errno = 27;
/// The file system is full.
pub const ENOSPC: Errno = 28;
/// The content is not what it should be.
pub const EBADMSG: Errno = 74;
/// This file cannot do that.
pub const EOPNOTSUPP: Errno = 95;
/// The user's part of the file system is full.
pub const EDQUOT: Errno = 122;
