//! A pause of the sender, decided when it goes on.

use super::Lane;
use super::parts::{Part, Parts};
use crate::event::Side;
use crate::model::attribution::stops::{Stop, Stops};

/// Arrivals closer than this are one packet, or as good as one.
const SAME_NS: u64 = 20_000;

/// Part of a pause for a delayed acknowledgement that the path may vary by.
const LATE_ACK: u64 = 8;

/// Data has been sent after a pause; what it was is known when all events of its packet have come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resume {
    pub(super) frame: u64,
    pub(super) at_ns: u64,
    pub(super) bytes: u64,
    pub(super) mss: u64,
    pub(super) parts: Parts,
    pub(super) last_part: Part,
    /// When the data before it was sent.
    pub(super) stopped_ns: u64,
    pub(super) in_flight_stopped: u64,
    pub(super) freed: u64,
    pub(super) acks: u32,
    pub(super) ack_ns: Option<u64>,
    pub(super) first_ack_ns: Option<u64>,
    pub(super) answer_ns: Option<u64>,
    pub(super) is_by_r2t: bool,
    pub(super) is_empty: bool,
    pub(super) is_repeated: bool,
    pub(super) is_local: bool,
    pub(super) starts_command: bool,
    pub(super) starts_pdu: bool,
}

/// The start of a period, in which time on the narrowest link could not be told from other time.
#[derive(Debug)]
pub(super) struct Early {
    totals: Parts,
    stops: Stops,
    data_bytes: u64,
    payload_bytes: u64,
}

impl Lane {
    /// Decides about the last pause when the packet after it is complete.
    pub(super) fn settle(&mut self, frame: u64) {
        if let Some(resume) = self.resume.take_if(|resume| resume.frame != frame) {
            self.resolve(resume);
            self.close();
            self.count_unframed();
        }
    }

    fn resolve(&mut self, mut resume: Resume) {
        let reaction = self.reaction_ns();
        self.take_serialization(&mut resume);
        let sent_ns = resume.at_ns.saturating_sub(self.serialization_ns(resume.bytes));
        let ago = |at: Option<u64>| at.map(|at| sent_ns.saturating_sub(at));
        let (ack_ago, answer_ago) = (ago(resume.ack_ns), ago(resume.answer_ns));
        let by_ack = ack_ago.is_some_and(|ns| ns <= reaction);
        // Of both, the later one ended the pause; a PDU brings an acknowledgement itself.
        let is_later = resume.answer_ns.unwrap_or(0).saturating_add(SAME_NS) >= resume.ack_ns.unwrap_or(0);
        let by_answer = is_later && answer_ago.is_some_and(|ns| ns <= reaction);
        let parts = &mut resume.parts;
        let gap = parts.sum();
        if resume.starts_command && self.sender == Side::Initiator {
            self.pace.on_command(
                resume.at_ns,
                resume.stopped_ns,
                parts.of(Part::IdleLess) + parts.of(Part::SentLess),
            );
        }
        // New commands, or answers, that left the program before and were held back by TCP.
        // A target that had commands waiting did not wait for one more.
        let has_waiting = self.sender == Side::Target && self.load.outstanding() > 1;
        if by_ack && (!by_answer || has_waiting) && resume.in_flight_stopped > 0 {
            let held: &[Part] = match self.sender {
                Side::Initiator => &[Part::SentFull, Part::SentLess, Part::SentTarget],
                Side::Target => &[Part::Unbegun],
            };
            for part in held {
                let ns = parts.take(*part);
                parts.add(Part::Open, ns);
            }
        }
        let (unframed, late) = (parts.take(Part::Unframed), parts.take(Part::UnframedLate));
        // Data that is no command, after an R2T that came in the pause, answers it, however slow the program is.
        let is_granted = resume.is_by_r2t && resume.answer_ns.is_some() && !resume.starts_command && !by_ack;
        match (by_answer || is_granted, by_ack) {
            (true, _) if resume.is_by_r2t => {
                parts.add(Part::R2t, unframed);
                parts.add(Part::R2tTarget, late);
            }
            (true, _) => {
                parts.add(Part::SentFull, unframed);
                parts.add(Part::SentTarget, late);
            }
            // Which command it is for, and when that came, was not seen.
            (false, false) if self.sender == Side::Target && resume.is_empty => {
                parts.add(Part::Blind, unframed + late);
            }
            (false, false) if resume.is_empty && resume.answer_ns.is_some() => {
                parts.add(Part::IdleLess, unframed + late);
            }
            (false, _) => parts.add(Part::Open, unframed + late),
        }
        let unbegun = parts.take(Part::Unbegun);
        parts.add(Part::Target, unbegun);
        let open = parts.take(Part::Open);
        if resume.is_repeated {
            parts.add(if resume.is_local { Part::Local } else { Part::Repair }, open);
        } else if (by_ack || self.is_soon_after(ack_ago, gap))
            && !resume.starts_pdu
            && resume.is_empty
            && resume.bytes < resume.mss
            && resume.in_flight_stopped > 0
        {
            parts.add(Part::Nagle, open);
        } else if open > if self.is_at_sender { 0 } else { gap / 4 }
            || open == 0 && self.is_at_sender && by_ack && !by_answer
        {
            let first = resume.first_ack_ns.unwrap_or(0);
            let is_first_inside = first > resume.stopped_ns.saturating_add(reaction);
            let stop = Stop {
                is_full: resume.bytes.is_multiple_of(resume.mss),
                wait_ns: open,
                in_flight: resume.in_flight_stopped,
                freed: resume.freed,
                acks: resume.acks,
                // Elsewhere, one may have arrived while the data before was still on its way.
                acks_min: if self.is_at_sender { 2 } else { 3 },
                is_first_unused: is_first_inside && resume.acks > 1,
                reaction_ns: ack_ago,
                gap_ns: gap,
            };
            self.stops.add(stop, reaction);
        } else {
            // Behind the narrowest link: its packets are not quite even.
            parts.add(Part::Line, open);
        }
        if self.repairs_local {
            let repair = parts.take(Part::Repair);
            parts.add(Part::Local, repair);
        }
        self.totals.add_all(parts);
        if self.early.is_none() && self.line_bytes_per_s().is_some() {
            let early = Early {
                totals: std::mem::take(&mut self.totals),
                stops: std::mem::replace(&mut self.stops, Stops::new()),
                data_bytes: std::mem::take(&mut self.counters.data_bytes),
                payload_bytes: std::mem::take(&mut self.counters.payload_bytes),
            };
            self.early = Some(Box::new(early));
        }
    }

    /// Away from the sender: an acknowledgement took most of the pause, and the rest may be the path's.
    fn is_soon_after(&self, ack_ago_ns: Option<u64>, gap_ns: u64) -> bool {
        !self.is_at_sender && ack_ago_ns.is_some_and(|ns| ns <= gap_ns / LATE_ACK)
    }

    /// The start of the period counts unless it is the smaller part.
    pub(super) fn add_early(&mut self) {
        let Some(early) = self.early.take() else { return };
        let ns = |totals: &Parts, stops: &Stops| {
            totals.sum().saturating_add(stops.released().ns).saturating_add(stops.own.ns)
        };
        if ns(&self.totals, &self.stops) > ns(&early.totals, &early.stops).saturating_mul(2) {
            return;
        }
        self.totals.add_all(&early.totals);
        self.stops.merge(&early.stops);
        self.counters.data_bytes += early.data_bytes;
        self.counters.payload_bytes += early.payload_bytes;
    }

    /// How long a packet took on the narrowest link before it passed; 0 in front of the link.
    pub(super) fn serialization_ns(&self, bytes: u64) -> u64 {
        let rate = self
            .arrival_rate()
            .filter(|rate| self.line.queued_bytes_per_s().is_none_or(|seen| *rate <= seen));
        rate.map_or(0, |rate| (bytes as f64 / rate * 1e9) as u64)
    }

    /// Behind the narrowest link, the time before a packet is its own time on the link.
    fn take_serialization(&self, resume: &mut Resume) {
        let mut left = self.serialization_ns(resume.bytes);
        if left == 0 {
            return;
        }
        let order = [
            resume.last_part,
            Part::Open,
            Part::R2t,
            Part::SentFull,
            Part::SentLess,
            Part::Window,
            Part::IdleFull,
        ];
        for part in order {
            let ns = resume.parts.take(part);
            let moved = ns.min(left);
            left -= moved;
            resume.parts.add(part, ns - moved);
            resume.parts.add(Part::Line, moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A pause of 30 ms on a path of 20 ms, in which the headers of PDUs were not seen.
    fn resume() -> Resume {
        let mut parts = Parts::default();
        parts.add(Part::Unframed, 20 * MS);
        parts.add(Part::UnframedLate, 10 * MS);
        Resume {
            frame: 1,
            at_ns: 100 * MS,
            bytes: 1448,
            mss: 1448,
            parts,
            last_part: Part::UnframedLate,
            stopped_ns: 70 * MS,
            in_flight_stopped: 0,
            freed: 0,
            acks: 0,
            ack_ns: None,
            first_ack_ns: None,
            answer_ns: None,
            is_by_r2t: false,
            is_empty: true,
            is_repeated: false,
            is_local: false,
            starts_command: false,
            starts_pdu: true,
        }
    }

    /// Data that is no command answers the R2T that came in the pause, also of a program that takes 9 ms for it.
    #[test]
    fn data_long_after_an_r2t_was_waiting_for_it() {
        let (soon, late) = (Some(100 * MS - 100_000), Some(91 * MS));
        for (answer_ns, is_by_r2t, starts_command, expected) in [
            (soon, true, false, [20, 10, 0, 0]),
            (late, true, false, [20, 10, 0, 0]),
            // A command needs no R2T; a response is none.
            (late, true, true, [0, 0, 0, 30]),
            (late, false, false, [0, 0, 0, 30]),
            (soon, false, false, [0, 0, 20, 0]),
        ] {
            let mut lane = Lane::new(Side::Initiator);
            lane.set_distances(0, 20 * MS);
            lane.resume = Some(Resume { answer_ns, is_by_r2t, starts_command, ..resume() });
            lane.settle(2);
            let found = [Part::R2t, Part::R2tTarget, Part::SentFull, Part::IdleLess];
            let found = found.map(|part| lane.totals.of(part) / MS);
            assert_eq!(found, expected, "{answer_ns:?}, by R2T {is_by_r2t}, command {starts_command}");
        }
    }

    /// The rest of a PDU, less than a segment, leaves after the acknowledgement of all before. Away from the sender the
    /// path may add to that a part of the pause.
    #[test]
    fn a_short_rest_that_waits_for_an_acknowledgement_is_held_by_nagle() {
        for (place, ack_ago_ms, starts_pdu, expected) in [
            (0, 0, false, [40, 0]),
            (0, 4, false, [0, 40]),
            (20 * MS, 0, false, [40, 0]),
            (20 * MS, 4, false, [40, 0]),
            (20 * MS, 10, false, [0, 40]),
            (20 * MS, 4, true, [0, 40]),
        ] {
            let mut lane = Lane::new(Side::Initiator);
            lane.set_distances(place, 20 * MS);
            let mut parts = Parts::default();
            parts.add(Part::Open, 40 * MS);
            let ack_ns = Some((100 - ack_ago_ms) * MS);
            lane.resume = Some(Resume {
                parts,
                bytes: 400,
                in_flight_stopped: 1024,
                ack_ns,
                starts_pdu,
                stopped_ns: 60 * MS,
                ..resume()
            });
            lane.settle(2);
            let found = [lane.totals.of(Part::Nagle) / MS, lane.stops.own.ns / MS];
            assert_eq!(found, expected, "{place} {ack_ago_ms} {starts_pdu}");
        }
    }
}
