//! Commands of one thread, in flight at a SCSI disk.

use std::io::{Error, Result};

use io::Handle;

use super::answer::{Answer, judge};
use super::command::command;
use super::header::{FLAG_DIRECT_IO, Header, SENSE_BYTES};
use crate::endpoint::{Channel, Ended};
use crate::flights::{Flight, Flights, drain};
use crate::step::{Step, Verb};

/// Commands that sg takes of one descriptor, `SG_MAX_QUEUE` of drivers/scsi/sg.c.
pub(crate) const QUEUE_MAX: u32 = 16;

/// What is kept of a command in flight.
struct Kept {
    /// Bytes of its data that count: none of a command that names blocks.
    counted: u32,
    /// Where the kernel puts sense data.
    sense: Box<[u8; SENSE_BYTES]>,
}

/// A descriptor of `/dev/sg0`.
pub(crate) struct SgChannel {
    device: Handle,
    long: bool,
    flights: Flights<Kept>,
}

impl SgChannel {
    /// Over a descriptor of its own: answers go to the descriptor that the command came by.
    pub(crate) fn new(device: Handle, long: bool) -> Self {
        Self { device, long, flights: Flights::new(QUEUE_MAX) }
    }
}

impl Channel for SgChannel {
    fn handle(&self) -> &Handle {
        &self.device
    }

    fn has_room(&self) -> bool {
        self.flights.has_room()
    }

    fn start(&mut self, slot: u32, step: &Step) -> Result<()> {
        let number = self.flights.number();
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
        header.pack_id = number as i32;
        header.flags |= FLAG_DIRECT_IO;
        // SAFETY: the span and the sense buffer are kept in `flights` until the answer is taken, or forever.
        unsafe { header.start(&self.device)? };
        let counted = if matches!(step.verb, Verb::Read | Verb::Write { .. }) { bytes.1 } else { 0 };
        let flight = Flight { slot, span: step.data.clone(), with: Kept { counted, sense } };
        self.flights.begin(number, step.verb, flight);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn take(&mut self) -> Result<Option<(u32, Ended)>> {
        let Some(header) = Header::take(&self.device)? else { return Ok(None) };
        let flight = usize::try_from(header.pack_id).ok().and_then(|number| self.flights.end(number));
        let Some(Flight { slot, with: Kept { counted, sense }, .. }) = flight else {
            return Err(Error::other(format!(
                "sg answers a command {} that it was not given",
                header.pack_id
            )));
        };
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
        self.flights.count()
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

impl Drop for SgChannel {
    fn drop(&mut self) {
        drain(self);
    }
}
