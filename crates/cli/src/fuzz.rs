//! Entry points for the fuzzer: parsers of user input and of disk content.

use host::signature::{self, Parts};

use crate::command::serve::{heritage, metrics};
use crate::config::{Config, position};
use crate::context::Context;
use crate::control::Request;
use crate::endpoint::{LUN_OPTIONS, Named};
use crate::secret::take_url_secrets;
use crate::trust::{known, peers};
use crate::units;

/// Parses a configuration of `serve`: the LUNs of each target, or the line, column and text of the error.
pub fn configuration(text: &str) -> Result<Vec<Vec<u16>>, (usize, usize, String)> {
    let config = Config::parse(&Context::default(), text).map_err(|(range, cause)| {
        let (line, column) = position(text, range.start);
        (line, column, cause)
    })?;
    let luns = |target: &crate::config::Target| target.luns.iter().map(|lun| lun.lun).collect();
    Ok(config.targets.iter().map(luns).collect())
}

/// Parses a peers file: the names, or the line, column and text of the error.
pub fn peers(text: &str) -> Result<Vec<String>, (usize, usize, String)> {
    peers::names(text).map_err(|(range, cause)| {
        let (line, column) = position(text, range.start);
        (line, column, cause)
    })
}

/// Whether lines of known targets, formatted again, parse to the same; `None` if they do not parse.
pub fn known_targets_read_back(text: &str) -> Option<bool> {
    known::reads_back(text)
}

/// Parses an endpoint of `serve`: its text without secrets, or the error.
pub fn endpoint(words: &str) -> Result<String, String> {
    let named = Named::parse(&Context::default(), words, LUN_OPTIONS);
    named.map(|named| named.text).map_err(|failure| failure.to_string())
}

/// An endpoint's text without the passwords of its URL, and the passwords.
pub fn without_secrets(words: &str) -> (String, Vec<String>) {
    let (text, secrets) = take_url_secrets(words);
    let taken = [secrets.password, secrets.target_password];
    (text, taken.iter().flatten().map(|password| password.text().to_owned()).collect())
}

/// Signatures on a disk of this size with these first and last bytes.
pub fn signatures(head: &[u8], tail: &[u8], size_bytes: u64) -> Vec<&'static str> {
    let parts = [(0, head), (size_bytes.saturating_sub(tail.len() as u64), tail)];
    signature::probe(&Parts { parts: &parts, size_bytes })
}

/// The answer to a request at the control socket, as text: the request as it was understood, or the error.
pub fn control_request(line: &[u8]) -> Result<String, String> {
    Request::parse(line).map(|request| format!("{request:?}"))
}

/// The response to the bytes of a request for metrics of an idle server with a token.
pub fn metrics_response(request: &[u8]) -> String {
    metrics::fuzzed(request)
}

/// The ports that an earlier process has left in these bytes.
pub fn heritage(bytes: &[u8]) -> Option<usize> {
    heritage::parse(bytes).ok().map(|ports| ports.len())
}

pub fn shown(number: u64) -> [String; 3] {
    let duration = std::time::Duration::from_nanos(number);
    [units::bytes(number), units::rate(number as f64), units::duration(duration)]
}
