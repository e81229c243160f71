//! The journal of a copy, written by anybody: with a checksum that is right, so that everything behind it is reached.

use block::Fingerprint;
use mover::{Label, Map, Mapfile, Status};

use crate::{Source, heap};

const HEAP_MAX: usize = 1 << 20;
const CHECKSUM: &str = "# blake3: ";

/// Runs bytes as they are, or a map of ours that somebody has altered.
pub fn mapfile(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    heap::within(HEAP_MAX, || {
        if source.byte() % 4 == 3 {
            read(source.rest());
            return;
        }
        let written = ours(&mut source);
        let text = written.emit();
        assert_eq!(Mapfile::parse(text.as_bytes()).as_ref(), Ok(&written), "what is written can be read");
        let body = text.rfind(CHECKSUM).expect("it has a checksum");
        let mut body = text.as_bytes()[..body].to_vec();
        while !source.is_empty() {
            let (at, byte) = (source.below(body.len().max(1)), source.byte());
            match source.byte() % 4 {
                0 => body.insert(at, byte),
                1 => drop((!body.is_empty()).then(|| body.remove(at))),
                _ => body.iter_mut().skip(at).take(1).for_each(|place| *place = byte),
            }
        }
        read(&body);
    });
}

/// As it is, and with a checksum behind it.
fn read(body: &[u8]) {
    let _ = Mapfile::parse(body);
    let text = [body, format!("{CHECKSUM}{}\n", blake3::hash(body)).as_bytes()].concat();
    let Ok(read) = Mapfile::parse(&text) else { return };
    assert_eq!(read.map.size(), read.label.bytes);
    let mut at = 0;
    for stretch in read.map.stretches() {
        assert!(stretch.start == at && stretch.end > at, "{stretch:?}");
        at = stretch.end;
    }
    assert_eq!(at, read.label.bytes);
    let again = Mapfile::parse(read.emit().as_bytes());
    assert_eq!(again, Ok(read));
}

fn ours(source: &mut Source<'_>) -> Mapfile {
    let bytes = 1 + u64::from(source.number());
    let mut map = Map::new(bytes);
    for _ in 0..source.below(8) {
        let (one, two) = (u64::from(source.number()) % bytes, u64::from(source.number()) % bytes);
        map.set(one.min(two), one.max(two), source.pick(&Status::ALL));
    }
    let words = String::from_utf8_lossy(source.take(5)).into_owned();
    let was = Fingerprint { storage: words.clone(), contents: String::new() };
    let label = Label {
        source: words,
        src_offset: source.u32().into(),
        dst_offset: source.u32().into(),
        bytes,
        chunk: source.number(),
        source_was: was,
        ..Label::default()
    };
    Mapfile { label, map }
}
