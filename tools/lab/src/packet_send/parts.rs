//! The 14 parts of a send by the names of the paper's Table 3, and how notes become parts.

use inet::step::Step;
use serde::{Deserialize, Serialize};

use super::notes::Note;
use crate::stats::Spread;

/// Who has a part, in the paper's marks: both systems, that of processes (a star), that with one kernel (a circle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Both,
    Processes,
    Kernel,
}

/// A row of Table 3.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) who: Who,
    /// At 256 B, microseconds: AnT, FreeBSD.
    pub(super) paper: [Option<f64>; 2],
}

const fn row(name: &'static str, who: Who, ant: Option<f64>, freebsd: Option<f64>) -> Row {
    Row { name, who, paper: [ant, freebsd] }
}

pub(super) const ROWS: [Row; COUNT] = [
    row("preparing the request to inet", Who::Processes, Some(0.19), None),
    row("request from the application to inet", Who::Processes, Some(5.13), None),
    row("server processing of inet", Who::Processes, Some(0.08), None),
    row("packet creation", Who::Kernel, None, Some(0.94)),
    row("TCP layer", Who::Both, Some(2.67), Some(1.48)),
    row("IP layer", Who::Both, Some(0.53), Some(0.21)),
    row("Ethernet layer", Who::Both, Some(0.14), Some(0.27)),
    row("preparing the request to the driver", Who::Processes, Some(0.13), None),
    row("request from inet to the driver", Who::Processes, Some(6.91), None),
    row("server processing of the driver", Who::Processes, Some(0.04), None),
    row("I/O to the NIC", Who::Both, Some(4.25), Some(1.71)),
    row("preparing the return to the application", Who::Processes, Some(0.20), None),
    row("return from the driver to the application", Who::Processes, Some(3.11), None),
    row("return to the application's program", Who::Both, Some(0.20), Some(1.21)),
];

pub(super) const COUNT: usize = 14;
pub(super) const PREPARE: usize = 0;
pub(super) const TO_INET: usize = 1;
pub(super) const INET: usize = 2;
pub(super) const CREATION: usize = 3;
pub(super) const TCP: usize = 4;
pub(super) const IP: usize = 5;
pub(super) const ETHERNET: usize = 6;
pub(super) const PREPARE_NIC: usize = 7;
pub(super) const TO_NIC: usize = 8;
pub(super) const NIC: usize = 9;
pub(super) const DEVICE: usize = 10;
pub(super) const PREPARE_RETURN: usize = 11;
pub(super) const RETURN: usize = 12;
pub(super) const PROGRAM: usize = 13;
pub(super) const HOPS: [usize; 3] = [TO_INET, TO_NIC, RETURN];

/// The paper's whole sends, microseconds, AnT and FreeBSD, by bytes; and its round trips at 256 B.
pub(super) const PAPER_SENDS: [(usize, [f64; 2]); 4] =
    [(256, [23.58, 5.82]), (512, [24.16, 6.30]), (768, [24.57, 6.73]), (1024, [25.13, 7.23])];
pub(super) const PAPER_ROUND_TRIPS_256: [f64; 2] = [152.82, 122.27];
/// Of the paper's sends: data and control area to `inet`, both to the driver, the control area back.
pub(super) const PAPER_REATTACHMENTS: usize = 5;

/// Medians of the parts of a send, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Parts {
    /// As [`ROWS`]; `None` if they were not seen.
    pub(super) rows: Option<[f64; COUNT]>,
    /// From the call of send until its result is back, without notes.
    pub(super) whole: f64,
    /// From the call until the area is released; 0 for the kernel, which has none.
    pub(super) released: f64,
    /// What a note takes; it is not contained in the rows.
    pub(super) note: f64,
    /// Of the device's part, what the peer's kernel takes to receive the frame within the sender's system call; `None` if
    /// not seen, or where it is no part of the row.
    pub(super) reception_share: Option<f64>,
}

impl Parts {
    pub(super) fn row(&self, row: usize) -> f64 {
        self.rows.map_or(f64::NAN, |rows| rows[row])
    }

    /// The three hops.
    pub(super) fn ipc(&self) -> f64 {
        HOPS.iter().map(|&hop| self.row(hop)).sum()
    }

    /// From the call until the frame has left the sender: the device's part without the peer's reception.
    pub(super) fn handed(&self) -> f64 {
        let reception = self.reception_share.map_or(0.0, |share| share * self.row(DEVICE));
        (PREPARE..=DEVICE).map(|row| self.row(row)).sum::<f64>() - reception
    }

    /// All rows but the hops.
    pub(super) fn without_ipc(&self) -> f64 {
        self.rows.map_or(f64::NAN, |rows| rows.iter().sum::<f64>() - self.ipc())
    }
}

/// The row that a step begins.
fn row_of(step: Step) -> usize {
    match step {
        Step::RequestPublished => TO_INET,
        Step::RequestTaken => INET,
        Step::Tcp | Step::IpDone => TCP,
        Step::Ip | Step::EthernetDone => IP,
        Step::Ethernet => ETHERNET,
        Step::TcpDone => PREPARE_NIC,
        Step::FramePublished => TO_NIC,
        Step::FrameTaken => NIC,
        Step::Device => DEVICE,
        Step::DeviceDone => PREPARE_RETURN,
        Step::Returned => RETURN,
        Step::ReturnTaken => PROGRAM,
    }
}

/// Notes of the application, of `inet` and of the driver.
pub(super) type AllNotes = [Vec<Note>; 3];

/// The rows of each send, microseconds, of which the application noted its begin and end. Sends among whose notes are
/// steps of other work are left out.
pub(super) fn rows_of(sends: &[[u64; 2]], notes: &AllNotes, note_ns: f64) -> Option<[f64; COUNT]> {
    let mut columns: [Vec<f64>; COUNT] = Default::default();
    for &[begin, end] in sends {
        if let Some(rows) = rows_of_one(begin, end, notes, note_ns) {
            for (column, value) in columns.iter_mut().zip(rows) {
                column.push(value / 1e3);
            }
        }
    }
    if columns[PREPARE].is_empty() {
        return None;
    }
    Some(columns.map(|column| Spread::of(column).unwrap_or_default().median))
}

fn rows_of_one(begin: u64, end: u64, notes: &AllNotes, note_ns: f64) -> Option<[f64; COUNT]> {
    // Each process hands on to the next by a visible step: its notes follow those of the one before.
    let order: [(usize, Step, Step); 4] = [
        (0, Step::RequestPublished, Step::RequestPublished),
        (1, Step::RequestTaken, Step::FramePublished),
        (2, Step::FrameTaken, Step::Returned),
        (0, Step::ReturnTaken, Step::ReturnTaken),
    ];
    let mut path = Vec::new();
    let mut at = begin;
    for (process, first, last) in order {
        let all = &notes[process];
        let from = all.partition_point(|note| note.at_ns < at);
        let from = from + all[from..].iter().position(|note| note.step == first)?;
        let to = from + all[from..].iter().position(|note| note.step == last)?;
        path.extend_from_slice(&all[from..=to]);
        at = all[to].at_ns;
    }
    // Frames of a send that needs several repeat these steps; a second request is other work.
    let requests = path.iter().filter(|note| note.step == Step::RequestTaken).count();
    if at > end || requests != 1 {
        return None;
    }
    let mut rows = [0.0; COUNT];
    rows[PREPARE] = path[0].at_ns as f64 - begin as f64;
    let ends = path[1..].iter().map(|note| note.at_ns).chain([end]);
    for (note, end) in path.iter().zip(ends) {
        rows[row_of(note.step)] += (end.saturating_sub(note.at_ns) as f64 - note_ns).max(0.0);
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(steps: &[(Step, u64)]) -> Vec<Note> {
        steps.iter().map(|&(step, at_ns)| Note { step, at_ns }).collect()
    }

    #[test]
    fn parts_follow_the_send_through_the_processes_and_skip_other_work() {
        let application = notes(&[
            (Step::RequestPublished, 1_100),
            (Step::ReturnTaken, 9_000),
            (Step::RequestPublished, 21_000),
        ]);
        let inet = notes(&[
            // An acknowledgement before.
            (Step::Ip, 500),
            (Step::FramePublished, 600),
            (Step::RequestTaken, 2_000),
            (Step::Tcp, 2_100),
            (Step::Ip, 2_400),
            (Step::Ethernet, 2_500),
            (Step::EthernetDone, 2_600),
            (Step::IpDone, 2_700),
            (Step::TcpDone, 2_900),
            (Step::FramePublished, 3_000),
        ]);
        let nic = notes(&[
            (Step::FrameTaken, 4_000),
            (Step::Device, 4_100),
            (Step::DeviceDone, 7_100),
            (Step::Returned, 7_200),
        ]);
        let all = [application, inet, nic];
        let rows = rows_of(&[[1_000, 9_500], [20_000, 30_000]], &all, 10.0).unwrap();
        let expected =
            [0.1, 0.89, 0.09, 0.0, 0.48, 0.18, 0.09, 0.09, 0.99, 0.09, 2.99, 0.09, 1.79, 0.49].map(rounded);
        assert_eq!(rows.map(rounded), expected);
        let parts = Parts { rows: Some(rows), ..Parts::default() };
        assert_eq!(rounded(parts.ipc()), 3.67);
        assert!(rows_of(&[[20_000, 30_000]], &all, 0.0).is_none(), "never taken");
    }

    fn rounded(value: f64) -> f64 {
        (value * 1e3).round() / 1e3
    }

    /// The paper's totals are the sums of its rows.
    #[test]
    fn the_paper_adds_up() {
        for (system, total) in [(0, 23.58), (1, 5.82)] {
            let sum: f64 = ROWS.iter().filter_map(|row| row.paper[system]).sum();
            assert!((sum - total).abs() < 0.02, "{sum} {total}");
        }
    }
}
