//! Why a capture cannot be read, or not to its end.

use std::io;

/// Bytes of each packet to capture: they hold the headers of its PDUs and the text of a login, 512 bytes and its headers.
pub const SNAP_BYTES: u32 = 700;
/// The command that captures, in every message.
pub const COMMAND: &str = "tcpdump -i any -s 700 -w slow.pcap tcp port 3260";

/// Nothing of the capture could be read. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error(
        "the capture is empty: 0 bytes; let the capturing program end, or write its buffer (`tcpdump -U`)"
    )]
    Empty,
    #[error(
        "this is no capture: it begins with {0}; pcap, pcapng and gzip of them are read, and recordings of `hikyaku watch`. Make \
         one with `{COMMAND}`, or convert one with `editcap -F pcapng FILE NEW.pcapng`"
    )]
    Unrecognised(String),
    #[error("this is a recording of `hikyaku watch` within gzip: `gzip -dc FILE | hikyaku analyze -`")]
    Recording,
    #[error("this is compressed by {program}, which is not read: `{program} -dc FILE | hikyaku analyze -`")]
    Compressed { program: &'static str },
    #[error("the capture ends within its header, after {bytes} bytes: it was cut; capture again")]
    HeaderCut { bytes: u64 },
    #[error("cannot read the capture: {0}")]
    Read(#[source] io::Error),
    #[error("no frame of the capture could be read: {0}")]
    NoFrame(Note),
}

/// A defect of a capture that does not end the analysis: the packets that were read are analysed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Note {
    #[error(
        "the capture ends within a frame, after {frames} frames: it was cut, or is still being written; what comes \
         after is missing"
    )]
    Cut { frames: u64 },
    #[error("reading stopped after {frames} frames: {cause}; what comes after is missing")]
    ReadFailed { frames: u64, cause: String },
    #[error(
        "the capture is damaged after frame {frames}, at byte {offset} ({what}); what comes after is missing. \
         `editcap FILE NEW.pcapng` may save more"
    )]
    Damaged { frames: u64, offset: u64, what: &'static str },
    #[error("{0} records of the capture were not readable and are skipped")]
    Skipped(u64),
    #[error(
        "{0} frames have no time (simple packet blocks) and are skipped: capture with `tcpdump` or `dumpcap`"
    )]
    Untimed(u64),
    #[error(
        "the capturing machine dropped {0} packets before they were written: capture fewer bytes of each packet \
         (`tcpdump -s {SNAP_BYTES} -B 65536`)"
    )]
    Dropped(u64),
    #[error(
        "{0} frames are of link types that are not read: capture on an Ethernet or IP interface, or `-i any`"
    )]
    LinkType(u64),
    #[error(
        "{0} packets are cut within their TCP header: capture at least 128 bytes of each packet (`-s 128`)"
    )]
    HeadersCut(u64),
    #[error("{0} IP fragments are skipped: TCP is not fragmented unless a device on the way makes it so")]
    Fragments(u64),
}
