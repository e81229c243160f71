//! Interprets the result of an NVMe command: a status (Base 3.3.3.2), or an error of the kernel.

use block::{IoError, IoErrorKind};

use crate::endpoint::Verdict;

/// Do Not Retry, of the status field without its phase bit.
const DNR: u16 = 1 << 14;

/// Interprets the result of io_uring (a status, or a negated errno) or of an ioctl.
pub(super) fn judge(result: i32) -> Verdict {
    let fail = |kind, text: String| Verdict::Fail(IoError::new(kind, text));
    match u16::try_from(result) {
        Ok(0) => Verdict::Done,
        Ok(status) => judge_status(status),
        Err(_) if result > 0 => fail(IoErrorKind::Other, format!("no NVMe status: {result:#x}")),
        Err(_) => {
            let error = std::io::Error::from_raw_os_error(result.saturating_neg());
            match result.saturating_neg() {
                libc::EINVAL | libc::ENOMEM | libc::EFBIG => Verdict::TooLong(error.into()),
                libc::EINTR | libc::EAGAIN | libc::EBUSY => {
                    let text = format!("the controller was reset, or is busy: {error}");
                    Verdict::Later(IoError::new(IoErrorKind::Unreachable, text))
                }
                libc::ENODEV | libc::ENXIO => fail(IoErrorKind::Gone, "the controller has gone".into()),
                libc::EACCES | libc::EPERM => fail(
                    IoErrorKind::Other,
                    format!("{error}: commands of this kind need CAP_SYS_ADMIN here"),
                ),
                _ => Verdict::Fail(error.into()),
            }
        }
    }
}

fn judge_status(status: u16) -> Verdict {
    use IoErrorKind as E;
    let (kind, code) = (status >> 8 & 7, status & 0xff);
    let words = |text: &str| format!("NVMe status {kind:X}h/{code:02X}h {text}");
    let fail = |error, text| Verdict::Fail(IoError::new(error, words(text)));
    // Conditions worth a retry, unless Do Not Retry is set.
    let later = |text| match status & DNR {
        0 => Verdict::Later(IoError::new(E::Unreachable, words(text))),
        _ => Verdict::Fail(IoError::new(E::Unreachable, words(text))),
    };
    match (kind, code) {
        // Generic.
        (0, 0x00) => Verdict::Done,
        (0, 0x01) => fail(E::Unsupported, "Invalid Command Opcode"),
        (0, 0x02) => fail(E::Unsupported, "Invalid Field in Command"),
        (0, 0x0b) => fail(E::Gone, "Invalid Namespace or Format: it was detached or formatted"),
        (0, 0x20) => fail(E::ReadOnly, "Namespace is Write Protected"),
        (0, 0x80) => fail(E::OutOfRange, "LBA Out of Range: the namespace has shrunk"),
        (0, 0x81) => fail(E::NoSpace, "Capacity Exceeded"),
        (0, 0x82) => later("Namespace Not Ready"),
        (0, 0x83) => fail(
            E::Refused,
            "Reservation Conflict: another host has reserved the namespace (nvme resv-report)",
        ),
        (0, 0x84) => later("Format in Progress"),
        (0, 0x04..=0x08) if status & DNR == 0 => Verdict::Again {
            error: IoError::new(E::Medium, words("the command was not carried out")),
            lost: false,
        },
        // Media and Data Integrity.
        (2, 0x80) => fail(E::Medium, "Write Fault"),
        (2, 0x81) => fail(E::Medium, "Unrecovered Read Error"),
        (2, 0x86) => fail(E::ReadOnly, "Access Denied"),
        (2, _) => fail(E::Medium, "media or data integrity error"),
        // Path Related.
        (3, _) => later("the way to the namespace is down"),
        (1, 0x82) => fail(E::ReadOnly, "Attempted Write to Read Only Range"),
        _ => fail(E::Other, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(verdict: &Verdict) -> Option<IoErrorKind> {
        match verdict {
            Verdict::Fail(error) => Some(error.kind),
            _ => None,
        }
    }

    #[test]
    fn base_3_3_3_2_status_codes() {
        use IoErrorKind as E;
        for (status, expected) in [
            (0x001, E::Unsupported),
            (0x002, E::Unsupported),
            (0x00b, E::Gone),
            (0x020, E::ReadOnly),
            (0x080, E::OutOfRange),
            (0x081, E::NoSpace),
            (0x083, E::Refused),
            (0x182, E::ReadOnly),
            (0x280, E::Medium),
            (0x281, E::Medium),
            (0x2ff, E::Medium),
            (0x7ff, E::Other),
            (0x4082, E::Unreachable),
            (0x4006, E::Other),
        ] {
            assert_eq!(kind(&judge(status)), Some(expected), "{status:#x}");
            assert_eq!(kind(&judge(status | 0x2000)), Some(expected), "{status:#x}: More says nothing of it");
        }
        assert!(matches!(judge(0), Verdict::Done));
        assert!(matches!(judge(0x082), Verdict::Later(_)));
        assert!(matches!(judge(0x370), Verdict::Later(_)));
        assert!(matches!(judge(0x006), Verdict::Again { lost: false, .. }));
    }

    #[test]
    fn what_the_kernel_says_instead() {
        assert!(matches!(judge(-libc::EINVAL), Verdict::TooLong(_)));
        assert!(matches!(judge(-libc::EINTR), Verdict::Later(_)));
        assert_eq!(kind(&judge(-libc::ENODEV)), Some(IoErrorKind::Gone));
        assert_eq!(kind(&judge(-libc::EIO)), Some(IoErrorKind::Medium));
        assert_eq!(kind(&judge(i32::MIN)), Some(IoErrorKind::Other));
        assert_eq!(kind(&judge(i32::MAX)), Some(IoErrorKind::Other));
    }

    #[test]
    fn no_status_but_zero_is_success() {
        for status in 1..=0xffffu16 {
            let done = matches!(judge(status.into()), Verdict::Done);
            assert_eq!(done, status & 0x7ff == 0, "{status:#x}");
        }
    }
}
