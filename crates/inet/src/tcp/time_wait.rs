//! TIME-WAIT: what is left of a connection for 2 MSL, so that no segment of it disturbs the next one between the same
//! ends, and a repeated FIN finds an answer (RFC 9293 §3.6, §3.10.7.4; RFC 6191).

use zerocopy::FromZeros;

use super::Tuple;
use crate::chain::{Link, Linked};
use crate::packet::{Flags, TcpHeader};
use crate::{Record, SeqNumber, Time};

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct TimeWait {
    pub(crate) link: Link,
    pub(crate) tuple: Tuple,
    pub(crate) snd_nxt: SeqNumber,
    pub(crate) rcv_nxt: SeqNumber,
    /// As advertised last, not scaled.
    pub(crate) window: u16,
    pub(crate) timestamps: bool,
    pub(crate) timestamp_offset: u32,
    /// TS.Recent
    pub(crate) recent: u32,
    pub(crate) expires: Time,
}

impl Record for TimeWait {}

impl Linked<()> for TimeWait {
    fn link(&mut self, (): ()) -> &mut Link {
        &mut self.link
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Dropped,
    Acknowledge,
    /// The peer's FIN again: 2 MSL begin again too.
    Restart,
    /// RST: the record is deleted.
    Delete,
    /// A new connection between the same ends.
    Reuse,
}

impl TimeWait {
    pub(crate) fn on_segment(&self, tcp: &TcpHeader) -> Verdict {
        let flags = tcp.flags;
        let newer = tcp.timestamps.map(|(value, _)| SeqNumber(value).distance(SeqNumber(self.recent)));
        if flags.has(Flags::RST) {
            // RFC 5961 §3.2: only with exactly the next number.
            return if tcp.seq == self.rcv_nxt { Verdict::Delete } else { Verdict::Dropped };
        }
        if flags.has(Flags::SYN) && !flags.has(Flags::ACK) {
            // RFC 6191 §2; without timestamps RFC 9293 §3.6.1, MAY-2.
            let is_new = match newer.filter(|_| self.timestamps) {
                Some(newer) => newer > 0 || newer == 0 && tcp.seq.is_after(self.rcv_nxt),
                None => tcp.seq.is_after(self.rcv_nxt),
            };
            return if is_new { Verdict::Reuse } else { Verdict::Acknowledge };
        }
        if self.timestamps {
            match newer {
                None => return Verdict::Dropped,
                Some(newer) if newer < 0 => return Verdict::Acknowledge,
                _ => {}
            }
        }
        let is_acceptable = tcp.seq == self.rcv_nxt;
        if flags.has(Flags::FIN) && tcp.seq + tcp.sequence_length() == self.rcv_nxt {
            return Verdict::Restart;
        }
        if flags.has(Flags::SYN) || !is_acceptable || tcp.sequence_length() > 0 {
            return Verdict::Acknowledge;
        }
        Verdict::Dropped
    }
}
