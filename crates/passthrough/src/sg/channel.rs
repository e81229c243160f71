//! Commands of one thread, in flight at a SCSI disk.

use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use area::{Access, Span};
use io::Handle;

use super::answer::{Answer, judge};
use super::command::command;
use super::header::{Direction, FLAG_DIRECT_IO, Header, SENSE_BYTES};
use crate::endpoint::{Channel, Ended};
use crate::step::{Step, Verb};

/// Commands that sg takes of one descriptor, `SG_MAX_QUEUE` of drivers/scsi/sg.c.
pub(crate) const QUEUE_MAX: u32 = 16;
/// How long the end of a channel waits for its commands.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

/// What a command in flight uses.
struct Flight {
    slot: u32,
    /// Of a read and a write; zeroes that are written by name are the disk's own business how often.
    span: Option<Span>,
    /// Bytes of it that count: none of a command that names blocks.
    counted: u32,
    /// Where the kernel puts sense data.
    sense: Box<[u8; SENSE_BYTES]>,
}

/// A descriptor of `/dev/sg0`.
pub(crate) struct SgChannel {
    device: Handle,
    long: bool,
    flights: Vec<Option<Flight>>,
    in_flight: u32,
}

impl SgChannel {
    /// Over a descriptor of its own: answers go to the descriptor that the command came by.
    pub(crate) fn new(device: Handle, long: bool) -> Self {
        let flights = (0..QUEUE_MAX).map(|_| None).collect();
        Self { device, long, flights, in_flight: 0 }
    }
}

impl Channel for SgChannel {
    fn handle(&self) -> &Handle {
        &self.device
    }

    fn has_room(&self) -> bool {
        self.in_flight < QUEUE_MAX
    }

    fn start(&mut self, slot: u32, step: &Step) -> Result<()> {
        let place = self.flights.iter().position(Option::is_none).expect("asked for room before");
        let command = command(step, self.long);
        let mut sense = Box::new([0; SENSE_BYTES]);
        let data = step.data.as_ref();
        let bytes = data.map_or((std::ptr::null_mut(), 0), |span| (span.as_ptr(), span.len() as u32));
        let mut header = Header::new(
            command.cdb.as_bytes(),
            command.direction,
            bytes,
            &raw mut *sense,
            command.timeout_ms,
        );
        header.pack_id = place as i32;
        header.flags |= FLAG_DIRECT_IO;
        // SAFETY: the span and the sense buffer are kept in `flights` until the answer is taken, or forever.
        unsafe { header.start(&self.device)? };
        if let Some(span) = data {
            span.begin_flight(access(command.direction));
        }
        let counted = if matches!(step.verb, Verb::Read | Verb::Write { .. }) { bytes.1 } else { 0 };
        self.flights[place] = Some(Flight { slot, span: step.data.clone(), counted, sense });
        self.in_flight += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn take(&mut self) -> Result<Option<(u32, Ended)>> {
        let Some(header) = Header::take(&self.device)? else { return Ok(None) };
        let flight =
            usize::try_from(header.pack_id).ok().and_then(|place| self.flights.get_mut(place)?.take());
        let Some(Flight { slot, span, counted, sense }) = flight else {
            return Err(Error::other(format!(
                "sg answers a command {} that it was not given",
                header.pack_id
            )));
        };
        self.in_flight -= 1;
        if let Some(span) = &span {
            span.end_flight();
        }
        let verdict = judge(&Answer {
            status: header.status,
            host: header.host_status,
            driver: header.driver_status,
            sense: &sense[..usize::from(header.sense_length).min(SENSE_BYTES)],
        });
        // More missing than was asked for, or less than nothing, is a device that cannot count: believe none of it.
        let missing = u32::try_from(header.residual).unwrap_or(u32::MAX).min(counted);
        Ok(Some((slot, Ended { verdict, moved: counted - missing })))
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        // The parameter is the kernel's, for all sg devices.
        let parameter = std::fs::read_to_string("/sys/module/sg/parameters/allow_dio").unwrap_or_default();
        let path = match parameter.trim() {
            "1" => "straight to and from the disk",
            _ => "copied by the kernel: echo 1 > /sys/module/sg/parameters/allow_dio",
        };
        vec![("data", path.into())]
    }
}

fn access(direction: Direction) -> Access {
    if direction == Direction::FromDevice { Access::Write } else { Access::Read }
}

impl Drop for SgChannel {
    /// Waits for what is in flight. What does not end is leaked: the disk may write there at any time.
    fn drop(&mut self) {
        let until = Instant::now() + DROP_PATIENCE;
        while self.in_flight > 0 && Instant::now() < until {
            let mut about = libc::pollfd { fd: self.device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live pollfd.
            unsafe { libc::poll(&raw mut about, 1, 100) };
            if self.take().is_err() {
                break;
            }
        }
        self.flights.drain(..).for_each(std::mem::forget);
    }
}
