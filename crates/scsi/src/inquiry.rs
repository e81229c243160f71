//! Parsers of INQUIRY data: the standard data and the vital product data (VPD) pages that an initiator needs.
//!
//! The data comes from an untrusted device. A page other than the requested one, or one truncated before its meaningful
//! fields, is `None`; text is made printable.

use crate::text;

/// VENDOR SPECIFIC bytes 36 to 55 of standard INQUIRY data of a unit to which one initiator at most can write.
pub(crate) const SOLE_WRITER: [u8; 20] = *b"hikyaku sole writer ";

/// Standard INQUIRY data (SPC-4 table 175).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standard {
    /// PERIPHERAL QUALIFIER: 0 connected, 1 not connected, 3 not supported.
    pub qualifier: u8,
    /// PERIPHERAL DEVICE TYPE: 00h direct access block device, 1Fh unknown.
    pub device_type: u8,
    pub removable: bool,
    /// VERSION: 5 SPC-3, 6 SPC-4, 7 SPC-5.
    pub version: u8,
    pub protect: bool,
    /// TPGS: 0 no asymmetric access, 1 implicit, 2 explicit, 3 both.
    pub target_port_groups: u8,
    /// 3PC: third-party copy commands.
    pub third_party_copy: bool,
    pub queueing: bool,
    /// No initiator but one can write to the unit, as targets of this project report it.
    pub sole_writer: bool,
    vendor: String,
    product: String,
    revision: String,
}

impl Standard {
    /// Parses the data; `None` below the 36 bytes up to the revision.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let sole_writer = data.get(36..56) == Some(&SOLE_WRITER[..]);
        let data = data.get(..36)?;
        Some(Self {
            sole_writer,
            qualifier: data[0] >> 5,
            device_type: data[0] & 0x1f,
            removable: data[1] & 0x80 != 0,
            version: data[2],
            protect: data[5] & 0x01 != 0,
            target_port_groups: (data[5] >> 4) & 0x03,
            third_party_copy: data[5] & 0x08 != 0,
            queueing: data[7] & 0x02 != 0,
            vendor: text::parse(&data[8..16]),
            product: text::parse(&data[16..32]),
            revision: text::parse(&data[32..36]),
        })
    }

    /// Whether the unit is a connected direct access block device.
    pub fn is_disk(&self) -> bool {
        self.qualifier == 0 && self.device_type == 0
    }

    /// T10 VENDOR IDENTIFICATION, printable, without padding.
    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    /// PRODUCT IDENTIFICATION, printable, without padding.
    pub fn product(&self) -> &str {
        &self.product
    }

    /// PRODUCT REVISION LEVEL, printable, without padding.
    pub fn revision(&self) -> &str {
        &self.revision
    }
}

/// The body of a VPD page after its header, up to PAGE LENGTH or the end of the data. `None` for another page.
pub fn vpd(page: u8, data: &[u8]) -> Option<&[u8]> {
    let &[_, code, high, low, ref body @ ..] = data else { return None };
    (code == page).then(|| &body[..body.len().min(u16::from_be_bytes([high, low]).into())])
}

pub fn supported_pages(data: &[u8]) -> Option<&[u8]> {
    vpd(0x00, data)
}

/// Unit serial number, 80h, printable.
pub fn serial(data: &[u8]) -> Option<String> {
    vpd(0x80, data).map(text::parse)
}

/// ASSOCIATION: the entity that a designator identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Association {
    Unit,
    /// The target port that received the command.
    Port,
    Device,
}

/// A designator of the device identification page, 83h (SPC-4 7.8.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Designator {
    pub association: Association,
    pub id: DesignatorId,
}

/// The designator types of SPC-4 table 462.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DesignatorId {
    /// T10 vendor ID and a vendor-specific identifier, printable.
    T10 {
        vendor: String,
        id: String,
    },
    /// EUI-64, 8, 12 or 16 bytes.
    Eui64(Vec<u8>),
    /// NAA: 8 bytes, or 16 for NAA 6h.
    Naa(Vec<u8>),
    RelativePort(u16),
    PortGroup(u16),
    /// SCSI name string, printable.
    Name(String),
    /// Another type, or one of wrong length or code set.
    Other {
        kind: u8,
        bytes: Vec<u8>,
    },
}

/// Parses the device identification page, 83h. A truncated designator ends the list.
pub fn designators(data: &[u8]) -> Option<Vec<Designator>> {
    let mut rest = vpd(0x83, data)?;
    let mut list = Vec::new();
    while let &[code_set, kind, _, length, ref body @ ..] = rest {
        let Some(bytes) = body.get(..usize::from(length)) else { break };
        rest = &body[usize::from(length)..];
        let association = match (kind >> 4) & 0x03 {
            0 => Association::Unit,
            1 => Association::Port,
            2 => Association::Device,
            _ => continue,
        };
        let binary = code_set & 0x0f == 1;
        let id = match (kind & 0x0f, bytes) {
            (1, _) if bytes.len() >= 8 => {
                DesignatorId::T10 { vendor: text::parse(&bytes[..8]), id: text::parse(&bytes[8..]) }
            }
            (2, _) if binary && matches!(bytes.len(), 8 | 12 | 16) => DesignatorId::Eui64(bytes.to_vec()),
            (3, &[first, ..]) if binary && bytes.len() == if first >> 4 == 6 { 16 } else { 8 } => {
                DesignatorId::Naa(bytes.to_vec())
            }
            (4, &[_, _, high, low]) if binary => DesignatorId::RelativePort(u16::from_be_bytes([high, low])),
            (5, &[_, _, high, low]) if binary => DesignatorId::PortGroup(u16::from_be_bytes([high, low])),
            (8, _) => DesignatorId::Name(text::parse(bytes)),
            (kind, _) => DesignatorId::Other { kind, bytes: bytes.to_vec() },
        };
        list.push(Designator { association, id });
    }
    Some(list)
}

/// The Block Limits page, B0h (SBC-3 6.5.3). Zero means "no limit reported" unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME of zero blocks is rejected.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks; 0: COMPARE AND WRITE is not supported.
    pub compare_and_write_max_blocks: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY in blocks.
    pub granularity_blocks: u16,
    /// MAXIMUM TRANSFER LENGTH in blocks.
    pub transfer_max_blocks: u32,
    /// OPTIMAL TRANSFER LENGTH in blocks.
    pub transfer_optimal_blocks: u32,
    /// MAXIMUM UNMAP LBA COUNT; 0: UNMAP is not supported, FFFFFFFFh: no limit.
    pub unmap_max_blocks: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; 0: UNMAP is not supported, FFFFFFFFh: no limit.
    pub unmap_max_descriptors: u32,
    /// OPTIMAL UNMAP GRANULARITY in blocks.
    pub unmap_granularity_blocks: u32,
    /// UNMAP GRANULARITY ALIGNMENT, if UGAVALID.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH in blocks.
    pub write_same_max_blocks: u64,
}

impl BlockLimits {
    /// Parses the page. SBC-2 ends it after 0Ch bytes; missing bytes are zero.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let arrived = vpd(0xb0, data).filter(|body| body.len() >= 0x0c)?;
        let mut page = [0; 0x3c];
        let length = arrived.len().min(page.len());
        page[..length].copy_from_slice(&arrived[..length]);
        // Offsets count from the start of the page, header included.
        let word = |at: usize| u32::from_be_bytes([page[at - 4], page[at - 3], page[at - 2], page[at - 1]]);
        Some(Self {
            write_same_non_zero: page[0] & 0x01 != 0,
            compare_and_write_max_blocks: page[1],
            granularity_blocks: u16::from_be_bytes([page[2], page[3]]),
            transfer_max_blocks: word(8),
            transfer_optimal_blocks: word(12),
            unmap_max_blocks: word(20),
            unmap_max_descriptors: word(24),
            unmap_granularity_blocks: word(28),
            unmap_alignment: (word(32) & 0x8000_0000 != 0).then_some(word(32) & 0x7fff_ffff),
            write_same_max_blocks: u64::from(word(36)) << 32 | u64::from(word(40)),
        })
    }
}

/// The Block Device Characteristics page, B1h (SBC-3 6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characteristics {
    /// MEDIUM ROTATION RATE: 0 not reported, 1 non-rotating, otherwise rotations per minute.
    pub rotation_rate: u16,
}

impl Characteristics {
    pub fn parse(data: &[u8]) -> Option<Self> {
        let &[high, low, ..] = vpd(0xb1, data)? else { return None };
        Some(Self { rotation_rate: u16::from_be_bytes([high, low]) })
    }
}

/// The Logical Block Provisioning page, B2h (SBC-3 6.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioning {
    /// LBPU: UNMAP is supported.
    pub unmap: bool,
    /// LBPWS: WRITE SAME (16) with UNMAP is supported.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME (10) with UNMAP is supported.
    pub write_same_10: bool,
    /// LBPRZ 001b: unmapped blocks read as zeros.
    pub reads_zero: bool,
    /// ANC_SUP: anchored blocks are supported.
    pub anchor: bool,
    /// PROVISIONING TYPE: 0 not reported, 1 resource, 2 thin.
    pub kind: u8,
}

impl Provisioning {
    pub fn parse(data: &[u8]) -> Option<Self> {
        let &[_, flags, kind, ..] = vpd(0xb2, data)? else { return None };
        Some(Self {
            unmap: flags & 0x80 != 0,
            write_same_16: flags & 0x40 != 0,
            write_same_10: flags & 0x20 != 0,
            reads_zero: (flags >> 2) & 0x07 == 1,
            anchor: flags & 0x02 != 0,
            kind: kind & 0x07,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_hostile_text_is_printable() {
        let mut data = [b' '; 36];
        data[..8].copy_from_slice(&[0, 0x80, 6, 0x12, 31, 0x31, 0, 2]);
        data[8..12].copy_from_slice(b"a\x1b\nb");
        let standard = Standard::parse(&data).expect("36 bytes");
        assert_eq!((standard.vendor(), standard.product()), ("a??b", ""));
        assert!(standard.is_disk() && standard.removable && standard.queueing && standard.protect);
        assert_eq!(standard.target_port_groups, 3);
        assert_eq!(Standard::parse(&data[..35]), None);
    }

    #[test]
    fn vpd_hostile() {
        let vectors: [(&str, &[u8], Option<usize>); 5] = [
            ("header_truncated", &[0, 0x80, 0], None),
            ("other_page", &[0, 0x83, 0, 1, b'x'], None),
            ("empty", &[0, 0x80, 0, 0], Some(0)),
            ("length_beyond_end", &[0, 0x80, 0xff, 0xff, b'x'], Some(1)),
            ("data_beyond_length", &[0, 0x80, 0, 1, b'x', b'y'], Some(1)),
        ];
        for (name, data, expected) in vectors {
            assert_eq!(vpd(0x80, data).map(<[u8]>::len), expected, "{name}");
        }
    }

    #[test]
    fn designators_hostile() {
        let page = |body: &[u8]| {
            let mut data = vec![0, 0x83, 0, body.len() as u8];
            data.extend(body);
            designators(&data).expect("a page 83h")
        };
        assert_eq!(page(&[1, 3, 0]), [], "header_truncated");
        assert_eq!(page(&[1, 3, 0, 8, 1]), [], "designator_truncated");
        assert_eq!(page(&[1, 0x33, 0, 1, 0]), [], "association_reserved");
        let other = |kind, bytes: &[u8]| DesignatorId::Other { kind, bytes: bytes.to_vec() };
        assert_eq!(page(&[1, 3, 0, 2, 0x30, 0])[0].id, other(3, &[0x30, 0]), "naa_short");
        assert_eq!(page(&[1, 3, 0, 0])[0].id, other(3, &[]), "naa_empty");
        assert_eq!(page(&[2, 1, 0, 1, b'x'])[0].id, other(1, b"x"), "t10_short");
        assert_eq!(page(&[1, 0x14, 0, 4, 9, 9, 0, 7])[0].id, DesignatorId::RelativePort(7));
        let control = page(&[3, 0x28, 0, 4, b'i', 7, 0, 0]);
        assert_eq!(control[0].id, DesignatorId::Name("i?".into()), "name_control");
    }

    #[test]
    fn block_limits_of_sbc_2() {
        let mut data = vec![0, 0xb0, 0, 0x0c];
        data.extend([0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 0, 9]);
        let limits = BlockLimits::parse(&data).expect("SBC-2 page");
        let blocks = (limits.granularity_blocks, limits.transfer_max_blocks, limits.transfer_optimal_blocks);
        assert_eq!(blocks, (8, 256, 9));
        assert_eq!((limits.unmap_max_blocks, limits.unmap_alignment), (0, None));
        assert_eq!(BlockLimits::parse(&data[..15]), None, "cut");
    }
}
