//! saveconfig.json of LIO, the kernel's target, as targetcli writes it.

use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;
use zeroize::Zeroizing;

use super::{Account, Imported, Lun, Rule, Target};
use crate::error::Failure;
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};

pub(super) fn read(path: &Path) -> Result<Imported, Failure> {
    let object = path.display().to_string();
    let text = match path.to_str() {
        Some("-") => standard_input(),
        _ => file::read_text(path, "the configuration of LIO", Keeping::Public, LIST_BYTES_MAX)?,
    };
    let text = text.map_err(|error| {
        Failure::usage("read the configuration of LIO", object.clone(), error)
            .hint("targetcli saveconfig writes it; on some systems it is /etc/target/saveconfig.json")
    })?;
    parse(&text).map_err(|cause| Failure::usage("understand the configuration of LIO", object, cause))
}

/// Standard input as text, at most [`LIST_BYTES_MAX`].
pub(super) fn standard_input() -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    io::stdin().lock().take(LIST_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    match text.len() > LIST_BYTES_MAX {
        true => Err(io::Error::other(format!("it is longer than {LIST_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

fn number(value: &Value) -> Option<u16> {
    value.as_u64().and_then(|number| u16::try_from(number).ok())
}

/// Whether a flag is set: targetcli writes both numbers and Booleans.
fn is_set(value: &Value) -> bool {
    value.as_bool().unwrap_or(false) || value.as_u64().is_some_and(|number| number != 0)
}

fn parse(source: &str) -> Result<Imported, String> {
    let root: Value = serde_json::from_str(source).map_err(|error| error.to_string())?;
    let mut imported = Imported::default();
    for target in array(&root["targets"]) {
        let name = text(&target["wwn"]).ok_or("a target has no wwn")?;
        if target["fabric"] != "iscsi" {
            imported.notes.push(format!("not carried over: {name}, which is not of the fabric iscsi"));
            continue;
        }
        for (index, tpg) in array(&target["tpgs"]).iter().enumerate() {
            if index > 0 {
                imported.notes.push(format!("not carried over: further portal groups of {name}"));
                break;
            }
            for portal in array(&tpg["portals"]) {
                let address = text(&portal["ip_address"]).unwrap_or("0.0.0.0").trim_matches(['[', ']']);
                let port = number(&portal["port"]).unwrap_or(3260);
                let listen = match address.contains(':') {
                    true => format!("[{address}]:{port}"),
                    false => format!("{address}:{port}"),
                };
                if !imported.listen.contains(&listen) {
                    imported.listen.push(listen);
                }
            }
            imported.targets.push(group(name, tpg, &root["storage_objects"])?);
        }
    }
    if imported.targets.is_empty() {
        return Err("there is no target of the fabric iscsi".to_owned());
    }
    if imported.targets.len() > 1 && imported.listen.len() > 1 {
        imported
            .notes
            .push("every target is reachable at every listener, which may be more than before".to_owned());
    }
    Ok(imported)
}

fn group(iqn: &str, tpg: &Value, objects: &Value) -> Result<Target, String> {
    let mut target = Target { iqn: iqn.to_owned(), ..Target::default() };
    if tpg["enable"] == false {
        target.notes.push("was disabled".to_owned());
    }
    for lun in array(&tpg["luns"]) {
        let index = number(&lun["index"]).ok_or_else(|| format!("a LUN of {iqn} has no number"))?;
        let name = text(&lun["storage_object"]).unwrap_or_default();
        match array(objects)
            .iter()
            .find(|object| is_named(object, name))
            .and_then(|object| storage(index, object))
        {
            Some(lun) => target.luns.push(lun),
            None => target.notes.push(format!("not carried over: LUN {index}, {name}")),
        }
    }
    let authenticates = is_set(&tpg["attributes"]["authentication"]);
    for acl in array(&tpg["node_acls"]) {
        let rule = rule(acl, &mut target.notes, &target.luns, authenticates);
        target.rules.push(rule);
    }
    // With generated rules every initiator may log in, with the group's account if it has one.
    let is_open = is_set(&tpg["attributes"]["generate_node_acls"]);
    let account = account(tpg, "chap_userid", "chap_password").filter(|_| authenticates);
    if is_open && let Some(account) = account {
        let mutual = self::account(tpg, "chap_mutual_userid", "chap_mutual_password");
        target.rules.push(Rule { chap: Some(account), mutual, ..Rule::default() });
    } else if is_open {
        let note = "was open to every initiator (generate_node_acls), and serve refuses that beyond loopback";
        target.notes.push(note.to_owned());
    } else if target.rules.is_empty() {
        // LIO refuses every login to a target without ACLs; a target of hikyaku.toml without rules accepts every login.
        target.notes.push(
            "had no ACL, so that it refused every login: the rule below admits only a placeholder name; replace it"
                .to_owned(),
        );
        target
            .rules
            .push(Rule { initiator: Some("iqn.2026-11.example:nobody".to_owned()), ..Rule::default() });
    }
    Ok(target)
}

/// Whether `/backstores/PLUGIN/NAME` is this object.
fn is_named(object: &Value, path: &str) -> bool {
    let names = text(&object["plugin"]).zip(text(&object["name"]));
    names.is_some_and(|(plugin, name)| path == format!("/backstores/{plugin}/{name}"))
}

fn storage(lun: u16, object: &Value) -> Option<Lun> {
    let mut notes = Vec::new();
    let mut endpoint = match text(&object["plugin"])? {
        "fileio" | "block" => text(&object["dev"])?.replace(',', ",,"),
        "ramdisk" => {
            notes.push("memory: its content is not carried over".to_owned());
            format!("mem:{}", object["size"].as_u64()?)
        }
        _ => return None,
    };
    let attributes = &object["attributes"];
    if is_set(&object["readonly"]) {
        endpoint.push_str(",ro");
    }
    let is_fileio = object["plugin"] == "fileio";
    let writes_through = object["write_back"] == false || attributes["emulate_write_cache"] == 0;
    if is_fileio && writes_through {
        endpoint.push_str(",cache=writethrough");
    }
    if attributes["block_size"] == 4096 && is_fileio {
        endpoint.push_str(",block-size=4096");
    }
    if is_set(&attributes["emulate_pr"]) {
        notes.push("persistent reservations are not supported".to_owned());
    }
    Some(Lun { lun, endpoint, serial: text(&object["wwn"]).map(str::to_owned), notes })
}

fn account(value: &Value, user: &str, secret: &str) -> Option<Account> {
    let (user, secret) = text(&value[user]).zip(text(&value[secret]))?;
    Some(Account { user: user.to_owned(), secret: secret.to_owned().into() })
}

fn rule(acl: &Value, notes: &mut Vec<String>, luns: &[Lun], authenticates: bool) -> Rule {
    let initiator = text(&acl["node_wwn"]).unwrap_or_default().to_owned();
    let mut visible = Vec::new();
    let (mut any_ro, mut any_rw) = (false, false);
    for mapped in array(&acl["mapped_luns"]) {
        let (Some(index), Some(lun)) = (number(&mapped["index"]), number(&mapped["tpg_lun"])) else {
            continue;
        };
        if !luns.iter().any(|known| known.lun == lun) {
            continue;
        }
        if index != lun {
            notes.push(format!("{initiator} saw LUN {lun} as LUN {index}; it has one number for all here"));
        }
        match is_set(&mapped["write_protect"]) {
            true => any_ro = true,
            false => any_rw = true,
        }
        visible.push(lun);
    }
    if any_ro && any_rw {
        notes.push(format!(
            "{initiator} might write to some of its LUNs only; here it may read all of them, and write none"
        ));
    }
    let chap = account(acl, "chap_userid", "chap_password").filter(|_| authenticates);
    let mutual = account(acl, "chap_mutual_userid", "chap_mutual_password").filter(|_| chap.is_some());
    visible.sort_unstable();
    Rule { initiator: Some(initiator), chap, mutual, luns: Some(visible), read_only: any_ro }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn saved() -> Value {
        json!({
            "storage_objects": [
                { "plugin": "fileio", "name": "a", "dev": "/srv/a,b.img", "size": 1 << 20, "write_back": true, "wwn": "serial-a" },
                { "plugin": "block", "name": "b", "dev": "/dev/vg/b", "readonly": false, "attributes": { "emulate_pr": 1 } },
                { "plugin": "pscsi", "name": "tape", "dev": "/dev/st0" },
            ],
            "targets": [
                { "fabric": "iscsi", "wwn": "iqn.2026-11.example:a", "tpgs": [{
                    "enable": true, "tag": 1, "attributes": { "authentication": 1, "generate_node_acls": 0 },
                    "luns": [
                        { "index": 0, "storage_object": "/backstores/fileio/a" },
                        { "index": 1, "storage_object": "/backstores/block/b" },
                        { "index": 2, "storage_object": "/backstores/pscsi/tape" },
                    ],
                    "node_acls": [{
                        "node_wwn": "iqn.2026-11.example:i", "chap_userid": "u", "chap_password": "hidden-word",
                        "mapped_luns": [
                            { "index": 0, "tpg_lun": 0, "write_protect": true }, { "index": 5, "tpg_lun": 1, "write_protect": true },
                        ],
                    }],
                    "portals": [{ "ip_address": "192.0.2.1", "port": 3261 }, { "ip_address": "[::]", "port": 3260 }],
                }] },
                { "fabric": "vhost", "wwn": "naa.5001", "tpgs": [] },
            ],
        })
    }

    #[test]
    fn luns_rules_and_portals_are_carried_over() {
        let imported = parse(&saved().to_string()).unwrap();
        assert_eq!(imported.listen, ["192.0.2.1:3261", "[::]:3260"]);
        assert!(imported.notes[0].contains("naa.5001"), "{:?}", imported.notes);
        let [target] = &imported.targets[..] else { panic!("one target") };
        let luns: Vec<(u16, &str, Option<&str>)> =
            target.luns.iter().map(|lun| (lun.lun, lun.endpoint.as_str(), lun.serial.as_deref())).collect();
        assert_eq!(luns, [(0, "/srv/a,,b.img", Some("serial-a")), (1, "/dev/vg/b", None)]);
        assert!(
            target.notes.iter().any(|note| note.contains("LUN 2, /backstores/pscsi/tape")),
            "{:?}",
            target.notes
        );
        assert!(target.notes.iter().any(|note| note.contains("LUN 1 as LUN 5")), "{:?}", target.notes);
        let [rule] = &target.rules[..] else { panic!("one rule") };
        assert_eq!((rule.luns.as_deref(), rule.read_only), (Some(&[0, 1][..]), true));
        assert_eq!(rule.chap.as_ref().unwrap().user, "u");
        assert!(!format!("{imported:?}").contains("hidden-word"));
    }

    #[test]
    fn a_target_that_admitted_nobody_admits_nobody() {
        let mut saved = saved();
        saved["targets"][0]["tpgs"][0]["node_acls"] = json!([]);
        let imported = parse(&saved.to_string()).unwrap();
        let rules = &imported.targets[0].rules;
        assert_eq!(rules.len(), 1, "no rule would mean everyone");
        assert!(rules[0].initiator.as_deref().unwrap().ends_with(":nobody"));
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for (text, cause) in [
            ("", "EOF"),
            ("{}", "no target"),
            ("[]", "no target"),
            (r#"{"targets":[{"fabric":"iscsi"}]}"#, "no wwn"),
            (r#"{"targets":[{"fabric":"iscsi","wwn":"a","tpgs":[{"luns":[{}]}]}]}"#, "no number"),
        ] {
            assert!(parse(text).unwrap_err().contains(cause), "{text}");
        }
    }
}
