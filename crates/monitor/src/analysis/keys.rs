//! The keys of a login with the values that are in force (RFC 7143 section 13).

use iscsi::params::{Negotiated, SessionType};

use crate::command::Keys;
use crate::event::Side;
use crate::flow::Flow;

/// How a key's result follows from what both ends sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Yes if either says so.
    Or,
    /// No if either says so.
    And,
    Least,
    /// What the target chose of a list, or said alone.
    Chosen,
}

/// In the order to show. The last two of each are declared by one end each, not negotiated.
const RULES: [(&str, Rule); 7] = [
    ("HeaderDigest", Rule::Chosen),
    ("DataDigest", Rule::Chosen),
    ("InitialR2T", Rule::Or),
    ("ImmediateData", Rule::And),
    ("FirstBurstLength", Rule::Least),
    ("MaxBurstLength", Rule::Least),
    ("MaxOutstandingR2T", Rule::Least),
];
const RECEIVES: &str = "MaxRecvDataSegmentLength";
/// Names of RFC 7145 section 6.4 and 6.5 for what each end declares.
const RECEIVED: [(&str, Side); 2] =
    [("InitiatorRecvDataSegmentLength", Side::Initiator), ("TargetRecvDataSegmentLength", Side::Target)];

/// Keys with their values. A key that no end sent has its default, if all of the login was captured; otherwise it is
/// absent.
pub(super) fn negotiated(flow: &Flow) -> Vec<(String, String)> {
    if flow.negotiated.is_empty() {
        return Vec::new();
    }
    let defaults = Negotiated::defaults(SessionType::Normal).pairs();
    let default = |key: &str| {
        let known = defaults.iter().find(|(name, _)| *name == key).filter(|_| flow.is_login_whole);
        known.map(|(_, value)| value.clone())
    };
    let of_rules = RULES.into_iter().filter_map(|(key, rule)| {
        let values = [Side::Initiator, Side::Target].map(|side| flow.key(side, key));
        Some((key.to_owned(), result(rule, values).or_else(|| default(key))?))
    });
    let declared = RECEIVED.into_iter().filter_map(|(name, side)| {
        Some((name.to_owned(), flow.key(side, RECEIVES).map(str::to_owned).or_else(|| default(RECEIVES))?))
    });
    of_rules.chain(declared).collect()
}

/// Values of the initiator and of the target to the result.
fn result(rule: Rule, values: [Option<&str>; 2]) -> Option<String> {
    let known = values.into_iter().flatten();
    match rule {
        Rule::Chosen => known.last().map(str::to_owned),
        Rule::Or | Rule::And => {
            let decisive = if rule == Rule::Or { "Yes" } else { "No" };
            known.clone().find(|value| *value == decisive).or_else(|| known.clone().last()).map(str::to_owned)
        }
        Rule::Least => {
            let numbers = known.clone().filter_map(iscsi::text::parse_number);
            numbers.min().map(|least| least.to_string())
        }
    }
}

/// What the tracker needs.
pub(super) fn for_commands(negotiated: &[(String, String)]) -> Keys {
    let value = negotiated.iter().find(|(key, _)| key == "FirstBurstLength");
    Keys { first_burst_length: value.and_then(|(_, value)| value.parse().ok()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_both_offers() {
        let table = [
            (Rule::Or, [Some("No"), Some("No")], Some("No")),
            (Rule::Or, [Some("Yes"), Some("No")], Some("Yes")),
            (Rule::And, [Some("Yes"), Some("No")], Some("No")),
            (Rule::And, [Some("Yes"), None], Some("Yes")),
            (Rule::Least, [Some("262144"), Some("65536")], Some("65536")),
            (Rule::Least, [Some("0x1000"), Some("Irrelevant")], Some("4096")),
            (Rule::Least, [None, Some("")], None),
            (Rule::Chosen, [Some("CRC32C,None"), Some("None")], Some("None")),
            (Rule::Chosen, [None, None], None),
        ];
        for (rule, values, expected) in table {
            assert_eq!(result(rule, values).as_deref(), expected, "{rule:?} {values:?}");
        }
        let pairs = [("FirstBurstLength".to_owned(), "8192".to_owned())];
        assert_eq!(for_commands(&pairs).first_burst_length, Some(8192));
    }
}
