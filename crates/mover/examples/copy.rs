//! Copies one file or device to another with the crate `mover`: prints progress on stderr, finishes requests in flight
//! and flushes on Ctrl-C, and verifies the destination.
//!
//!     cargo run --release -p hikyaku-mover --example copy -- disk.img new.img,create,size=64M
//!
//! Exit codes: 0 success, 1 failure, 2 usage, 130 interrupted.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{OpenOptions, Spec};
use io::Io;
use mover::{Control, CopyError, Plan, Progress, Report};

/// One copy from beginning to end. `stop` is read five times a second.
fn copy(source: &str, destination: &str, stop: &AtomicBool) -> Result<Report, Box<dyn Error>> {
    // A file, a device, `mem:1G`, `pattern:1G`, also with layers such as `limit=100MB/s`. The crate `node` opens LUNs
    // and `nbd` opens exports; all else stays the same.
    let reading = OpenOptions { writable: false, request_alignment: 4096, allow_in_use: false };
    let writing = OpenOptions { writable: true, ..reading };
    let source = block::open(&Spec::parse(source)?, &reading)?;
    let destination = block::open(&Spec::parse(destination)?, &writing)?;

    // The loop belongs to this thread, and while the copy runs, to the copy.
    let mut io = Io::new(area::PoolLimits::default())?;
    let mut from = source.attach(&mut io)?;
    let mut to = destination.attach(&mut io)?;
    // Local storage is ready immediately; remote storage is still connecting.
    block::wait_ready(&mut io, &mut [&mut *from, &mut *to])?;

    let plan = Plan { verify: true, ..Plan::default() };
    let mut observer = |now: &Progress| {
        let percent = 100.0 * now.bytes as f64 / now.total.max(1) as f64;
        eprintln!("{:?}: {percent:.0} %, {:.0} MB/s", now.phase, now.rate_now as f64 / 1e6);
        if stop.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
    };
    let report = mover::copy(&mut io, &mut *from, &mut *to, &plan, &mut observer);
    block::close_all(&mut io, &mut [&mut *from, &mut *to]);
    Ok(report?)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [source, destination] = &words[..] else {
        eprintln!("usage: copy SOURCE DESTINATION");
        return ExitCode::from(2);
    };
    let stop = Arc::new(AtomicBool::new(false));
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop)) {
        eprintln!("listen for Ctrl-C: {error}");
        return ExitCode::FAILURE;
    }
    match copy(source, destination, &stop) {
        Ok(report) => {
            let rate = report.bytes as f64 / 1e6 / report.seconds.max(1e-9);
            println!(
                "{} bytes in {:.2} s, {rate:.0} MB/s, limited by {}; read back and compared",
                report.bytes,
                report.seconds,
                report.limited_by.name()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            let interrupted =
                matches!(error.downcast_ref::<CopyError>(), Some(CopyError::Interrupted { .. }));
            ExitCode::from(if interrupted { 130 } else { 1 })
        }
    }
}
