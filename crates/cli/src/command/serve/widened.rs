//! What a changed configuration permits beyond the one before. A file that is read while another program writes it may lack
//! its end, and with it the rules that restrict access.

use crate::config::{Acl, Config, Target};

/// Each right that `after` gives and `before` did not, in words; empty if there is none. LUNs and peers that are new are
/// rights of their own and not listed.
pub(super) fn rights(before: &Config, after: &Config) -> Vec<String> {
    let mut found = Vec::new();
    let (was, is) = (before.seal_policy(), after.seal_policy());
    if (was as u8) > (is as u8) {
        found.push(format!("sealing is {} instead of {}", is.name(), was.name()));
    }
    for user in after.allow_users.iter().filter(|user| !before.allow_users.contains(user)) {
        found.push(format!("the local user {user} may log in"));
    }
    for target in &after.targets {
        let former = before.targets.iter().find(|former| former.iqn == target.iqn);
        found.extend(former.into_iter().flat_map(|former| of_target(former, target)));
    }
    found
}

fn of_target(before: &Target, after: &Target) -> Vec<String> {
    let name = after.iqn.as_deref().unwrap_or("the target");
    if after.is_open() && !before.is_open() {
        return vec![format!("{name} is open to initiators that prove nothing")];
    }
    let mut found = Vec::new();
    for acl in &after.acls {
        let is_same = |other: &&Acl| whose(other) == whose(acl);
        let Some(former) = before.acls.iter().find(is_same) else { continue };
        if former.read_only && !acl.read_only {
            found.push(format!("{} may write to {name}", named(acl)));
        }
        let is_new = |lun: &u16| former.luns.as_ref().is_some_and(|luns| !luns.contains(lun));
        let has_more = match &acl.luns {
            None => former.luns.is_some(),
            Some(luns) => luns.iter().any(is_new),
        };
        if has_more {
            found.push(format!("{} sees more LUNs of {name}", named(acl)));
        }
    }
    found
}

/// The initiators that a rule is for.
fn whose(acl: &Acl) -> (Option<&str>, Option<&str>, Option<&str>) {
    let user = acl.chap.as_ref().map(|account| account.user.as_str());
    (acl.initiator.as_deref(), acl.peer.as_deref(), user)
}

fn named(acl: &Acl) -> &str {
    let (initiator, peer, user) = whose(acl);
    initiator.or(peer).or(user).unwrap_or("an initiator")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;

    const WHOLE: &str = "[server]\npeers = \"p\"\nseal = \"require\"\n[[target]]\niqn = \"iqn.2026-11.example:a\"\n\
                         [[target.lun]]\nlun = 0\nendpoint = \"mem:1M\"\n[[target.lun]]\nlun = 1\nendpoint = \"mem:1M\"\n\
                         [[target.acl]]\npeer = \"laptop\"\nluns = [0]\nmode = \"ro\"\n";

    #[test]
    fn what_a_file_permits_beyond_the_one_before_is_named() {
        let parse = |text: &str| Config::parse(&Context::default(), text).unwrap();
        let (a, laptop) = ("iqn.2026-11.example:a", "laptop");
        let cut = |at: &str| WHOLE[..WHOLE.find(at).unwrap()].to_owned();
        for (after, expected) in [
            (WHOLE.to_owned(), vec![]),
            (WHOLE.replace("luns = [0]", "luns = []"), vec![]),
            (cut("mode ="), vec![format!("{laptop} may write to {a}")]),
            (
                cut("luns = [0]"),
                vec![format!("{laptop} may write to {a}"), format!("{laptop} sees more LUNs of {a}")],
            ),
            (cut("[[target.acl]]"), vec![format!("{a} is open to initiators that prove nothing")]),
            (WHOLE.replace("require", "offer"), vec!["sealing is offer instead of require".to_owned()]),
            (
                WHOLE.replace("seal =", "allow-user = [\"me\"]\nseal ="),
                vec!["the local user me may log in".to_owned()],
            ),
        ] {
            assert_eq!(rights(&parse(WHOLE), &parse(&after)), expected, "{after}");
        }
        assert_eq!(rights(&parse(&cut("[[target.acl]]")), &parse(WHOLE)), Vec::<String>::new());
    }
}
