//! A send of the kernel, taken apart as far as its trace points allow: packet creation, TCP and IP layer lie between two
//! of them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::kernel::Socket;
use super::notes::now_ns;
use super::parts::{COUNT, CREATION, DEVICE, ETHERNET, PROGRAM, Parts};
use super::peer::Task;
use super::tracefs::{Event, Trace};
use super::waiting::{Waiting, pin};
use crate::part::{Orders, send};
use crate::stats::Spread;
use crate::wan_write::enter;
use crate::{Attempted, LabError};

/// In their order in one send, but for the return.
const EVENTS: [&str; 5] = [
    "syscalls/sys_enter_sendto",
    "syscalls/sys_exit_sendto",
    "net/net_dev_queue",
    "net/net_dev_start_xmit",
    "net/net_dev_xmit",
];
/// Entry and return of send(2), which have one name in text.
const CALL: &str = "sys_sendto";

/// The role: sends one at a time, each after the answer to the last, first without and then with trace points.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KernelStages {
    pub(super) namespace: PathBuf,
    pub(super) peer: SocketAddr,
    pub(super) cpu: Option<usize>,
    pub(super) bytes: usize,
    /// Of each kind.
    pub(super) count: usize,
}

impl KernelStages {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        enter(&self.namespace)?;
        pin(self.cpu);
        send(&self.measure().attempted("send one at a time")?)?;
        orders.serve(|_| Ok(()))
    }

    fn measure(&self) -> io::Result<Parts> {
        let mut socket = Socket::new(std::net::TcpStream::connect(self.peer)?, Waiting::Spin)?;
        let warm = self.count / 4;
        let task = Task::Echo { bytes: self.bytes as u32, count: (warm + 2 * self.count) as u32 };
        socket.send_all(&task.encode(Waiting::Spin))?;
        let buffer = vec![7; self.bytes];
        self.one_by_one(&mut socket, &buffer, warm)?;
        let whole = self.one_by_one(&mut socket, &buffer, self.count)?;
        let trace = Trace::start(&EVENTS);
        let traced = self.one_by_one(&mut socket, &buffer, self.count)?;
        socket.finish()?;
        let mut parts = Parts { whole, ..Parts::default() };
        // Without the right to trace the total is all there is.
        if let Ok(events) = trace.and_then(Trace::finish) {
            let (rows, events) = rows_of(&events);
            parts.note = (traced - whole).max(0.0) / events;
            parts.rows = rows.map(|mut rows| {
                for (row, count) in [(CREATION, 1.0), (ETHERNET, 1.0), (DEVICE, 1.0), (PROGRAM, 1.0)] {
                    rows[row] = (rows[row] - count * parts.note).max(0.0);
                }
                rows
            });
        }
        Ok(parts)
    }

    /// The median of the calls, microseconds.
    fn one_by_one(&self, socket: &mut Socket, buffer: &[u8], count: usize) -> io::Result<f64> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let begin = now_ns();
            socket.send_all(buffer)?;
            times.push((now_ns() - begin) as f64 / 1e3);
            socket.receive_all(&mut [0])?;
        }
        Ok(Spread::of(times).unwrap_or_default().median)
    }
}

/// Medians of the rows of all calls, microseconds, each with the cost of its events in it; and events of a call.
fn rows_of(events: &[Event]) -> (Option<[f64; COUNT]>, f64) {
    let mut columns: [Vec<f64>; COUNT] = Default::default();
    let mut counts = Vec::new();
    let mut call: Option<(Vec<f64>, f64, usize)> = None;
    for event in events {
        let row = match (event.name.as_str(), &call) {
            (CALL, None) => {
                call = Some((vec![0.0; COUNT], event.at_ns, 1));
                continue;
            }
            // What lies behind a frame that was handed over is the next frame's, or the return.
            (CALL, Some(_)) => PROGRAM,
            ("net_dev_queue", _) => CREATION,
            ("net_dev_start_xmit", _) => ETHERNET,
            ("net_dev_xmit", _) => DEVICE,
            _ => continue,
        };
        let Some((rows, last, count)) = &mut call else { continue };
        rows[row] += (event.at_ns - *last) / 1e3;
        (*last, *count) = (event.at_ns, *count + 1);
        if row == PROGRAM {
            counts.push(*count as f64);
            for (column, value) in columns.iter_mut().zip(rows.iter()) {
                column.push(*value);
            }
            call = None;
        }
    }
    let median = |column: Vec<f64>| Spread::of(column).unwrap_or_default().median;
    let events = median(counts).max(1.0);
    ((!columns[PROGRAM].is_empty()).then(|| columns.map(median)), events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_divided_at_its_trace_points() {
        let times = [(CALL, 0.0), ("net_dev_queue", 2000.0), ("net_dev_start_xmit", 2100.0)]
            .into_iter()
            .chain([("net_dev_xmit", 2500.0), (CALL, 4000.0), (CALL, 9000.0), ("net_dev_queue", 9100.0)]);
        let events: Vec<_> = times.map(|(name, at_ns)| Event { name: name.to_owned(), at_ns }).collect();
        let (rows, count) = rows_of(&events);
        let rows = rows.unwrap();
        assert_eq!([rows[CREATION], rows[ETHERNET], rows[DEVICE], rows[PROGRAM]], [2.0, 0.1, 0.4, 1.5]);
        assert_eq!(count, 5.0);
        assert!(rows_of(&events[5..]).0.is_none(), "a call that did not return");
    }
}
