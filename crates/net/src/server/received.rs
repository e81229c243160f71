//! Where a client reads what was received: in the frames themselves if it is the only client, else in memory of its own
//! into which the server copies.

use std::sync::Arc;

use area::Region;
use inet::FrameId;

use super::protocol::{Protocol, Ranges};
use crate::layout::received::{BYTES, LARGE_BYTES, LARGES, SMALL_BYTES, SMALLS, offset};

/// How a client sees received bytes, and which of them it has not given back.
pub(super) enum View {
    /// By number of the frame: whether the client has it.
    Frames(Vec<bool>),
    Copies(Copies),
}

/// What a delivery becomes.
pub(super) enum Delivery {
    /// The frame stays the client's.
    Frame(FrameId, Ranges),
    /// The frame can be released.
    Copy(FrameId, Ranges),
}

impl View {
    pub(super) fn frames(count: u32) -> Self {
        Self::Frames(vec![false; count as usize])
    }

    /// `None` if a copy has no room now.
    pub(super) fn deliver(
        &mut self,
        socket: u32,
        frame: FrameId,
        ranges: Ranges,
        protocol: &Protocol<'_>,
    ) -> Option<Delivery> {
        match self {
            Self::Frames(lent) => {
                lent[frame as usize] = true;
                Some(Delivery::Frame(frame, ranges))
            }
            Self::Copies(copies) => {
                let length = ranges[0][1] + ranges[1][1];
                let number = copies.take(socket, length)?;
                let at = offset(number);
                assert!(at + length as usize <= copies.memory.len(), "a copy outside of its memory");
                // SAFETY: checked above.
                let into = unsafe { copies.memory.as_ptr().add(at) };
                protocol.copy(frame, &ranges, into);
                Some(Delivery::Copy(number, [[at as u32, length], [0, 0]]))
            }
        }
    }

    /// The client gives back what a delivery has named: the frame to be released, if it was lent. `Err` if the client
    /// does not have it.
    pub(super) fn give_back(&mut self, number: u32) -> Result<Option<FrameId>, ()> {
        match self {
            Self::Frames(lent) => {
                let is_lent = lent.get_mut(number as usize).ok_or(())?;
                if std::mem::take(is_lent) { Ok(Some(number)) } else { Err(()) }
            }
            Self::Copies(copies) => copies.give_back(number).map(|()| None),
        }
    }
}

/// Memory of one client, divided into small and large slots; a delivery takes one.
pub(super) struct Copies {
    memory: Arc<Region>,
    /// By slot: the socket for which it was taken.
    taken: Vec<Option<u32>>,
    free: [Vec<u32>; 2],
    /// By socket: small and large slots that it has.
    held: Vec<[usize; 2]>,
}

impl Copies {
    /// # Panics
    /// If the memory is short.
    pub(super) fn new(memory: Arc<Region>, sockets: usize) -> Self {
        assert!(memory.len() >= BYTES, "memory for fewer copies");
        let (smalls, all) = (SMALLS as u32, (SMALLS + LARGES) as u32);
        Self {
            memory,
            taken: vec![None; SMALLS + LARGES],
            free: [(0..smalls).rev().collect(), (smalls..all).rev().collect()],
            held: vec![[0; 2]; sockets],
        }
    }

    /// A slot of at least `bytes`. A socket may have as many slots as are free, so that one which is not read leaves
    /// room to others (a dynamic threshold).
    fn take(&mut self, socket: u32, bytes: u32) -> Option<u32> {
        assert!(bytes as usize <= LARGE_BYTES, "a delivery longer than a frame");
        let held = self.held.get_mut(socket as usize)?;
        let smallest = usize::from(bytes as usize > SMALL_BYTES);
        let class = (smallest..2).find(|&class| held[class] < self.free[class].len())?;
        let number = self.free[class].pop()?;
        held[class] += 1;
        self.taken[number as usize] = Some(socket);
        Some(number)
    }

    fn give_back(&mut self, number: u32) -> Result<(), ()> {
        let socket = self.taken.get_mut(number as usize).and_then(Option::take).ok_or(())?;
        let class = usize::from(number as usize >= SMALLS);
        self.held[socket as usize][class] -= 1;
        self.free[class].push(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_not_read_leaves_room_to_others() {
        let mut copies = Copies::new(Arc::new(Region::new(BYTES, false).unwrap()), 3);
        let all = |copies: &mut Copies, socket| std::iter::from_fn(|| copies.take(socket, 60_000)).count();
        assert_eq!(all(&mut copies, 0), LARGES / 2);
        assert_eq!(all(&mut copies, 1), LARGES / 4);
        assert_eq!(copies.take(3, 1), None, "no such socket");
        assert_eq!(copies.take(2, 1), Some(0), "a small one");
        assert_eq!(copies.give_back(0), Ok(()));
        assert_eq!(copies.give_back(0), Err(()), "twice");
        assert_eq!(copies.give_back(1), Err(()), "never taken");
        assert_eq!(copies.give_back((SMALLS + LARGES) as u32), Err(()), "none");
        for number in SMALLS as u32..(SMALLS + LARGES / 2) as u32 {
            copies.give_back(number).unwrap();
        }
        assert_eq!(all(&mut copies, 0), (LARGES - LARGES / 4) / 2);
    }
}
