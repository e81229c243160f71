//! The test vectors of `vectors/seal1.json`: this code generates them, and rejects the failing ones. `vectors/check.py`
//! verifies them with an independent implementation. To rewrite them:
//! `SEAL_VECTORS=write cargo test -p hikyaku-seal vectors`.

mod failing;
mod make;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::suites::hex;
use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

fn to_hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn field(value: &Value, name: &str) -> Vec<u8> {
    hex(value[name].as_str().unwrap_or_else(|| panic!("no {name}")))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no {name}"))
}

fn made() -> Value {
    serde_json::json!({
        "protocol": "SEAL/1",
        "handshakes": make::handshakes(),
        "enquiries": [make::enquiry()],
        "streams": make::streams(),
        "failing_streams": failing::streams(),
        "failing_handshakes": failing::handshakes(),
    })
}

/// One line for each vector: lines are short enough to compare, and the file stays small.
fn text(vectors: &Value) -> String {
    let mut text = String::from("{\n");
    let map = vectors.as_object().unwrap();
    for (n, (name, value)) in map.iter().enumerate() {
        let lines = match value.as_array() {
            None => value.to_string(),
            Some(items) => {
                let items: Vec<_> = items.iter().map(Value::to_string).collect();
                format!("[\n{}\n]", items.join(",\n"))
            }
        };
        text += &format!("\"{name}\": {lines}{}\n", if n + 1 < map.len() { "," } else { "" });
    }
    text + "}\n"
}

fn stored() -> Value {
    let path = folder().join("seal1.json");
    serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

#[test]
fn vectors_are_what_this_code_makes() {
    let made = made();
    if std::env::var_os("SEAL_VECTORS").is_some_and(|value| value == "write") {
        let text = text(&made);
        assert!(text.len() < 600_000, "{} bytes", text.len());
        std::fs::write(folder().join("seal1.json"), text).unwrap();
    }
    // Compares values, not text: the order of keys in the text depends on the features of other crates in the build.
    let stored = stored();
    for (name, ours) in made.as_object().unwrap() {
        let message = "the format has changed: that is another version of the protocol, or a mistake";
        match (ours, &stored[name]) {
            (Value::Array(ours), Value::Array(theirs)) => {
                assert_eq!(ours.len(), theirs.len(), "{name}: {message}");
                for (ours, theirs) in ours.iter().zip(theirs) {
                    assert_eq!(ours, theirs, "{name}: {message}");
                }
            }
            (ours, theirs) => assert_eq!(ours, theirs, "{name}: {message}"),
        }
    }
    assert_eq!(made.as_object().unwrap().len(), stored.as_object().unwrap().len());
}

fn handshake<'a>(vectors: &'a Value, name: &Value) -> &'a Value {
    list(vectors, "handshakes")
        .iter()
        .find(|handshake| handshake["name"] == *name)
        .expect("a handshake of that name")
}

/// Receives the records of a stream with no input but the vector.
struct Receiver<'a> {
    channel: Channel,
    is_target: bool,
    exchanges: std::slice::Iter<'a, Value>,
}

impl<'a> Receiver<'a> {
    fn new(vectors: &'a Value, stream: &Value) -> Self {
        let handshake = handshake(vectors, &stream["handshake"]);
        let is_target = stream["from"] == "initiator";
        let (initiator, answer, target) = make::replay(handshake).unwrap();
        assert_eq!(answer, field(handshake, "answer"));
        let channel = if is_target { target } else { initiator };
        Self { channel, is_target, exchanges: list(handshake, "exchanges").iter() }
    }

    fn seal(&mut self, exchange: &Value) -> Result<(), Broken> {
        let entropy = make::entropy_of(exchange, self.is_target);
        let Channel { sealer, opener, renewal, .. } = &mut self.channel;
        renewal.seal(sealer, opener, &entropy, Duration::ZERO, &mut Vec::new())
    }

    /// Opens a head; on failure returns the failed part. The receiver answers an offer, and makes the offer before it
    /// takes the answer, unless the vector is marked `alone`.
    fn open_head(&mut self, value: &Value) -> Result<Vec<u8>, &'static str> {
        let Sealed { prefix, mut head, .. } = record(value);
        let kind = prefix[2] >> 3;
        let exchange = (kind > 0 && value["alone"] != true).then(|| self.exchanges.next().unwrap());
        if let Some(exchange) = exchange.filter(|_| !self.is_target) {
            self.seal(exchange).unwrap();
        }
        let Channel { sealer, opener, renewal, .. } = &mut self.channel;
        opener.sealed_head_bytes(prefix).map_err(|_| "head")?;
        let Head { kind, bytes } = opener.open_head(prefix, &mut head).map_err(|_| "head")?;
        head.truncate(bytes);
        if kind != Kind::Pdu {
            renewal.open(kind, &head, sealer, opener, Duration::ZERO).map_err(|_| "control")?;
            if let Some(exchange) = exchange.filter(|_| self.is_target) {
                self.seal(exchange).map_err(|_| "control")?;
            }
        }
        Ok(head)
    }

    /// Opens a record; returns head and units, or on failure the failed part.
    fn open(&mut self, value: &Value) -> Result<(Vec<u8>, Vec<Vec<u8>>), &'static str> {
        let head = self.open_head(value)?;
        let mut units = record(value).units;
        if !units.is_empty() {
            let (_, descriptors) = parse_head(&head).unwrap();
            for (descriptor, unit) in descriptors.zip(&mut units) {
                self.channel.opener.open_unit(&descriptor, unit).map_err(|_| "unit")?;
            }
        }
        Ok((head, units))
    }
}

fn record(value: &Value) -> Sealed {
    Sealed {
        prefix: field(value, "prefix").try_into().unwrap(),
        head: field(value, "head"),
        units: list(value, "units").iter().map(|unit| hex(unit.as_str().unwrap())).collect(),
    }
}

#[test]
fn stored_streams_open() {
    let vectors = stored();
    for stream in list(&vectors, "streams") {
        let mut receiver = Receiver::new(&vectors, stream);
        for value in list(stream, "records") {
            let (head, units) = receiver.open(value).unwrap();
            if value["message"].is_string() {
                assert_eq!(head, field(value, "message"));
                continue;
            }
            assert_eq!(parse_head(&head).unwrap().0, field(value, "header"));
            let plains = list(value, "plains").iter().map(|plain| plain.as_str().unwrap());
            assert!(units.iter().map(to_hex).eq(plains));
        }
        assert_eq!(receiver.channel.opener.generation(), 2);
    }
}

#[test]
fn stored_failing_streams_fail_at_their_last_record() {
    let vectors = stored();
    for stream in list(&vectors, "failing_streams") {
        let mut receiver = Receiver::new(&vectors, stream);
        let (last, before) = list(stream, "records").split_last().unwrap();
        for value in before {
            receiver.open(value).unwrap_or_else(|_| panic!("{}", stream["defect"]));
        }
        let failed = receiver.open(last).map(|_| ());
        assert_eq!(failed, Err(stream["fails"].as_str().unwrap()), "{}", stream["defect"]);
    }
}

#[test]
fn stored_failing_handshakes_fail() {
    let vectors = stored();
    for failing in list(&vectors, "failing_handshakes") {
        assert!(failing::is_refused(&vectors, failing), "{}", failing["defect"]);
    }
}

/// Debian's python3 has the module after `cargo xtask test` installed it; another python3 may precede it in the path.
/// If neither has the module the test fails; it is not skipped.
#[test]
fn an_independent_decoder_agrees() {
    let imports = |python: &&str| {
        Command::new(python)
            .args(["-c", "import cryptography"])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let python = ["python3", "/usr/bin/python3"].into_iter().find(imports);
    let python =
        python.expect("check.py needs python3-cryptography: apt-get install -y python3-cryptography");
    let output = Command::new(python).arg(folder().join("check.py")).arg("--self-test").output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success(), "{said}");
}
