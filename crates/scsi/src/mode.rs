//! Parser of MODE SENSE data.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeData<'a> {
    /// WP of the DEVICE-SPECIFIC PARAMETER: writes are rejected.
    pub write_protected: bool,
    /// DPOFUA: the DPO and FUA bits are supported.
    pub dpo_fua: bool,
    pages: &'a [u8],
}

/// The fields of the Caching page (SBC-3 6.4.5) that matter for copying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// WCE: a write may complete in a volatile cache.
    pub write_cache: bool,
    /// RCD: reads bypass the cache.
    pub read_cache_disabled: bool,
}

impl<'a> ModeData<'a> {
    /// Parses MODE SENSE (6) data, SPC-4 table 468.
    pub fn parse_6(data: &'a [u8]) -> Option<Self> {
        let &[length, _, specific, descriptors, ..] = data else { return None };
        Self::new(data, usize::from(length) + 1, specific, 4 + usize::from(descriptors))
    }

    /// Parses MODE SENSE (10) data, SPC-4 table 469.
    pub fn parse_10(data: &'a [u8]) -> Option<Self> {
        let &[high, low, _, specific, _, _, descriptors_high, descriptors_low, ..] = data else {
            return None;
        };
        let descriptors = u16::from_be_bytes([descriptors_high, descriptors_low]);
        Self::new(
            data,
            usize::from(u16::from_be_bytes([high, low])) + 2,
            specific,
            8 + usize::from(descriptors),
        )
    }

    fn new(data: &'a [u8], length: usize, specific: u8, pages_at: usize) -> Option<Self> {
        let end = data.len().min(length);
        Some(Self {
            write_protected: specific & 0x80 != 0,
            dpo_fua: specific & 0x10 != 0,
            pages: data.get(pages_at.min(end)..end)?,
        })
    }

    /// The body of a page, without its header of two or four bytes; shorter than its PAGE LENGTH if the data is
    /// truncated. `None` if the page is absent.
    pub fn page(&self, code: u8, subpage: u8) -> Option<&'a [u8]> {
        let mut rest = self.pages;
        while let &[first, second, ..] = rest {
            let (found, header, length) = if first & 0x40 == 0 {
                ((first & 0x3f, 0), 2, usize::from(second))
            } else {
                let &[_, _, high, low, ..] = rest else { return None };
                ((first & 0x3f, second), 4, usize::from(u16::from_be_bytes([high, low])))
            };
            let end = rest.len().min(header + length);
            if found == (code, subpage) {
                return Some(&rest[header..end]);
            }
            rest = &rest[end..];
        }
        None
    }

    pub fn caching(&self) -> Option<Caching> {
        let flags = *self.page(0x08, 0)?.first()?;
        Some(Caching { write_cache: flags & 0x04 != 0, read_cache_disabled: flags & 0x01 != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_pages_behind_descriptors_and_subpages() {
        let data = [
            0, 28, 0, 0x90, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, // header and block descriptor
            0x4a, 0x01, 0, 2, 0xaa, 0xbb, // a subpage
            0x88, 2, 0x04, 0, // Caching with PS
        ];
        let mode = ModeData::parse_10(&data).expect("whole");
        assert!(mode.write_protected && mode.dpo_fua);
        assert_eq!(mode.caching(), Some(Caching { write_cache: true, read_cache_disabled: false }));
        assert_eq!(mode.page(0x0a, 1), Some(&[0xaa, 0xbb][..]));
        assert_eq!(mode.page(0x0a, 0), None);
    }

    #[test]
    fn hostile() {
        let vectors: [(&str, &[u8], Option<bool>); 6] = [
            ("header_truncated", &[3, 0, 0], None),
            ("descriptors_beyond_end", &[3, 0, 0, 255], Some(false)),
            ("length_beyond_end", &[255, 0, 0, 0, 8, 18, 4], Some(true)),
            ("length_before_page", &[3, 0, 0, 0, 8, 18, 4], Some(false)),
            ("page_length_zero", &[6, 0, 0, 0, 8, 0, 4], Some(false)),
            ("page_header_truncated", &[4, 0, 0, 0, 8], Some(false)),
        ];
        for (name, data, expected) in vectors {
            let got =
                ModeData::parse_6(data).map(|mode| mode.caching().is_some_and(|caching| caching.write_cache));
            assert_eq!(got, expected, "{name}");
        }
    }
}
