//! The entropy of handshakes and of exchanges of fresh keys is wiped after use. The test has its own process, because
//! it reads all memory of the process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use hikyaku_seal::{Channel, Enquirer, Head, Identity, Initiator, Responder, Suite, answer_enquiry};
use zeroize::Zeroizing;

/// Opens and takes a control record.
fn take(channel: &mut Channel, wire: &[u8]) {
    let Channel { sealer, opener, renewal, .. } = channel;
    let (prefix, sealed) = wire.split_first_chunk().unwrap();
    let mut head = sealed.to_vec();
    let Head { kind, bytes } = opener.open_head(*prefix, &mut head).unwrap();
    renewal.open(kind, &head[..bytes], sealer, opener, Duration::ZERO).unwrap();
}

/// A byte of artificial entropy that no other test uses.
fn byte(seed: u64, at: usize) -> u8 {
    let word = (seed << 32 | at as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word ^ word >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9).to_be_bytes()[0]
}

/// Entropy on the heap: the caller's frame holds no copy of it.
fn boxed(seed: u64) -> Box<Zeroizing<[u8; 128]>> {
    let mut boxed = Box::new(Zeroizing::new([0; 128]));
    boxed.iter_mut().enumerate().for_each(|(at, place)| *place = byte(seed, at));
    boxed
}

/// Regions of this process's writable memory that hold 16 bytes from the middle of one of the four secrets of this
/// entropy. (X25519 changes the first and last bytes of a scalar.)
fn places(seed: u64) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = Vec::new();
    let file = File::open("/proc/self/mem").unwrap();
    let mut copy = vec![0; 64 << 10];
    let own = copy.as_ptr() as usize..copy.as_ptr() as usize + copy.len();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
        // Chunks overlap by a window.
        for start in (start..end).step_by(copy.len() - 16) {
            let bytes = copy.len().min(end - start);
            let copy = &mut copy[..bytes];
            if file.read_exact_at(copy, start as u64).is_err() {
                continue;
            }
            for secret in (0..128).step_by(32) {
                let is_there = |window: &[u8]| (0..16).all(|at| window[at] == byte(seed, secret + 8 + at));
                let addresses = (start..).zip(copy.windows(16)).filter(|(_, window)| is_there(window));
                let others = addresses.filter(|(address, _)| !own.contains(address));
                found
                    .extend(others.map(|(address, _)| format!("secret at {secret}: {address:#x} of {line}")));
            }
        }
    }
    found
}

#[test]
fn a_whole_handshake_leaves_none_of_its_entropy_in_memory() {
    let here = boxed(1);
    assert_eq!(places(1).len(), 4, "the test looks in the wrong places");
    drop(here);
    let [initiator, target] = [1, 2].map(|byte| Identity::generate([byte; 32]));
    let channels = {
        let (start, m1) =
            Initiator::start(&initiator, target.public(), b"", None, Suite::Aes256Gcm, &boxed(2));
        let responder = Responder::read(&target, b"", &m1).unwrap();
        let (answer, theirs) = responder.finish(None, Suite::Aes256Gcm, &boxed(3)).unwrap();
        (start.finish(&answer).unwrap(), theirs)
    };
    assert_eq!([places(2), places(3)], [Vec::<String>::new(), Vec::new()]);

    let (mut ours, mut theirs) = channels;
    for seed in [4, 5] {
        let (entropy, mut wire) = (boxed(seed), Vec::new());
        let Channel { sealer, opener, renewal, .. } = &mut ours;
        renewal.seal(sealer, opener, entropy.first_chunk().unwrap(), Duration::ZERO, &mut wire).unwrap();
        take(&mut theirs, &wire);
        (ours, theirs) = (theirs, ours);
    }
    assert_eq!([places(4), places(5)], [Vec::<String>::new(), Vec::new()], "fresh keys");

    let (enquirer, message) = Enquirer::start(b"", &boxed(6));
    enquirer.finish(&answer_enquiry(&target, b"", &message, &boxed(7)).unwrap()).unwrap();
    assert_eq!([places(6), places(7)], [Vec::<String>::new(), Vec::new()], "an enquiry");
}
