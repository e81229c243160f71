//! A path with a rate and a delay between two network namespaces, for kernels without netem: a TUN interface in each,
//! and a thread for each direction that delays every frame. Large frames stay whole (offloads), as on a veth pair.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use harness::process::within;

/// Bytes of the header before each packet: flags, GSO type, header length, GSO size and two checksum offsets (virtio,
/// legacy layout).
const OFFLOAD_HEADER: usize = 10;
const FRAME_BYTES_MAX: usize = OFFLOAD_HEADER + (64 << 10) + 64;
/// Bytes of each segment of a large frame on the wire besides its payload: Ethernet with its gap, and IP and TCP
/// headers.
const ETHERNET_BYTES: usize = 38;
const HEADERS_BYTES: usize = 52;
/// Maximum time that a frame waits for the line; later frames are dropped, as by a router.
const QUEUE_MAX: Duration = Duration::from_millis(50);
/// Longest sleep of a thread, which bounds the time until it ends.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Typical lateness of a wake-up, subtracted from the delay.
const WAKE_UP: Duration = Duration::from_micros(60);

// linux/if_tun.h
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const OFFLOADS: libc::c_ulong = 1 | 2 | 4; // TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6

/// Both directions; dropping it ends them.
#[derive(Debug)]
pub(super) struct DelayLine {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl DelayLine {
    /// Makes the interface `name` in both namespaces. Every frame waits for those before it, then takes `delay`.
    pub(super) fn start(a: &CStr, b: &CStr, name: &str, mbit: u32, delay: Duration) -> Result<Self> {
        let (a, b) = (interface(a, name)?, interface(b, name)?);
        let stop = Arc::new(AtomicBool::new(false));
        let mut line = Self { stop, threads: Vec::new() };
        for (from, to) in [(a.try_clone()?, b.try_clone()?), (b, a)] {
            let stop = Arc::clone(&line.stop);
            let mut direction = Direction {
                from,
                to,
                ns_per_byte: 8e3 / f64::from(mbit),
                delay: delay.saturating_sub(WAKE_UP),
                free: Instant::now(),
                held: VecDeque::new(),
                spare: Vec::new(),
            };
            line.threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    direction.turn();
                }
            }));
        }
        Ok(line)
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Makes a TUN interface in a namespace.
fn interface(namespace: &CStr, name: &str) -> Result<File> {
    within(namespace, || {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open("/dev/net/tun").context("open /dev/net/tun")?;
        // SAFETY: the request is plain data, filled before the kernel reads it; the name is shorter than its field.
        unsafe {
            let mut request: libc::ifreq = std::mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
                *to = from.cast_signed();
            }
            request.ifr_ifru.ifru_flags =
                (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
            if libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) != 0
                || libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, OFFLOADS) != 0
            {
                return Err(std::io::Error::last_os_error()).context("make a TUN interface");
            }
        }
        Ok(file)
    })
}

struct Direction {
    from: File,
    to: File,
    ns_per_byte: f64,
    delay: Duration,
    /// Time at which the line has carried all accepted frames.
    free: Instant,
    /// Accepted frames with their arrival times, in order.
    held: VecDeque<(Instant, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Direction {
    /// Accepts waiting frames, delivers those that are due, and sleeps until the next arrival or delivery.
    fn turn(&mut self) {
        let mut took = true;
        while took {
            took = self.take();
            self.deliver();
        }
        let due = self.held.front().map(|(due, _)| due.saturating_duration_since(Instant::now()));
        let wait = due.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        let mut poll = libc::pollfd { fd: self.from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = libc::timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as libc::c_long };
        // SAFETY: both structures outlive the call.
        unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) };
    }

    /// Accepts one frame; false if none is waiting.
    fn take(&mut self) -> bool {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.resize(FRAME_BYTES_MAX, 0);
        match self.from.read(&mut frame) {
            Ok(length) if length > OFFLOAD_HEADER => {
                frame.truncate(length);
                let now = Instant::now();
                let begins = self.free.max(now);
                if begins - now > QUEUE_MAX {
                    self.spare.push(frame);
                    return true;
                }
                let carried = wire_bytes(&frame) as f64 * self.ns_per_byte;
                self.free = begins + Duration::from_nanos(carried as u64);
                self.held.push_back((self.free + self.delay, frame));
                true
            }
            _ => {
                self.spare.push(frame);
                false
            }
        }
    }

    fn deliver(&mut self) {
        let now = Instant::now();
        while self.held.front().is_some_and(|(due, _)| *due <= now) {
            let (_, frame) = self.held.pop_front().expect("just looked at");
            while let Err(error) = self.to.write(&frame) {
                // A frame with any other error is lost.
                if error.kind() != ErrorKind::Interrupted {
                    break;
                }
            }
            self.spare.push(frame);
        }
    }
}

/// Bytes of a frame on the wire, after segmentation of a large one.
fn wire_bytes(frame: &[u8]) -> usize {
    let packet = frame.len() - OFFLOAD_HEADER;
    let (kind, size) = (frame[1] & 0x7f, usize::from(u16::from_le_bytes([frame[4], frame[5]])));
    let segments =
        if kind == 0 || size == 0 { 1 } else { packet.saturating_sub(HEADERS_BYTES).div_ceil(size).max(1) };
    packet + (segments - 1) * HEADERS_BYTES + segments * ETHERNET_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_frame_pays_for_its_segments() {
        let mut frame = vec![0; OFFLOAD_HEADER + 1500];
        assert_eq!(wire_bytes(&frame), 1538);
        frame.resize(OFFLOAD_HEADER + HEADERS_BYTES + 3 * 1448, 0);
        frame[1] = 1;
        frame[4..6].copy_from_slice(&1448_u16.to_le_bytes());
        assert_eq!(wire_bytes(&frame), 3 * 1538);
    }
}
