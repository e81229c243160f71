//! A header as the owner of the storage can write it: its JSON changed, the checksums right.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Bytes of one copy, binary header and JSON, in a header of the default size.
const COPY_BYTES: usize = 16 << 10;
/// Where the copies begin.
pub(super) const COPIES: [u64; 2] = [0, COPY_BYTES as u64];
const BINARY_BYTES: usize = 4096;
/// Of SHA-256, in its field of 64 bytes.
const CHECKSUM: std::ops::Range<usize> = 448..512;

/// Changes the JSON of both copies of the header in `path`.
pub(super) fn edit(path: &Path, change: impl Fn(&mut Value)) -> Result<()> {
    edit_text(path, |text| {
        let mut value = serde_json::from_str(text)?;
        change(&mut value);
        Ok(value.to_string())
    })
}

/// [`edit`], of the JSON as text.
pub(super) fn edit_text(path: &Path, change: impl Fn(&str) -> Result<String>) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    for copy in COPIES {
        let mut bytes = vec![0; COPY_BYTES];
        file.read_exact_at(&mut bytes, copy)?;
        let (binary, json) = bytes.split_at_mut(BINARY_BYTES);
        let end = json.iter().position(|byte| *byte == 0).context("JSON ends with NUL")?;
        let text = change(std::str::from_utf8(&json[..end])?)?;
        ensure!(text.len() < json.len(), "the JSON has no room for the change");
        json.fill(0);
        json[..text.len()].copy_from_slice(text.as_bytes());
        binary[CHECKSUM].fill(0);
        let sum = Sha256::digest(&bytes);
        bytes[CHECKSUM][..sum.len()].copy_from_slice(&sum);
        file.write_all_at(&bytes, copy)?;
    }
    Ok(())
}
