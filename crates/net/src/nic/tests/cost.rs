//! What a turn costs.

use std::os::fd::AsRawFd as _;
use std::time::Instant;

use super::frames::{ACK, Flow, Tcp, V4};
use super::kernel::{in_namespace, ip};
use super::*;
use crate::nic::tap;

/// Frames of one turn.
const FRAMES: u32 = 16;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median of 9 runs, nanoseconds. Without optimisation it is no measurement: only that it runs.
fn time(rounds: u32, mut work: impl FnMut() -> Duration) -> f64 {
    let rounds = if cfg!(debug_assertions) { rounds / 100 } else { rounds };
    let runs =
        (0..9).map(|_| (0..rounds).map(|_| work()).sum::<Duration>().as_nanos() as f64 / f64::from(rounds));
    median(runs.collect())
}

fn measured(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

#[test]
#[ignore = "needs root, prints a measurement: cargo test --release -p hikyaku-net --lib cost_of_a_turn -- --ignored --nocapture"]
fn cost_of_a_turn() {
    in_namespace(|| {
        let opened = tap::open("hk0").unwrap();
        ip("link set dev hk0 address 02:00:00:00:00:02");
        let raw = opened.descriptor.try_clone().unwrap();
        let device = Device::new(opened.descriptor, &control::Device::Tap, opened.mtu);
        let mut rig = Rig::new();
        let mut driver = rig.driver(device, 1);
        rig.fill(1, &(0..16).collect::<Vec<_>>(), &(0..12).collect::<Vec<_>>());
        settle(&mut driver);
        // Another station's address: the kernel drops the frames when it reads the IP header.
        let flow = Flow { destination_mac: [2, 0, 0, 0, 0, 9], ..V4 };
        let tcp = Tcp { flags: ACK, options: &[1; 12], ..Tcp::default() };
        let clock = time(10_000, || measured(|| ()));
        println!("(a look at the clock: {clock:.0} ns, taken off)");
        for (payload, segment_bytes, rounds) in [(256, 0, 20_000), (65_160, 1448, 2_000)] {
            let header = flow.tcp([80, 4000], &tcp, payload);
            let transmit = Transmit {
                checksum_start: 34,
                checksum_offset: 16,
                segment_bytes,
                client: CLIENT,
                ..plain(&[(0, payload as u32)])
            };
            rig.submit(&header, transmit);
            settle(&mut driver);
            let mut turn = |count: u32| {
                time(rounds, || {
                    for _ in 0..count {
                        rig.submit(&header, transmit);
                    }
                    let took = measured(|| assert!(driver.turn().unwrap()));
                    while rig.returned().is_some() {}
                    while let Some(input) = rig.input() {
                        rig.fill(1, &[input.head], &[]);
                    }
                    took
                }) - clock
            };
            let (one, batch) = (turn(1), turn(FRAMES) / f64::from(FRAMES));
            // The same system call alone: virtio_net_hdr, headers, payload.
            let mut vnet = [0u8; 10];
            vnet[0] = 1;
            (vnet[6], vnet[8]) = (34, 16);
            if segment_bytes > 0 {
                (vnet[1], vnet[2]) = (1, header.len() as u8);
                vnet[4..6].copy_from_slice(&segment_bytes.to_ne_bytes());
            }
            let vectors = [
                libc::iovec { iov_base: vnet.as_ptr().cast_mut().cast(), iov_len: vnet.len() },
                libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: header.len() },
                libc::iovec { iov_base: rig.region.as_ptr().cast(), iov_len: payload },
            ];
            let write = time(rounds, || {
                measured(|| {
                    for _ in 0..FRAMES {
                        // SAFETY: the kernel reads from live memory.
                        let count = unsafe { libc::writev(raw.as_raw_fd(), vectors.as_ptr(), 3) };
                        assert!(count > 0);
                    }
                })
            }) / f64::from(FRAMES);
            println!(
                "{payload:6} B: a turn with one frame {one:.0} ns; a frame of {FRAMES} {batch:.0} ns, of which writev {write:.0} ns"
            );
        }
        let idle = time(1_000, || {
            measured(|| {
                for _ in 0..100 {
                    driver.turn().unwrap();
                }
            })
        }) / 100.0;
        let mut room = [0u8; 4096];
        let vectors: [libc::iovec; 3] = std::array::from_fn(|at| libc::iovec {
            iov_base: room[at * 1000..].as_mut_ptr().cast(),
            iov_len: 1000,
        });
        let read = time(1_000, || {
            measured(|| {
                for _ in 0..100 {
                    // SAFETY: the kernel would write to `room`.
                    let count = unsafe { libc::readv(raw.as_raw_fd(), vectors.as_ptr(), 3) };
                    assert_eq!(count, -1);
                }
            })
        }) / 100.0;
        let null = time(1_000, || {
            measured(|| {
                for _ in 0..100 {
                    // SAFETY: a system call without arguments.
                    unsafe { libc::syscall(libc::SYS_getppid) };
                }
            })
        }) / 100.0;
        println!(
            "an idle turn: {idle:.0} ns, of which readv {read:.0} ns (a system call that does nothing: {null:.0} ns)"
        );
        let counts = driver.counts();
        assert_eq!((counts.bad_frames, counts.refused, counts.busy), (0, 0, 0));
    });
}
