//! The result of a SCSI command: status, sense data (untrusted; `scsi` parses it), status of the host adapter.

use block::{IoError, IoErrorKind};
use scsi::{Sense, SenseKey, Status};

use crate::endpoint::Verdict;

/// `DRIVER_SENSE` of `include/scsi/scsi_status.h`: sense data is present.
const DRIVER_SENSE: u16 = 8;

/// Host bytes of `include/scsi/scsi_status.h`.
mod host {
    pub(super) const OK: u16 = 0x00;
    pub(super) const NO_CONNECT: u16 = 0x01;
    pub(super) const BUS_BUSY: u16 = 0x02;
    pub(super) const TIME_OUT: u16 = 0x03;
    pub(super) const BAD_TARGET: u16 = 0x04;
    pub(super) const RESET: u16 = 0x08;
    pub(super) const SOFT_ERROR: u16 = 0x0b;
    pub(super) const IMM_RETRY: u16 = 0x0c;
    pub(super) const REQUEUE: u16 = 0x0d;
    pub(super) const TRANSPORT_DISRUPTED: u16 = 0x0e;
    pub(super) const TRANSPORT_FAILFAST: u16 = 0x0f;
    pub(super) const NEXUS_FAILURE: u16 = 0x11;
    pub(super) const MEDIUM_ERROR: u16 = 0x13;
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer<'a> {
    pub(super) status: u8,
    pub(super) host: u16,
    pub(super) driver: u16,
    pub(super) sense: &'a [u8],
}

fn fail(kind: IoErrorKind, text: impl Into<String>) -> Verdict {
    Verdict::Fail(IoError::new(kind, text))
}

fn again(text: impl Into<String>) -> Verdict {
    Verdict::Again { error: IoError::new(IoErrorKind::Other, text), lost: false }
}

pub(super) fn judge(answer: &Answer<'_>) -> Verdict {
    match answer.host {
        host::OK => {}
        host::NO_CONNECT | host::BAD_TARGET => {
            return fail(
                IoErrorKind::Gone,
                "the adapter no longer reaches the disk: see its cable, its power and dmesg",
            );
        }
        host::TIME_OUT => {
            return fail(
                IoErrorKind::Unreachable,
                "the disk did not answer in time: see dmesg for what the kernel did about it",
            );
        }
        host::NEXUS_FAILURE => return fail(IoErrorKind::Refused, CONFLICT),
        host::MEDIUM_ERROR => return fail(IoErrorKind::Medium, "the adapter reports a medium error"),
        host::BUS_BUSY | host::TRANSPORT_DISRUPTED | host::TRANSPORT_FAILFAST => {
            let text = format!("the way to the disk is busy or down (host status {:02X}h)", answer.host);
            return Verdict::Later(IoError::new(IoErrorKind::Unreachable, text));
        }
        host::RESET | host::SOFT_ERROR | host::IMM_RETRY | host::REQUEUE => {
            return again(format!("the adapter gave it up (host status {:02X}h)", answer.host));
        }
        // An aborted command, and statuses without a cause: some adapters return DID_ERROR also for an underrun.
        other => return again(format!("the adapter failed (host status {other:02X}h); see dmesg")),
    }
    match Status::from_code(answer.status) {
        Some(Status::Good | Status::ConditionMet) if answer.driver & 0xf == 0 => Verdict::Done,
        Some(Status::Good | Status::CheckCondition | Status::ConditionMet)
            if answer.status != 0 || answer.driver & 0xf == DRIVER_SENSE =>
        {
            match Sense::parse(answer.sense) {
                Some(sense) => judge_sense(&sense),
                None => fail(IoErrorKind::Other, "CHECK CONDITION without sense data"),
            }
        }
        Some(Status::Busy | Status::TaskSetFull) => {
            Verdict::Later(IoError::new(IoErrorKind::Unreachable, "the disk stays busy"))
        }
        Some(Status::ReservationConflict) => fail(IoErrorKind::Refused, CONFLICT),
        Some(Status::TaskAborted) => again("TASK ABORTED by another initiator"),
        _ => {
            let (status, driver) = (answer.status, answer.driver);
            fail(IoErrorKind::Other, format!("SCSI status {status:02X}h, driver status {driver:02X}h"))
        }
    }
}

const CONFLICT: &str = "RESERVATION CONFLICT: another initiator has reserved the disk (sg_persist --in -k shows who); release it there";

/// SPC-4 4.5: interprets sense data.
fn judge_sense(sense: &Sense) -> Verdict {
    let fail = |kind, advice: &str| {
        let dash = if advice.is_empty() { "" } else { ": " };
        fail(kind, format!("{sense}{dash}{advice}"))
    };
    // SPC-4 4.5.6: a deferred error concerns an unknown earlier command; the current one was not executed.
    match (sense.deferred, sense.key) {
        (true, SenseKey::MediumError | SenseKey::HardwareError) => {
            return fail(
                IoErrorKind::FlushFailed,
                "the disk has lost an earlier write; replace it, copy again",
            );
        }
        (true, SenseKey::NoSense | SenseKey::RecoveredError) => return again(sense.to_string()),
        _ => {}
    }
    match (sense.key, sense.asc, sense.ascq) {
        (SenseKey::NoSense | SenseKey::RecoveredError, ..) => Verdict::Done,
        (SenseKey::UnitAttention, 0x28, _) => fail(IoErrorKind::Gone, "see which medium is in it now"),
        (SenseKey::UnitAttention, asc, ascq) => {
            // 29/07 is a lost connection without loss of power at the disk; any other 29h may be a loss of power.
            let lost = asc == 0x29 && ascq != 0x07;
            Verdict::Again { error: IoError::new(IoErrorKind::Other, sense.to_string()), lost }
        }
        (SenseKey::AbortedCommand, ..) => {
            // Some disks and bridges return this for unreadable blocks too.
            Verdict::Again { error: IoError::new(IoErrorKind::Medium, sense.to_string()), lost: false }
        }
        (SenseKey::NotReady, 0x04, 0x02) => fail(IoErrorKind::Unreachable, "start it: sg_start --start"),
        (SenseKey::NotReady, 0x04, 0x03) => fail(IoErrorKind::Unreachable, "manual intervention required"),
        (SenseKey::NotReady, 0x04, _) => {
            Verdict::Later(IoError::new(IoErrorKind::Unreachable, sense.to_string()))
        }
        (SenseKey::NotReady, 0x3a, _) => fail(IoErrorKind::Gone, "put the medium back"),
        (SenseKey::NotReady, ..) => fail(IoErrorKind::Unreachable, ""),
        (SenseKey::DataProtect, 0x27, 0x07) => fail(IoErrorKind::NoSpace, ""),
        (SenseKey::DataProtect, ..) => fail(IoErrorKind::ReadOnly, ""),
        (SenseKey::IllegalRequest, 0x21, _) => fail(IoErrorKind::OutOfRange, "the disk has shrunk"),
        (SenseKey::IllegalRequest, 0x20 | 0x24, _) => fail(IoErrorKind::Unsupported, ""),
        (SenseKey::MediumError | SenseKey::HardwareError, ..) => match sense.information {
            Some(lba) => fail(IoErrorKind::Medium, &format!("at LBA {lba}")),
            None => fail(IoErrorKind::Medium, ""),
        },
        _ => fail(IoErrorKind::Other, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sense(key: SenseKey, asc: u8, ascq: u8) -> Vec<u8> {
        Sense::new(key, asc, ascq).to_bytes()
    }

    fn check(sense: &[u8]) -> Verdict {
        judge(&Answer { status: 2, sense, ..Answer::default() })
    }

    fn kind(verdict: &Verdict) -> Option<IoErrorKind> {
        match verdict {
            Verdict::Fail(error) => Some(error.kind),
            _ => None,
        }
    }

    #[test]
    fn spc4_4_5_sense_keys() {
        use IoErrorKind as E;
        use SenseKey as K;
        for (key, asc, ascq, expected) in [
            (K::MediumError, 0x11, 0x00, E::Medium),
            (K::HardwareError, 0x44, 0x00, E::Medium),
            (K::DataProtect, 0x27, 0x00, E::ReadOnly),
            (K::DataProtect, 0x27, 0x07, E::NoSpace),
            (K::IllegalRequest, 0x21, 0x00, E::OutOfRange),
            (K::IllegalRequest, 0x20, 0x00, E::Unsupported),
            (K::IllegalRequest, 0x24, 0x00, E::Unsupported),
            (K::NotReady, 0x3a, 0x01, E::Gone),
            (K::NotReady, 0x04, 0x02, E::Unreachable),
            (K::UnitAttention, 0x28, 0x00, E::Gone),
            (K::BlankCheck, 0x00, 0x00, E::Other),
        ] {
            assert_eq!(kind(&check(&sense(key, asc, ascq))), Some(expected), "{key:?} {asc:02x}/{ascq:02x}");
        }
        assert!(matches!(check(&sense(K::RecoveredError, 0x18, 0)), Verdict::Done));
        assert!(matches!(check(&sense(K::NotReady, 0x04, 0x01)), Verdict::Later(_)));
        assert!(matches!(check(&sense(K::AbortedCommand, 0, 6)), Verdict::Again { lost: false, .. }));
    }

    #[test]
    fn spc4_5_14_only_a_power_on_may_have_emptied_the_cache() {
        for (asc, ascq, expected) in
            [(0x29, 0x00, true), (0x29, 0x01, true), (0x29, 0x07, false), (0x2a, 0x09, false)]
        {
            let verdict = check(&sense(SenseKey::UnitAttention, asc, ascq));
            let again = matches!(verdict, Verdict::Again { lost, .. } if lost == expected);
            assert!(again, "{asc:02x}/{ascq:02x}");
        }
    }

    #[test]
    fn spc4_4_5_6_a_deferred_error_is_of_an_earlier_write() {
        let mut deferred = Sense::WRITE_ERROR;
        deferred.deferred = true;
        assert_eq!(kind(&check(&deferred.to_bytes())), Some(IoErrorKind::FlushFailed));
        let mut deferred = Sense::NONE;
        deferred.deferred = true;
        assert!(matches!(check(&deferred.to_bytes()), Verdict::Again { .. }), "this one was not carried out");
    }

    #[test]
    fn a_medium_error_names_the_block() {
        let mut sense = Sense::READ_ERROR;
        sense.information = Some(4660);
        let Verdict::Fail(error) = check(&sense.to_bytes()) else { panic!("failed") };
        assert!(error.text.ends_with("at LBA 4660") && error.text.contains("03/11/00"), "{error}");
    }

    #[test]
    fn sam5_5_3_1_statuses_without_sense() {
        let status = |status| judge(&Answer { status, ..Answer::default() });
        assert!(matches!(status(0x00), Verdict::Done));
        assert!(matches!(status(0x08), Verdict::Later(_)));
        assert!(matches!(status(0x28), Verdict::Later(_)));
        assert!(matches!(status(0x40), Verdict::Again { .. }));
        assert_eq!(kind(&status(0x18)), Some(IoErrorKind::Refused));
        assert_eq!(kind(&status(0x30)), Some(IoErrorKind::Other));
        assert_eq!(kind(&status(0xff)), Some(IoErrorKind::Other));
    }

    #[test]
    fn the_adapter_is_heard_before_the_disk() {
        let host = |host| judge(&Answer { host, ..Answer::default() });
        assert_eq!(kind(&host(0x01)), Some(IoErrorKind::Gone));
        assert_eq!(kind(&host(0x03)), Some(IoErrorKind::Unreachable));
        assert!(matches!(host(0x0e), Verdict::Later(_)));
        assert!(matches!(host(0x08), Verdict::Again { .. }));
        assert!(matches!(host(0xffff), Verdict::Again { .. }), "nobody knows what that is");
    }

    #[test]
    fn hostile_sense_is_never_success() {
        let vectors: [(&str, &[u8]); 6] = [
            ("none", &[]),
            ("response_code_unknown", &[0x7f, 0, 5, 0, 0, 0, 0, 0]),
            ("vendor_specific_code", &[0x00; 18]),
            ("fixed_cut_before_key", &[0x70, 0]),
            ("descriptor_cut_before_key", &[0x72]),
            ("key_cut_after_medium_error", &[0x70, 0, 3]),
        ];
        for (name, bytes) in vectors {
            assert!(kind(&check(bytes)).is_some(), "{name}: {:?}", check(bytes));
        }
        let driver =
            judge(&Answer { driver: 8, sense: &sense(SenseKey::MediumError, 0x11, 0), ..Answer::default() });
        assert_eq!(kind(&driver), Some(IoErrorKind::Medium), "sense data beside GOOD");
        let driver = judge(&Answer { driver: 6, ..Answer::default() });
        assert_eq!(kind(&driver), Some(IoErrorKind::Other), "a driver's error beside GOOD");
    }
}
