//! `protection` in JSON: how a session is protected on its network path; all commands use this object.
//!
//! | field | |
//! |---|---|
//! | `kind` | `none`, `chap` (CHAP alone: names are proven at login, nothing after that), `tls`, `seal` |
//! | `suite` | of a seal or TLS the ciphers, of CHAP the hash, else null |
//! | `peer` | the public key whose private key the target has proven to hold; of a seal only |
//! | `digests` | `{"header":"CRC32C\|None","data":"CRC32C\|None"}` as negotiated; null if the protocol has none (NBD) |
//!
//! Without a session the value is null. With two sessions the top level contains the fields of the weaker one; `source`
//! and `destination` contain both objects.

use block::Endpoint;
use serde_json::{Value, json};

pub type Facts = [(&'static str, String)];

pub fn of(facts: &Facts) -> Value {
    let find = |name: &str| facts.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    let Some(kind) = find("protection") else { return Value::Null };
    let digests = find("HeaderDigest").zip(find("DataDigest"));
    json!({
        "kind": kind,
        "suite": find("suite"),
        "peer": find("peer key"),
        "digests": digests.map(|(header, data)| json!({ "header": header, "data": data })),
    })
}

pub fn of_both(source: &dyn Endpoint, destination: &dyn Endpoint) -> Value {
    both(of(&source.inspect().facts()), of(&destination.inspect().facts()))
}

fn both(source: Value, destination: Value) -> Value {
    match (source.is_null(), destination.is_null()) {
        (true, _) => destination,
        (_, true) => source,
        _ => {
            let weaker = if strength(&destination) < strength(&source) { &destination } else { &source };
            let mut object = weaker.clone();
            object["source"] = source;
            object["destination"] = destination;
            object
        }
    }
}

/// Orders protections by kind, then by the number of digests in use.
fn strength(protection: &Value) -> (usize, usize) {
    let kinds = ["none", "chap", "tls", "seal"];
    let kind = kinds.iter().position(|kind| protection["kind"] == *kind).unwrap_or(0);
    let on = |name: &str| usize::from(protection["digests"][name] == "CRC32C");
    (kind, on("header") + on("data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kind: &str, header: &str) -> Vec<(&'static str, String)> {
        let text = str::to_owned;
        vec![
            ("HeaderDigest", text(header)),
            ("DataDigest", text("None")),
            ("protection", text(kind)),
            ("suite", text("AES-256-GCM")),
            ("peer key", text("K")),
        ]
    }

    #[test]
    fn one_session_has_one_shape() {
        assert_eq!(of(&[("kind", "file".to_owned())]), Value::Null);
        let sealed = json!({
            "kind": "seal", "suite": "AES-256-GCM", "peer": "K", "digests": { "header": "None", "data": "None" },
        });
        assert_eq!(of(&facts("seal", "None")), sealed);
        let nbd = [("protection", "none".to_owned())];
        assert_eq!(of(&nbd), json!({ "kind": "none", "suite": null, "peer": null, "digests": null }));
    }

    #[test]
    fn of_two_sessions_the_weaker_stands_on_top() {
        let (sealed, plain, digest) =
            (of(&facts("seal", "None")), of(&facts("none", "None")), of(&facts("none", "CRC32C")));
        for (source, destination, weaker) in [
            (&sealed, &plain, &plain),
            (&plain, &sealed, &plain),
            (&digest, &plain, &plain),
            (&sealed, &sealed, &sealed),
        ] {
            let object = both(source.clone(), destination.clone());
            assert_eq!((&object["source"], &object["destination"]), (source, destination));
            for name in ["kind", "suite", "peer", "digests"] {
                assert_eq!(object[name], weaker[name]);
            }
        }
        assert_eq!(both(Value::Null, sealed.clone()), sealed);
        assert_eq!(both(sealed.clone(), Value::Null), sealed);
        assert_eq!(both(Value::Null, Value::Null), Value::Null);
    }
}
