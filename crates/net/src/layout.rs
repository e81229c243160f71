//! Where rings, headers and frames lie in shared memory.
//!
//! Each pair of processes shares two memfds, one written by each; the other maps it read-only. The supervisor makes
//! them all and keeps their descriptors, so that a server that is started again finds the same memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use area::Region;
use area::ring::{CONSUMER_BYTES, Consumer, Mapped, Producer, producer_bytes};

/// Slots of the rings, powers of two.
pub const REQUESTS: usize = 256;
pub const COMPLETIONS: usize = 256;
pub const RETURNS: usize = 256;
pub const TRANSMITS: usize = 256;
pub const INPUTS: usize = 256;
pub const FILLS: usize = 64;

/// Room for the start of a frame: struct virtio_net_hdr, then the frame; a frame up to 2036 bytes has no tail.
pub const HEAD_BYTES: usize = inet::VNET_BYTES + inet::HEAD_BYTES as usize;
/// Room for the rest: together a frame of 65,535 bytes and an Ethernet header.
pub const TAIL_BYTES: usize = 64 << 10;
pub const HEADS: usize = 1024;
pub const TAILS: usize = 256;
/// Of the memory of one interface's frames: the heads, then the tails.
pub const FRAMES_BYTES: usize = HEADS * HEAD_BYTES + TAILS * TAIL_BYTES;

/// Offset of a head or tail in the memory of frames, bytes.
pub fn head_offset(head: u32) -> usize {
    head as usize * HEAD_BYTES
}

pub fn tail_offset(tail: u32) -> usize {
    HEADS * HEAD_BYTES + tail as usize * TAIL_BYTES
}

/// Memory into which `inet` copies what one of several clients receives: slots for one delivery each, the small ones
/// first, numbered from 0.
pub mod received {
    pub const SMALL_BYTES: usize = 2 << 10;
    pub const LARGE_BYTES: usize = 64 << 10;
    pub const SMALLS: usize = 2048;
    pub const LARGES: usize = 192;
    pub const BYTES: usize = SMALLS * SMALL_BYTES + LARGES * LARGE_BYTES;

    /// Of a slot, bytes from the start of the memory.
    pub fn offset(slot: u32) -> usize {
        let slot = slot as usize;
        slot.min(SMALLS) * SMALL_BYTES + slot.saturating_sub(SMALLS) * LARGE_BYTES
    }
}

/// Parts of rings one after another, each on its own 128 bytes; at most four.
const fn place(parts: &[usize], index: usize) -> usize {
    let (mut at, mut offset) = (0, 0);
    while at < index {
        offset += parts[at];
        at += 1;
    }
    offset
}

/// Where the counters of a ring lie in the two memories of a channel, for a process that does not map them: number of the
/// memory (0 is that which the channel's type names first), offset.
#[derive(Clone, Copy, Debug)]
pub struct RingPlace {
    pub name: &'static str,
    pub slots: usize,
    pub published: (usize, usize),
    pub consumed: (usize, usize),
}

/// Two memfds shared by two processes, as one of them maps them.
#[derive(Debug)]
pub struct Channel {
    own: Arc<Region>,
    peer: Arc<Region>,
}

impl Channel {
    /// `own` is mapped for writing, `peer` read-only; each `own_bytes`, `peer_bytes` long.
    pub fn map(
        own: BorrowedFd<'_>,
        own_bytes: usize,
        peer: BorrowedFd<'_>,
        peer_bytes: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            own: Arc::new(Region::shared(own, own_bytes, true)?),
            peer: Arc::new(Region::shared(peer, peer_bytes, false)?),
        })
    }

    fn own(&self, parts: &[usize], index: usize) -> Mapped {
        Mapped::new(Arc::clone(&self.own), place(parts, index), parts[index])
    }

    fn peer(&self, parts: &[usize], index: usize) -> Mapped {
        Mapped::new(Arc::clone(&self.peer), place(parts, index), parts[index])
    }
}

/// Between an application and `inet`.
pub mod client {
    use super::*;

    const CLIENT: [usize; 2] = [producer_bytes(REQUESTS), CONSUMER_BYTES];
    const INET: [usize; 2] = [CONSUMER_BYTES, producer_bytes(COMPLETIONS)];
    /// Of the memory that the application writes, and of that of `inet`.
    pub const CLIENT_BYTES: usize = place(&CLIENT, 2).next_multiple_of(area::PAGE_BYTES);
    pub const INET_BYTES: usize = place(&INET, 2).next_multiple_of(area::PAGE_BYTES);

    /// Memory 0 is the application's.
    pub const RINGS: [RingPlace; 2] = [
        RingPlace {
            name: "requests",
            slots: REQUESTS,
            published: (0, place(&CLIENT, 0)),
            consumed: (1, place(&INET, 0)),
        },
        RingPlace {
            name: "completions",
            slots: COMPLETIONS,
            published: (1, place(&INET, 1)),
            consumed: (0, place(&CLIENT, 1)),
        },
    ];

    /// The application's side: requests out, completions in.
    pub fn application(channel: &Channel) -> (Producer, Consumer) {
        (
            Producer::new(channel.own(&CLIENT, 0), channel.peer(&INET, 0), REQUESTS),
            Consumer::new(channel.own(&CLIENT, 1), channel.peer(&INET, 1), COMPLETIONS),
        )
    }

    /// The side of `inet`: requests in, completions out.
    pub fn inet(channel: &Channel) -> (Consumer, Producer) {
        (
            Consumer::new(channel.own(&INET, 0), channel.peer(&CLIENT, 0), REQUESTS),
            Producer::new(channel.own(&INET, 1), channel.peer(&CLIENT, 1), COMPLETIONS),
        )
    }
}

/// Between the driver and an application: direct return.
pub mod direct {
    use super::*;

    pub const NIC_BYTES: usize = producer_bytes(RETURNS).next_multiple_of(area::PAGE_BYTES);
    pub const CLIENT_BYTES: usize = area::PAGE_BYTES;
    /// Memory 0 is the driver's.
    pub const RING: RingPlace =
        RingPlace { name: "direct returns", slots: RETURNS, published: (0, 0), consumed: (1, 0) };

    /// Of a driver at work, which may have had another one before it.
    pub fn nic(channel: &Channel) -> Producer {
        let (own, peer) = (channel.own(&[producer_bytes(RETURNS)], 0), channel.peer(&[CONSUMER_BYTES], 0));
        Producer::succeed(own, peer, RETURNS)
    }

    pub fn application(channel: &Channel) -> Consumer {
        let (own, peer) = (channel.own(&[CONSUMER_BYTES], 0), channel.peer(&[producer_bytes(RETURNS)], 0));
        Consumer::new(own, peer, RETURNS)
    }
}

/// Between `inet` and a driver. Behind the rings the memory of `inet` holds the headers of frames that wait.
pub mod driver {
    use inet::HEADER_BYTES;

    use super::*;

    const INET: [usize; 4] =
        [producer_bytes(TRANSMITS), producer_bytes(FILLS), CONSUMER_BYTES, TRANSMITS * HEADER_BYTES];
    const NIC: [usize; 3] = [CONSUMER_BYTES, CONSUMER_BYTES, producer_bytes(INPUTS)];
    pub const INET_BYTES: usize = place(&INET, 4).next_multiple_of(area::PAGE_BYTES);
    pub const NIC_BYTES: usize = place(&NIC, 3).next_multiple_of(area::PAGE_BYTES);

    /// Memory 0 is that of `inet`.
    pub const RINGS: [RingPlace; 3] = [
        RingPlace {
            name: "frames out",
            slots: TRANSMITS,
            published: (0, place(&INET, 0)),
            consumed: (1, place(&NIC, 0)),
        },
        RingPlace {
            name: "free frames",
            slots: FILLS,
            published: (0, place(&INET, 1)),
            consumed: (1, place(&NIC, 1)),
        },
        RingPlace {
            name: "frames in",
            slots: INPUTS,
            published: (1, place(&NIC, 2)),
            consumed: (0, place(&INET, 2)),
        },
    ];

    /// The side of `inet`: frames to send, memory to receive into, frames received.
    pub fn inet(channel: &Channel) -> (Producer, Producer, Consumer) {
        (
            Producer::new(channel.own(&INET, 0), channel.peer(&NIC, 0), TRANSMITS),
            Producer::new(channel.own(&INET, 1), channel.peer(&NIC, 1), FILLS),
            Consumer::new(channel.own(&INET, 2), channel.peer(&NIC, 2), INPUTS),
        )
    }

    /// The driver's side, in the same order, of a driver at work: its predecessor may have left any counters.
    pub fn nic(channel: &Channel) -> (Consumer, Consumer, Producer) {
        (
            Consumer::succeed(channel.own(&NIC, 0), channel.peer(&INET, 0), TRANSMITS),
            Consumer::succeed(channel.own(&NIC, 1), channel.peer(&INET, 1), FILLS),
            Producer::succeed(channel.own(&NIC, 2), channel.peer(&INET, 2), INPUTS),
        )
    }

    /// Address of the header of the frame at a position of the transmit ring, [`HEADER_BYTES`] long: virtio_net_hdr, then
    /// the frame's headers. `inet` writes it until the slot is published, and again when it has been consumed.
    pub fn header(channel: &Channel, position: u64, is_inet: bool) -> *mut u8 {
        let region = if is_inet { &channel.own } else { &channel.peer };
        let offset = place(&INET, 3) + (position % TRANSMITS as u64) as usize * HEADER_BYTES;
        assert!(offset + HEADER_BYTES <= region.len(), "headers outside of the region");
        // SAFETY: checked above.
        unsafe { region.as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use area::ring::{SLOT_BYTES, Slot};

    use super::*;

    const SLOT: Slot = [0; SLOT_BYTES / 8];

    fn counter(memory: &Region, offset: usize) -> u64 {
        // SAFETY: one word of a mapping that this thread alone uses.
        unsafe { memory.as_ptr().add(offset).cast::<u64>().read_volatile() }
    }

    #[test]
    fn counters_lie_where_the_places_of_rings_say() {
        let memories =
            [driver::INET_BYTES, driver::NIC_BYTES].map(|bytes| area::memfd::create("test", bytes).unwrap());
        let [inet, nic] = memories.each_ref().map(AsFd::as_fd);
        let views = [
            Region::shared(inet, driver::INET_BYTES, false).unwrap(),
            Region::shared(nic, driver::NIC_BYTES, false).unwrap(),
        ];
        let seen = || {
            driver::RINGS.map(|ring| {
                [ring.published, ring.consumed].map(|(memory, offset)| counter(&views[memory], offset))
            })
        };
        let channel =
            |own, own_bytes, peer, peer_bytes| Channel::map(own, own_bytes, peer, peer_bytes).unwrap();
        let ours = channel(inet, driver::INET_BYTES, nic, driver::NIC_BYTES);
        let theirs = channel(nic, driver::NIC_BYTES, inet, driver::INET_BYTES);
        let (mut transmits, mut fills, mut inputs) = driver::inet(&ours);
        let (mut sent, mut filled, mut received) = driver::nic(&theirs);
        for (producer, consumer, count) in
            [(&mut transmits, &mut sent, 3), (&mut fills, &mut filled, 5), (&mut received, &mut inputs, 7)]
        {
            for _ in 0..count {
                producer.push(&SLOT);
            }
            let _ = producer.publish();
            consumer.take().unwrap();
            consumer.consume();
        }
        assert_eq!(seen(), [[3, 1], [5, 1], [7, 1]]);
    }
}
