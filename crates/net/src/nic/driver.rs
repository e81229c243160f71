//! The loop's body: frames out, frames in.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use area::ring::{Consumer, Corrupt, Producer};
use inet::step::{Step, mark};
use inet::{Link, VNET_BYTES};
use rustix::event::PollFlags;
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::device::{Arrival, Device, FRAME_BYTES_MAX, Gather, Offload, Received, Scatter, Sent};
use super::maps::Maps;
use super::{ETHERNET_BYTES, HEADERS_MAX, checksum};
use crate::layout::{self, HEADS, TAIL_BYTES, TAILS, head_offset, tail_offset};
use crate::slot::{self, Fill, Input, NO_CLIENT, NO_TAIL, REGION_FRAMES, Returned, Transmit, input};

/// Frames sent in one turn, and frames received: 64 KiB each, together below 0.1 ms.
const BATCH: usize = 16;
/// Slots of the ring of free frames taken in one turn.
const FILLS_BATCH: usize = layout::FILLS;
/// Until a frame is tried again that the device refused for want of memory, or the ring of inputs is looked at again:
/// neither of them rings a bell.
const RETRY: Duration = Duration::from_millis(1);
/// Room for a frame in a head.
const HEAD_ROOM: usize = inet::HEAD_BYTES as usize;

/// Why a driver cannot go on.
#[derive(Debug, Error)]
pub enum Fault {
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error("the network interface is gone: {0}")]
    Gone(io::Error),
}

/// Since the driver attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Counts {
    pub sent_frames: u64,
    pub sent_bytes: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Direct returns, and those for which the application had no room.
    pub returned: u64,
    pub returns_skipped: u64,
    /// Attempts to send that the device had no room for; the frame is kept.
    pub busy: u64,
    /// Frames that the device refused.
    pub refused: u64,
    /// Frames of `inet` whose description was wrong, and numbers of free memory that were.
    pub bad_frames: u64,
    pub bad_fills: u64,
    /// Frames that arrived and were too long, or of no known kind.
    pub unreceived: u64,
    /// Frames that arrived with a wrong checksum. They are passed on as not checked.
    pub bad_checksums: u64,
    /// Frames that a wire has lost, as it was set to.
    pub lost: u64,
}

/// Free heads or tails: the one that came last is used first, its memory is in the cache.
#[derive(Debug)]
struct Free {
    numbers: Vec<u32>,
    is_free: Vec<bool>,
}

impl Free {
    fn new(count: usize) -> Self {
        Self { numbers: Vec::with_capacity(count), is_free: vec![false; count] }
    }

    /// False if there is no such number, or it is free already.
    fn add(&mut self, number: u32) -> bool {
        match self.is_free.get_mut(number as usize) {
            Some(is_free @ false) => {
                *is_free = true;
                self.numbers.push(number);
                true
            }
            _ => false,
        }
    }

    fn last(&self) -> Option<u32> {
        self.numbers.last().copied()
    }

    fn take(&mut self) {
        if let Some(number) = self.numbers.pop() {
            self.is_free[number as usize] = false;
        }
    }
}

/// A driver that is attached to `inet`.
///
/// Call [`Driver::turn`] as long as it returns true, or spin on it. To sleep: [`Driver::arm`], and if it says so wait for
/// the own doorbell, for [`Driver::interest`] of the device, and until [`Driver::deadline`]; then [`Driver::disarm`].
/// A driver that is dropped or killed at any moment leaves nothing behind that its successor does not find in the
/// rings: a frame is consumed only after it was written, so at worst it is sent twice.
#[derive(Debug)]
pub struct Driver {
    maps: Maps,
    device: Device,
    link: Link,
    epoch: u32,
    is_attached: bool,
    transmits: Consumer,
    fills: Consumer,
    inputs: Producer,
    /// A frame that the device had no room for, and its position in the ring.
    waiting: Option<(u64, Transmit)>,
    heads: Free,
    tails: Free,
    /// Frames received before the turn ends: a lone frame is not followed by a look at the device, which finds nothing
    /// and delays `inet` by a system call if it runs on the same core; while frames come in turn after turn, they are
    /// taken in batches.
    receive_max: usize,
    /// Of each head the tail that its frame goes on in, or [`NO_TAIL`].
    tail_of: Vec<u32>,
    /// The last turn found no room in the ring of inputs.
    is_full: bool,
    /// The last turn stopped where no event will tell when to go on.
    retry_at: Option<Instant>,
    counts: Counts,
}

impl Driver {
    /// Continues the rings from where `inet` believes them to stand, as the `epoch`th driver. Frames in `inet`'s ring are
    /// sent; memory in the ring of free frames was meant for a former driver, and is ignored by its epoch.
    pub fn new(mut maps: Maps, device: Device, link: Link, epoch: u32) -> Self {
        maps.begin();
        let (transmits, fills, inputs) = layout::driver::nic(&maps.channel);
        Self {
            maps,
            device,
            link,
            epoch,
            is_attached: false,
            transmits,
            fills,
            inputs,
            waiting: None,
            heads: Free::new(HEADS),
            tails: Free::new(TAILS),
            receive_max: 1,
            tail_of: vec![NO_TAIL; HEADS],
            is_full: false,
            retry_at: None,
            counts: Counts::default(),
        }
    }

    /// Tables of applications and their memory.
    pub fn maps(&mut self) -> &mut Maps {
        &mut self.maps
    }

    pub fn counts(&self) -> Counts {
        Counts { lost: self.device.lost(), ..self.counts }
    }

    /// Sends and receives up to a batch each. Returns whether there was any work.
    pub fn turn(&mut self) -> Result<bool, Fault> {
        self.is_full = false;
        self.retry_at = None;
        if !self.is_attached && !self.attach()? {
            return Ok(false);
        }
        let has_flushed = self.device.flush();
        let has_sent = self.transmit()?;
        let has_received = self.receive()?;
        Ok(has_flushed | has_sent | has_received)
    }

    /// `ifattach`. It is the first input of an epoch, because only then memory for frames comes.
    fn attach(&mut self) -> Result<bool, Fault> {
        if !self.has_room()? {
            return Ok(false);
        }
        let Link { mac, mtu, segments } = self.link;
        self.inputs.push(
            &Input {
                code: input::ATTACH,
                mac,
                mtu,
                segments: segments.into(),
                epoch: self.epoch,
                ..Input::default()
            }
            .into(),
        );
        self.publish();
        self.is_attached = true;
        Ok(true)
    }

    /// Whether an input can be pushed.
    fn has_room(&mut self) -> Result<bool, Corrupt> {
        self.is_full = self.inputs.room()? == 0;
        if self.is_full {
            self.retry_at = Some(Instant::now() + RETRY);
        }
        Ok(!self.is_full)
    }

    fn publish(&mut self) {
        if self.inputs.publish() {
            self.maps.bell.ring();
        }
    }

    fn transmit(&mut self) -> Result<bool, Fault> {
        let mut has_progress = false;
        for _ in 0..BATCH {
            let (position, transmit) = match self.waiting.take() {
                Some(waiting) => waiting,
                None => {
                    let position = self.transmits.position();
                    let Some(slot) = self.transmits.take()? else { break };
                    mark(Step::FrameTaken);
                    (position, slot.into())
                }
            };
            match self.send(position, &transmit) {
                Some(Ok(Sent::Taken)) => {
                    self.counts.sent_frames += 1;
                    self.return_directly(&transmit);
                }
                Some(Ok(Sent::Busy)) => {
                    self.counts.busy += 1;
                    if !self.device.is_full() {
                        self.retry_at = Some(Instant::now() + RETRY);
                    }
                    self.waiting = Some((position, transmit));
                    return Ok(has_progress);
                }
                // A link that is down loses frames; as for all lost ones, `inet` sends again.
                Some(Ok(Sent::Refused)) => self.counts.refused += 1,
                Some(Err(error)) => {
                    self.waiting = Some((position, transmit));
                    return Err(Fault::Gone(error));
                }
                None => self.counts.bad_frames += 1,
            }
            has_progress = true;
            // Only now: `inet` releases the application's memory by this counter. Nothing is taken beyond this frame.
            self.transmits.consume();
        }
        Ok(has_progress)
    }

    /// Checks a frame's description and gives the frame to the device; `None` if the description is wrong.
    fn send(&mut self, position: u64, transmit: &Transmit) -> Option<io::Result<Sent>> {
        let header_bytes = usize::from(transmit.header_bytes);
        if !(ETHERNET_BYTES..=HEADERS_MAX).contains(&header_bytes) {
            return None;
        }
        // Copied once: `inet` may change its memory meanwhile, the copy is what is looked at and what is sent.
        let mut header = [0; HEADERS_MAX];
        // SAFETY: a header slot has HEADER_BYTES readable bytes (asserted by `layout`), of which `header_bytes` lie
        // behind the first VNET_BYTES; `header` is memory of its own and long enough.
        unsafe {
            let slot = layout::driver::header(&self.maps.channel, position, false);
            std::ptr::copy_nonoverlapping(slot.add(VNET_BYTES), header.as_mut_ptr(), header_bytes);
        }
        let header = &header[..header_bytes];
        let offload = offload(transmit, header)?;
        let mut frame = Gather::new();
        frame.push(header);
        for span in transmit.spans.iter().filter(|span| span.length > 0) {
            if span.region == REGION_FRAMES {
                push_received(&mut frame, &self.maps, &self.tail_of, span)?;
            } else {
                let memory = self.maps.find(span)?;
                frame.push_shared(memory, span.offset as usize, span.length as usize);
            }
        }
        if frame.bytes() > FRAME_BYTES_MAX {
            return None;
        }
        mark(Step::Device);
        let sent = self.device.send(&offload, &mut frame);
        mark(Step::DeviceDone);
        if matches!(sent, Ok(Sent::Taken)) {
            self.counts.sent_bytes += frame.bytes() as u64;
        }
        Some(sent)
    }

    fn return_directly(&mut self, transmit: &Transmit) {
        let &Transmit { client, socket, generation, ticket, .. } = transmit;
        if client == NO_CLIENT {
            return;
        }
        match self
            .maps
            .return_directly(client, Returned { socket, generation, ticket, ..Returned::default() })
        {
            true => self.counts.returned += 1,
            false => self.counts.returns_skipped += 1,
        }
    }

    /// Takes what `inet` lends to receive into.
    fn fill(&mut self) -> Result<(), Corrupt> {
        let mut has_any = false;
        for _ in 0..FILLS_BATCH {
            let Some(slot) = self.fills.take()? else { break };
            has_any = true;
            let Fill { epoch, heads, tails, numbers, .. } = slot.into();
            if epoch != self.epoch {
                continue;
            }
            let (heads, tails) = (usize::from(heads), usize::from(tails));
            if heads + tails > slot::FILL_NUMBERS {
                self.counts.bad_fills += 1;
                continue;
            }
            let (heads, tails) = numbers[..heads + tails].split_at(heads);
            // Backwards: `inet` names first what it used last.
            for &head in heads.iter().rev() {
                self.counts.bad_fills += u64::from(!self.heads.add(head));
            }
            for &tail in tails.iter().rev() {
                self.counts.bad_fills += u64::from(!self.tails.add(tail));
            }
        }
        if has_any {
            self.fills.consume();
        }
        Ok(())
    }

    /// Whether there is memory for whatever frame comes next.
    fn has_memory(&self) -> bool {
        !self.heads.numbers.is_empty()
            && (!self.tails.numbers.is_empty() || self.device.frame_bytes_max() <= HEAD_ROOM)
    }

    fn receive(&mut self) -> Result<bool, Fault> {
        self.fill()?;
        let (mut frames, mut unpublished) = (0, 0);
        while frames < self.receive_max {
            if !self.has_memory() || !self.has_room()? {
                break;
            }
            let (Some(head), tail) = (self.heads.last(), self.tails.last()) else { break };
            let mut into = Scatter::new();
            into.push(&self.maps.frames, head_offset(head) + VNET_BYTES, HEAD_ROOM);
            if let Some(tail) = tail {
                into.push(&self.maps.frames, tail_offset(tail), TAIL_BYTES);
            }
            match self.device.receive(&mut into).map_err(Fault::Gone)? {
                Arrival::Nothing => break,
                Arrival::Dropped => self.counts.unreceived += 1,
                Arrival::Frame(received) => {
                    self.enter(head, tail.filter(|_| received.length > HEAD_ROOM), received);
                    unpublished += 1;
                }
            }
            frames += 1;
            // The first one at once, and the rest together.
            if frames == 1 && unpublished == 1 {
                self.publish();
                unpublished = 0;
            }
        }
        if unpublished > 0 {
            self.publish();
        }
        self.receive_max = if frames == self.receive_max { BATCH.min(2 * frames) } else { frames.max(1) };
        Ok(frames > 0)
    }

    /// `ethinput` of a frame in the first free head, and tail if it needed one.
    fn enter(&mut self, head: u32, tail: Option<u32>, received: Received) {
        self.heads.take();
        if tail.is_some() {
            self.tails.take();
        }
        let tail = tail.unwrap_or(NO_TAIL);
        self.tail_of[head as usize] = tail;
        let Received { length, is_checked, segment_bytes } = received;
        let is_checked = is_checked
            // Segments that were put together have no checksum that could be verified.
            || segment_bytes == 0
                && match checksum::verify(self.parts(head, tail, length)) {
                    Some(is_right) => {
                        self.counts.bad_checksums += u64::from(!is_right);
                        is_right
                    }
                    None => false,
                };
        self.counts.received_frames += 1;
        self.counts.received_bytes += length as u64;
        self.inputs.push(
            &Input {
                code: input::FRAME,
                head,
                tail,
                length: length as u32,
                is_checked: is_checked.into(),
                segment_bytes: segment_bytes.into(),
                ..Input::default()
            }
            .into(),
        );
    }

    /// The bytes of a frame that was received just now.
    fn parts(&self, head: u32, tail: u32, length: usize) -> [&[u8]; 2] {
        let in_head = length.min(HEAD_ROOM);
        let part = |offset: usize, length: usize| {
            assert!(offset + length <= self.maps.frames.len(), "a part outside of the frames");
            // SAFETY: inside the region (checked). Of all processes only this driver writes frames, and while the slice
            // lives it does not.
            unsafe { std::slice::from_raw_parts(self.maps.frames.as_ptr().add(offset), length) }
        };
        let rest = if length > in_head { part(tail_offset(tail), length - in_head) } else { &[] };
        [part(head_offset(head) + VNET_BYTES, in_head), rest]
    }

    /// Announces that the driver will sleep. Returns whether it may; if not, call [`Driver::turn`].
    pub fn arm(&mut self) -> Result<bool, Fault> {
        if self.waiting.is_none() && !self.transmits.arm()? {
            return Ok(false);
        }
        if !self.has_memory() && !self.fills.arm()? {
            self.transmits.disarm();
            return Ok(false);
        }
        Ok(true)
    }

    pub fn disarm(&mut self) {
        self.transmits.disarm();
        self.fills.disarm();
    }

    /// What to wait for at the device. If it is empty, do not wait for the device at all: a dead link is always ready.
    pub fn interest(&self) -> PollFlags {
        self.device.interest(self.is_attached && !self.is_full && self.has_memory())
    }

    /// When a turn is due though nothing happens; `None` almost always.
    pub fn deadline(&self) -> Option<Instant> {
        [self.retry_at, self.device.deadline()].into_iter().flatten().min()
    }
}

impl AsFd for Driver {
    /// The device.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// What a frame asks of the device, if it makes sense.
fn offload(transmit: &Transmit, header: &[u8]) -> Option<Offload> {
    let &Transmit { checksum_start, checksum_offset, segment_bytes, header_bytes, .. } = transmit;
    let end = u32::from(checksum_start) + u32::from(checksum_offset) + 2;
    let has_checksum = checksum_start != 0;
    if has_checksum && (usize::from(checksum_start) < ETHERNET_BYTES || end > u32::from(header_bytes)) {
        return None;
    }
    let kind = u16::from_be_bytes([header[12], header[13]]);
    let is_v6 = kind == checksum::ETHERTYPE_IPV6;
    if segment_bytes != 0 && !(has_checksum && (is_v6 || kind == checksum::ETHERTYPE_IPV4)) {
        return None;
    }
    Some(Offload { checksum_start, checksum_offset, segment_bytes, header_bytes, is_v6 })
}

/// Bytes of a received frame, which begin behind the room for virtio_net_hdr and may go on in a tail.
fn push_received<'a>(
    frame: &mut Gather<'a>,
    maps: &'a Maps,
    tail_of: &[u32],
    span: &slot::Span,
) -> Option<()> {
    let head = span.generation;
    let tail = *tail_of.get(head as usize)?;
    let (start, end) = (span.offset as usize, span.offset.checked_add(span.length)? as usize);
    if end > HEAD_ROOM + if tail == NO_TAIL { 0 } else { TAIL_BYTES } {
        return None;
    }
    if start < HEAD_ROOM {
        let offset = head_offset(head) + VNET_BYTES + start;
        frame.push_shared(&maps.frames, offset, end.min(HEAD_ROOM) - start);
    }
    if end > HEAD_ROOM {
        let start = start.max(HEAD_ROOM);
        frame.push_shared(&maps.frames, tail_offset(tail) + start - HEAD_ROOM, end - start);
    }
    Some(())
}
