//! Protection that was requested but negotiated away by one flipped bit; commands of odd lengths.

mod target;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::files::empty_file;
use crate::tap::{Middle, Tap, Way};
use crate::{Cases, Context, Disk, Output, Target, scratch};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 8 << 20;

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    initiator(context, cases);
    target::examine(context, cases);
}

/// One bit of one direction: in the first occurrence of `text`, on each connection.
#[derive(Clone, Copy, Debug)]
struct Flip {
    text: &'static str,
    byte: usize,
    mask: u8,
    way: Way,
}

/// A bit of the offer's value, of its name, and of the answer's value.
const FLIPS: &[(&str, Flip)] = &[
    ("value", Flip { text: "DataDigest=CRC32C", byte: 16, mask: 0x01, way: Way::ToTarget }),
    ("name", Flip { text: "DataDigest=", byte: 9, mask: 0x01, way: Way::ToTarget }),
    ("header", Flip { text: "HeaderDigest=", byte: 11, mask: 0x02, way: Way::ToTarget }),
    ("answer", Flip { text: "DataDigest=", byte: 0, mask: 0x04, way: Way::ToInitiator }),
];

/// Login PDUs are short and arrive as a whole on loopback, so each read is searched by itself.
struct Flipper {
    flip: Option<Flip>,
    flips: Arc<AtomicUsize>,
}

impl Middle for Flipper {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(bytes);
        if let Some(wanted) = self.flip.filter(|flip| flip.way == way)
            && let Some(at) = bytes.windows(wanted.text.len()).position(|here| here == wanted.text.as_bytes())
        {
            out[at + wanted.byte] ^= wanted.mask;
            self.flips.fetch_add(1, Ordering::Relaxed);
            self.flip = None;
        }
        true
    }
}

/// A relay to `target` that flips one bit on each connection, and the count of flips.
fn relay(target: &Target, flip: Flip) -> Result<(Tap, Arc<AtomicUsize>)> {
    let count = Arc::<AtomicUsize>::default();
    let flips = Arc::clone(&count);
    let flipper =
        move |_| -> Box<dyn Middle> { Box::new(Flipper { flip: Some(flip), flips: Arc::clone(&flips) }) };
    Ok((Tap::start(target.url(0).port()?, Box::new(flipper))?, count))
}

fn initiator(context: &Context, cases: &mut Cases) {
    let copy = |endpoint: &str| -> Result<Output> {
        context.ours(&["copy", "pattern:1M", endpoint, "--force", "--json"], LIMIT)
    };
    for (name, flip) in FLIPS {
        cases.check(&format!("asked-digests-flipped-{name}"), || {
            let dir = scratch()?;
            let file = empty_file(dir.path().join("disk.img"), BYTES)?;
            let target = Target::serve(context, &[Disk::file(&file)], None, &[])?;
            let (tap, flips) = relay(&target, *flip)?;
            let asked = "?header_digest=crc32c&data_digest=crc32c";
            let output = copy(&format!("{}{asked}", target.url(0).at(&tap.portal())))?;
            ensure!(flips.load(Ordering::Relaxed) > 0, "nothing was flipped");
            let cause = output.expect(4)?.json_error()?["cause"].to_string();
            ensure!(cause.contains("Diges"), "{cause}");
            // If only the target considers the login complete, no command follows.
            let is_empty = std::fs::read(&file)?.iter().all(|byte| *byte == 0);
            demand!(is_empty, "data went out without the digests asked for")
        });
    }
    cases.check("asked-digests-are-told", || {
        let target = Target::serve(context, &[Disk::endpoint("mem:8M")], None, &[])?;
        let url = target.url(0).to_string();
        for (asked, header, data) in [
            ("?header_digest=crc32c&data_digest=crc32c", "CRC32C", "CRC32C"),
            ("?data_digest=prefer", "None", "CRC32C"),
            ("?header_digest=none&data_digest=none", "None", "None"),
            // A listener on loopback does not require digests.
            ("", "None", "None"),
        ] {
            let protection = copy(&format!("{url}{asked}"))?.success()?.json()?["protection"].clone();
            let digests = &protection["digests"];
            ensure!(protection["kind"] == "none", "{asked}: {protection}");
            ensure!(digests["header"] == header && digests["data"] == data, "{asked}: {protection}");
        }
        context.ours(&["info", &format!("{url}?data_digest=crc")], LIMIT)?.expect(2).map(drop)
    });
    cases.check("asked-digests-preferred-may-be-missing", || {
        let target = Target::serve(context, &[Disk::endpoint("mem:8M")], None, &[])?;
        // The list `CRC32C,None` without its first value.
        let (tap, flips) = relay(&target, FLIPS[0].1)?;
        let output = copy(&format!("{}?data_digest=prefer", target.url(0).at(&tap.portal())))?.success()?;
        ensure!(flips.load(Ordering::Relaxed) > 0, "nothing was flipped");
        let protection = output.json()?["protection"].clone();
        demand!(protection["digests"]["data"] == "None", "{protection}")
    });
}
