//! The SCSI commands of one thread in flight.

use std::io::{Error, Result};

use io::Handle;

use super::answer::{Answer, judge};
use super::command::command;
use super::header::{FLAG_DIRECT_IO, Header, SENSE_BYTES};
use crate::disk_command::{DiskCommand, Verb};
use crate::endpoint::{Channel, Ended};
use crate::flights::{Flight, Flights, drain};

/// Most commands that sg accepts on one descriptor, `SG_MAX_QUEUE` of drivers/scsi/sg.c.
pub(crate) const QUEUE_MAX: u32 = 16;

struct Kept {
    /// Bytes of its data whose transfer is reported; 0 for WRITE SAME, which counts blocks.
    counted: u32,
    /// Memory for the sense data, written by the kernel.
    sense: Box<[u8; SENSE_BYTES]>,
}

pub(crate) struct SgChannel {
    device: Handle,
    long: bool,
    flights: Flights<Kept>,
}

impl SgChannel {
    /// `device` must not be shared: results are returned to the descriptor on which the command was written.
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

    fn start(&mut self, slot: u32, disk_command: &DiskCommand) -> Result<()> {
        let number = self.flights.number();
        let command = command(disk_command, self.long);
        let mut sense = Box::new([0; SENSE_BYTES]);
        let data = disk_command.data.as_ref();
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
        // SAFETY: `flights` keeps the span and the sense buffer until the result is taken, or leaks them.
        unsafe { header.start(&self.device)? };
        let counted = if matches!(disk_command.verb, Verb::Read | Verb::Write { .. }) { bytes.1 } else { 0 };
        let flight = Flight { slot, span: disk_command.data.clone(), with: Kept { counted, sense } };
        self.flights.begin(number, disk_command.verb, flight);
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
        // A residual above the length or below zero is invalid: then no byte counts as transferred.
        let missing = u32::try_from(header.residual).unwrap_or(u32::MAX).min(counted);
        Ok(Some((slot, Ended { verdict, moved: counted - missing })))
    }

    fn in_flight(&self) -> u32 {
        self.flights.count()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        // The parameter of the kernel module applies to all sg devices.
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
