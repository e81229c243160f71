//! A way in for the fuzzer, to what reads a user's words and a disk's bytes.

use block::signature::{self, Ends, HEAD_BYTES, TAIL_BYTES};

use crate::config::{Config, position};
use crate::context::Context;
use crate::endpoint::{LUN_OPTIONS, Named};
use crate::secret::take_url_secrets;
use crate::trust::{known, peers};
use crate::units;

/// The configuration of `serve`: LUNs by target, or what is wrong in which line and column.
pub fn configuration(text: &str) -> Result<Vec<Vec<u16>>, (usize, usize, String)> {
    let config = Config::parse(&Context::default(), text).map_err(|(range, cause)| {
        let (line, column) = position(text, range.start);
        (line, column, cause)
    })?;
    let luns = |target: &crate::config::Target| target.luns.iter().map(|lun| lun.lun).collect();
    Ok(config.targets.iter().map(luns).collect())
}

/// The names of a peers file, or what is wrong in which line and column.
pub fn peers(text: &str) -> Result<Vec<String>, (usize, usize, String)> {
    peers::names(text).map_err(|(range, cause)| {
        let (line, column) = position(text, range.start);
        (line, column, cause)
    })
}

/// Whether lines of known targets, written again, read the same; `None` if they are none.
pub fn known_targets_read_back(text: &str) -> Option<bool> {
    known::reads_back(text)
}

/// An endpoint as `serve` takes it: its words without secrets, or what is wrong with them.
pub fn endpoint(words: &str) -> Result<String, String> {
    let named = Named::parse(&Context::default(), words, LUN_OPTIONS);
    named.map(|named| named.text).map_err(|failure| failure.to_string())
}

/// The words of an endpoint without the passwords of its URL, and those.
pub fn without_secrets(words: &str) -> (String, Vec<String>) {
    let (text, secrets) = take_url_secrets(words);
    let taken = [secrets.password, secrets.target_password];
    (text, taken.iter().flatten().map(|password| password.text().to_owned()).collect())
}

/// What a disk of this size holds whose ends begin and end with these bytes.
pub fn signatures(head: &[u8], tail: &[u8], size_bytes: u64) -> Vec<&'static str> {
    let head = &head[..head.len().min(HEAD_BYTES)];
    let tail = &tail[tail.len() - tail.len().min(TAIL_BYTES)..];
    signature::probe(&Ends { head, tail, size_bytes })
}

/// Figures as people read them.
pub fn shown(number: u64) -> [String; 3] {
    let duration = std::time::Duration::from_nanos(number);
    [units::bytes(number), units::rate(number as f64), units::duration(duration)]
}
