//! Tells whether data seems to be on a block device. File systems, partition tables and the like leave marks at fixed places near
//! the start of a device, some of them near its end.
//!
//! The places are from each format's own documentation; blkid(8) looks at the same. A mark of two bytes is found by chance on one
//! device in some thousands. That costs the user a `force`; a missed mark would cost the data. Formats without any mark, such as
//! plain dm-crypt, are not recognised.

use crate::device_spec::{DeviceSpec, Medium};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Name, offset in bytes, mark.
const MARKS: &[(&str, u64, &[u8])] = &[
    ("ext2, ext3 or ext4", 0x438, &[0x53, 0xef]),
    ("XFS", 0, b"XFSB"),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("F2FS", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    ("bcachefs", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9]),
    ("EROFS", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("squashfs", 0, b"hsqs"),
    ("squashfs", 0, b"sqsh"),
    ("cramfs", 0, &[0x45, 0x3d, 0xcd, 0x28]),
    ("cramfs", 0, &[0x28, 0xcd, 0x3d, 0x45]),
    ("cramfs", 0x200, &[0x45, 0x3d, 0xcd, 0x28]),
    ("cramfs", 0x200, &[0x28, 0xcd, 0x3d, 0x45]),
    ("romfs", 0, b"-rom1fs-"),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("ReFS", 3, b"ReFS\0"),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("FAT", 0x52, b"FAT32   "),
    ("FAT", 0x36, b"FAT1"),
    ("ISO 9660", 0x8001, b"CD001"),
    ("UDF", 0x8001, b"BEA01"),
    ("JFS", 0x8000, b"JFS1"),
    ("ReiserFS", 0x10034, b"ReIsEr"),
    ("ReiserFS", 0x2034, b"ReIsEr"),
    ("Reiser4", 0x10000, b"ReIsEr4"),
    // versions 1 and 2 with names of 14 and 30 bytes, and version 3; in either order of bytes
    ("minix", 0x410, &[0x7f, 0x13]),
    ("minix", 0x410, &[0x8f, 0x13]),
    ("minix", 0x410, &[0x68, 0x24]),
    ("minix", 0x410, &[0x78, 0x24]),
    ("minix", 0x410, &[0x13, 0x7f]),
    ("minix", 0x410, &[0x13, 0x8f]),
    ("minix", 0x410, &[0x24, 0x68]),
    ("minix", 0x410, &[0x24, 0x78]),
    ("minix", 0x418, &[0x5a, 0x4d]),
    ("minix", 0x418, &[0x4d, 0x5a]),
    ("bfs", 0, &[0xce, 0xfa, 0xad, 0x1b]),
    ("bfs", 0, &[0x1b, 0xad, 0xfa, 0xce]),
    ("BeFS", 0x20, b"BFS1"),
    ("BeFS", 0x20, b"1SFB"),
    ("BeFS", 0x220, b"BFS1"),
    ("BeFS", 0x220, b"1SFB"),
    ("HFS+", 0x400, b"H+"),
    ("HFS+", 0x400, b"HX"),
    ("HFS", 0x400, b"BD"),
    ("APFS", 0x20, b"NXSB"),
    ("NILFS2", 0x406, &[0x34, 0x34]),
    ("HPFS", 0x2000, &[0x49, 0xe8, 0x95, 0xf9]),
    ("VxFS", 0x400, &[0xf5, 0xfc, 0x01, 0xa5]),
    ("VxFS", 0x2000, &[0xa5, 0x01, 0xfc, 0xf5]),
    // UFS1 and UFS2, whose superblock is at 0, 8, 64 or 256 KiB; in either order of bytes
    ("UFS", 0x55c, &[0x54, 0x19, 0x01, 0x00]),
    ("UFS", 0x55c, &[0x00, 0x01, 0x19, 0x54]),
    ("UFS", 0x55c, &[0x19, 0x01, 0x54, 0x19]),
    ("UFS", 0x55c, &[0x19, 0x54, 0x01, 0x19]),
    ("UFS", 0x255c, &[0x54, 0x19, 0x01, 0x00]),
    ("UFS", 0x255c, &[0x00, 0x01, 0x19, 0x54]),
    ("UFS", 0x255c, &[0x19, 0x01, 0x54, 0x19]),
    ("UFS", 0x255c, &[0x19, 0x54, 0x01, 0x19]),
    ("UFS", 0x1055c, &[0x54, 0x19, 0x01, 0x00]),
    ("UFS", 0x1055c, &[0x00, 0x01, 0x19, 0x54]),
    ("UFS", 0x1055c, &[0x19, 0x01, 0x54, 0x19]),
    ("UFS", 0x1055c, &[0x19, 0x54, 0x01, 0x19]),
    ("UFS", 0x4055c, &[0x54, 0x19, 0x01, 0x00]),
    ("UFS", 0x4055c, &[0x00, 0x01, 0x19, 0x54]),
    ("UFS", 0x4055c, &[0x19, 0x01, 0x54, 0x19]),
    ("UFS", 0x4055c, &[0x19, 0x54, 0x01, 0x19]),
    ("OCFS2", 0x2000, b"OCFSV2"),
    ("GFS2", 0x10000, &[0x01, 0x16, 0x19, 0x70]),
    ("the kernel's swap space", 4086, b"SWAPSPACE2"),
    ("the kernel's swap space", 4086, b"SWAP-SPACE"),
    ("a hibernated system", 4086, b"S1SUSPEND"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LUKS", 0x4000, b"SKUL\xba\xbe"),
    // the label is in one of the first four sectors
    ("LVM", 0x218, b"LVM2 001"),
    ("LVM", 0x18, b"LVM2 001"),
    ("LVM", 0x418, b"LVM2 001"),
    ("LVM", 0x618, b"LVM2 001"),
    ("Stratis", 0x200, b"!Stra0tis"),
    ("VDO", 0, b"dmvdo001"),
    ("Ceph BlueStore", 0, b"bluestore block"),
    ("a RAID member", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("bcache", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("ZFS", 0x20000, &[0x0c, 0xb1, 0xba, 0x00, 0x00, 0x00, 0x00, 0x00]),
    ("ZFS", 0x21000, &[0x0c, 0xb1, 0xba, 0x00, 0x00, 0x00, 0x00, 0x00]),
    ("a partition table", 512, b"EFI PART"),
    ("a partition table", 512 * 8, b"EFI PART"),
    ("a partition table", 0x1fe, &[0x55, 0xaa]),
];

/// Name, a power of two, how far before the end in bytes, mark. The end is that of the device, rounded down to the power of two.
const MARKS_AT_END: &[(&str, u64, u64, &[u8])] = &[
    // md's superblock 0.90 in either order of bytes, 1.0, and those of mainboards' RAID
    ("a RAID member", 64 << 10, 64 << 10, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member", 64 << 10, 64 << 10, &[0xa9, 0x2b, 0x4e, 0xfc]),
    ("a RAID member", 4096, 8192, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member", 512, 1024, b"Intel Raid ISM"),
    ("a RAID member", 512, 512, &[0xde, 0x11, 0xde, 0x11]),
    // metadata of the versions 8 and 9, with or without a clean end
    ("DRBD", 4096, 4096 - 60, &[0x83, 0x74, 0x02, 0x6b]),
    ("DRBD", 4096, 4096 - 60, &[0x83, 0x74, 0x02, 0x6c]),
    ("DRBD", 4096, 4096 - 60, &[0x83, 0x74, 0x02, 0x6d]),
    // the second superblock
    ("NILFS2", 4096, 4096 - 6, &[0x34, 0x34]),
    // the second table, of sectors of 512 bytes or 4096
    ("a partition table", 512, 512, b"EFI PART"),
    ("a partition table", 4096, 4096, b"EFI PART"),
];

/// A message if a block device of this swap device has data on it and `force` was not given. Devices that cannot be opened are
/// skipped.
pub fn refusal(device: &DeviceSpec) -> Option<String> {
    if !matches!(device.medium, Medium::Block { force: false, .. }) {
        return None;
    }
    device.names().map(Path::new).find_map(|path| {
        let open = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path).ok()?;
        let is_block = open.metadata().is_ok_and(|data| data.file_type().is_block_device());
        let what = find(&open).ok().flatten().filter(|_| is_block)?;
        Some(format!("{}: {}", path.display(), sentence(what, path)))
    })
}

/// The message about data on a block device that swap would destroy. It says how to use the device all the same.
pub fn sentence(what: &str, path: &Path) -> String {
    format!(
        "there seems to be {what} on this block device, and swap would destroy it; if it may go, write block:{},force",
        path.display()
    )
}

/// What seems to be on the device, if anything is. Places behind the device's end count as empty.
///
/// # Errors
/// As read(2) and lseek(2).
pub fn find(device: &File) -> io::Result<Option<&'static str>> {
    let end = { device }.seek(SeekFrom::End(0))?;
    let at_start = MARKS.iter().copied();
    let at_end = MARKS_AT_END.iter().filter_map(|&(name, unit, back, mark)| Some((name, place_at_end(end, unit, back)?, mark)));
    let mut buffer = [0u8; 16];
    for (name, offset, mark) in at_start.chain(at_end) {
        match device.read_exact_at(&mut buffer[..mark.len()], offset) {
            Ok(()) if buffer[..mark.len()] == *mark => return Ok(Some(name)),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The place of a mark near the end, on a device of `end` bytes; `None` if the device is too short for it.
fn place_at_end(end: u64, unit: u64, back: u64) -> Option<u64> {
    (end & !(unit - 1)).checked_sub(back)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("overspill-signature-{}-{name}", std::process::id()))
    }

    #[test]
    fn each_mark_is_found_where_it_is_and_nowhere_else() {
        let path = place("start");
        for &(name, offset, mark) in MARKS {
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            assert_eq!(find(&file).unwrap(), None);
            file.write_all_at(mark, offset).unwrap();
            assert_eq!(find(&file).unwrap(), Some(name));
            file.set_len(offset + mark.len() as u64 - 1).unwrap();
            assert_eq!(find(&file).unwrap(), None, "{name}: cut off");
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn marks_are_found_at_the_end() {
        let path = place("end");
        // lengths that are not multiples of the units
        for len in [1 << 20, (1 << 20) + (60 << 10) + 512, 100_000_000 / 512 * 512] {
            for &(name, unit, back, mark) in MARKS_AT_END {
                let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
                file.set_len(len).unwrap();
                let at = len / unit * unit - back;
                file.write_all_at(mark, at).unwrap();
                assert_eq!(find(&file).unwrap(), Some(name), "{at} of {len}");
                file.set_len(len + (64 << 10)).unwrap();
                assert_eq!(find(&file).unwrap(), None, "{name}: that is not the end");
            }
        }
        // a device that is too short for most marks, and an empty one
        for len in [700, 0] {
            File::create(&path).unwrap().set_len(len).unwrap();
            assert_eq!(find(&File::open(&path).unwrap()).unwrap(), None);
        }
        std::fs::remove_file(path).unwrap();
    }

    /// The places of md's superblocks, computed as its own source does: for 0.90 MD_NEW_SIZE_SECTORS, for 1.0 super_1_load.
    #[test]
    fn raid_superblocks_are_where_md_has_them() {
        for sectors in [2048u64, 2055, 409_600, 1_953_525_168] {
            let end = sectors * 512;
            assert_eq!(place_at_end(end, 64 << 10, 64 << 10), Some(((sectors & !127) - 128) * 512));
            assert_eq!(place_at_end(end, 4096, 8192), Some(((sectors - 16) & !7) * 512));
        }
    }

    /// Devices made by the programs that are installed.
    #[test]
    fn what_is_made_by_mkfs_is_found() {
        let path = place("mkfs");
        let source = place("mkfs-source");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("a"), b"hello").unwrap();
        let (file, from) = (path.to_str().unwrap(), source.to_str().unwrap());
        for (name, command, arguments) in [
            ("minix", "mkfs.minix", &["-1", file][..]),
            ("minix", "mkfs.minix", &["-2", file]),
            ("minix", "mkfs.minix", &["-3", file]),
            ("cramfs", "mkfs.cramfs", &[from, file]),
            ("cramfs", "mkfs.cramfs", &["-N", "big", from, file]),
            ("bfs", "mkfs.bfs", &[file]),
            ("ext2, ext3 or ext4", "mkfs.ext4", &["-q", "-F", file]),
            ("the kernel's swap space", "mkswap", &[file]),
        ] {
            let _ = std::fs::remove_file(&path);
            File::create(&path).unwrap().set_len(8 << 20).unwrap();
            let search = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
            match Command::new(command).args(arguments).env("PATH", search).output() {
                Ok(output) if output.status.success() => {
                    assert_eq!(find(&File::open(&path).unwrap()).unwrap(), Some(name), "{command} {arguments:?}");
                }
                other => println!("not run: {command} {arguments:?}: {other:?}"),
            }
        }
        std::fs::remove_file(path).unwrap();
        std::fs::remove_dir_all(source).unwrap();
    }
}
