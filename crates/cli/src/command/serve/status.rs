//! The status of a server as JSON: counters since its start, from which a client computes rates.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use node::target::{Class, LunStatus, NextIdentity, ServerStatus, SessionStatus, UsageStatus};
use serde_json::{Map, Value, json};

use crate::trust::fingerprint;

pub(super) fn json(status: &ServerStatus, file: Option<&Path>, since: SystemTime) -> Value {
    json!({
        "command": "serve",
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "since_unix_s": unix_seconds(since),
        "configuration": file.map(|file| file.display().to_string()),
        "listen": status.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "seal": status.sealing.name(),
        "public_key": status.key.map(|key| key.to_string()),
        "next_key": status.next_key.as_deref().map(next_key),
        "draining": status.draining,
        "connections": status.connections,
        "connections_refused": status.refused,
        "sessions": status.sessions.iter().map(session).collect::<Vec<_>>(),
        "luns": status.luns.iter().map(lun).collect::<Vec<_>>(),
    })
}

fn next_key(next: &NextIdentity) -> Value {
    json!({
        "public_key": next.key().to_string(),
        "fingerprint": fingerprint(&next.key()),
        "since_unix_s": unix_seconds(next.since()),
        "sealed_logins": next.logins(),
    })
}

pub(super) fn unix_seconds(moment: SystemTime) -> u64 {
    moment.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn session(session: &SessionStatus) -> Value {
    let about = &session.about;
    let keys: Map<String, Value> =
        about.keys.iter().map(|(key, value)| ((*key).into(), json!(value))).collect();
    let luns = about.luns.iter().map(|(lun, read_only)| json!({ "lun": lun, "read_only": read_only }));
    let mut object = json!({
        "tsih": session.tsih,
        "initiator": session.initiator,
        "target": session.target,
        "peer": session.peer.to_string(),
        "chap_user": about.chap_user,
        "key_name": about.listed_as,
        "key": session.peer_key.map(|key| key.to_string()),
        "protection": { "kind": about.protection, "suite": about.suite },
        "keys": keys,
        "luns": luns.collect::<Vec<_>>(),
        "since_unix_s": about.since.map(unix_seconds),
    });
    add(&mut object, &session.usage);
    object
}

fn lun(lun: &LunStatus) -> Value {
    let mut object = json!({
        "target": lun.target,
        "lun": lun.lun,
        "storage": lun.storage,
        "size_bytes": lun.size_bytes,
        "block_size": lun.block_size,
        "read_only": lun.read_only,
        "state": lun.state.name(),
    });
    add(&mut object, &lun.usage);
    object
}

/// Adds the counters: of commands, of bytes, and of service times by upper bounds of intervals in microseconds.
fn add(object: &mut Value, usage: &UsageStatus) {
    let by_class = |value: &dyn Fn(usize) -> Value| -> Value {
        Class::ALL
            .iter()
            .map(|class| (class.name().to_owned(), value(*class as usize)))
            .collect::<Map<_, _>>()
            .into()
    };
    let counters = json!({
        "commands": by_class(&|class| usage.commands[class].into()),
        "bytes": by_class(&|class| usage.bytes[class].into()),
        "errors": usage.errors,
        "retries_requested": usage.refused,
        "times_us": by_class(&|class| json!(usage.times_us[class])),
    });
    let fields = counters.as_object().cloned().unwrap_or_default();
    object.as_object_mut().expect("an object").extend(fields);
}
