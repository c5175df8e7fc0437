//! Whether somebody's data seems to be on a block device: the marks that file systems, partition tables and the like leave at fixed
//! places near its start. (btrfs and ZFS among them; what has its mark only at the end, such as old md superblocks, is not seen.)
//!
//! The places are from each format's own documentation, the same that blkid(8) looks at.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Name, offset in bytes, mark.
const MARKS: &[(&str, u64, &[u8])] = &[
    ("ext2, ext3 or ext4", 0x438, &[0x53, 0xef]),
    ("XFS", 0, b"XFSB"),
    ("btrfs", 0x10040, b"_BHRfS_M"),
    ("F2FS", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    ("bcachefs", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9]),
    ("EROFS", 0x400, &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("squashfs", 0, b"hsqs"),
    ("NTFS", 3, b"NTFS    "),
    ("exFAT", 3, b"EXFAT   "),
    ("FAT", 0x52, b"FAT32   "),
    ("FAT", 0x36, b"FAT1"),
    ("ISO 9660", 0x8001, b"CD001"),
    ("UDF", 0x8001, b"BEA01"),
    ("JFS", 0x8000, b"JFS1"),
    ("ReiserFS", 0x10034, b"ReIsEr"),
    ("OCFS2", 0x2000, b"OCFSV2"),
    ("GFS2", 0x10000, &[0x01, 0x16, 0x19, 0x70]),
    ("the kernel's swap space", 4086, b"SWAPSPACE2"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("LVM", 0x218, b"LVM2 001"),
    ("LVM", 0x18, b"LVM2 001"),
    ("a RAID member", 0x1000, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a RAID member", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("bcache", 0x1018, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("ZFS", 0x20000, &[0x0c, 0xb1, 0xba, 0x00, 0x00, 0x00, 0x00, 0x00]),
    ("ZFS", 0x21000, &[0x0c, 0xb1, 0xba, 0x00, 0x00, 0x00, 0x00, 0x00]),
    ("a partition table", 512, b"EFI PART"),
    ("a partition table", 0x1fe, &[0x55, 0xaa]),
];

/// What seems to be on the device, if anything is. What cannot be read holds nothing.
///
/// # Errors
/// As read(2), but for reading behind the device's end.
pub fn find(device: &File) -> io::Result<Option<&'static str>> {
    let mut buffer = [0u8; 16];
    for &(name, offset, mark) in MARKS {
        match device.read_exact_at(&mut buffer[..mark.len()], offset) {
            Ok(()) if buffer[..mark.len()] == *mark => return Ok(Some(name)),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_found_where_it_is_and_nowhere_else() {
        let path = std::env::temp_dir().join(format!("overspill-signature-{}", std::process::id()));
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
}
