//! Protection that was requested but negotiated away by one flipped bit; commands of odd lengths.

mod target;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::files::empty_file;
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
    /// Flips a bit of the target's data, not of the initiator's.
    answers: bool,
}

/// A bit of the offer's value, of its name, and of the answer's value.
const FLIPS: &[(&str, Flip)] = &[
    ("value", Flip { text: "DataDigest=CRC32C", byte: 16, mask: 0x01, answers: false }),
    ("name", Flip { text: "DataDigest=", byte: 9, mask: 0x01, answers: false }),
    ("header", Flip { text: "HeaderDigest=", byte: 11, mask: 0x02, answers: false }),
    ("answer", Flip { text: "DataDigest=", byte: 0, mask: 0x04, answers: true }),
];

/// A relay to `port` that flips one bit on each connection. Returns the relay's port and the count of flips.
fn relay(port: u16, flip: Flip) -> Result<(u16, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let (own, count) = (listener.local_addr()?.port(), Arc::<AtomicUsize>::default());
    let flips = Arc::clone(&count);
    // The thread ends with this process: a blocked accept costs nothing.
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { continue };
            for (from, to, flipped) in [(near, far, !flip.answers), (far_too, near_too, flip.answers)] {
                let flips = Arc::clone(&flips);
                std::thread::spawn(move || pass(from, to, flipped.then_some(flip), &flips));
            }
        }
    });
    Ok((own, count))
}

/// Login PDUs are short and arrive as a whole on loopback, so each read is searched by itself.
fn pass(mut from: TcpStream, mut to: TcpStream, mut flip: Option<Flip>, flips: &AtomicUsize) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..count];
        if let Some(wanted) = flip
            && let Some(at) = bytes.windows(wanted.text.len()).position(|here| here == wanted.text.as_bytes())
        {
            bytes[at + wanted.byte] ^= wanted.mask;
            flips.fetch_add(1, Ordering::Relaxed);
            flip = None;
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn object(text: &str) -> Result<Value> {
    serde_json::from_str(text.lines().last().context("no output")?).context("no JSON")
}

fn initiator(context: &Context, cases: &mut Cases) {
    let copy = |endpoint: &str| -> Result<Output> {
        context.ours(&["copy", "pattern:1M", endpoint, "--force", "--json"], LIMIT)
    };
    for (name, flip) in FLIPS {
        cases.check(&format!("asked-digests-flipped-{name}"), || {
            let dir = scratch()?;
            let file = dir.path().join("disk.img");
            empty_file(&file, BYTES)?;
            let target = Target::serve(context, &[Disk::file(&file)], None, &[])?;
            let url = target.url(0);
            let (port, flips) = relay(url.port()?, *flip)?;
            let asked = "?header_digest=crc32c&data_digest=crc32c";
            let output = copy(&format!("iscsi://127.0.0.1:{port}/{}/0{asked}", url.iqn))?;
            ensure!(flips.load(Ordering::Relaxed) > 0, "nothing was flipped");
            let output = output.expect(4)?;
            let cause = object(&output.stderr)?["error"]["cause"].to_string();
            ensure!(cause.contains("Diges"), "{cause}");
            // If only the target considers the login complete, no command follows.
            ensure!(
                std::fs::read(&file)?.iter().all(|byte| *byte == 0),
                "data went out without the digests asked for"
            );
            Ok(())
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
            let output = copy(&format!("{url}{asked}"))?.success()?;
            let protection = object(&output.stdout)?["protection"].clone();
            let digests = &protection["digests"];
            ensure!(protection["kind"] == "none", "{asked}: {protection}");
            ensure!(digests["header"] == header && digests["data"] == data, "{asked}: {protection}");
        }
        context.ours(&["info", &format!("{url}?data_digest=crc")], LIMIT)?.expect(2)?;
        Ok(())
    });
    cases.check("asked-digests-preferred-may-be-missing", || {
        let target = Target::serve(context, &[Disk::endpoint("mem:8M")], None, &[])?;
        let url = target.url(0);
        // The list `CRC32C,None` without its first value.
        let flip = Flip { text: "DataDigest=CRC32C", byte: 16, mask: 0x01, answers: false };
        let (port, flips) = relay(url.port()?, flip)?;
        let output =
            copy(&format!("iscsi://127.0.0.1:{port}/{}/0?data_digest=prefer", url.iqn))?.success()?;
        ensure!(flips.load(Ordering::Relaxed) > 0, "nothing was flipped");
        let protection = object(&output.stdout)?["protection"].clone();
        ensure!(protection["digests"]["data"] == "None", "{protection}");
        Ok(())
    });
}
