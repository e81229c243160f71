//! The sender's own PDUs: which data began, which commands ended, and what passed without a header.

use iscsi::wire::BHS_LENGTH;

use super::Lane;
use crate::event::{Event, PduStart, Side};
use crate::limits::PEER_EVENTS_MAX;
use crate::model::attribution::load::Pdu;

/// How long commands may be open that passed unseen.
const UNFRAMED_RTTS: u64 = 16;
const UNFRAMED_NS: u64 = 300_000_000;
/// Bytes of headers within data, at most, that say nothing of unseen commands.
const UNSEEN_HEADERS: u64 = 16_384;

impl Lane {
    pub(super) fn on_own_pdu(&mut self, event: &Event, start: &PduStart) {
        let end = start.offset.saturating_add(start.bytes);
        if self.first_ns.is_some() && start.offset > self.framed_until {
            self.count_unseen(start.offset - self.framed_until);
        }
        let fresh = end.saturating_sub(self.framed_until.max(start.offset));
        self.framed_until = self.framed_until.max(end);
        let pdu = Pdu::parse(event.from, &start.header);
        if let Pdu::DataIn { itt, .. } = pdu
            && self.sender == Side::Target
            && self.first_ns.is_some()
            && self.load.outstanding() == 0
            && !self.load.is_open(itt)
        {
            self.on_unframed();
        }
        if let Some(resume) = &mut self.resume {
            resume.starts_pdu = true;
        }
        let is_end = self.load.handle(pdu);
        match pdu {
            Pdu::Command { immediate, .. } => {
                self.on_command(event.at_ns);
                if let Some(resume) = &mut self.resume {
                    resume.starts_command = true;
                }
                self.counters.data_bytes += immediate.min(fresh);
            }
            Pdu::DataOut { bytes, .. } | Pdu::DataIn { bytes, .. } => {
                self.counters.data_bytes += bytes.min(fresh);
            }
            _ => {}
        }
        match pdu {
            Pdu::DataIn { itt, is_last: true, .. } if self.sender == Side::Target => {
                if self.closing.len() == PEER_EVENTS_MAX {
                    self.closing.pop_front();
                }
                self.closing.push_back((end, itt));
            }
            _ if is_end && self.sender == Side::Target => self.return_slots(event.at_ns, 1),
            _ => {}
        }
    }

    /// Commands end with the last byte of their last PDU.
    pub(super) fn close(&mut self) {
        while let Some((_, itt)) = self.closing.pop_front_if(|(end, _)| *end <= self.sent) {
            if self.load.remove(itt) {
                self.return_slots(self.sent_ns, 1);
            }
        }
    }

    /// Commands of the target's lane have ended: their successors may arrive a round trip later.
    fn return_slots(&mut self, at_ns: u64, count: usize) {
        for _ in 0..count {
            if self.returns.len() == PEER_EVENTS_MAX {
                self.returns.pop_front();
                self.slots = self.slots.saturating_sub(1);
            }
            self.returns.push_back(at_ns.max(self.busy_until_ns).saturating_add(self.rtt_ns));
        }
        self.last_ns = self.last_ns.max(at_ns);
    }

    /// Bytes beyond all PDUs whose headers were seen belong to PDUs that the snap length cut off.
    pub(super) fn count_unframed(&mut self) {
        let bytes = self.sent.saturating_sub(self.framed_until);
        if !self.is_framed
            || bytes < BHS_LENGTH as u64
            || self.acked < self.repair_until
            || self.first_ns.is_none()
        {
            return;
        }
        self.framed_until = self.sent;
        self.count_unseen(bytes);
    }

    fn count_unseen(&mut self, bytes: u64) {
        self.counters.data_bytes = self.counters.data_bytes.saturating_add(bytes);
        let (left, ended) = self.load.on_unseen(bytes);
        if self.sender == Side::Target {
            self.return_slots(self.sent_ns, ended);
        }
        // Commands to the target are short packets of their own: a little that is left are headers of the data.
        let headers = match self.sender {
            Side::Initiator => BHS_LENGTH as u64,
            Side::Target => (bytes / 8).max(UNSEEN_HEADERS),
        };
        if left > headers {
            self.on_unframed();
        }
    }

    /// Commands are open that passed unseen.
    fn on_unframed(&mut self) {
        self.unframed_until_ns = self.sent_ns.saturating_add(UNFRAMED_RTTS * self.rtt_ns + UNFRAMED_NS);
    }
}
