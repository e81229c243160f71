//! TCP segments of one capture, or of several one after another.

use std::io::Read;

use super::container::{Container, Frame};
use super::error::{CaptureError, Note};
use super::headers::{self, Header, Other};
use super::input::Input;
use super::link::{self, Network};
use crate::packet::Packet;

/// Frames by kind. They add up to `frames`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub frames: u64,
    pub tcp: u64,
    pub udp: u64,
    pub icmp: u64,
    /// Another protocol above IP.
    pub other_ip: u64,
    pub arp: u64,
    /// Another protocol above the link.
    pub other: u64,
    /// IP fragments, also of TCP.
    pub fragments: u64,
    /// The snap length left less than the headers.
    pub cut: u64,
    /// Lengths that cannot be.
    pub malformed: u64,
    /// Frames of link types that are not read.
    pub unknown_link: u64,
}

impl Counts {
    /// Frames that are no TCP segment, by kind, without the kinds that do not occur.
    pub fn others(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("UDP", self.udp),
            ("ICMP", self.icmp),
            ("other IP protocols", self.other_ip),
            ("ARP", self.arp),
            ("other protocols", self.other),
            ("IP fragments", self.fragments),
            ("cut within their headers", self.cut),
            ("malformed", self.malformed),
            ("unknown link types", self.unknown_link),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
    }
}

/// Streams TCP segments: [`Reader::next`] until `None`, then [`Reader::then`] for the next file, if any. Memory is bounded
/// by [`crate::limits::CAPTURE_RECORD_BYTES_MAX`], whatever the length.
pub struct Reader {
    container: Container,
    counts: Counts,
    notes: Vec<Note>,
    /// Of the current frame, if it is a segment.
    segment: Option<Segment>,
}

struct Segment {
    header: Header,
    /// Where the IP header begins in the frame.
    at: usize,
    interface: Option<u32>,
}

impl Reader {
    /// Reads the header of a capture: pcap or pcapng, gzip of either. Blocks until it is there.
    pub fn new(source: impl Read + Send + 'static) -> Result<Self, CaptureError> {
        let container = open(Box::new(source), 0)?;
        Ok(Self { container, counts: Counts::default(), notes: Vec::new(), segment: None })
    }

    /// Goes on with another file: counts and frame numbers continue. On an error the reader stays at the end of the
    /// file before.
    pub fn then(&mut self, source: impl Read + Send + 'static) -> Result<(), CaptureError> {
        let next = open(Box::new(source), self.container.number())?;
        self.notes.append(&mut self.container.notes);
        self.container = next;
        self.segment = None;
        Ok(())
    }

    /// The next TCP segment; `None` at the end. Damage ends the capture: see [`Reader::notes`]. It is an error only if it
    /// comes before the first frame.
    #[expect(clippy::should_implement_trait, reason = "a packet borrows from the reader; Iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Packet<'_>>, CaptureError> {
        while self.advance()? {
            if self.segment.is_some() {
                break;
            }
        }
        Ok(self.packet())
    }

    /// Goes to the next frame, whatever it is; false at the end. For those who copy frames: [`Reader::frame`] is the
    /// frame, [`Reader::packet`] the segment in it.
    pub fn advance(&mut self) -> Result<bool, CaptureError> {
        self.segment = None;
        if !self.container.advance() {
            return self.container.take_failure().map_or(Ok(false), |note| Err(CaptureError::NoFrame(note)));
        }
        let frame = self.container.frame();
        self.counts.frames += 1;
        match classify(&frame) {
            Ok(segment) => {
                self.counts.tcp += 1;
                self.segment = Some(segment);
            }
            Err(kind) => self.count(kind),
        }
        Ok(true)
    }

    /// The frame to which `next` or `advance` went last.
    pub fn frame(&self) -> Frame<'_> {
        self.container.frame()
    }

    /// The segment in the current frame.
    #[inline]
    pub fn packet(&self) -> Option<Packet<'_>> {
        let Segment { header, at, interface } = self.segment.as_ref()?;
        let frame = self.container.frame();
        let bytes = frame.bytes.get(*at..).unwrap_or(&[]);
        Some(header.packet(bytes, frame.at_ns, frame.number, interface.unwrap_or(frame.interface)))
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Why the capture is not whole; complete when `next` has returned `None`.
    pub fn notes(&self) -> Vec<Note> {
        let counted = [
            (self.counts.unknown_link, Note::LinkType(self.counts.unknown_link)),
            (self.counts.cut, Note::HeadersCut(self.counts.cut)),
            (self.counts.fragments, Note::Fragments(self.counts.fragments)),
        ];
        let counted = counted.into_iter().filter(|(count, _)| *count > 0).map(|(_, note)| note);
        self.notes.iter().chain(&self.container.notes).cloned().chain(counted).collect()
    }

    fn count(&mut self, kind: Kind) {
        let counts = &mut self.counts;
        *match kind {
            Kind::Link(Network::Arp) => &mut counts.arp,
            Kind::Link(Network::Cut) | Kind::Internet(Other::Cut) => &mut counts.cut,
            Kind::Link(Network::Unknown) => &mut counts.unknown_link,
            Kind::Link(Network::Other | Network::Ip { .. }) => &mut counts.other,
            Kind::Internet(Other::Udp) => &mut counts.udp,
            Kind::Internet(Other::Icmp) => &mut counts.icmp,
            Kind::Internet(Other::Ip) => &mut counts.other_ip,
            Kind::Internet(Other::Fragment) => &mut counts.fragments,
            Kind::Internet(Other::Malformed) => &mut counts.malformed,
        } += 1;
    }
}

/// Of a frame that is no segment.
#[derive(Clone, Copy)]
enum Kind {
    Link(Network),
    Internet(Other),
}

#[inline]
fn classify(frame: &Frame<'_>) -> Result<Segment, Kind> {
    match link::network(frame.link_type, frame.bytes) {
        Network::Ip { at, interface } => {
            let original_bytes = (frame.original_bytes as usize).saturating_sub(at);
            let header = headers::read(&frame.bytes[at..], original_bytes).map_err(Kind::Internet)?;
            Ok(Segment { header, at, interface })
        }
        other => Err(Kind::Link(other)),
    }
}

fn open(source: Box<dyn Read + Send>, number: u64) -> Result<Container, CaptureError> {
    Container::new(Input::new(source).map_err(CaptureError::Read)?, number)
}
