//! Journals and manifests of copies with any content, and with a correct checksum, so that the code behind the check is
//! reached.

use block::Fingerprint;
use mover::{
    Content, EXTENT_BYTES_MIN, EXTENTS_MAX, Label, Manifest, Map, Mapfile, Origin, Status, Sum, Sums,
};

use crate::{Source, heap};

const HEAP_MAX: usize = 1 << 20;
const CHECKSUM: &str = "# blake3: ";

/// Parses arbitrary bytes, or an altered file of this program.
pub fn mapfile(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    heap::within(HEAP_MAX, || match source.byte() % 8 {
        3 => read_map(source.rest()),
        7 => read_manifest(source.rest()),
        0..=2 => {
            let written = our_map(&mut source);
            let text = written.emit();
            assert_eq!(Mapfile::parse(text.as_bytes()).as_ref(), Ok(&written), "what is written can be read");
            read_map(&altered(&text, &mut source));
        }
        _ => {
            let written = our_manifest(&mut source);
            let text = written.emit();
            let read = Manifest::parse(text.as_bytes());
            assert_eq!(read.as_ref(), Ok(&written), "what is written can be read");
            read_manifest(&altered(&text, &mut source));
        }
    });
}

/// An altered file without its checksum.
fn altered(text: &str, source: &mut Source<'_>) -> Vec<u8> {
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
    body
}

/// Parses a body as it is, and with a correct checksum appended.
fn read_map(body: &[u8]) {
    let _ = Mapfile::parse(body);
    let text = [body, format!("{CHECKSUM}{}\n", blake3::hash(body)).as_bytes()].concat();
    let Ok(read) = Mapfile::parse(&text) else { return };
    assert_eq!(read.map.size(), read.label.bytes);
    let mut at = 0;
    for entry in read.map.entries() {
        assert!(entry.start == at && entry.end > at, "{entry:?}");
        at = entry.end;
    }
    assert_eq!(at, read.label.bytes);
    let again = Mapfile::parse(read.emit().as_bytes());
    assert_eq!(again, Ok(read));
}

fn our_map(source: &mut Source<'_>) -> Mapfile {
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
    let origin = source.byte().is_multiple_of(2).then(|| Origin {
        directory: String::from_utf8_lossy(source.take(3)).into_owned(),
        command: String::from_utf8_lossy(source.take(5)).into_owned(),
        part: String::new(),
    });
    Mapfile { label, origin, map }
}

fn read_manifest(body: &[u8]) {
    let _ = Manifest::parse(body);
    let text = [body, format!("{CHECKSUM}{}\n", blake3::hash(body)).as_bytes()].concat();
    let Ok(read) = Manifest::parse(&text) else { return };
    let (total, extent, mut at) = (read.sums.total(), read.sums.extent(), 0);
    assert_eq!(total, read.label.bytes);
    assert!(extent.is_power_of_two() && extent >= EXTENT_BYTES_MIN && read.sums.extents() <= EXTENTS_MAX);
    for Sum { offset, bytes, content } in read.sums.sums() {
        assert!(*offset == at && at.is_multiple_of(extent) && *bytes > 0, "{offset}+{bytes}");
        assert!(*bytes <= extent || !matches!(content, Content::Data(_)), "{offset}+{bytes}");
        at += bytes;
    }
    assert_eq!(at, total);
    let values = read.sums.sums().iter().all(|sum| sum.content.value().is_some());
    assert_eq!(read.sums.blake3().is_some(), values, "a hash of the whole where there are all of its parts");
    let again = Manifest::parse(read.emit().as_bytes());
    assert_eq!(again, Ok(read));
}

fn our_manifest(source: &mut Source<'_>) -> Manifest {
    let extent = EXTENT_BYTES_MIN << source.below(12);
    let total = u64::from(source.number()) % (16 * extent);
    let (mut sums, mut at) = (Vec::new(), 0);
    while at < total {
        let value = [source.byte(); 32];
        let choices =
            [Content::Data(value), Content::Zero(Some(value)), Content::Zero(None), Content::Unknown];
        let content = source.pick(&choices);
        let mut bytes = extent << source.below(3);
        let several = at.is_multiple_of(bytes) && bytes <= total - at && bytes < total;
        if matches!(content, Content::Data(_)) || !several {
            bytes = extent.min(total - at);
        }
        sums.push(Sum { offset: at, bytes, content });
        at += bytes;
    }
    let sums = Sums::new(total, extent, sums).expect("they tile the range");
    let label = Label { src_offset: source.u32().into(), bytes: total, ..Label::default() };
    Manifest { label, sums }
}
