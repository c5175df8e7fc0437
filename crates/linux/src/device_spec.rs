//! Swap devices as people write them, on the command line, in a file, in the builder, and over the control socket.
//!
//! ```text
//!   file:PATH[,path=PATH...][,size=SIZE][,prio=N][,align=extents]   a file in the directory PATH, or the new file PATH; it grows
//!                                                                   up to SIZE
//!   block:PATH[,path=PATH...][,size=SIZE][,prio=N][,force]    a block device; its first SIZE bytes
//!   compressed:[size=SIZE][,algo=words|lz4|zstd[:LEVEL]][,prio=N]   memory that holds compressed pages; without a size as much
//!                                                                   as pays
//!   DIR|FILE[:SIZE]                            short for file:
//! ```
//!
//! With `path=` a device is made of several files, or of several block devices, which are filled in turns. SIZE is that of all
//! together, and the device has the name of the first. A backslash takes the character behind it as it is, so a name may have
//! commas: `file:/mnt/a\,b`. [`crate::size`] reads sizes. Priorities go from -32768 to 32767; pages go to the device with the
//! highest priority that has room. Devices without a priority get -1, -2, ... in the order in which they are named, as with
//! swapon(8). Compressed memory without one goes before all others ([`settle_priorities`]).
//!
//! Invariant: [`parse`] of [`DeviceSpec::encode`] gives the same device (a test has random ones), and no text makes it panic.

use crate::size::{self, Size};
pub use overspill_store::packing::Algorithm;
use overspill_store::zstd;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The smallest device, in bytes: a few clusters.
pub const SIZE_MIN: u64 = 1 << 20;
/// The longest name of a device, in bytes: it must fit into one packet of the control socket.
pub use overspill_machine::files::NAME_MAX;

/// The most files or block devices of one device: their descriptors must fit into one packet of the control socket.
pub const FILES_MAX: usize = 8;

/// What a device is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Medium {
    /// A directory, or a file that does not exist yet.
    File(PathBuf),
    /// A block device.
    Block {
        /// Its node.
        path: PathBuf,
        /// Use it although a file system seems to be on it. (Never although it is in use.)
        force: bool,
    },
    /// Memory. Without a size it takes as much of the budget as pays.
    Compressed(Algorithm),
}

/// A swap device, as it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceSpec {
    /// What it is made of.
    pub medium: Medium,
    /// Further files or block devices, of the same kind, that it is made of.
    pub more: Vec<PathBuf>,
    /// The most it may hold, in bytes, a multiple of 4096; `None`: as far as its place goes.
    pub size: Option<u64>,
    /// Higher ones are used first.
    pub priority: Option<i16>,
    /// Of a file: whether clusters end where its physical extents do.
    pub align: bool,
}

/// What is wrong with a device. `Display` gives a message without its subject: "has no ...".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError(String);

impl SpecError {
    /// With a message without its subject.
    pub fn new(why: impl Into<String>) -> Self {
        SpecError(why.into())
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

fn fail<T>(why: impl Into<String>) -> Result<T, SpecError> {
    Err(SpecError(why.into()))
}

const KINDS: &str = "file, block, compressed";

impl Medium {
    /// The word before the colon.
    pub fn kind(&self) -> &'static str {
        match self {
            Medium::File(_) => "file",
            Medium::Block { .. } => "block",
            Medium::Compressed(_) => "compressed",
        }
    }
    /// Its path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Medium::File(path) | Medium::Block { path, .. } => Some(path),
            Medium::Compressed(_) => None,
        }
    }
}

impl From<Medium> for DeviceSpec {
    /// Without a limit, a priority or anything else that was asked for.
    fn from(medium: Medium) -> Self {
        DeviceSpec { medium, more: Vec::new(), size: None, priority: None, align: false }
    }
}

impl DeviceSpec {
    /// A file in the directory `place`, or the new file `place`, without a limit.
    pub fn file(place: impl Into<PathBuf>) -> Self {
        Medium::File(place.into()).into()
    }

    /// The same device with one more file or block device; `place` is of the same kind as the first.
    ///
    /// ```
    /// use overspill_linux::device_spec::DeviceSpec;
    /// let device = DeviceSpec::file("/ssd0").and("/ssd1").checked().unwrap();
    /// assert_eq!(device.encode(), "file:/ssd0,path=/ssd1");
    /// ```
    pub fn and(mut self, place: impl Into<PathBuf>) -> Self {
        self.more.push(place.into());
        self
    }

    /// The device's name, and the names of all further places that it is made of.
    pub fn names(&self) -> impl Iterator<Item = &OsStr> {
        [self.name()].into_iter().chain(self.more.iter().map(|path| path.as_os_str()))
    }

    /// The device's name for `swaps` and `swapoff`: its path, or its kind if it has no path.
    pub fn name(&self) -> &OsStr {
        self.medium.path().map_or(OsStr::new(self.medium.kind()), Path::as_os_str)
    }

    /// The device, if its parts are valid and go together.
    ///
    /// # Errors
    /// No name, one that is too long or has a zero byte, too many of them or one twice, or memory without a size.
    pub fn checked(self) -> Result<Self, SpecError> {
        for name in self.names().map(OsStr::as_bytes) {
            if name.is_empty() {
                return fail(format!("names no place; write {}:PATH", self.medium.kind()));
            }
            if name.len() > NAME_MAX {
                return fail(format!("has a name of more than {NAME_MAX} bytes"));
            }
            if name.contains(&0) {
                return fail("has a zero byte in its name, which no file can have");
            }
        }
        if self.names().count() > FILES_MAX {
            return fail(format!(
                "is made of {} places, and there can be {FILES_MAX}; make two devices of them",
                self.names().count()
            ));
        }
        if let Some(double) = twice(std::slice::from_ref(&self)) {
            return fail(format!("has the place {} twice; name each once", double.display()));
        }
        if let Medium::Compressed(_) = self.medium
            && !self.more.is_empty()
        {
            return fail("has a path, and compressed devices have none");
        }
        if let Medium::Compressed(Algorithm::Zstd(level)) = self.medium
            && !zstd::LEVELS.contains(&level)
        {
            return fail(no_level(level));
        }
        Ok(self)
    }

    /// The text that [`parse`] reads back.
    pub fn encode(&self) -> OsString {
        let mut text = Vec::from(self.medium.kind());
        text.push(b':');
        let paths = self.medium.path().into_iter().chain(self.more.iter().map(PathBuf::as_path));
        for (i, path) in paths.enumerate() {
            if i > 0 {
                text.extend_from_slice(b",path=");
            }
            for &b in path.as_os_str().as_bytes() {
                if matches!(b, b'\\' | b',' | b';') {
                    text.push(b'\\');
                }
                text.push(b);
            }
        }
        let mut options = Vec::new();
        if let Some(size) = self.size {
            options.push(format!("size={size}"));
        }
        if let Some(priority) = self.priority {
            options.push(format!("prio={priority}"));
        }
        match &self.medium {
            Medium::File(_) if self.align => options.push("align=extents".into()),
            Medium::Block { force: true, .. } => options.push("force".into()),
            Medium::Compressed(algorithm) if *algorithm != Algorithm::default() => options.push(format!("algo={algorithm}")),
            _ => {}
        }
        let has_path = self.medium.path().is_some();
        for (i, option) in options.iter().enumerate() {
            if has_path || i > 0 {
                text.push(b',');
            }
            text.extend_from_slice(option.as_bytes());
        }
        OsString::from_vec(text)
    }
}

/// Reads one device.
///
/// ```
/// use overspill_linux::device_spec::{Medium, parse};
/// let device = parse("block:/dev/sdb,prio=5".as_ref()).unwrap();
/// assert_eq!((device.medium.kind(), device.priority, device.size), ("block", Some(5), None));
/// assert!(parse("floppy:/dev/fd0".as_ref()).is_err());
/// ```
///
/// # Errors
/// [`SpecError`] says what is wrong. The place need not exist. But if a file has the whole name, a colon in it belongs to the name.
pub fn parse(text: &OsStr) -> Result<DeviceSpec, SpecError> {
    let bytes = text.as_bytes();
    if bytes.is_empty() {
        return fail("is empty; name a directory, a file that does not exist yet, or a device such as file:/mnt/nvme,size=50G");
    }
    match kind_of(text) {
        Some((kind, rest)) => parse_kind(kind, rest)?,
        None => parse_plain(text)?,
    }
    .checked()
}

/// Splits off a word and a colon that stand for a kind, known or not. The name of a directory with a size is not one.
fn kind_of(text: &OsStr) -> Option<(&str, &[u8])> {
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|b| *b == b':')?;
    let (kind, rest) = (&bytes[..colon], &bytes[colon + 1..]);
    let kind = std::str::from_utf8(kind).ok().filter(|k| !k.is_empty() && k.bytes().all(|b| b.is_ascii_lowercase()))?;
    if matches!(kind, "file" | "block" | "compressed") {
        return Some((kind, rest));
    }
    (!is_like_a_size(rest) && std::fs::symlink_metadata(Path::new(text)).is_err()).then_some((kind, rest))
}

/// Whether the text behind a colon was meant as a size, and not as a part of a name.
fn is_like_a_size(text: &[u8]) -> bool {
    text.first().is_none_or(|b| b.is_ascii_digit() || *b == b'.')
}

fn parse_kind(kind: &str, rest: &[u8]) -> Result<DeviceSpec, SpecError> {
    let mut fields = if kind == "compressed" && rest.is_empty() { Vec::new() } else { fields(rest, b',')? }.into_iter();
    let mut path = || PathBuf::from(OsString::from_vec(fields.next().unwrap_or_default()));
    let medium = match kind {
        "file" => Medium::File(path()),
        "block" => Medium::Block { path: path(), force: false },
        "compressed" => Medium::Compressed(Algorithm::default()),
        _ => return fail(format!("is of the kind {kind:?}, and there are {KINDS}; a file of this name would be ./{kind}:...")),
    };
    let mut device = DeviceSpec { medium, more: Vec::new(), size: None, priority: None, align: false };
    let mut seen: Vec<Vec<u8>> = Vec::new();
    for field in fields {
        if let Some(path) = field.strip_prefix(b"path=")
            && device.medium.path().is_some()
        {
            device.more.push(OsStr::from_bytes(path).into());
            continue;
        }
        let (key, value) = match field.iter().position(|b| *b == b'=') {
            Some(at) => (&field[..at], Some(String::from_utf8_lossy(&field[at + 1..]))),
            None => (&field[..], None),
        };
        if seen.iter().any(|k| k == key) {
            return fail(format!("has {} twice", key.escape_ascii()));
        }
        seen.push(key.to_vec());
        set(&mut device, key, value.as_deref())?;
    }
    Ok(device)
}

/// One option.
fn set(device: &mut DeviceSpec, key: &[u8], value: Option<&str>) -> Result<(), SpecError> {
    match (key, value, &mut device.medium) {
        (b"size", Some(text), _) => device.size = Some(size(text)?),
        (b"prio", Some(text), _) => device.priority = Some(priority(text)?),
        (b"align", Some(text), Medium::File(_)) => device.align = align(text)?,
        (b"force", None, Medium::Block { force, .. }) => *force = true,
        (b"algo", Some(text), Medium::Compressed(algorithm)) => *algorithm = self::algorithm(text)?,
        (b"size" | b"prio", None, _)
        | (b"align", None, Medium::File(_))
        | (b"path", None, Medium::File(_) | Medium::Block { .. })
        | (b"algo", None, Medium::Compressed(_)) => {
            return fail(format!("has {} without a value", key.escape_ascii()));
        }
        (b"force", Some(_), Medium::Block { .. }) => return fail("has force with a value; write just force"),
        (_, _, medium) => {
            let keys = match medium {
                Medium::File(_) => "path, size, prio, align",
                Medium::Block { .. } => "path, size, prio, force",
                Medium::Compressed(_) => "size, algo, prio",
            };
            let key =
                if key.is_empty() { "an option without a name".into() } else { format!("{:?}", key.escape_ascii().to_string()) };
            return fail(format!("has {key}, and {} devices have {keys}", medium.kind()));
        }
    }
    Ok(())
}

/// A size of a device, as `size=` takes it.
///
/// # Errors
/// Too little, a share, or no size at all.
pub fn size(text: &str) -> Result<u64, SpecError> {
    match size::parse(text) {
        Ok(Size::Bytes(n)) if n >= SIZE_MIN => Ok(n & !4095),
        Ok(Size::Bytes(_)) => fail(format!("has the size {text:?}, which is too little; the minimum is {}", size::exact(SIZE_MIN))),
        Ok(Size::Share(_)) => fail(format!("has the size {text:?}, a share, and of what is not clear; write one such as 50G")),
        Err(error) => fail(format!("has the size {text:?}, which {error}")),
    }
}

/// A priority, as `prio=` takes it.
///
/// # Errors
/// No number, or out of range.
pub fn priority(text: &str) -> Result<i16, SpecError> {
    match text.parse() {
        Ok(n) => Ok(n),
        Err(_) => fail(format!("has the priority {text:?}; write a whole number from -32768 to 32767")),
    }
}

/// An alignment, as `align=` takes it.
///
/// # Errors
/// Anything but `extents`.
pub fn align(text: &str) -> Result<bool, SpecError> {
    if text == "extents" { Ok(true) } else { fail(format!("has the alignment {text:?}, and there is extents")) }
}

/// A compressor, as `algo=` takes it.
///
/// # Errors
/// An unknown name, or a level that does not exist.
pub fn algorithm(text: &str) -> Result<Algorithm, SpecError> {
    match (Algorithm::parse(text), text.split_once(':')) {
        (Some(algorithm), _) => Ok(algorithm),
        (None, Some(("zstd", level))) => fail(no_level(level)),
        (None, _) => fail(format!("has the compressor {text:?}, and there are words, lz4, zstd, zstd:LEVEL")),
    }
}

fn no_level(level: impl fmt::Display) -> String {
    format!("has zstd at level {level}, and there are levels {} to {}", zstd::LEVELS.start(), zstd::LEVELS.end())
}

/// Reads `DIR|FILE[:SIZE]`. A colon may belong to the name. So a file that has the whole name is taken first. Else the text behind
/// the last colon must at least begin like a number, unless a directory stands before it.
fn parse_plain(text: &OsStr) -> Result<DeviceSpec, SpecError> {
    let bytes = text.as_bytes();
    let exists = std::fs::symlink_metadata(Path::new(text)).is_ok();
    if matches!(bytes, b"file" | b"block" | b"compressed") && !exists {
        let name = text.display();
        return fail(format!(
            "names a kind of device and nothing else; write {name}:..., see `overspill help run`; a file of this name would be ./{name}"
        ));
    }
    let whole = DeviceSpec::file(text);
    let Some(colon) = bytes.iter().rposition(|b| *b == b':').filter(|_| !exists) else {
        return Ok(whole);
    };
    let (place, limit) = (&bytes[..colon], &bytes[colon + 1..]);
    if limit.contains(&b'/') || !is_like_a_size(limit) && !Path::new(OsStr::from_bytes(place)).is_dir() {
        return Ok(whole);
    }
    if place.is_empty() {
        return fail("names no place before the colon");
    }
    let limit = size(&String::from_utf8_lossy(limit))?;
    Ok(DeviceSpec { size: Some(limit), ..DeviceSpec::file(OsStr::from_bytes(place)) })
}

/// Splits at `separator` and takes backslashes off.
fn fields(text: &[u8], separator: u8) -> Result<Vec<Vec<u8>>, SpecError> {
    let mut fields = vec![Vec::new()];
    let mut rest = text.iter();
    while let Some(&b) = rest.next() {
        let field = fields.last_mut().expect("never empty");
        match b {
            b'\\' => match rest.next() {
                Some(&b) => field.push(b),
                None => return fail("ends in a backslash with nothing behind it"),
            },
            b if b == separator => fields.push(Vec::new()),
            b => field.push(b),
        }
    }
    Ok(fields)
}

/// Several devices in one text, for the agent's environment.
pub fn encode_list(devices: &[DeviceSpec]) -> OsString {
    let texts: Vec<_> = devices.iter().map(DeviceSpec::encode).collect();
    texts.join(OsStr::new(";"))
}

/// The inverse of [`encode_list`].
///
/// # Errors
/// As [`parse`], for the first that is wrong.
pub fn parse_list(text: &OsStr) -> Result<Vec<DeviceSpec>, SpecError> {
    let mut devices = Vec::new();
    let (bytes, mut start, mut at) = (text.as_bytes(), 0, 0);
    while at <= bytes.len() {
        match bytes.get(at) {
            // a backslash at the end of the text escapes nothing, and still belongs to the device
            Some(b'\\') if at + 1 < bytes.len() => at += 1,
            Some(b';') | None => {
                devices.push(parse(OsStr::from_bytes(&bytes[start..at]))?);
                start = at + 1;
            }
            Some(_) => {}
        }
        at += 1;
    }
    Ok(devices)
}

/// Gives a priority to devices without one, given the `present` priorities of other devices. Compressed memory comes before all
/// others, because behind them it would take memory in vain. The rest come after those that are present, in their order.
pub fn settle_priorities(devices: &mut [DeviceSpec], present: impl Iterator<Item = i16> + Clone) {
    let front = devices.iter().filter_map(|d| d.priority).chain(present.clone()).max().unwrap_or(-1).max(-1).saturating_add(1);
    let mut last = present.min().unwrap_or(0).min(0);
    for device in devices.iter_mut().filter(|d| d.priority.is_none()) {
        device.priority = match device.medium {
            Medium::Compressed(_) => Some(front),
            Medium::File(_) | Medium::Block { .. } => {
                last = last.saturating_sub(1);
                Some(last)
            }
        };
    }
}

/// Refuses compressed memory without a size as the only device: it starts at nothing, and pages would have nowhere to go.
///
/// # Errors
/// [`SpecError`].
pub fn has_place(devices: &[DeviceSpec]) -> Result<(), SpecError> {
    match devices {
        [DeviceSpec { medium: Medium::Compressed(_), size: None, .. }] => {
            fail("needs a size, such as compressed:size=512M, or another device for what it does not take")
        }
        _ => Ok(()),
    }
}

/// The first place that is named twice, by two devices or by one.
pub fn twice(devices: &[DeviceSpec]) -> Option<&OsStr> {
    let names = || devices.iter().flat_map(DeviceSpec::names);
    names().enumerate().find(|(i, name)| names().take(*i).any(|other| other == *name)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<DeviceSpec, String> {
        parse(text.as_ref()).map_err(|e| e.to_string())
    }

    fn file(path: &str, size: Option<u64>, priority: Option<i16>) -> Result<DeviceSpec, String> {
        Ok(DeviceSpec { size, priority, ..DeviceSpec::file(path) })
    }

    #[test]
    fn devices_people_write() {
        assert_eq!(read("file:/path,size=4G,prio=10"), file("/path", Some(4 << 30), Some(10)));
        assert_eq!(read("file:/a\\,b\\\\c,prio=-3"), file("/a,b\\c", None, Some(-3)));
        // regression: a path that ends in a colon lost the comma behind it
        assert_eq!(parse(&read("block::,prio=0").unwrap().encode()).map_err(|e| e.to_string()), read("block::,prio=0"));
        assert_eq!(
            read("compressed:"),
            Ok(DeviceSpec { medium: Medium::Compressed(Algorithm::Words), ..DeviceSpec::file("") }),
            "as much as pays"
        );
        assert_eq!(
            read("compressed:size=512M,algo=lz4"),
            Ok(DeviceSpec { medium: Medium::Compressed(Algorithm::Lz4), size: Some(512 << 20), ..DeviceSpec::file("") })
        );
        for (text, level) in [("algo=zstd,size=1M", 1), ("size=1M,algo=zstd:7", 7)] {
            let medium = Medium::Compressed(Algorithm::Zstd(level));
            assert_eq!(read(&format!("compressed:{text}")), Ok(DeviceSpec { medium, size: Some(1 << 20), ..DeviceSpec::file("") }));
        }
        assert_eq!(
            read("block:/dev/x,prio=5,force"),
            Ok(DeviceSpec {
                medium: Medium::Block { path: "/dev/x".into(), force: true },
                priority: Some(5),
                ..DeviceSpec::file("")
            })
        );
        let several = Ok(DeviceSpec { size: Some(1 << 30), ..DeviceSpec::file("/a,b") }.and("/c;").and("d=e"));
        assert_eq!(read("file:/a\\,b,path=/c;,size=1G,path=d=e"), several);
        assert_eq!(several.map(|device| device.encode()).unwrap(), "file:/a\\,b,path=/c\\;,path=d=e,size=1073741824");
        assert_eq!(
            read("file:/a,align=extents,prio=1"),
            Ok(DeviceSpec { priority: Some(1), align: true, ..DeviceSpec::file("/a") })
        );
        for (text, place, size) in [
            ("/mnt/a", "/mnt/a", None),
            ("/mnt/a:50G", "/mnt/a", Some(50 << 30)),
            ("/mnt/a:1.5G", "/mnt/a", Some(3 << 29)),
            ("/mnt/a:b", "/mnt/a:b", None),
            ("/mnt/a:b:64M", "/mnt/a:b", Some(64 << 20)),
            ("/mnt/1:2/a", "/mnt/1:2/a", None),
            ("swap:64M", "swap", Some(64 << 20)),
            ("/", "/", None),
        ] {
            assert_eq!(read(text), file(place, size, None), "{text}");
        }
    }

    #[test]
    fn mistakes_are_one_sentence_each() {
        for (text, word) in [
            ("", "empty"),
            ("/mnt/a:", "size"),
            ("/mnt/a:5x", "unit"),
            ("/mnt/a:10%", "share"),
            ("/mnt/a:1K", "minimum is 1M"),
            ("/mnt/a:99999999P", "larger"),
            (":64M", "no place"),
            ("zram:size=1G", "there are file, block, compressed"),
            ("file:", "names no place"),
            ("file:,size=1G", "names no place"),
            ("file:/x,size=lots", "not a size"),
            ("file:/x,size", "without a value"),
            ("file:/x,prio=high", "whole number"),
            ("file:/x,prio=40000", "whole number"),
            ("file:/x,size=1G,size=2G", "size twice"),
            ("file:/x,force", "file devices have path, size, prio, align"),
            ("file:/x,path=", "names no place"),
            ("file:/x,path", "without a value"),
            ("file:/x,path=/y,path=/y", "the place /y twice"),
            ("block:/x,path=/x", "the place /x twice"),
            ("file:/0,path=1,path=2,path=3,path=4,path=5,path=6,path=7,path=8", "9 places, and there can be 8"),
            ("compressed:size=1M,path=/x", "compressed devices have size"),
            ("file:/x,align=pages", "there is extents"),
            ("file:/x,align", "without a value"),
            ("block:/x,align=extents", "block devices have path, size, prio, force"),
            ("file:/x,", "an option without a name"),
            ("file:/x\\", "backslash"),
            ("block:/x,force=yes", "just force"),
            ("block:/x,algo=lz4", "block devices have path, size, prio, force"),
            ("compressed", "names a kind of device and nothing else"),
            ("file", "would be ./file"),
            ("/tmp:abc", "has the size \"abc\""),
            ("/tmp:-5G", "has the size \"-5G\""),
            ("/:G", "has the size \"G\""),
            ("compressed:size=1G,algo=zip", "there are words, lz4, zstd"),
            ("compressed:size=1G,algo=lz4:3", "there are words, lz4, zstd"),
            ("compressed:size=1G,algo=zstd:0", "levels 1 to 19"),
            ("compressed:size=1G,algo=zstd:20", "levels 1 to 19"),
            ("compressed:size=1G,algo=zstd:", "levels 1 to 19"),
            ("compressed:/path", "compressed devices have size"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(word) && !error.contains('\n'), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_existing_name_with_a_colon_is_taken_whole() {
        let dir = std::env::temp_dir().join(format!("overspill-colon-{}:64M", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let result = parse(dir.as_os_str());
        std::fs::remove_dir(&dir).unwrap();
        assert_eq!(result, Ok(DeviceSpec::file(dir)));
    }

    /// A list that ended in a backslash lost its last device; a list of one device became empty. Found by fuzzing.
    #[test]
    fn a_list_that_ends_in_a_backslash_is_whole() {
        let list = parse_list("/a;/b\\".as_ref()).unwrap();
        assert_eq!(list, [DeviceSpec::file("/a"), DeviceSpec::file("/b\\")]);
        assert_eq!(parse_list(&encode_list(&list)), Ok(list));
        assert!(parse_list("file:/a\\".as_ref()).unwrap_err().to_string().contains("backslash"));
    }

    #[test]
    fn priorities_and_doubles() {
        let mut list = ["/a", "file:/b,prio=4", "/c"].map(|t| parse(t.as_ref()).unwrap());
        settle_priorities(&mut list, [].into_iter());
        assert_eq!(list.each_ref().map(|d| d.priority), [Some(-1), Some(4), Some(-2)]);
        let mut more = ["/d", "compressed:size=1M", "/e"].map(|t| parse(t.as_ref()).unwrap());
        settle_priorities(&mut more, list.iter().filter_map(|d| d.priority));
        assert_eq!(more.map(|d| d.priority), [Some(-3), Some(5), Some(-4)], "compressed memory in front");
        assert_eq!(twice(&list), None);
        list[2] = parse("block:/a".as_ref()).unwrap();
        assert_eq!(twice(&list), Some("/a".as_ref()));
        list[2] = DeviceSpec::file("/c").and("/b");
        assert_eq!(twice(&list), Some("/b".as_ref()));
    }

    fn device() -> impl Strategy<Value = DeviceSpec> {
        let path = || prop::collection::vec(prop::sample::select(&b"/ab,;\\=: \xff\n"[..]), 1..20);
        let path = move || path().prop_map(|bytes| PathBuf::from(OsString::from_vec(bytes)));
        let medium = prop_oneof![
            path().prop_map(Medium::File),
            (path(), any::<bool>()).prop_map(|(path, force)| Medium::Block { path, force }),
            prop_oneof![Just(Algorithm::Words), Just(Algorithm::Lz4), zstd::LEVELS.prop_map(Algorithm::Zstd)]
                .prop_map(Medium::Compressed),
        ];
        let size = prop::option::of((SIZE_MIN >> 12..1 << 40).prop_map(|pages| pages << 12));
        let more = prop::collection::hash_set(path(), 0..FILES_MAX);
        (medium, more, size, any::<Option<i16>>(), any::<bool>()).prop_map(|(medium, mut more, size, priority, align)| {
            let align = align && matches!(medium, Medium::File(_));
            match medium.path() {
                Some(path) => _ = more.remove(path),
                None => more.clear(),
            }
            DeviceSpec { medium, more: more.into_iter().collect(), size, priority, align }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(devices in prop::collection::vec(device(), 1..5)) {
            prop_assert_eq!(parse(&devices[0].encode()), Ok(devices[0].clone()));
            prop_assert_eq!(parse_list(&encode_list(&devices)), Ok(devices));
        }

        #[test]
        fn no_text_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0..4usize) {
            let mut text = [&b"file:"[..], b"block:", b"compressed:", b""][kind].to_vec();
            text.extend(bytes);
            let text = OsString::from_vec(text);
            for error in [parse(&text).err(), parse_list(&text).err()].into_iter().flatten() {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
