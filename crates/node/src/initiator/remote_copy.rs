//! Third-party copy: the target copies between two of its LUNs (SPC-4 5.17); no payload passes through this host.
//!
//! Blocking, on a session of its own. Commands run one at a time, each for about a second, so that progress and
//! interruption work as in other copies. A command without a response may still run after the session is lost, so it
//! ends the copy ([`RemoteCopyError::Lost`]). After an error response no command is running, and the caller may copy by
//! other means ([`RemoteCopyError::Refused`]).

use std::time::Duration;

use block::{IoError, IoErrorKind, OpenError};
use io::Io;
use scsi::capacity::Capacity;
use scsi::cdb;
use scsi::copy::{CopyList, CopyParameters, Cscd, Segment};
use scsi::inquiry::{self, Association, DesignatorId, Standard};

use super::discover::{Ended, Talk};
use super::options::Options;
use super::setup::ANSWER_BYTES;
use super::url::Url;

/// Bytes of the first command, and the intended duration of each later one.
const COMMAND_BYTES_FIRST: u64 = 16 << 20;
const COMMAND_TIME: Duration = Duration::from_secs(1);
const GROWTH_MAX: u64 = 4;
/// Segments longer than this begin and end on multiples of it, which suit the page size of the storage.
const SEGMENT_UNIT: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct RemotePlan {
    pub source: u16,
    pub destination: u16,
    pub src_offset: u64,
    pub dst_offset: u64,
    pub bytes: u64,
    /// Extents of the range still to be copied, in order: begin and end in bytes from the start of the range. A block
    /// that is only partly in an extent is copied whole.
    pub open: Vec<(u64, u64)>,
}

pub trait RemoteObserver {
    /// `done` of the open bytes are copied; called a few times a second. Returns whether to go on.
    fn on_progress(&mut self, done: u64) -> bool;

    /// Interval between two claims; `None`: no claims.
    fn claims_every(&self) -> Option<Duration>;

    /// These extents of the range (begin and end) were copied, and the destination was flushed afterwards.
    fn on_durable(&mut self, extents: &[(u64, u64)]) -> Result<(), String>;
}

#[derive(Clone, Copy, Debug)]
pub struct RemoteReport {
    pub commands: u64,
    /// From the first command to the end of the flush.
    pub duration: Duration,
    pub flush: Duration,
    /// Bytes that the session received and sent, headers and login included.
    pub session_bytes: (u64, u64),
}

#[derive(Debug)]
pub enum RemoteCopyError {
    /// The copy cannot be made this way, for the reason given; nothing was copied.
    Impossible(String),
    /// The target answered with an error. No command is running.
    Refused(String),
    /// The target did not respond; a command may still be running.
    Lost(IoError),
    /// The flush failed: copied data may be lost.
    Flush(String),
    /// The observer rejected a claim. Earlier claims remain valid.
    Claim(String),
    /// The observer stopped the copy; the range from its start to this byte is copied and flushed.
    Interrupted(u64),
}

/// Copies within the target of `url`; flushes the destination before each claim and at the end.
pub fn remote_copy(
    io: &mut Io,
    url: &Url,
    options: &Options,
    plan: &RemotePlan,
    observer: &mut dyn RemoteObserver,
) -> Result<RemoteReport, RemoteCopyError> {
    let impossible = |error: OpenError| RemoteCopyError::Impossible(error.to_string());
    let target = url.target.as_deref().ok_or_else(|| RemoteCopyError::Impossible("no target".into()))?;
    let mut talk = Talk::begin(io, url, options, Some(target)).map_err(impossible)?;
    let copy = CopyPlan::prepare(&mut talk, plan)?;
    let result = copy.run(&mut talk, observer);
    if !matches!(result, Err(RemoteCopyError::Lost(_))) {
        talk.end();
    }
    result
}

struct CopyPlan<'a> {
    plan: &'a RemotePlan,
    /// LUN of the destination; it receives the commands.
    lun: u64,
    cscds: Vec<Cscd>,
    block: u64,
    destination_block: u64,
    /// Longest segment in bytes, and most segments of one list.
    segment_bytes: u64,
    segments: u64,
}

impl<'a> CopyPlan<'a> {
    /// Queries both units and the copy manager of the target, and checks that the copy is possible.
    fn prepare(talk: &mut Talk<'_>, plan: &'a RemotePlan) -> Result<Self, RemoteCopyError> {
        let impossible = |text: &str| RemoteCopyError::Impossible(text.into());
        let wire = |lun| scsi::lun::to_wire(lun).ok_or_else(|| impossible("no such LUN"));
        let (from, to) = (wire(plan.source)?, wire(plan.destination)?);
        let (source, destination) = (end(talk, from)?, end(talk, to)?);
        let parameters = command(talk, to, cdb::copy_parameters(ANSWER_BYTES))?;
        let parameters = parameters.and_then(|data| CopyParameters::parse(&data));
        let parameters = parameters.filter(CopyParameters::copies_blocks);
        let parameters =
            parameters.ok_or_else(|| impossible("the target does not report its copy parameters"))?;
        let [block, destination_block] = [&source, &destination].map(|end| u64::from(end.block_bytes));
        let reported = match parameters.segment_bytes_max {
            0 => u64::MAX,
            bytes => bytes.into(),
        };
        let segment_bytes = u64::min(reported, u64::from(u16::MAX) * block);
        let unit = if segment_bytes >= SEGMENT_UNIT { SEGMENT_UNIT } else { block.max(destination_block) };
        let segment_bytes = segment_bytes / unit * unit;
        let segments = parameters.segments_of_list(2) as u64;
        if parameters.cscds_max < 2 || segments == 0 || segment_bytes == 0 {
            return Err(impossible("the target takes no list with two ends and a segment"));
        }
        let aligned = [plan.src_offset, plan.bytes].iter().all(|bytes| bytes.is_multiple_of(block))
            && [plan.dst_offset, plan.bytes].iter().all(|bytes| bytes.is_multiple_of(destination_block));
        if !aligned {
            return Err(impossible("the range is not whole blocks of both LUNs"));
        }
        let cscds = vec![source, destination];
        Ok(Self { plan, lun: to, cscds, block, destination_block, segment_bytes, segments })
    }

    fn run(
        &self,
        talk: &mut Talk<'_>,
        observer: &mut dyn RemoteObserver,
    ) -> Result<RemoteReport, RemoteCopyError> {
        let (start, total) = (talk.now(), self.plan.bytes);
        let (mut done, mut commands, mut command_bytes) = (0, 0, COMMAND_BYTES_FIRST);
        let (mut claimed_at, mut unclaimed) = (start, Vec::new());
        for (begin, end) in self.open() {
            let mut at = begin;
            while at < end {
                let bytes = command_bytes.min(end - at).min(self.segments * self.segment_bytes);
                let (cdb, list) = cdb::extended_copy(&self.list(at, bytes, commands as u8));
                let began = talk.now();
                match talk.write(self.lun, cdb, &list, &mut || observer.on_progress(done)) {
                    Ok(Ended::Good) => {}
                    Ok(Ended::Stopped) => {
                        self.claim(talk, observer, &mut unclaimed)?;
                        return Err(RemoteCopyError::Interrupted(at));
                    }
                    Ok(Ended::Refused(text)) => return Err(RemoteCopyError::Refused(text)),
                    Err(error) => {
                        let error = IoError::new(IoErrorKind::Unreachable, error.to_string());
                        return Err(RemoteCopyError::Lost(error));
                    }
                }
                unclaimed.push((at, at + bytes));
                (at, done, commands) = (at + bytes, done + bytes, commands + 1);
                let took = (talk.now() - began).as_nanos().max(1);
                let fits = u128::from(bytes) * COMMAND_TIME.as_nanos() / took;
                let next =
                    u64::try_from(fits).unwrap_or(u64::MAX).min(command_bytes.saturating_mul(GROWTH_MAX));
                command_bytes = (next / SEGMENT_UNIT * SEGMENT_UNIT).max(SEGMENT_UNIT);
                if !observer.on_progress(done) && at < total {
                    self.claim(talk, observer, &mut unclaimed)?;
                    return Err(RemoteCopyError::Interrupted(at));
                }
                if observer.claims_every().is_some_and(|every| talk.now() - claimed_at >= every) {
                    self.claim(talk, observer, &mut unclaimed)?;
                    claimed_at = talk.now();
                }
            }
        }
        let before = talk.now();
        self.claim(talk, observer, &mut unclaimed)?;
        let (duration, flush) = (talk.now() - start, talk.now() - before);
        Ok(RemoteReport { commands, duration, flush, session_bytes: talk.session_bytes() })
    }

    fn claim(
        &self,
        talk: &mut Talk<'_>,
        observer: &mut dyn RemoteObserver,
        unclaimed: &mut Vec<(u64, u64)>,
    ) -> Result<(), RemoteCopyError> {
        self.flush(talk)?;
        if !unclaimed.is_empty() {
            observer.on_durable(unclaimed).map_err(RemoteCopyError::Claim)?;
            unclaimed.clear();
        }
        Ok(())
    }

    /// The extents to copy, widened to whole blocks of both LUNs.
    fn open(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let block = self.block.max(self.destination_block);
        let whole = move |(begin, end): (u64, u64)| {
            (begin / block * block, end.next_multiple_of(block).min(self.plan.bytes))
        };
        self.plan.open.iter().copied().map(whole)
    }

    fn list(&self, start: u64, bytes: u64, list_id: u8) -> CopyList {
        let segment = |at: u64| Segment {
            source: 0,
            destination: 1,
            destination_count: false,
            blocks: ((bytes - at).min(self.segment_bytes) / self.block) as u16,
            source_lba: (self.plan.src_offset + start + at) / self.block,
            destination_lba: (self.plan.dst_offset + start + at) / self.destination_block,
        };
        let segments = (0..bytes).step_by(self.segment_bytes as usize).map(segment).collect();
        CopyList { list_id: Some(list_id), cscds: self.cscds.clone(), segments }
    }

    fn flush(&self, talk: &mut Talk<'_>) -> Result<(), RemoteCopyError> {
        match talk.write(self.lun, cdb::synchronize_cache_10(), &[], &mut || true) {
            Ok(Ended::Good) => Ok(()),
            Ok(Ended::Refused(text)) => Err(RemoteCopyError::Flush(text)),
            Ok(Ended::Stopped) => unreachable!("a flush is not interrupted"),
            Err(error) => Err(RemoteCopyError::Flush(error.to_string())),
        }
    }
}

fn end(talk: &mut Talk<'_>, lun: u64) -> Result<Cscd, RemoteCopyError> {
    let impossible = |text: &str| RemoteCopyError::Impossible(text.into());
    let standard = command(talk, lun, cdb::inquiry(None, 255))?.and_then(|data| Standard::parse(&data));
    if !standard.is_some_and(|standard| standard.is_disk() && standard.third_party_copy) {
        return Err(impossible("the target does no third-party copies (3PC is zero)"));
    }
    let page = command(talk, lun, cdb::inquiry(Some(0x83), ANSWER_BYTES as u16))?;
    let designators = page.and_then(|data| inquiry::designators(&data)).unwrap_or_default();
    let naa = designators.into_iter().find_map(|designator| match designator.id {
        DesignatorId::Naa(bytes) if designator.association == Association::Unit => Some(bytes),
        _ => None,
    });
    let naa = naa.ok_or_else(|| impossible("a LUN has no NAA designator"))?;
    let capacity = match command(talk, lun, cdb::read_capacity_16(32))? {
        Some(data) => Capacity::parse_16(&data),
        None => command(talk, lun, cdb::read_capacity_10())?.and_then(|data| Capacity::parse_10(&data)),
    };
    let block = capacity.map(|capacity| capacity.block_size).filter(|block| [512, 4096].contains(block));
    let block = block.ok_or_else(|| impossible("a LUN does not report its block size"))?;
    Cscd::naa(&naa, block).ok_or_else(|| impossible("a LUN's NAA designator has an odd length"))
}

fn command(talk: &mut Talk<'_>, lun: u64, cdb: cdb::Cdb) -> Result<Option<Vec<u8>>, RemoteCopyError> {
    talk.command(lun, cdb).map_err(|error| RemoteCopyError::Impossible(error.to_string()))
}
