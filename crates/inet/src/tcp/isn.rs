//! Numbers that an attacker off the path must not guess, each a keyed hash of the connection's ends.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;
use zerocopy::FromZeros;

use crate::{Endpoint, SeqNumber, Time};

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub(crate) struct Tuple {
    pub(crate) local: Endpoint,
    pub(crate) remote: Endpoint,
}

/// What a hash is for: one purpose says nothing about another.
#[derive(Clone, Copy)]
enum Purpose {
    Table,
    Sequence,
    Timestamp,
    Port,
}

/// The key of the hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret([u64; 2]);

impl Secret {
    pub(crate) fn new(secret: [u8; 16]) -> Self {
        let word = u128::from_le_bytes(secret);
        Self([word as u64, (word >> 64) as u64])
    }

    fn hash(&self, purpose: Purpose, tuple: &Tuple) -> u64 {
        let mut bytes = [0; 36];
        bytes[..16].copy_from_slice(&tuple.local.address.0);
        bytes[16..18].copy_from_slice(&tuple.local.port.to_le_bytes());
        bytes[18..34].copy_from_slice(&tuple.remote.address.0);
        bytes[34..].copy_from_slice(&tuple.remote.port.to_le_bytes());
        let mut hasher = SipHasher13::new_with_keys(self.0[0] ^ purpose as u64, self.0[1]);
        hasher.write(&bytes);
        hasher.finish()
    }

    /// Place in the table of connections.
    pub(crate) fn table(&self, tuple: &Tuple) -> u32 {
        self.hash(Purpose::Table, tuple) as u32
    }

    /// RFC 6528 §3: ISN = M + F(ends, secret), M a clock of 4 us.
    pub(crate) fn initial_sequence(&self, tuple: &Tuple, now: Time) -> SeqNumber {
        SeqNumber(self.hash(Purpose::Sequence, tuple) as u32) + (now.0 / 4) as u32
    }

    /// What is added to the clock of timestamps (RFC 7323 §5.4). The same for each connection between the same ends, so
    /// that a peer in TIME-WAIT sees them increase (RFC 6191).
    pub(crate) fn timestamp_offset(&self, tuple: &Tuple) -> u32 {
        self.hash(Purpose::Timestamp, tuple) as u32
    }

    /// Where the search for an ephemeral port begins (RFC 6056 §3.3.3); the local port does not count.
    pub(crate) fn port_offset(&self, tuple: &Tuple) -> u32 {
        let local = Endpoint { port: 0, ..tuple.local };
        self.hash(Purpose::Port, &Tuple { local, ..*tuple }) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    fn tuple(port: u16) -> Tuple {
        Tuple {
            local: Endpoint { address: Address::UNSPECIFIED, port },
            remote: Endpoint { address: Address::UNSPECIFIED, port: 80 },
        }
    }

    #[test]
    fn rfc6528_the_clock_advances_every_4_us_and_ends_and_secret_move_the_origin() {
        let secret = Secret::new([7; 16]);
        let at = |port, us| secret.initial_sequence(&tuple(port), Time(us));
        assert_eq!(at(1, 4_000_003).distance(at(1, 0)), 1_000_000);
        assert_ne!(at(1, 0), at(2, 0));
        assert_ne!(at(1, 0), Secret::new([8; 16]).initial_sequence(&tuple(1), Time(0)));
        // 2^32 ticks of 4 us: the clock wraps and goes on.
        assert_eq!(at(1, 4 << 32), at(1, 0));
    }

    #[test]
    fn rfc6056_the_local_port_does_not_move_the_start_of_the_search() {
        let secret = Secret::new([7; 16]);
        assert_eq!(secret.port_offset(&tuple(1)), secret.port_offset(&tuple(2)));
        assert_ne!(secret.port_offset(&tuple(1)), secret.timestamp_offset(&tuple(1)));
    }
}
