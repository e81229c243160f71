//! The units of a task's data being received: which have begun, and how many bytes of each have arrived.

use iscsi::machine::TaskId;
use seal::{Broken, Descriptor};

/// Bound of the units of one task that began in a data segment and did not end in it. Data in order needs one; a target
/// may solicit several sequences at once.
const OPEN_MAX: usize = 4;

/// A unit that is not complete; `start` and `end` are offsets in the task's buffer.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Bytes before this offset have arrived.
    pub(super) arrived: usize,
    pub(super) descriptor: Descriptor,
}

#[derive(Debug, Default)]
struct Track {
    open: Vec<Unit>,
    /// End of the last unit that has begun.
    end: usize,
    /// End of the transfer, known once a short unit has begun.
    last: Option<usize>,
}

/// Indexed by task.
#[derive(Debug, Default)]
pub(super) struct Tracks(Vec<Track>);

impl Tracks {
    fn of(&mut self, task: TaskId) -> &mut Track {
        if self.0.len() <= task.index() {
            self.0.resize_with(task.index() + 1, Track::default);
        }
        &mut self.0[task.index()]
    }

    /// Removes and returns the unit that continues at `offset`.
    pub(super) fn resume(&mut self, task: TaskId, offset: usize) -> Result<Unit, Broken> {
        let open = &mut self.of(task).open;
        let at = open.iter().position(|unit| unit.arrived == offset).ok_or(Broken)?;
        Ok(open.swap_remove(at))
    }

    /// Starts a unit in a segment that ends at `stop`. A short unit is the last of its transfer.
    pub(super) fn begin(
        &mut self,
        task: TaskId,
        unit: &Unit,
        size: usize,
        stop: usize,
    ) -> Result<(), Broken> {
        let track = self.of(task);
        let length = unit.end - unit.start;
        if length == 0 || length > size || track.last.is_some_and(|last| unit.end > last) {
            return Err(Broken);
        }
        track.end = track.end.max(unit.end);
        if length < size {
            if stop > unit.end || track.end > unit.end {
                return Err(Broken);
            }
            track.last = Some(unit.end);
        }
        Ok(())
    }

    pub(super) fn suspend(&mut self, task: TaskId, unit: Unit) -> Result<(), Broken> {
        let open = &mut self.of(task).open;
        if open.len() >= OPEN_MAX {
            return Err(Broken);
        }
        open.push(unit);
        Ok(())
    }

    pub(super) fn end(&mut self, task: TaskId) {
        if let Some(track) = self.0.get_mut(task.index()) {
            track.open.clear();
            (track.end, track.last) = (0, None);
        }
    }

    pub(super) fn is_whole(&self, task: TaskId) -> bool {
        self.0.get(task.index()).is_none_or(|track| track.open.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = TaskId(3);
    const SIZE: usize = 1024;

    fn unit(start: usize, end: usize, arrived: usize) -> Unit {
        Unit { start, end, arrived, descriptor: Descriptor { seal_id: 0, length: 0, tag: [0; 16] } }
    }

    fn begin(tracks: &mut Tracks, start: usize, end: usize, stop: usize) -> Result<(), Broken> {
        tracks.begin(TASK, &unit(start, end, start), SIZE, stop)
    }

    #[test]
    fn a_piece_continues_the_unit_that_ended_there_seal1_5() {
        let mut tracks = Tracks::default();
        assert!(tracks.resume(TASK, 512).is_err(), "no unit at all");
        tracks.suspend(TASK, unit(0, SIZE, 512)).unwrap();
        assert!(tracks.resume(TASK, 511).is_err() && tracks.resume(TASK, 513).is_err());
        assert!(tracks.resume(TaskId(2), 512).is_err(), "of another task");
        assert_eq!(tracks.resume(TASK, 512).unwrap().end, SIZE);
        assert!(tracks.resume(TASK, 512).is_err(), "twice");
    }

    #[test]
    fn a_short_unit_is_the_last_of_its_transfer_seal1_5() {
        let mut tracks = Tracks::default();
        begin(&mut tracks, 0, SIZE, 3000).unwrap();
        assert!(begin(&mut tracks, SIZE, SIZE + 100, 3000).is_err(), "data of the same segment behind it");
        assert!(begin(&mut tracks, SIZE, SIZE, SIZE).is_err(), "nothing");
        assert!(begin(&mut tracks, SIZE, 2 * SIZE + 1, 3000).is_err(), "longer than a unit");
        begin(&mut tracks, SIZE, SIZE + 100, SIZE + 50).unwrap();
        assert!(begin(&mut tracks, 2 * SIZE, 3 * SIZE, 3 * SIZE).is_err(), "another one behind it");
        tracks.end(TASK);
        begin(&mut tracks, 2 * SIZE, 3 * SIZE, 3 * SIZE).unwrap();
        assert!(begin(&mut tracks, SIZE, SIZE + 100, SIZE + 100).is_err(), "before one that was there");
    }

    #[test]
    fn a_task_with_an_open_unit_does_not_end_well_seal1_5() {
        let mut tracks = Tracks::default();
        assert!(tracks.is_whole(TASK), "a task without data");
        for at in 0..OPEN_MAX {
            tracks.suspend(TASK, unit(at * SIZE, (at + 1) * SIZE, at * SIZE + 1)).unwrap();
        }
        assert!(tracks.suspend(TASK, unit(9 * SIZE, 10 * SIZE, 9 * SIZE + 1)).is_err(), "too many");
        assert!(!tracks.is_whole(TASK));
        tracks.end(TASK);
        assert!(tracks.is_whole(TASK), "the next task in this slot");
    }
}
