//! Detects the contents of storage by its first and last bytes, so that data is not overwritten by accident and an
//! image format is not taken for a raw disk.
//!
//! The bytes are not trusted: every offset is checked, and only magic numbers and the few fields that distinguish
//! related formats are read. Nothing is mounted, and no pointer in the data is followed.

pub const IMAGE_HEAD_BYTES: usize = 68;

const ZFS_LABEL_BYTES: u64 = 256 * 1024;
const MIB: u64 = 1 << 20;
/// Offset of the name-value list in a ZFS label.
const ZFS_LIST: u64 = 16 * 1024;

/// The (offset, length) of what [`probe`] looks at, in order, apart from each other, in multiples of `granularity` bytes
/// and within the disk. With 512 bytes it all fits the first flight of a TCP connection (RFC 6928), a round trip.
pub fn places(size_bytes: u64, granularity: u32) -> Vec<(u64, usize)> {
    let granularity = u64::from(granularity.max(1));
    // Around the end of each first page of 4 to 64 KiB lie the marks of swap areas, and much that begins there.
    let pages = [4096, 8192, 16384, 32768, 65536].map(|page| (page - 512, page + 512));
    let mut wanted = vec![(0, 2048), (131_072, 131_072 + 512), (MIB, MIB + 512)];
    wanted.extend(pages);
    wanted.extend(zfs_lists(size_bytes).map(|at| (at, at.saturating_add(512))));
    let backs = [512, 4096].into_iter().filter_map(|back| size_bytes.checked_sub(back));
    wanted.extend(
        backs.chain(md_at_end(size_bytes)).chain(imsm_at(size_bytes)).map(|at| (at, at.saturating_add(512))),
    );
    let end = size_bytes / granularity * granularity;
    let rounded = wanted.into_iter().map(|(start, stop)| {
        (start / granularity * granularity, stop.min(end).next_multiple_of(granularity).min(end))
    });
    let mut rounded: Vec<_> = rounded.filter(|(start, stop)| start < stop).collect();
    rounded.sort_unstable();
    let mut apart: Vec<(u64, u64)> = Vec::new();
    for (start, stop) in rounded {
        match apart.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(stop),
            _ => apart.push((start, stop)),
        }
    }
    apart.into_iter().map(|(start, stop)| (start, (stop - start) as usize)).collect()
}

struct Magic {
    name: &'static str,
    offset: u64,
    bytes: &'static [u8],
}

const fn magic(name: &'static str, offset: u64, bytes: &'static [u8]) -> Magic {
    Magic { name, offset, bytes }
}

/// Formats that one comparison detects; `SPECIAL` has the others.
const MAGICS: &[Magic] = &[
    magic("xfs filesystem", 0, b"XFSB"),
    magic("btrfs filesystem", 0x10040, b"_BHRfS_M"),
    magic("f2fs filesystem", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    magic("ntfs filesystem", 3, b"NTFS    "),
    magic("exfat filesystem", 3, b"EXFAT   "),
    magic("refs filesystem", 3, b"ReFS\0\0\0\0"),
    magic("squashfs filesystem", 0, b"hsqs"),
    magic("erofs filesystem", 1024, &[0xe2, 0xe1, 0xf5, 0xe0]),
    magic("iso9660 filesystem", 32769, b"CD001"),
    magic("udf filesystem", 32769, b"BEA01"),
    magic("apfs container", 32, b"NXSB"),
    magic("hfs+ filesystem", 1024, b"H+\0\x04"),
    magic("hfsx filesystem", 1024, b"HX\0\x05"),
    magic("jfs filesystem", 32768, b"JFS1"),
    magic("reiserfs filesystem", 65588, b"ReIsErFs"),
    magic("reiserfs filesystem", 65588, b"ReIsEr2Fs"),
    magic("reiser4 filesystem", 65536, b"ReIsEr4"),
    magic("VDO device", 0, b"dmvdo001"),
    magic("VMFS volume", MIB, &[0x0d, 0xd0, 0x01, 0xc0]),
    magic("gfs2 filesystem", 65536, &[0x01, 0x16, 0x19, 0x70]),
    magic("ocfs2 filesystem", 8192, b"OCFSV2"),
    magic("bcachefs filesystem", 4120, BCACHE_UUIDS[1]),
    magic("bcache device", 4120, BCACHE_UUIDS[0]),
    magic("bluestore (Ceph) device", 0, b"bluestore block device\n"),
    magic("BitLocker volume", 3, b"-FVE-FS-"),
];

/// Image formats, with QEMU's names. Their magic lies within [`IMAGE_HEAD_BYTES`].
const IMAGES: &[(Magic, &str)] = &[
    (magic("qcow2 image", 0, b"QFI\xfb"), "qcow2"),
    (magic("vmdk image", 0, b"KDMV"), "vmdk"),
    (magic("vmdk descriptor", 0, b"# Disk DescriptorFile"), "vmdk"),
    (magic("vhdx image", 0, b"vhdxfile"), "vhdx"),
    (magic("vhd image", 0, b"conectix"), "vpc"),
    (magic("vdi image", 64, &[0x7f, 0x10, 0xda, 0xbe]), "vdi"),
    (magic("qed image", 0, b"QED\0"), "qed"),
    (magic("parallels image", 0, b"WithoutFreeSpace"), "parallels"),
];

const BCACHE_UUIDS: [&[u8]; 2] = [
    &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
];

/// Parts of a disk, at least its [`places`]. What lies elsewhere counts as unknown.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// (offset, bytes)
    pub parts: &'a [(u64, &'a [u8])],
    pub size_bytes: u64,
}

impl<'a> Parts<'a> {
    fn get(&self, offset: u64, length: usize) -> Option<&'a [u8]> {
        self.parts.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(length)?)
        })
    }

    fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        self.get(offset, bytes.len()) == Some(bytes)
    }

    fn u16_le(&self, offset: u64) -> Option<u16> {
        Some(u16::from_le_bytes(self.get(offset, 2)?.try_into().ok()?))
    }

    fn u32_le(&self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.get(offset, 4)?.try_into().ok()?))
    }
}

type Special = fn(&Parts<'_>) -> Option<&'static str>;

/// Formats that need more than one comparison, the most specific first.
const SPECIAL: &[Special] =
    &[luks, lvm, md, imsm, ddf, drbd, gpt, zfs, extended, swap, fat, vhd_footer, master_boot_record];

/// The formats found on the disk, the most specific first; empty if none is known. A partition table is reported beside
/// the boot sector's file system if both match, since either deserves protection.
pub fn probe(disk: &Parts<'_>) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    let all = MAGICS.iter().chain(IMAGES.iter().map(|(magic, _)| magic));
    let simple = all.filter(|magic| disk.has(magic.offset, magic.bytes)).map(|magic| magic.name);
    let special = SPECIAL.iter().filter_map(|special| special(disk));
    for name in simple.chain(special) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    // A FAT or NTFS boot sector has the MBR's mark, and a GPT disk has a protective MBR.
    if found.len() > 1 {
        found.retain(|name| *name != MBR);
    }
    found
}

/// The image format of a file that begins with `head`, by QEMU's name.
pub fn image(head: &[u8]) -> Option<&'static str> {
    let has = |magic: &Magic| head.get(magic.offset as usize..)?.starts_with(magic.bytes).then_some(());
    IMAGES.iter().find(|(magic, _)| has(magic).is_some()).map(|(_, format)| *format)
}

/// LUKS on-disk format: magic, then a big-endian version.
fn luks(disk: &Parts<'_>) -> Option<&'static str> {
    if disk.has(0, b"LUKS\xba\xbe\x00\x01") {
        return Some("LUKS1 volume");
    }
    // The second LUKS2 header lies at one of nine offsets, 2^14 to 2^22, and remains if the first is overwritten. The
    // default, 2^14, and four more are looked at.
    let second = [14, 15, 16, 17, 20].into_iter().any(|power| disk.has(1 << power, b"SKUL\xba\xbe"));
    (disk.has(0, b"LUKS\xba\xbe") || second).then_some("LUKS2 volume")
}

/// The label of an LVM2 physical volume lies in one of the first four sectors.
fn lvm(disk: &Parts<'_>) -> Option<&'static str> {
    (0..4)
        .any(|sector| disk.has(sector * 512, b"LABELONE") && disk.has(sector * 512 + 24, b"LVM2 001"))
        .then_some("LVM2 physical volume")
}

/// Offsets of the md superblocks 1.0 and 0.90, which lie near the end.
fn md_at_end(size_bytes: u64) -> impl Iterator<Item = u64> {
    let v1_0 = ((size_bytes / 512).saturating_sub(16) & !7) * 512;
    let v0_90 = (size_bytes & !0xffff).saturating_sub(0x10000);
    (size_bytes >= 0x20000).then_some([v1_0, v0_90]).into_iter().flatten()
}

/// md superblocks: 1.1 at the start, 1.2 at 4 KiB, 1.0 and 0.90 near the end, 0.90 in the host's byte order.
fn md(disk: &Parts<'_>) -> Option<&'static str> {
    const LITTLE: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
    const BIG: &[u8] = &[0xa9, 0x2b, 0x4e, 0xfc];
    let mut at_end = md_at_end(disk.size_bytes);
    let at_end = at_end.any(|at| disk.has(at, LITTLE) || disk.has(at, BIG));
    (disk.has(0, LITTLE) || disk.has(4096, LITTLE) || at_end).then_some("md RAID member")
}

/// Intel's RAID of disks (IMSM) keeps its record in the sector before the last.
fn imsm_at(size_bytes: u64) -> Option<u64> {
    Some((size_bytes / 512).checked_sub(2)? * 512)
}

fn imsm(disk: &Parts<'_>) -> Option<&'static str> {
    disk.has(imsm_at(disk.size_bytes)?, b"Intel Raid ISM Cfg Sig. ").then_some("Intel RAID (IMSM) member")
}

/// SNIA's Common RAID Disk Data Format: the anchor header in the last sector, in either byte order.
fn ddf(disk: &Parts<'_>) -> Option<&'static str> {
    let at = disk.size_bytes.checked_sub(512)?;
    let is_header = disk.has(at, &[0xde, 0x11, 0xde, 0x11]) || disk.has(at, &[0x11, 0xde, 0x11, 0xde]);
    is_header.then_some("DDF RAID member")
}

/// DRBD's internal metadata in the last 4 KiB, of versions 8 and 9; their magic numbers differ in the last digit.
fn drbd(disk: &Parts<'_>) -> Option<&'static str> {
    let at = disk.size_bytes.checked_sub(4096)?.checked_add(60)?;
    let is_metadata = (0x6b..=0x6d).any(|last| disk.has(at, &[0x83, 0x74, 0x02, last]));
    is_metadata.then_some("DRBD device")
}

/// GPT: a header in block 1 (blocks of 512 or 4096 bytes), or the backup in the last block.
fn gpt(disk: &Parts<'_>) -> Option<&'static str> {
    const SIGNATURE: &[u8] = b"EFI PART";
    let backup = |block: u64| disk.size_bytes >= 2 * block && disk.has(disk.size_bytes - block, SIGNATURE);
    (disk.has(512, SIGNATURE) || disk.has(4096, SIGNATURE) || backup(512) || backup(4096))
        .then_some("GPT partition table")
}

/// Offsets of the name-value lists of the four ZFS labels, two at either end.
fn zfs_lists(size_bytes: u64) -> impl Iterator<Item = u64> {
    let size = size_bytes / ZFS_LABEL_BYTES * ZFS_LABEL_BYTES;
    let starts = [Some(0), Some(ZFS_LABEL_BYTES), size.checked_sub(2 * ZFS_LABEL_BYTES)]
        .into_iter()
        .chain([size.checked_sub(ZFS_LABEL_BYTES)]);
    starts.flatten().map(|start| start + ZFS_LIST)
}

/// A ZFS label has a list of names and values in XDR, the first of which is `version`.
fn zfs(disk: &Parts<'_>) -> Option<&'static str> {
    const NAME: u64 = 20;
    zfs_lists(disk.size_bytes)
        .any(|list| disk.has(list, &[1]) && disk.has(list + NAME, b"\0\0\0\x07version\0"))
        .then_some("ZFS label")
}

/// The ext family: the magic is at offset 1080; feature flags distinguish the members.
fn extended(disk: &Parts<'_>) -> Option<&'static str> {
    const HAS_JOURNAL: u32 = 0x4;
    // extents, 64bit, flex_bg.
    const EXT4_INCOMPATIBLE: u32 = 0x40 | 0x80 | 0x200;
    const JOURNAL_DEVICE: u32 = 0x8;
    const FIRST: u64 = 1024;
    if disk.u16_le(FIRST + 56)? != 0xef53 {
        return None;
    }
    let compatible = disk.u32_le(FIRST + 92)?;
    let incompatible = disk.u32_le(FIRST + 96)?;
    Some(if incompatible & JOURNAL_DEVICE != 0 {
        "ext journal"
    } else if incompatible & EXT4_INCOMPATIBLE != 0 {
        "ext4 filesystem"
    } else if compatible & HAS_JOURNAL != 0 {
        "ext3 filesystem"
    } else {
        "ext2 filesystem"
    })
}

/// Swap: a magic in the last 10 bytes of the first page, for any page size.
fn swap(disk: &Parts<'_>) -> Option<&'static str> {
    let known: [&[u8]; 4] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"S2SUSPEND\0"];
    [4096, 8192, 16384, 32768, 65536]
        .into_iter()
        .any(|page: u64| known.iter().any(|bytes| disk.has(page - 10, bytes)))
        .then_some("swap area")
}

/// FAT: a type name in the boot sector, with a valid mark and sector size.
fn fat(disk: &Parts<'_>) -> Option<&'static str> {
    let named = disk.has(54, b"FAT12   ") || disk.has(54, b"FAT16   ") || disk.has(82, b"FAT32   ");
    let sector = disk.u16_le(11)?;
    (named && disk.has(510, &[0x55, 0xaa]) && matches!(sector, 512 | 1024 | 2048 | 4096))
        .then_some("fat filesystem")
}

/// A fixed VHD has a footer at the end, and no header.
fn vhd_footer(disk: &Parts<'_>) -> Option<&'static str> {
    (disk.size_bytes >= 512 && disk.has(disk.size_bytes - 512, b"conectix")).then_some("vhd image")
}

const MBR: &str = "MBR partition table";

/// An MBR: the mark, four entries whose flag is 0 or 0x80, and at least one entry in use.
fn master_boot_record(disk: &Parts<'_>) -> Option<&'static str> {
    if !disk.has(510, &[0x55, 0xaa]) {
        return None;
    }
    let entries = disk.get(446, 64)?.chunks_exact(16);
    let plausible = entries.clone().all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.clone().any(|entry| entry[4] != 0 && entry[12..16] != [0; 4]);
    (plausible && used).then_some(MBR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 2 << 20;
    /// The start of a name-value list: XDR, its flags, and the first name.
    const ZFS: &[u8] = b"\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\0\0\x24\0\0\0\x20\0\0\0\x07version\0";

    /// (offset, bytes) pairs.
    type Written<'a> = Vec<(usize, &'a [u8])>;

    /// A disk of 2 MiB, all zeroes except the given bytes.
    fn disk(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut disk = vec![0u8; SIZE];
        for (offset, bytes) in parts {
            disk[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        disk
    }

    fn found(disk: &[u8]) -> Vec<&'static str> {
        let size_bytes = disk.len() as u64;
        let parts = |granularity| -> Vec<(u64, &[u8])> {
            let slice = |(start, length): (u64, usize)| (start, &disk[start as usize..][..length]);
            places(size_bytes, granularity).into_iter().map(slice).collect()
        };
        let found = probe(&Parts { parts: &parts(512), size_bytes });
        assert_eq!(probe(&Parts { parts: &parts(4096), size_bytes }), found, "in blocks of 4 KiB");
        found
    }

    #[test]
    fn the_places_of_a_disk_fit_the_first_flight_of_a_connection() {
        for size_bytes in [0, 1, 511, 512, 4096, 70_000, 1 << 20, 3_000_000_512, 8 << 40, u64::MAX] {
            for granularity in [1, 512, 4096] {
                let places = places(size_bytes, granularity);
                let bytes: usize = places.iter().map(|(_, length)| length).sum();
                assert!(places.len() <= 16, "{} places of {size_bytes}", places.len());
                // Ten segments, with the header of a SCSI Data-In PDU for each place.
                let flight = bytes + 48 * places.len();
                assert!(granularity == 4096 || flight <= 10 * 1448, "{flight} bytes of {size_bytes}");
                let is_larger = granularity == 4096 || size_bytes % 512 > 0;
                assert!(is_larger || bytes <= 12 << 10, "{bytes} bytes of {size_bytes}");
                for (start, length) in &places {
                    let unit = u64::from(granularity);
                    let is_whole = (start | *length as u64).is_multiple_of(unit);
                    assert!(is_whole && *length > 0);
                    assert!(start + *length as u64 <= size_bytes);
                }
                assert!(places.is_sorted());
            }
        }
    }

    #[test]
    fn empty_disk_holds_nothing() {
        assert!(found(&disk(&[])).is_empty());
        assert!(found(&[]).is_empty());
        assert!(found(&[0; 512]).is_empty());
    }

    #[test]
    fn every_plain_magic_is_found() {
        for magic in MAGICS.iter().chain(IMAGES.iter().map(|(magic, _)| magic)) {
            let names = found(&disk(&[(magic.offset as usize, magic.bytes)]));
            assert!(names.contains(&magic.name), "{}: {names:?}", magic.name);
        }
    }

    #[test]
    fn images_are_told_by_their_first_bytes() {
        for (magic, format) in IMAGES {
            let disk = disk(&[(magic.offset as usize, magic.bytes)]);
            assert_eq!(image(&disk[..IMAGE_HEAD_BYTES]), Some(*format));
            assert_eq!(
                image(&disk[..magic.offset as usize + magic.bytes.len() - 1]),
                None,
                "{format} cut short"
            );
        }
        assert_eq!(image(&[0; IMAGE_HEAD_BYTES]), None);
    }

    #[test]
    fn special_formats_are_found() {
        let mbr_entry: &[u8] = &[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0];
        let protective: &[u8] = &[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 7, 0, 0];
        let mark: (usize, &[u8]) = (510, &[0x55, 0xaa]);
        let md: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
        let all: Vec<(&str, Written<'_>)> = vec![
            ("LUKS1 volume", vec![(0, b"LUKS\xba\xbe\x00\x01")]),
            ("LUKS2 volume", vec![(0, b"LUKS\xba\xbe\x00\x02")]),
            ("LUKS2 volume", vec![(16384, b"SKUL\xba\xbe\x00\x02")]),
            ("LUKS2 volume", vec![(1 << 20, b"SKUL\xba\xbe\x00\x02")]),
            ("Intel RAID (IMSM) member", vec![(SIZE - 1024, b"Intel Raid ISM Cfg Sig. 1.1.00")]),
            ("DDF RAID member", vec![(SIZE - 512, &[0xde, 0x11, 0xde, 0x11])]),
            ("DDF RAID member", vec![(SIZE - 512, &[0x11, 0xde, 0x11, 0xde])]),
            ("DRBD device", vec![(SIZE - 4096 + 60, &[0x83, 0x74, 0x02, 0x6b])]),
            ("DRBD device", vec![(SIZE - 4096 + 60, &[0x83, 0x74, 0x02, 0x6d])]),
            ("LVM2 physical volume", vec![(512, b"LABELONE"), (536, b"LVM2 001")]),
            ("LVM2 physical volume", vec![(1536, b"LABELONE"), (1560, b"LVM2 001")]),
            ("md RAID member", vec![(0, md)]),
            ("md RAID member", vec![(4096, md)]),
            ("md RAID member", vec![(SIZE - 8192, md)]),
            ("md RAID member", vec![(SIZE - 65536, md)]),
            ("GPT partition table", vec![mark, (446, protective), (512, b"EFI PART")]),
            ("GPT partition table", vec![(4096, b"EFI PART")]),
            ("GPT partition table", vec![(SIZE - 512, b"EFI PART")]),
            ("GPT partition table", vec![(SIZE - 4096, b"EFI PART")]),
            ("MBR partition table", vec![mark, (446, mbr_entry)]),
            ("ZFS label", vec![(16 << 10, ZFS)]),
            ("ZFS label", vec![(SIZE - (512 << 10) + (16 << 10), ZFS)]),
            ("ZFS label", vec![(SIZE - (256 << 10) + (16 << 10), ZFS)]),
            ("ext2 filesystem", vec![(1080, &[0x53, 0xef])]),
            ("ext3 filesystem", vec![(1080, &[0x53, 0xef]), (1116, &[4, 0, 0, 0])]),
            ("ext4 filesystem", vec![(1080, &[0x53, 0xef]), (1116, &[4, 0, 0, 0]), (1120, &[0x40, 2, 0, 0])]),
            ("ext journal", vec![(1080, &[0x53, 0xef]), (1120, &[8, 0, 0, 0])]),
            ("swap area", vec![(4086, b"SWAPSPACE2")]),
            ("swap area", vec![(65526, b"SWAPSPACE2")]),
            ("fat filesystem", vec![mark, (11, &[0, 2]), (54, b"FAT16   ")]),
            ("fat filesystem", vec![mark, (11, &[0, 2]), (82, b"FAT32   ")]),
            ("vhd image", vec![(SIZE - 512, b"conectix")]),
        ];
        for (name, parts) in all {
            assert_eq!(found(&disk(&parts)), [name]);
        }
    }

    #[test]
    fn look_alikes_are_not_taken_for_a_format() {
        let mark: (usize, &[u8]) = (510, &[0x55, 0xaa]);
        let all: Vec<(&str, Written<'_>)> = vec![
            ("mbr_without_partitions", vec![mark]),
            (
                "mbr_with_wrong_flag",
                vec![mark, (446, &[0x12, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0])],
            ),
            ("mbr_without_mark", vec![(446, &[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0])]),
            ("lvm_label_without_type", vec![(512, b"LABELONE")]),
            ("fat_without_mark", vec![(11, &[0, 2]), (54, b"FAT16   ")]),
            ("fat_sector_size_wrong", vec![mark, (11, &[1, 2]), (54, b"FAT16   ")]),
            ("gpt_in_the_wrong_block", vec![(1024, b"EFI PART")]),
            ("imsm_in_the_last_sector", vec![(SIZE - 512, b"Intel Raid ISM Cfg Sig. ")]),
            ("drbd_of_an_unknown_version", vec![(SIZE - 4096 + 60, &[0x83, 0x74, 0x02, 0x6e])]),
            ("swap_in_the_wrong_place", vec![(4087, b"SWAPSPACE2")]),
        ];
        for (defect, parts) in all {
            assert!(found(&disk(&parts)).is_empty(), "{defect}: {:?}", found(&disk(&parts)));
        }
    }

    #[test]
    fn several_formats_are_all_named() {
        let names = found(&disk(&[(0, b"XFSB"), (512, b"EFI PART")]));
        assert_eq!(names, ["xfs filesystem", "GPT partition table"]);
    }

    #[test]
    fn any_bytes_of_any_length_are_survived() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200 {
            let length = (next() % 300_000) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
            let (head, tail) = bytes.split_at(length / 2);
            for size_bytes in [0, 1, 511, length as u64, 1 << 20, u64::MAX] {
                let at = size_bytes.saturating_sub(tail.len() as u64);
                probe(&Parts { parts: &[(0, head), (at, tail)], size_bytes });
            }
        }
    }
}
