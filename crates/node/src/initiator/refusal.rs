//! The meaning of a refused login.

use std::time::Duration;

use block::OpenError;
use iscsi::login::initiator::LoginError;
use iscsi::params::NegotiationError;
use iscsi::wire::LoginStatus;

use super::url::Url;

/// How long a login is retried against a target that is too busy (0301), and the pause between attempts.
pub(super) const BUSY_TIME_MAX: Duration = Duration::from_secs(5);
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// The error for a handshake that was damaged in transit at both attempts.
pub(super) fn damaged(url: &Url, text: &str) -> OpenError {
    OpenError::Damaged(format!("{url}: the handshake was damaged on the way: {text}"))
}

/// The error for an answer that did not verify at both attempts. A target with another key refuses the first message.
pub(super) fn unverified(url: &Url) -> OpenError {
    OpenError::Unverified(format!(
        "{url}: the target's answer to the handshake does not verify: the pre-shared keys (psk-file=) of the two sides differ, or \
         the answer was damaged on the way"
    ))
}

pub(super) fn is_transient(error: &LoginError) -> bool {
    matches!(
        error,
        LoginError::Refused(
            LoginStatus::ServiceUnavailable | LoginStatus::OutOfResources | LoginStatus::TargetError
        )
    )
}

pub(super) fn login_error(url: &Url, error: &LoginError) -> OpenError {
    match error {
        LoginError::Authentication { algorithm: Some(_) } => {
            OpenError::Chap(format!("{url}: {error}: the target rejects the CHAP name or secret"))
        }
        LoginError::Authentication { .. } | LoginError::Authorization => {
            OpenError::Authentication(format!("{url}: {error}"))
        }
        // Requested protection is missing, as from a target that does not seal.
        LoginError::Negotiation(
            NegotiationError::DigestRefused { .. } | NegotiationError::NotUnderstood(_),
        ) => OpenError::Unprotected(format!("{url}: {error}")),
        LoginError::TargetNotAuthenticated(_) => {
            OpenError::Chap(format!("{url}: {error}; it may not be the target it claims to be"))
        }
        LoginError::TargetNotFound => OpenError::Missing(format!(
            "{url}: {error}; list the targets with: hikyaku ls iscsi://{}",
            url.address()
        )),
        _ => OpenError::Failed(format!("{url}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_asked_again_and_what_will_not_is_told_apart() {
        use LoginStatus as S;
        for (status, expected) in [
            (S::ServiceUnavailable, true),
            (S::OutOfResources, true),
            (S::TargetError, true),
            (S::TargetRemoved, false),
            (S::AuthenticationFailure, false),
        ] {
            assert_eq!(is_transient(&LoginError::Refused(status)), expected, "{status:?}");
        }
        assert!(!is_transient(&LoginError::TargetNotFound));
        let url = Url::parse("iscsi://host/iqn.2026-11.example:a/0").unwrap();
        let error = login_error(&url, &LoginError::TargetNotFound);
        assert!(matches!(&error, OpenError::Missing(text) if text.contains("hikyaku ls")), "{error:?}");
        let refused = NegotiationError::DigestRefused { key: "DataDigest", answer: "None".into() };
        let error = login_error(&url, &LoginError::Negotiation(refused));
        let named = matches!(&error, OpenError::Unprotected(text) if text.contains("DataDigest=CRC32C"));
        assert!(named, "{error:?}");
        let error = login_error(&url, &LoginError::Authorization);
        assert!(matches!(error, OpenError::Authentication(_)), "{error:?}");
    }
}
