//! Events of packets in a record.

use iscsi::wire::BHS_LENGTH;

use super::bytes::{Cursor, put_number};
use crate::event::{Ack, Duplicate, Event, Kind, Opaque, Order, PduEnd, PduStart, Segment, Side};

const SEGMENT: u8 = 1;
const ACK: u8 = 2;
const PDU_START: u8 = 3;
const PDU_END: u8 = 4;
const CAPTURE_LOST: u8 = 5;
const OPAQUE: u8 = 6;
const ENDED: u8 = 7;
const HEADERS_UNSEEN: u8 = 8;

/// Writes everything but the time.
pub(super) fn put(event: &Event, into: &mut Vec<u8>) {
    into.push(u8::from(event.from == Side::Target));
    put_number(into, event.frame);
    match &event.kind {
        Kind::Segment(Segment { offset, bytes, repeated_bytes, mss, push, order }) => {
            into.push(SEGMENT);
            for number in [*offset, u64::from(*bytes), u64::from(*repeated_bytes), u64::from(*mss)] {
                put_number(into, number);
            }
            into.push(u8::from(*push) | (*order as u8) << 1);
        }
        Kind::Ack(ack) => {
            into.push(ACK);
            put_number(into, ack.acknowledged);
            // 0: unknown.
            put_number(into, ack.window_bytes.map_or(0, |bytes| bytes.saturating_add(1)));
            put_number(into, ack.sacked_bytes.into());
            let flags = u8::from(ack.congestion_echo) | u8::from(ack.is_bare) << 1;
            into.push(flags | (ack.duplicate as u8) << 2);
            put_number(into, ack.round_trip_ns.map_or(0, |time| time.saturating_add(1)));
        }
        Kind::PduStart(PduStart { offset, bytes, header }) => {
            into.push(PDU_START);
            put_number(into, *offset);
            put_number(into, *bytes);
            into.extend_from_slice(header);
        }
        Kind::PduEnd(PduEnd { offset }) => {
            into.push(PDU_END);
            put_number(into, *offset);
        }
        Kind::CaptureLost { offset, bytes } => {
            into.push(CAPTURE_LOST);
            put_number(into, *offset);
            put_number(into, *bytes);
        }
        Kind::HeadersUnseen { offset, bytes } => {
            into.push(HEADERS_UNSEEN);
            put_number(into, *offset);
            put_number(into, *bytes);
        }
        Kind::Opaque(opaque) => into.extend([OPAQUE, *opaque as u8]),
        Kind::Ended { by_reset } => into.extend([ENDED, u8::from(*by_reset)]),
    }
}

pub(super) fn take(at_ns: u64, cursor: &mut Cursor<'_>) -> Option<Event> {
    let from = if cursor.u8()? == 0 { Side::Initiator } else { Side::Target };
    let frame = cursor.number()?;
    let kind = match cursor.u8()? {
        SEGMENT => {
            let (offset, bytes) = (cursor.number()?, cursor.small()?);
            let (repeated_bytes, mss) = (cursor.small()?, cursor.number()?.try_into().ok()?);
            let flags = cursor.u8()?;
            let orders = [Order::Next, Order::Late, Order::Again];
            let order = *orders.get(usize::from(flags >> 1))?;
            Kind::Segment(Segment { offset, bytes, repeated_bytes, mss, push: flags & 1 == 1, order })
        }
        ACK => {
            let (acknowledged, window) = (cursor.number()?, cursor.number()?);
            let (sacked_bytes, flags) = (cursor.small()?, cursor.u8()?);
            let duplicates = [Duplicate::No, Duplicate::Ack, Duplicate::Data];
            Kind::Ack(Ack {
                acknowledged,
                window_bytes: window.checked_sub(1),
                sacked_bytes,
                duplicate: *duplicates.get(usize::from(flags >> 2))?,
                congestion_echo: flags & 1 == 1,
                is_bare: flags & 2 == 2,
                round_trip_ns: cursor.number()?.checked_sub(1),
            })
        }
        PDU_START => Kind::PduStart(PduStart {
            offset: cursor.number()?,
            bytes: cursor.number()?,
            header: <[u8; BHS_LENGTH]>::try_from(cursor.take(BHS_LENGTH)?).ok()?,
        }),
        PDU_END => Kind::PduEnd(PduEnd { offset: cursor.number()? }),
        CAPTURE_LOST => Kind::CaptureLost { offset: cursor.number()?, bytes: cursor.number()? },
        HEADERS_UNSEEN => Kind::HeadersUnseen { offset: cursor.number()?, bytes: cursor.number()? },
        OPAQUE => {
            let all = [Opaque::Sealed, Opaque::Tls, Opaque::Unframed];
            Kind::Opaque(*all.get(usize::from(cursor.u8()?))?)
        }
        ENDED => Kind::Ended { by_reset: cursor.u8()? != 0 },
        _ => return None,
    };
    Some(Event { at_ns, frame, from, kind })
}
