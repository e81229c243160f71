//! Parsers of Identify data (Base 5.17.2), which comes from an untrusted device.

use super::copy::{BETWEEN, Copying, WITHIN};
use crate::disk::{Disk, Zeroing};

pub(super) const IDENTIFY_BYTES: usize = 4096;
/// Most blocks of one Write Zeroes: NLB has 16 bits.
const ZERO_BLOCKS_MAX: u64 = 1 << 16;
/// Smallest page size of a controller, the unit of MDTS (CAP.MPSMIN, which is not readable here, is never smaller).
const PAGE_BYTES_MIN: u64 = 4096;

/// Bytes of metadata per block, and the block size, of the current format.
fn format(namespace: &[u8; IDENTIFY_BYTES]) -> Result<(u16, u32), String> {
    // Figure 97: bits 3:0 of FLBAS, and above them bits 6:5.
    let flbas = namespace[26];
    let format = usize::from(flbas & 0x0f | (flbas >> 1) & 0x30);
    let at = 128 + 4 * format;
    let (metadata, shift) = (u16::from_le_bytes([namespace[at], namespace[at + 1]]), namespace[at + 2]);
    match shift {
        9..=31 => Ok((metadata, 1 << shift)),
        _ => Err(format!("its block size, 2^{shift} bytes, cannot be")),
    }
}

/// The limits of Copy to or from a namespace with source ranges of format `descriptors`; or why Copy is unavailable.
pub(super) fn copying(
    controller: &[u8; IDENTIFY_BYTES],
    namespace: &[u8; IDENTIFY_BYTES],
    descriptors: u32,
) -> Result<Copying, String> {
    // ONCS.
    if controller[521] & 1 == 0 {
        return Err("its controller has no Copy command".into());
    }
    // OCFS, later CDFS.
    if u16::from_le_bytes([controller[534], controller[535]]) & 1 << descriptors == 0 {
        let which = if descriptors == BETWEEN { "between" } else { "within" };
        return Err(format!(
            "its controller does not copy {which} namespaces (source ranges of format {descriptors}h)"
        ));
    }
    let (metadata, block_size) = format(namespace)?;
    if metadata > 0 {
        return Err(format!("its blocks carry {metadata} bytes of metadata, which are not copied so"));
    }
    // MSSRL, MCL, and MSRC, which is zero-based.
    let (range, command) = (
        u16::from_le_bytes([namespace[74], namespace[75]]),
        u32::from_le_bytes([namespace[76], namespace[77], namespace[78], namespace[79]]),
    );
    if range == 0 || command == 0 {
        return Err("its controller has a Copy command that copies no block".into());
    }
    Ok(Copying {
        block_size,
        range_blocks: u32::from(range).min(command),
        ranges: u32::from(namespace[80]) + 1,
        command_blocks: command,
        // NMIC.
        is_shared: namespace[30] & 1 != 0,
    })
}

pub(super) fn disk(
    controller: &[u8; IDENTIFY_BYTES],
    namespace: &[u8; IDENTIFY_BYTES],
) -> Result<Disk, String> {
    let blocks = u64::from_le_bytes(*namespace.first_chunk().expect("it is longer"));
    if blocks == 0 {
        return Err("the namespace is not active".into());
    }
    let (metadata, block_size) = format(namespace)?;
    if metadata > 0 {
        return Err(format!(
            "its blocks carry {metadata} bytes of metadata, which would not be copied: format it without \
             (nvme format --lbaf, which loses what it holds), or use its block device"
        ));
    }
    // MDTS: 0 means no limit.
    let mdts = controller[77];
    let transfer = (1..40).contains(&mdts).then(|| (PAGE_BYTES_MIN << mdts) / u64::from(block_size));
    let abilities = u16::from_le_bytes([controller[520], controller[521]]);
    let zeroes = abilities & 1 << 3 != 0;
    let write_cache = controller[525] & 1 != 0;
    let text = |range: std::ops::Range<usize>| {
        let printable = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
        controller[range].iter().map(printable).collect::<String>().trim().to_owned()
    };
    let hex = |range: std::ops::Range<usize>| {
        let bytes = &namespace[range];
        let is_there = bytes.iter().any(|byte| *byte != 0);
        is_there.then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    // NGUID before EUI64.
    let designator = hex(104..120).or_else(|| hex(120..128)).map(|id| format!("eui.{id}"));
    let mut facts = vec![
        ("kind", "NVMe namespace, by its own commands".to_owned()),
        ("product", text(24..64)),
        ("revision", text(64..72)),
        ("serial", text(4..24)),
    ];
    facts.extend(designator.clone().map(|designator| ("designator", designator)));
    facts.push(("commands", "Read, Write".to_owned()));
    facts.push(("VWC", write_cache.to_string()));
    let copies = copying(controller, namespace, WITHIN);
    facts.push((
        "Copy",
        copies.map_or_else(|_| "no".into(), |copies| format!("{} blocks", copies.command_blocks)),
    ));
    Ok(Disk {
        blocks,
        block_size,
        physical_block_size: block_size,
        transfer_blocks_max: transfer,
        zeroing: zeroes.then_some(Zeroing { blocks_max: ZERO_BLOCKS_MAX, keeps: true }),
        // NVM 3.2.6: every controller supports FUA.
        fua: true,
        write_cache,
        // NSATTR.
        write_protected: namespace[99] & 1 != 0,
        rotational: false,
        designator: designator.unwrap_or_default(),
        facts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> ([u8; IDENTIFY_BYTES], [u8; IDENTIFY_BYTES]) {
        let (mut controller, mut namespace) = ([0; IDENTIFY_BYTES], [0; IDENTIFY_BYTES]);
        controller[4..72].fill(b' ');
        controller[4..10].copy_from_slice(b"ab\x1b \xff ");
        controller[77] = 7;
        controller[520] = 0x08;
        controller[525] = 1;
        namespace[0..8].copy_from_slice(&1000u64.to_le_bytes());
        namespace[128 + 2] = 9;
        namespace[128 + 4 + 2] = 12;
        (controller, namespace)
    }

    #[test]
    fn base_5_17_2_fields() {
        let (controller, mut namespace) = data();
        let found = disk(&controller, &namespace).unwrap();
        assert_eq!((found.blocks, found.block_size, found.transfer_blocks_max), (1000, 512, Some(1024)));
        assert!(found.write_cache && found.fua && found.zeroing.is_some() && !found.write_protected);
        assert_eq!(found.facts[3], ("serial", "ab? ?".to_owned()), "printable");
        namespace[26] = 1;
        namespace[99] = 1;
        let found = disk(&controller, &namespace).unwrap();
        assert_eq!((found.block_size, found.transfer_blocks_max), (4096, Some(128)));
        assert!(found.write_protected);
    }

    #[test]
    fn nvm_4_1_5_what_copy_takes() {
        let (mut controller, mut namespace) = data();
        controller[521] = 1;
        controller[534] = 1;
        namespace[74..81].copy_from_slice(&[0x80, 0, 0, 2, 0, 0, 9]);
        let found =
            Copying { block_size: 512, range_blocks: 128, ranges: 10, command_blocks: 512, is_shared: false };
        assert_eq!(copying(&controller, &namespace, WITHIN), Ok(found));
        let facts = disk(&controller, &namespace).unwrap().facts;
        assert!(facts.contains(&("Copy", "512 blocks".to_owned())));

        let without = |controller_at: usize, namespace_at: usize, byte: u8| {
            let (mut controller, mut namespace) = (controller, namespace);
            controller[controller_at] = 0;
            namespace[namespace_at] = byte;
            copying(&controller, &namespace, WITHIN).unwrap_err()
        };
        assert!(without(521, 0, 0).contains("no Copy command"), "ONCS");
        assert!(without(534, 0, 0).contains("within namespaces"), "OCFS");
        let why = copying(&controller, &namespace, BETWEEN).unwrap_err();
        assert!(why.contains("between namespaces"), "{why}");
        assert!(without(0, 128, 8).contains("metadata"));
        assert!(without(0, 74, 0).contains("no block"), "mssrl_zero");
        assert!(without(0, 77, 0).contains("no block"), "mcl_zero");
        assert!(without(0, 130, 32).contains("2^32"), "lbads_huge");
        // A command limit below the range limit.
        namespace[77] = 0;
        namespace[76] = 5;
        let found = copying(&controller, &namespace, WITHIN).unwrap();
        assert_eq!((found.range_blocks, found.command_blocks), (5, 5));
        namespace[74..81].fill(0xff);
        namespace[30] = 1;
        let all = copying(&[0xff; IDENTIFY_BYTES], &namespace, BETWEEN);
        let most =
            Copying { range_blocks: 65_535, ranges: 256, command_blocks: u32::MAX, is_shared: true, ..found };
        assert_eq!(all, Ok(most));
    }

    #[test]
    fn identify_hostile() {
        let (controller, namespace) = data();
        let with = |at: usize, byte: u8| {
            let mut namespace = namespace;
            namespace[at] = byte;
            disk(&controller, &namespace).err().unwrap_or_default()
        };
        assert!(with(128, 8).contains("8 bytes of metadata"));
        assert!(with(130, 0).contains("2^0"), "lbads_zero");
        assert!(with(130, 255).contains("2^255"), "lbads_huge");
        assert!(with(26, 0x0f).contains("2^0"), "format_not_there");
        assert!(with(26, 0xff).contains("2^0"), "format_beyond_the_table");
        assert!(disk(&controller, &[0; IDENTIFY_BYTES]).unwrap_err().contains("not active"));
        assert!(disk(&[0xff; IDENTIFY_BYTES], &[0xff; IDENTIFY_BYTES]).is_err());
        let huge = disk(&[0xff; IDENTIFY_BYTES], &namespace).unwrap();
        assert!(huge.transfer_blocks_max.is_none(), "mdts_huge");
    }
}
