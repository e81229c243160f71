//! PDU headers: 48 bytes, then the bytes of the additional header segments.

use iscsi::wire::{
    AHS_LENGTH_MAX, Ahs, AhsIter, BHS_LENGTH, Bhs, InitiatorPdu, Itt, Opcode, TargetPdu, WireError,
    emit_bidi_read_length, emit_extended_cdb,
};

/// Every header parses or fails without a panic; a parsed meaning survives emission and parsing, and agrees with the
/// view.
pub fn wire(bytes: &[u8]) {
    let Some((header, area)) = bytes.split_first_chunk::<BHS_LENGTH>() else { return };
    let bhs = Bhs(header);
    let opcode = bhs.opcode();
    assert!(bhs.data_segment_length_padded() >= bhs.data_segment_length());
    assert!(bhs.data_segment_length_padded() - bhs.data_segment_length() < 4);
    assert!(bhs.total_ahs_length() <= AHS_LENGTH_MAX);

    match InitiatorPdu::parse(header) {
        Ok(pdu) => {
            assert!(opcode.is_ok_and(|opcode| !opcode.is_from_target()));
            let written = pdu.emit();
            assert_eq!(InitiatorPdu::parse(&written), Ok(pdu));
            same_frame(header, &written);
        }
        Err(error) => check(error, opcode, true),
    }
    match TargetPdu::parse(header) {
        Ok(pdu) => {
            assert!(opcode.is_ok_and(Opcode::is_from_target));
            let written = pdu.emit();
            assert_eq!(TargetPdu::parse(&written), Ok(pdu));
            same_frame(header, &written);
        }
        Err(error) => check(error, opcode, false),
    }
    additional(&area[..area.len().min(AHS_LENGTH_MAX) / 4 * 4]);
}

/// The fields that delimit a PDU in the stream must survive emission.
fn same_frame(read: &[u8; BHS_LENGTH], written: &[u8; BHS_LENGTH]) {
    let (read, written) = (Bhs(read), Bhs(written));
    assert_eq!(read.opcode(), written.opcode());
    // PDUs without a tag or data segment are emitted without one.
    assert!([Itt::RESERVED, read.itt()].contains(&written.itt()));
    assert!([0, read.data_segment_length()].contains(&written.data_segment_length()));
}

fn check(error: WireError, opcode: Result<Opcode, WireError>, from_initiator: bool) {
    assert!(!error.to_string().is_empty());
    match (error, opcode) {
        (WireError::UnexpectedOpcode(found), Ok(opcode)) => {
            assert_eq!(found, opcode);
            assert_eq!(opcode.is_from_target(), from_initiator, "an opcode of this direction is expected");
        }
        (WireError::UnknownOpcode(_), opcode) => assert!(opcode.is_err()),
        _ => {}
    }
}

fn additional(area: &[u8]) {
    let mut count = 0;
    for ahs in AhsIter::new(area) {
        count += 1;
        assert!(count <= area.len() / 4, "more segments than bytes");
        let mut written = Vec::new();
        match ahs {
            Ok(Ahs::ExtendedCdb(tail)) if tail.len() <= iscsi::limits::EXTENDED_CDB_MAX => {
                emit_extended_cdb(tail, &mut written);
            }
            Ok(Ahs::BidiReadLength(length)) => emit_bidi_read_length(length, &mut written),
            _ => continue,
        }
        assert!(written.len().is_multiple_of(4));
        let again: Vec<_> = AhsIter::new(&written).collect();
        assert_eq!(again, [ahs]);
    }
}
