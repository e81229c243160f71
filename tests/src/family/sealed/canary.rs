//! Searches transferred bytes for stored data and SCSI names: data that consists of one marker is written, read and
//! discovered. The search covers every byte through a relay, and every packet of the loopback interface where capture
//! is permitted. The same search over plain sessions finds everything, which proves that it can fail.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::estate::{Estate, LIMIT, PRODUCT};
use crate::capture::Capture;
use crate::files::empty_file;
use crate::process::Surroundings;
use crate::tap::{Tap, Way};
use crate::{Cases, Context, Scene, Target};
use steps::is_root;

const BYTES: usize = 4 << 20;
const MARKER: &[u8; 16] = b"k\xe5Gr\x91-fv\x0b~WQ\xc3s%J";
/// Bytes of a shifted form that identify it: a random match has probability 2^-64 at each place.
const WINDOW: usize = 8;
const SUITES: [&str; 4] = ["AES-256-GCM", "AEGIS-256X4", "AEGIS-128X2", "ChaCha20-Poly1305"];
const WORDS: [&str; 4] = [PRODUCT, "SendTargets", "MaxRecvDataSegmentLength", "TargetAddress"];
/// Delay until the last packets are captured.
const LAST_PACKETS: Duration = Duration::from_millis(100);

fn found(bytes: &[u8], words: &[&str]) -> Vec<String> {
    let doubled = [&MARKER[..], &MARKER[..]].concat();
    let forms = doubled.windows(WINDOW).take(MARKER.len()).map(|form| (form, "the marker"));
    let needles: Vec<(&[u8], &str)> =
        forms.chain(words.iter().map(|word| (word.as_bytes(), *word))).collect();
    // A table of two-byte prefixes excludes nearly every place.
    let pair = |bytes: &[u8]| usize::from(bytes[0]) << 8 | usize::from(bytes[1]);
    let mut begins = vec![false; 1 << 16];
    needles.iter().for_each(|(needle, _)| begins[pair(needle)] = true);
    let mut found = BTreeMap::new();
    for at in 0..bytes.len().saturating_sub(1) {
        if begins[pair(&bytes[at..])] {
            for (_, name) in needles.iter().filter(|(needle, _)| bytes[at..].starts_with(needle)) {
                found.entry(*name).or_insert(at);
            }
        }
    }
    found.into_iter().map(|(name, at)| format!("{name}, at {at}")).collect()
}

/// Writes the data, reads it back, compares, and runs `info` and discovery. Returns the forbidden contents found by the
/// relay and the capture.
fn listen(
    context: &Context,
    estate: &Estate,
    target: &Target,
    suite: Option<&str>,
) -> Result<(Vec<String>, usize)> {
    let dir = estate.dir.path();
    let (source, back) = (dir.join("marked.img"), empty_file(dir.join("back.img"), BYTES as u64)?);
    std::fs::write(&source, MARKER.repeat(BYTES / MARKER.len()))?;
    let port = target.url(0).port()?;
    let capture = if is_root() { Some(Capture::start(port)?) } else { None };
    let tap = Tap::passive(port)?;
    let endpoint = match suite {
        Some(suite) => estate.endpoint(target, &tap.portal(), &estate.friend, &format!(",suite={suite}")),
        None => Estate::plain(target, &tap.portal()),
    };
    let [from, to] = [&source, &back].map(|path| path.display().to_string());
    let ours = |arguments: &[&str]| context.ours(arguments, LIMIT)?.success();
    ours(&["copy", "--verify", "--force", &from, &endpoint])?;
    ours(&["copy", "--force", &endpoint, &to])?;
    ensure!(std::fs::read(&back)? == std::fs::read(&source)?, "what comes back differs");
    ours(&["info", &endpoint])?;
    let portal = endpoint.replacen(&format!("/{}/0", target.url(0).iqn), "", 1);
    let listed = ours(&["ls", &portal])?;
    ensure!(listed.stdout.contains(&target.url(0).iqn), "it lists: {listed}");

    let mut result = Vec::new();
    let mut volume = 0;
    for conversation in tap.conversations() {
        for way in Way::BOTH {
            volume += conversation.sent(way).len();
            let of = found(conversation.sent(way), &WORDS);
            result.extend(of.into_iter().map(|what| format!("{what}, {way:?}, by the relay")));
        }
    }
    ensure!(volume > 3 * BYTES, "the relay saw {volume} bytes only");
    if let Some(capture) = capture {
        std::thread::sleep(LAST_PACKETS);
        let captured = capture.finish()?;
        let bytes: usize = captured.sent.iter().map(Vec::len).sum();
        ensure!(captured.dropped == 0, "the capture missed {} packets", captured.dropped);
        ensure!(bytes > 3 * BYTES, "the capture has {bytes} bytes only");
        for sent in &captured.sent {
            result.extend(found(sent, &WORDS).into_iter().map(|what| format!("{what}, on lo")));
        }
        volume += bytes;
    }
    Ok((result, volume))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let estate = Scene::new(|| Estate::new(context, BYTES as u64));
    let mut volume = 0;
    let target = Scene::new(|| estate.get()?.serve(context, "require"));
    for suite in SUITES {
        cases.check_some(("suites", 2), &format!("canary-{suite}"), || {
            let (found, bytes) = listen(context, estate.get()?, target.get()?, Some(suite))?;
            volume += bytes;
            demand!(found.is_empty(), "readable on the way: {found:#?}")
        });
    }
    drop(target);
    cases.check("canary-portable", || {
        let estate = estate.get()?;
        let portable = Surroundings::variable("HIKYAKU_IO", "portable");
        let target = estate.serve_in(context, "require", &portable)?;
        let (found, _) = listen(context, estate, &target, Some(SUITES[0]))?;
        demand!(found.is_empty(), "readable on the way: {found:#?}")
    });
    cases.check("canary-control-sings-in-the-clear", || {
        let estate = estate.get()?;
        let target = estate.serve(context, "off")?;
        let (found, _) = listen(context, estate, &target, None)?;
        let places = if is_root() { ["by the relay", "on lo"].as_slice() } else { &["by the relay"] };
        for place in places {
            for what in ["the marker"].into_iter().chain(WORDS) {
                let is_found = found.iter().any(|line| line.starts_with(what) && line.ends_with(place));
                ensure!(is_found, "{what} was not found {place}: {found:#?}");
            }
        }
        Ok(())
    });
    if !is_root() {
        cases.note("not root: the loopback interface was not listened to, the relay only");
    }
    cases.fact("bytes_searched", volume);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_is_found_in_any_shift() {
        let stream = MARKER.repeat(2);
        for start in 0..MARKER.len() {
            assert_eq!(found(&stream[start..start + WINDOW], &[]).len(), 1);
        }
        let mut other = stream;
        other.iter_mut().for_each(|byte| *byte ^= 1);
        assert!(found(&other, &["word"]).is_empty());
        assert_eq!(found(b"a word", &["word"]), ["word, at 2"]);
    }
}
