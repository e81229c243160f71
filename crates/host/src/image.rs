//! The size of the disk that an image file describes, from its header; the image's content is not interpreted.
//!
//! The bytes are not trusted: reads are bounded, every offset is checked, and an implausible size counts as unknown.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::signature::{self, IMAGE_HEAD_BYTES};

/// Bytes of a header that are read: the VDI header, the longest, has 400.
const HEADER_BYTES: usize = 512;
/// Bytes of a VMDK descriptor that are read; QEMU reads 20 KiB.
const DESCRIPTOR_BYTES: usize = 64 * 1024;
/// A region table of VHDX, and its metadata table (MS-VHDX 2.2.3, 2.6.1).
const VHDX_TABLE_BYTES: usize = 64 * 1024;
/// MS-VHDX 2.2: the two copies of the region table.
const VHDX_REGION_TABLES: [u64; 2] = [192 * 1024, 256 * 1024];
/// MS-VHDX 2.2.3.2: 8B7CA206-4790-4B9A-B8FE-575F050F886E, as stored.
const VHDX_METADATA_REGION: [u8; 16] = *b"\x06\xa2\x7c\x8b\x90\x47\x9a\x4b\xb8\xfe\x57\x5f\x05\x0f\x88\x6e";
/// MS-VHDX 2.6.2.2: 2FA54224-CD1B-4876-B211-5DBED83BF4B8, as stored.
const VHDX_VIRTUAL_DISK_SIZE: [u8; 16] = *b"\x24\x42\xa5\x2f\x1b\xcd\x76\x48\xb2\x11\x5d\xbe\xd8\x3b\xf4\xb8";
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// QEMU's name of the format.
    pub format: &'static str,
    /// Bytes of the disk that the image describes; `None` if the header does not say.
    pub disk_bytes: Option<u64>,
}

impl Image {
    /// The image that a file holds; `None` if it begins like none.
    pub fn of(file: &File) -> Option<Self> {
        let header = read(file, 0, HEADER_BYTES);
        let format = signature::image(&header[..header.len().min(IMAGE_HEAD_BYTES)])?;
        let disk_bytes = match format {
            "qcow2" => u64_be(&header, 24),
            "vmdk" if header.starts_with(b"KDMV") => sectors(u64_le(&header, 12)),
            "vmdk" => descriptor_bytes(&read(file, 0, DESCRIPTOR_BYTES)),
            "vhdx" => vhdx_bytes(file),
            "vpc" => u64_be(&header, 48),
            "vdi" => u64_le(&header, 368),
            "qed" => u64_le(&header, 48),
            // Version 1 of the format has only the lower half of the number.
            "parallels" => sectors(u64_le(&header, 36).map(|number| number & u64::from(u32::MAX))),
            _ => None,
        };
        // A file offset is a signed number.
        Some(Self { format, disk_bytes: disk_bytes.filter(|bytes| i64::try_from(*bytes).is_ok()) })
    }
}

/// At most `length` bytes; fewer at the end of the file, and none after an error.
fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) | Err(_) => break,
            Ok(count) => filled += count,
        }
    }
    bytes.truncate(filled);
    bytes
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

fn u64_be(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_be_bytes)
}

fn u64_le(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

fn sectors(number: Option<u64>) -> Option<u64> {
    number?.checked_mul(SECTOR_BYTES)
}

/// The sum of the extents of a VMDK descriptor: lines `RW 20480 FLAT "x-flat.vmdk" 0`.
fn descriptor_bytes(text: &[u8]) -> Option<u64> {
    let text = String::from_utf8_lossy(text);
    let extents = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let is_extent = matches!(words.next(), Some("RW" | "RDONLY" | "NOACCESS"));
        is_extent.then(|| sectors(words.next().and_then(|number| number.parse().ok())))
    });
    let bytes = extents.reduce(|sum, extent| sum?.checked_add(extent?));
    bytes.flatten()
}

/// Follows the region table to the metadata table, and that to the item with the size.
fn vhdx_bytes(file: &File) -> Option<u64> {
    VHDX_REGION_TABLES.iter().find_map(|at| {
        let table = read(file, *at, VHDX_TABLE_BYTES);
        let region = vhdx_entry(&table, b"regi", 8, 16, &VHDX_METADATA_REGION)?;
        let metadata_at = u64_le(region, 16)?;
        let table = read(file, metadata_at, VHDX_TABLE_BYTES);
        let item = vhdx_entry(&table, b"metadata", 10, 32, &VHDX_VIRTUAL_DISK_SIZE)?;
        let offset = u32::from_le_bytes(array(item, 16)?);
        u64_le(&read(file, metadata_at.checked_add(offset.into())?, 8), 0)
    })
}

/// The entry of 32 bytes that begins with `id`, of a table that begins with `mark`, has its number of entries, 16 bits
/// of it, at `count_at` and the entries from `entries_at` on.
fn vhdx_entry<'a>(
    table: &'a [u8],
    mark: &[u8],
    count_at: usize,
    entries_at: usize,
    id: &[u8; 16],
) -> Option<&'a [u8]> {
    const ENTRY_BYTES: usize = 32;
    let count = usize::from(u16::from_le_bytes(array(table, count_at)?));
    let entries = table.get(entries_at..)?.chunks_exact(ENTRY_BYTES).take(count);
    let mut of_id = entries.filter(|entry| entry.starts_with(id));
    table.starts_with(mark).then(|| of_id.next())?
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    type Parts<'a> = &'a [(u64, &'a [u8])];

    fn file(parts: Parts<'_>) -> File {
        let mut file = tempfile::tempfile().unwrap();
        for (offset, bytes) in parts {
            file.write_all_at(bytes, *offset).unwrap();
        }
        file.flush().unwrap();
        file
    }

    const SIZE: u64 = 10 << 20;

    #[test]
    fn each_format_says_the_size_of_its_disk() {
        let (le, be) = (SIZE.to_le_bytes(), SIZE.to_be_bytes());
        let count = (SIZE / 512).to_le_bytes();
        let descriptor = b"# Disk DescriptorFile\nversion=1\nRW 20000 FLAT \"a\" 0\nRDONLY 480 ZERO\n";
        let metadata_at = 0x20_0000u64.to_le_bytes();
        let all: [(&str, Parts<'_>); 9] = [
            ("qcow2", &[(0, b"QFI\xfb"), (24, &be)]),
            ("vmdk", &[(0, b"KDMV"), (12, &count)]),
            ("vmdk", &[(0, descriptor)]),
            ("vpc", &[(0, b"conectix"), (48, &be)]),
            ("vdi", &[(64, b"\x7f\x10\xda\xbe"), (368, &le)]),
            ("qed", &[(0, b"QED\0"), (48, &le)]),
            ("parallels", &[(0, b"WithoutFreeSpace"), (36, &count), (40, b"\xff\xff\xff\xff")]),
            (
                "vhdx",
                &[
                    (0, b"vhdxfile"),
                    (192 << 10, b"regi\0\0\0\0\x02\0\0\0"),
                    ((192 << 10) + 48, &VHDX_METADATA_REGION),
                    ((192 << 10) + 64, &metadata_at),
                    (0x20_0000, b"metadata\0\0\x01\0"),
                    (0x20_0020, &VHDX_VIRTUAL_DISK_SIZE),
                    (0x20_0030, b"\x08\0\x01\0"),
                    (0x21_0008, &le),
                ],
            ),
            // The first copy of the region table is damaged.
            (
                "vhdx",
                &[
                    (0, b"vhdxfile"),
                    (256 << 10, b"regi\0\0\0\0\x01\0\0\0"),
                    ((256 << 10) + 16, &VHDX_METADATA_REGION),
                    ((256 << 10) + 32, &metadata_at),
                    (0x20_0000, b"metadata\0\0\x01\0"),
                    (0x20_0020, &VHDX_VIRTUAL_DISK_SIZE),
                    (0x20_0030, b"\x08\0\x01\0"),
                    (0x21_0008, &le),
                ],
            ),
        ];
        for (format, parts) in all {
            assert_eq!(Image::of(&file(parts)), Some(Image { format, disk_bytes: Some(SIZE) }), "{format}");
        }
        assert_eq!(Image::of(&file(&[(0, b"no image")])), None);
        assert_eq!(Image::of(&file(&[])), None);
    }

    #[test]
    fn a_size_that_cannot_be_is_unknown() {
        let region = (192 << 10, &b"regi\0\0\0\0\xff\xff\0\0"[..]);
        let all: [(&str, Parts<'_>); 9] = [
            ("truncated", &[(0, b"QFI\xfb")]),
            ("beyond_a_file_offset", &[(0, b"QFI\xfb"), (24, &[0xff; 8])]),
            ("sectors_overflow", &[(0, b"KDMV"), (12, &[0xff; 8])]),
            ("extent_without_number", &[(0, b"# Disk DescriptorFile\nRW many FLAT\n")]),
            (
                "extents_overflow",
                &[(0, b"# Disk DescriptorFile\nRW 36028797018963967 A\nRW 36028797018963967 A\n")],
            ),
            ("descriptor_without_extents", &[(0, b"# Disk DescriptorFile\n")]),
            ("vhdx_without_tables", &[(0, b"vhdxfile")]),
            ("vhdx_entries_beyond_the_table", &[(0, b"vhdxfile"), region]),
            (
                "vhdx_metadata_beyond_the_file",
                &[
                    (0, b"vhdxfile"),
                    region,
                    ((192 << 10) + 16, &VHDX_METADATA_REGION),
                    ((192 << 10) + 32, &[0xff; 8]),
                ],
            ),
        ];
        for (defect, parts) in all {
            assert_eq!(Image::of(&file(parts)).unwrap().disk_bytes, None, "{defect}");
        }
    }
}
