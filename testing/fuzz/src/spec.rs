//! Parsers of user input: endpoints, URLs, sizes, rates, durations, layers, the configuration of `serve`; and of the
//! signatures on a disk before it is overwritten.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, LazyLock};

use block::layer::{self, FaultRule};
use block::{Medium, NullMedium, Spec, parse_rate, parse_size};
use hikyaku::fuzz::{
    configuration, endpoint, known_targets_read_back, peers, shown, signatures, without_secrets,
};
use host::thin::{self, Pool, Volume};
use node::initiator::{Url, shown_user};

use crate::Source;

static MEDIUM: LazyLock<Arc<dyn Medium>> = LazyLock::new(|| Arc::new(NullMedium::new(1 << 20, false)));

/// The first byte selects the kind of input.
pub fn spec(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    match source.byte() % 4 {
        0 => words(source.rest()),
        1 => serve(source.rest()),
        2 => disk(source),
        _ => assert!(shown(source.u64()).iter().all(|text| text.len() < 40)),
    }
}

fn words(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(size) = parse_size(text) {
        assert_eq!(parse_size(&size.to_string()), Ok(size));
    }
    assert!(parse_rate(text).is_err() || parse_rate(text) >= Ok(1));
    let _ = layer::parse_duration(text);
    let _ = FaultRule::parse(text);
    let _ = (Pool::parse(text), thin::is_delta_sound(text));
    volumes(text);
    if let Ok(spec) = Spec::parse(text) {
        for (name, _) in &spec.options {
            let _ = (spec.flag(name), spec.size(name), spec.rate(name), spec.block_size(name));
        }
        let _ = layer::wrap(&spec, MEDIUM.clone(), &layer::NoKeys);
    }
    let (clean, secrets) = without_secrets(text);
    if secrets.is_empty() {
        assert!(clean == text || text.contains("target_password="));
    }
    assert_eq!(without_secrets(&clean).0, clean, "secrets are left");
    if let Ok(shown) = endpoint(text) {
        assert_eq!(without_secrets(&shown).0, shown, "secrets are left");
    }
    if let Ok(url) = Url::parse(&clean) {
        let shown = url.to_string();
        let again = Url::parse(&shown).expect("an address is shown as one can write it");
        let read = (&again.host, again.port, &again.target, again.lun);
        assert_eq!(read, (&url.host, url.port, &url.target, url.lun));
        let shown = |url: &Url| url.user.as_deref().map(shown_user);
        assert!(again.password.is_none() && shown(&again) == shown(&url));
    }
}

/// Output of the tools for thin volumes: parsed ranges are ordered, do not touch, and lie inside the newer volume.
fn volumes(text: &str) {
    const BLOCK_BYTES: u64 = 64 << 10;
    let _ = Volume::parse(text);
    let new = Volume { size_bytes: 1 << 30, pool: 1, id: 1, has_external_origin: false };
    for size_bytes in [1 << 29, 1 << 31] {
        let old = Volume { size_bytes, id: 2, ..new };
        let Ok(changed) = thin::changed(text.as_bytes(), [&new, &old], BLOCK_BYTES) else { continue };
        assert!(changed.windows(2).all(|two| two[0].end < two[1].start));
        assert!(changed.iter().all(|range| range.start < range.end && range.end <= new.size_bytes));
    }
}

/// A configuration, unless it contains host names: resolving them would query a name server.
fn serve(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    keys(text);
    if let Ok(table) = text.parse::<toml::Table>()
        && names_hosts(&table)
    {
        return;
    }
    match configuration(text) {
        Ok(targets) => {
            assert!(!targets.is_empty());
            for luns in targets {
                assert!(!luns.is_empty() && luns.iter().all(|lun| *lun < 16_384));
                assert!(are_distinct(luns), "a LUN twice");
            }
        }
        Err(defect) => check_defect(text, defect),
    }
}

/// A defect has a place in the text, and a cause.
fn check_defect(text: &str, (line, column, cause): (usize, usize, String)) {
    assert!(line <= text.lines().count().max(1) + 1 && column > 0 && !cause.is_empty());
}

/// Whether no value occurs twice.
fn are_distinct<T: Ord>(mut values: Vec<T>) -> bool {
    values.sort();
    values.windows(2).all(|two| two[0] != two[1])
}

fn keys(text: &str) {
    match peers(text) {
        Ok(names) => {
            assert!(names.iter().all(|name| !name.is_empty()) && are_distinct(names), "a peer twice");
        }
        Err(defect) => check_defect(text, defect),
    }
    assert_ne!(known_targets_read_back(text), Some(false));
}

fn names_hosts(table: &toml::Table) -> bool {
    let is_name = |value: &toml::Value| {
        let text = value.as_str().unwrap_or("0.0.0.0");
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        text.parse::<SocketAddr>().is_err() && bare.parse::<IpAddr>().is_err()
    };
    let list =
        |value: Option<&toml::Value>| value.and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let listen = table.get("server").and_then(|server| server.get("listen"));
    let portals = list(table.get("target")).into_iter().flat_map(|target| list(target.get("portal")));
    let addresses = portals.filter_map(|portal| portal.get("address").cloned());
    list(listen).into_iter().chain(addresses).any(|value| is_name(&value))
}

/// A disk with bytes at the places of signatures.
fn disk(mut source: Source<'_>) {
    let mut head = vec![0; source.pick(&[512, 0, 511, 4096, 70_000, 262_144, 270_000])];
    let mut tail = vec![0; source.pick(&[512, 0, 4096, 70_000, 131_072, 140_000])];
    let size_bytes = source.pick(&[1 << 20, 0, 511, 513, 1 << 40, u64::MAX]);
    let places =
        [0, 3, 54, 82, 446, 510, 512, 536, 1024, 1080, 1116, 4086, 4096, 4120, 8192, 32_769, 65_600, 135_168];
    while !source.is_empty() {
        let place = source.pick(&places) + usize::from(source.byte() % 8) * 8;
        let count = 1 + source.below(32);
        let bytes = source.take(count);
        let end = if source.flag() { &mut head } else { &mut tail };
        let start = if source.flag() { place.min(end.len()) } else { end.len().saturating_sub(place) };
        let count = bytes.len().min(end.len() - start);
        end[start..start + count].copy_from_slice(&bytes[..count]);
    }
    let found = signatures(&head, &tail, size_bytes);
    assert!(found.iter().all(|name| found.iter().filter(|other| other == &name).count() == 1), "{found:?}");
}
