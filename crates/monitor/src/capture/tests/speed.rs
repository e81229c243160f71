//! Measures the reader: `cargo test --release -p hikyaku-monitor --lib -- --ignored --nocapture capture_speed`.

use std::io::{self, Read};
use std::time::Instant;

use super::build::{Stamped, ethernet, ipv4, pcap, pcapng, tcp};
use crate::capture::Reader;

/// A file that is repeated from its byte `from` on, without a copy of it all in memory.
struct Repeated {
    file: Vec<u8>,
    from: usize,
    at: usize,
    times: u32,
}

impl Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.file.len() && self.times > 0 {
            self.times -= 1;
            self.at = self.from;
        }
        let count = buffer.len().min(self.file.len() - self.at);
        buffer[..count].copy_from_slice(&self.file[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
#[ignore = "measures time; run by hand, in release"]
fn capture_speed() {
    let stamps = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let frame = |payload: usize| ethernet(0x0800, &ipv4(&[], 6, &tcp(&stamps, &vec![7; payload])));
    let cells = [("headers, 96 of 1514 bytes", 1448, 96, 4000), ("whole, 1514 bytes", 1448, 65_536, 1000)];
    let cells = cells.into_iter().chain([("whole, 64 KiB", 65_483, 262_144, 30)]);
    for (name, payload, snap, times) in cells {
        let frames = vec![Stamped::whole(1, frame(payload)).cut(snap); 1000];
        for (format, file) in [("pcap", pcap(false, false, 1, &frames)), ("pcapng", pcapng(1, &frames))] {
            let from = if format == "pcap" { 24 } else { 28 + 44 };
            let bytes = (file.len() - from) as f64 * f64::from(times);
            let started = Instant::now();
            let mut reader = Reader::new(Repeated { at: 0, file, from, times: times - 1 }).unwrap();
            let mut sum = 0;
            while let Some(packet) = reader.next().unwrap() {
                sum += u64::from(packet.payload_bytes) + packet.payload.len() as u64;
            }
            let seconds = started.elapsed().as_secs_f64();
            assert_eq!(reader.counts().tcp, 1000 * u64::from(times), "{:?} {sum}", reader.notes());
            println!(
                "{format}, {name}: {:.1} million packets/s, {:.2} GB/s",
                reader.counts().tcp as f64 / seconds / 1e6,
                bytes / seconds / 1e9
            );
        }
    }
}
