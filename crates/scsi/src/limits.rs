//! Every bound of this crate, in one place.

use crate::copy;

/// Unit attentions kept for one I_T nexus. One more and the oldest is dropped (SAM-5 5.14.1 lets the device
/// server drop them; the initiator re-reads everything after any of them anyway).
pub const ATTENTIONS_MAX: usize = 8;

/// Ended I_T nexuses that a unit remembers as knowing of its power. One forgotten hears of it again, should it return.
pub const FORMER_NEXUSES_MAX: usize = 4096;

/// Longest parameter list the device server collects, in bytes: an UNMAP list with every descriptor used.
pub const PARAMETER_LIST_MAX_BYTES: u32 = 8 + 16 * UNMAP_DESCRIPTORS_MAX;

/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT of the Block Limits page.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 1024;

/// MAXIMUM UNMAP LBA COUNT, in logical blocks, summed over the list: 512 MiB of 512-byte blocks, 4 GiB of
/// 4096-byte blocks. Bounds the time one command can occupy the storage.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// LBA status descriptors in one answer to GET LBA STATUS, whatever the allocation length. An initiator that
/// wants more asks again from where the answer ends. Bounds the memory of the answer (4 KiB) and how many
/// extents the storage is asked for.
pub const LBA_STATUS_DESCRIPTORS_MAX: u32 = 256;

/// MAXIMUM WRITE SAME LENGTH, in logical blocks: 16 MiB of 512-byte blocks, 128 MiB of 4096-byte blocks. A
/// pattern other than zeros is really written, so this is what a slow disk writes well within an initiator's
/// command timeout (30 s). Below 65536, because libiscsi's suite prepares a WRITE SAME of that many blocks,
/// where it is allowed, by one WRITE of as many, whatever MAXIMUM TRANSFER LENGTH says.
pub const WRITE_SAME_BLOCKS_MAX: u32 = 1 << 15;

/// MAXIMUM CSCD DESCRIPTOR COUNT: ends that one EXTENDED COPY may name.
pub const COPY_CSCDS_MAX: usize = 8;

/// MAXIMUM SEGMENT DESCRIPTOR COUNT of one EXTENDED COPY: 8 GiB in blocks of 512 bytes.
pub const COPY_SEGMENTS_MAX: usize = 256;

/// MAXIMUM DESCRIPTOR LIST LENGTH, in bytes: room for every descriptor.
pub const COPY_LIST_BYTES_MAX: usize =
    COPY_CSCDS_MAX * copy::CSCD_BYTES + COPY_SEGMENTS_MAX * copy::SEGMENT_BYTES;

/// MAXIMUM SEGMENT LENGTH, in bytes: what the 16-bit count of a segment says with the largest blocks there are here.
pub const COPY_SEGMENT_BYTES_MAX: u32 = 0xffff * 4096;

/// Copies that run at once in a target (TOTAL CONCURRENT COPIES); those beyond wait.
pub const COPIES_MAX: usize = 4;

/// Copies of which a unit remembers how they ended, for RECEIVE COPY STATUS. One more and the oldest is forgotten.
pub const COPY_RECORDS_MAX: usize = 32;

/// Longest sense data this crate builds: header, information, command-specific information and field
/// pointer descriptors.
pub const SENSE_MAX_BYTES: usize = 44;

/// Longest inventory of logical units that REPORT LUNS data is parsed into.
pub const LUNS_MAX: usize = 16_384;

const _: () =
    assert!(PARAMETER_LIST_MAX_BYTES <= u16::MAX as u32, "UNMAP has a 16-bit PARAMETER LIST LENGTH");
const _: () = assert!(
    copy::HEADER_BYTES + COPY_LIST_BYTES_MAX <= PARAMETER_LIST_MAX_BYTES as usize,
    "a list of EXTENDED COPY is collected whole"
);
