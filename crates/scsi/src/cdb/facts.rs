//! Names and data directions of the operation codes of SPC-4 and SBC-3, for logs, monitors and tests.

use super::opcode as op;

/// Direction of the data, seen from the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    None,
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fact {
    pub code: u8,
    /// SERVICE ACTION, low five bits of byte 1; `None`: the code has none, or the entry covers all others.
    pub service_action: Option<u8>,
    pub name: &'static str,
    pub direction: Direction,
}

const fn fact(code: u8, name: &'static str, direction: Direction) -> Fact {
    Fact { code, service_action: None, name, direction }
}

const fn action(code: u8, service_action: u8, name: &'static str, direction: Direction) -> Fact {
    Fact { code, service_action: Some(service_action), name, direction }
}

use Direction::{In, None as No, Out};

/// Sorted by code; an entry without service action follows those with one.
static FACTS: [Fact; 93] = [
    fact(op::TEST_UNIT_READY, "TEST UNIT READY", No),
    fact(op::REQUEST_SENSE, "REQUEST SENSE", In),
    fact(op::FORMAT_UNIT, "FORMAT UNIT", Out),
    fact(op::REASSIGN_BLOCKS, "REASSIGN BLOCKS", Out),
    fact(op::READ_6, "READ(6)", In),
    fact(op::WRITE_6, "WRITE(6)", Out),
    fact(op::INQUIRY, "INQUIRY", In),
    fact(op::MODE_SELECT_6, "MODE SELECT(6)", Out),
    fact(op::RESERVE_6, "RESERVE(6)", No),
    fact(op::RELEASE_6, "RELEASE(6)", No),
    fact(op::MODE_SENSE_6, "MODE SENSE(6)", In),
    fact(op::START_STOP_UNIT, "START STOP UNIT", No),
    fact(op::RECEIVE_DIAGNOSTIC_RESULTS, "RECEIVE DIAGNOSTIC RESULTS", In),
    fact(op::SEND_DIAGNOSTIC, "SEND DIAGNOSTIC", Out),
    fact(op::PREVENT_ALLOW, "PREVENT ALLOW MEDIUM REMOVAL", No),
    fact(op::READ_CAPACITY_10, "READ CAPACITY(10)", In),
    fact(op::READ_10, "READ(10)", In),
    fact(op::WRITE_10, "WRITE(10)", Out),
    fact(op::WRITE_VERIFY_10, "WRITE AND VERIFY(10)", Out),
    fact(op::VERIFY_10, "VERIFY(10)", Out),
    fact(op::PRE_FETCH_10, "PRE-FETCH(10)", No),
    fact(op::SYNCHRONIZE_CACHE_10, "SYNCHRONIZE CACHE(10)", No),
    fact(op::READ_DEFECT_DATA_10, "READ DEFECT DATA(10)", In),
    fact(op::WRITE_BUFFER, "WRITE BUFFER", Out),
    fact(op::READ_BUFFER, "READ BUFFER", In),
    fact(op::WRITE_SAME_10, "WRITE SAME(10)", Out),
    fact(op::UNMAP, "UNMAP", Out),
    fact(op::SANITIZE, "SANITIZE", Out),
    fact(op::LOG_SELECT, "LOG SELECT", Out),
    fact(op::LOG_SENSE, "LOG SENSE", In),
    fact(op::MODE_SELECT_10, "MODE SELECT(10)", Out),
    fact(op::RESERVE_10, "RESERVE(10)", Out),
    fact(op::RELEASE_10, "RELEASE(10)", Out),
    fact(op::MODE_SENSE_10, "MODE SENSE(10)", In),
    action(op::PERSISTENT_RESERVE_IN, 0x00, "PERSISTENT RESERVE IN, READ KEYS", In),
    action(op::PERSISTENT_RESERVE_IN, 0x01, "PERSISTENT RESERVE IN, READ RESERVATION", In),
    action(op::PERSISTENT_RESERVE_IN, 0x02, "PERSISTENT RESERVE IN, REPORT CAPABILITIES", In),
    action(op::PERSISTENT_RESERVE_IN, 0x03, "PERSISTENT RESERVE IN, READ FULL STATUS", In),
    fact(op::PERSISTENT_RESERVE_IN, "PERSISTENT RESERVE IN", In),
    action(op::PERSISTENT_RESERVE_OUT, 0x00, "PERSISTENT RESERVE OUT, REGISTER", Out),
    action(op::PERSISTENT_RESERVE_OUT, 0x01, "PERSISTENT RESERVE OUT, RESERVE", Out),
    action(op::PERSISTENT_RESERVE_OUT, 0x02, "PERSISTENT RESERVE OUT, RELEASE", Out),
    action(op::PERSISTENT_RESERVE_OUT, 0x03, "PERSISTENT RESERVE OUT, CLEAR", Out),
    action(op::PERSISTENT_RESERVE_OUT, 0x04, "PERSISTENT RESERVE OUT, PREEMPT", Out),
    action(op::PERSISTENT_RESERVE_OUT, 0x05, "PERSISTENT RESERVE OUT, PREEMPT AND ABORT", Out),
    action(op::PERSISTENT_RESERVE_OUT, 0x06, "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY", Out),
    action(op::PERSISTENT_RESERVE_OUT, 0x07, "PERSISTENT RESERVE OUT, REGISTER AND MOVE", Out),
    fact(op::PERSISTENT_RESERVE_OUT, "PERSISTENT RESERVE OUT", Out),
    fact(op::VARIABLE_LENGTH, "VARIABLE LENGTH CDB", Out),
    action(op::EXTENDED_COPY, 0x00, "EXTENDED COPY(LID1)", Out),
    action(op::EXTENDED_COPY, 0x01, "EXTENDED COPY(LID4)", Out),
    action(op::EXTENDED_COPY, 0x10, "POPULATE TOKEN", Out),
    action(op::EXTENDED_COPY, 0x11, "WRITE USING TOKEN", Out),
    fact(op::EXTENDED_COPY, "THIRD-PARTY COPY OUT", Out),
    action(op::RECEIVE_COPY_RESULTS, 0x00, "RECEIVE COPY STATUS(LID1)", In),
    action(op::RECEIVE_COPY_RESULTS, 0x01, "RECEIVE COPY DATA(LID1)", In),
    action(op::RECEIVE_COPY_RESULTS, 0x03, "RECEIVE COPY OPERATING PARAMETERS", In),
    action(op::RECEIVE_COPY_RESULTS, 0x04, "RECEIVE COPY FAILURE DETAILS(LID1)", In),
    action(op::RECEIVE_COPY_RESULTS, 0x07, "RECEIVE ROD TOKEN INFORMATION", In),
    fact(op::RECEIVE_COPY_RESULTS, "THIRD-PARTY COPY IN", In),
    fact(op::READ_16, "READ(16)", In),
    fact(op::COMPARE_AND_WRITE, "COMPARE AND WRITE", Out),
    fact(op::WRITE_16, "WRITE(16)", Out),
    fact(op::ORWRITE, "ORWRITE(16)", Out),
    fact(op::WRITE_VERIFY_16, "WRITE AND VERIFY(16)", Out),
    fact(op::VERIFY_16, "VERIFY(16)", Out),
    fact(op::PRE_FETCH_16, "PRE-FETCH(16)", No),
    fact(op::SYNCHRONIZE_CACHE_16, "SYNCHRONIZE CACHE(16)", No),
    fact(op::WRITE_SAME_16, "WRITE SAME(16)", Out),
    fact(op::WRITE_ATOMIC_16, "WRITE ATOMIC(16)", Out),
    action(op::SERVICE_ACTION_IN_16, 0x10, "READ CAPACITY(16)", In),
    action(op::SERVICE_ACTION_IN_16, 0x12, "GET LBA STATUS", In),
    action(op::SERVICE_ACTION_IN_16, 0x13, "REPORT REFERRALS", In),
    fact(op::SERVICE_ACTION_IN_16, "SERVICE ACTION IN(16)", In),
    fact(op::REPORT_LUNS, "REPORT LUNS", In),
    action(op::MAINTENANCE_IN, 0x05, "REPORT IDENTIFYING INFORMATION", In),
    action(op::MAINTENANCE_IN, 0x0a, "REPORT TARGET PORT GROUPS", In),
    action(op::MAINTENANCE_IN, 0x0b, "REPORT ALIASES", In),
    action(op::MAINTENANCE_IN, 0x0c, "REPORT SUPPORTED OPERATION CODES", In),
    action(op::MAINTENANCE_IN, 0x0d, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", In),
    action(op::MAINTENANCE_IN, 0x0e, "REPORT PRIORITY", In),
    action(op::MAINTENANCE_IN, 0x0f, "REPORT TIMESTAMP", In),
    fact(op::MAINTENANCE_IN, "MAINTENANCE IN", In),
    action(op::MAINTENANCE_OUT, 0x06, "SET IDENTIFYING INFORMATION", Out),
    action(op::MAINTENANCE_OUT, 0x0a, "SET TARGET PORT GROUPS", Out),
    action(op::MAINTENANCE_OUT, 0x0b, "CHANGE ALIASES", Out),
    action(op::MAINTENANCE_OUT, 0x0f, "SET TIMESTAMP", Out),
    fact(op::MAINTENANCE_OUT, "MAINTENANCE OUT", Out),
    fact(op::READ_12, "READ(12)", In),
    fact(op::WRITE_12, "WRITE(12)", Out),
    fact(op::WRITE_VERIFY_12, "WRITE AND VERIFY(12)", Out),
    fact(op::VERIFY_12, "VERIFY(12)", Out),
    fact(op::READ_DEFECT_DATA_12, "READ DEFECT DATA(12)", In),
];

pub fn facts() -> &'static [Fact] {
    &FACTS
}

/// The entry for a CDB; `None` for codes that neither standard assigns to block devices.
pub fn fact_of(cdb: &[u8]) -> Option<&'static Fact> {
    let code = *cdb.first()?;
    let service_action = cdb.get(1).map(|byte| byte & 0x1f);
    let start = FACTS.partition_point(|fact| fact.code < code);
    FACTS[start..]
        .iter()
        .take_while(|fact| fact.code == code)
        .find(|fact| fact.service_action.is_none() || fact.service_action == service_action)
}

/// The name of an operation code, for any service action; "OPERATION CODE" if unknown.
pub fn name(code: u8) -> &'static str {
    // The entry without service action is the last of its code.
    let end = FACTS.partition_point(|fact| fact.code <= code);
    FACTS[..end].last().filter(|fact| fact.code == code).map_or("OPERATION CODE", |fact| fact.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_general_line_last() {
        for pair in FACTS.windows(2) {
            let key = |fact: &Fact| (fact.code, fact.service_action.map_or(0x100, u16::from));
            assert!(key(&pair[0]) < key(&pair[1]), "{}", pair[1].name);
        }
    }

    #[test]
    fn names() {
        assert_eq!(name(op::READ_16), "READ(16)");
        assert_eq!(name(op::SERVICE_ACTION_IN_16), "SERVICE ACTION IN(16)");
        assert_eq!(name(0xff), "OPERATION CODE");
        assert_eq!(fact_of(&[0x9e, 0x10]).map(|fact| fact.name), Some("READ CAPACITY(16)"));
        assert_eq!(fact_of(&[0x9e, 0x1f]).map(|fact| fact.name), Some("SERVICE ACTION IN(16)"));
        assert_eq!(fact_of(&[]), None);
    }
}
