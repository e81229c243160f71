//! Numbers, addresses and names in a record.

use std::net::{IpAddr, SocketAddr};

use crate::limits::RECORD_NAME_BYTES_MAX;

/// Reads a record's body; every method is `None` beyond its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// LEB128.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    pub(super) fn length(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }

    pub(super) fn name(&mut self) -> Option<String> {
        let length = self.length().filter(|length| *length <= RECORD_NAME_BYTES_MAX)?;
        Some(String::from_utf8_lossy(self.take(length)?).into_owned())
    }

    pub(super) fn address(&mut self) -> Option<SocketAddr> {
        let ip: IpAddr = match self.u8()? {
            4 => <[u8; 4]>::try_from(self.take(4)?).ok()?.into(),
            6 => <[u8; 16]>::try_from(self.take(16)?).ok()?.into(),
            _ => return None,
        };
        let port = u16::from_le_bytes(self.take(2)?.try_into().ok()?);
        Some(SocketAddr::new(ip, port))
    }
}

pub(super) fn put_number(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

pub(super) fn put_name(into: &mut Vec<u8>, name: &str) {
    let mut end = name.len().min(RECORD_NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    put_number(into, end as u64);
    into.extend_from_slice(&name.as_bytes()[..end]);
}

pub(super) fn put_address(into: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(v4) => {
            into.push(4);
            into.extend(v4.octets());
        }
        IpAddr::V6(v6) => {
            into.push(6);
            into.extend(v6.octets());
        }
    }
    into.extend(address.port().to_le_bytes());
}

/// Small differences of either sign as small numbers.
pub(super) fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, value);
            assert_eq!(Cursor(&bytes).number(), Some(value));
            assert_eq!(Cursor(&bytes[..bytes.len() - 1]).number(), None);
        }
        assert_eq!(Cursor(&[0xff; 11]).number(), None);
        for difference in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(difference)), difference);
        }
        assert!(zigzag(-64) < 128);
    }
}
