//! Every bound of this crate, with its unit and reason.

use crate::copy;

/// Unit attentions kept for one I_T nexus. A further one replaces the oldest: SAM-5 5.14.1 permits it, and initiators
/// re-read all state after any of them.
pub const ATTENTIONS_MAX: usize = 8;

/// Ended I_T nexuses whose power-on was reported, per unit. A forgotten one that returns gets POWER ON again.
pub const FORMER_NEXUSES_MAX: usize = 4096;

/// Longest parameter list that the device server collects, in bytes: an UNMAP list with every descriptor.
pub const PARAMETER_LIST_MAX_BYTES: u32 = 8 + 16 * UNMAP_DESCRIPTORS_MAX;

/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT of the Block Limits page.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 1024;

/// MAXIMUM UNMAP LBA COUNT, in logical blocks, summed over the list: 512 MiB of 512-byte blocks, 4 GiB of 4096-byte
/// blocks. Bounds the time for which one command occupies the storage.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// LBA status descriptors in one GET LBA STATUS response, for any allocation length. The initiator continues with
/// another command at the end of the response. Bounds the memory of the response (4 KiB) and the number of extents
/// requested from the storage.
pub const LBA_STATUS_DESCRIPTORS_MAX: u32 = 256;

/// MAXIMUM WRITE SAME LENGTH, in logical blocks: 16 MiB of 512-byte blocks, 128 MiB of 4096-byte blocks. Patterns other
/// than zeros are written block by block; a slow disk writes this much well within an initiator's command timeout (30
/// s). Below 65536, because libiscsi's suite prepares a WRITE SAME of that length, if it is allowed, by one WRITE of
/// the same length without regard to MAXIMUM TRANSFER LENGTH.
pub const WRITE_SAME_BLOCKS_MAX: u32 = 1 << 15;

/// MAXIMUM CSCD DESCRIPTOR COUNT of one EXTENDED COPY.
pub const COPY_CSCDS_MAX: usize = 8;

/// MAXIMUM SEGMENT DESCRIPTOR COUNT of one EXTENDED COPY: 8 GiB in blocks of 512 bytes.
pub const COPY_SEGMENTS_MAX: usize = 256;

/// MAXIMUM DESCRIPTOR LIST LENGTH, in bytes: the maximum of both descriptors.
pub const COPY_LIST_BYTES_MAX: usize =
    COPY_CSCDS_MAX * copy::CSCD_BYTES + COPY_SEGMENTS_MAX * copy::SEGMENT_BYTES;

/// MAXIMUM SEGMENT LENGTH, in bytes: the largest 16-bit block count with the largest logical block size, 4096.
pub const COPY_SEGMENT_BYTES_MAX: u32 = 0xffff * 4096;

/// Copies that run at once in a target (TOTAL CONCURRENT COPIES); further ones are queued.
pub const COPIES_MAX: usize = 4;

/// Copies whose result a unit keeps for RECEIVE COPY STATUS. A further one replaces the oldest.
pub const COPY_RECORDS_MAX: usize = 32;

/// Longest sense data that this crate builds: header, information, command-specific and field pointer descriptors.
pub const SENSE_MAX_BYTES: usize = 44;

/// Most LUNs parsed from REPORT LUNS data.
pub const LUNS_MAX: usize = 16_384;

const _: () =
    assert!(PARAMETER_LIST_MAX_BYTES <= u16::MAX as u32, "UNMAP has a 16-bit PARAMETER LIST LENGTH");
const _: () = assert!(
    copy::HEADER_BYTES + COPY_LIST_BYTES_MAX <= PARAMETER_LIST_MAX_BYTES as usize,
    "a list of EXTENDED COPY is collected whole"
);
