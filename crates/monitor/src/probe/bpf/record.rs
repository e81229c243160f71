//! Records of the kernel's programs as bytes: `struct head` and what follows it in bpf/tcp.bpf.c, in the byte order of
//! this machine.

use crate::sample::{CaState, Sample};

/// Bytes of `struct head`.
const HEAD_BYTES: usize = 24;
/// TCP's initial threshold of slow start (`TCP_INFINITE_SSTHRESH`), as in `tcp_info`.
#[cfg(test)]
const SSTHRESH_INFINITE: u32 = 0x7fff_ffff;

/// One thing that happened at a watched socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The socket's cookie, as `sock_diag` gives it.
    pub cookie: u64,
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    pub event: Event,
}

/// Sequence numbers are those on the wire.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly all events are acknowledgements, and none is kept")]
pub enum Event {
    /// A segment has arrived; the socket as it was before, so after everything that happened earlier. Fields that the
    /// program does not read are `None`.
    Segment(Sample),
    Retransmitted {
        seq: u32,
        bytes: u32,
        /// What it adds to `total_retrans`.
        segments: u32,
        /// `tcpi_total_retrans` with it.
        total_retrans: u32,
    },
    /// Congestion control goes from one state to another.
    State { before: CaState, after: CaState, cwnd_segments: u32, ssthresh_segments: u32 },
    /// A write of the program, whether or not all of it finds room at once.
    Written {
        seq: u32,
        bytes: u64,
        /// Written before and not sent yet.
        notsent_bytes: u32,
    },
}

struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(self.0.get(at..at + 4)?.try_into().ok()?))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_ne_bytes(self.0.get(at..at + 8)?.try_into().ok()?))
    }

    fn state(&self, at: usize) -> Option<CaState> {
        super::super::info::ca_state(self.u32(at)?.try_into().ok()?)
    }
}

impl Record {
    /// `None` if the bytes are too few for what they name, or name nothing that is known.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head = Words(bytes.get(..HEAD_BYTES)?);
        // What the record says of its own length; the ring rounds up.
        let length = usize::try_from(head.u32(4)?).ok()?;
        let body = Words(bytes.get(HEAD_BYTES..length)?);
        let at_ns = head.u64(16)?;
        let event = match head.u32(0)? {
            1 => Event::Segment(segment(&body, at_ns)?),
            2 => Event::Retransmitted {
                seq: body.u32(0)?,
                bytes: body.u32(4)?,
                segments: body.u32(8)?,
                total_retrans: body.u32(12)?,
            },
            3 => Event::State {
                before: body.state(0)?,
                after: body.state(4)?,
                cwnd_segments: body.u32(8)?,
                ssthresh_segments: body.u32(12)?,
            },
            4 => Event::Written { bytes: body.u64(0)?, seq: body.u32(8)?, notsent_bytes: body.u32(12)? },
            _ => return None,
        };
        Some(Self { cookie: head.u64(8)?, at_ns, event })
    }
}

/// `struct ack`.
fn segment(body: &Words<'_>, at_ns: u64) -> Option<Sample> {
    let (snd_nxt, write_seq) = (body.u32(52)?, body.u32(56)?);
    // The kernel keeps the mean round trip in eighths and its deviation in quarters of a microsecond. 0: none is timed yet.
    let rtt_us = Some(body.u32(36)? >> 3).filter(|us| *us > 0);
    Some(Sample {
        at_ns,
        state: super::super::ESTABLISHED,
        bytes_acked: Some(body.u64(0)?),
        mss_bytes: Some(body.u32(8)?),
        cwnd_segments: Some(body.u32(12)?),
        ssthresh_segments: Some(body.u32(16)?),
        unacked_segments: Some(body.u32(20)?),
        sacked_segments: Some(body.u32(24)?),
        lost_segments: Some(body.u32(28)?),
        retrans_segments: Some(body.u32(32)?),
        rtt_us,
        rttvar_us: Some(body.u32(40)? >> 2).filter(|_| rtt_us.is_some()),
        peer_window_bytes: Some(body.u32(44)?),
        notsent_bytes: Some(write_seq.wrapping_sub(snd_nxt)),
        send_queue_bytes: Some(body.u32(60)?),
        send_buffer_bytes: Some(body.u32(64)?),
        total_retrans: Some(body.u32(68)?),
        // A state that is not known is left out, one that is missing makes the record too short.
        ca_state: u8::try_from(body.u32(72)?).ok().and_then(super::super::info::ca_state),
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u32, body: &[u32]) -> Vec<u8> {
        let length = (HEAD_BYTES + 4 * body.len()) as u32;
        let mut bytes = [kind, length].map(u32::to_ne_bytes).concat();
        bytes.extend([0x1_0000_0002_u64, 77].map(u64::to_ne_bytes).concat());
        bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    fn event(kind: u32, body: &[u32]) -> Option<Event> {
        let record = Record::parse(&bytes(kind, body))?;
        assert_eq!((record.cookie, record.at_ns), (0x1_0000_0002, 77));
        Some(record.event)
    }

    /// The words of `struct ack`, with numbers that differ.
    fn ack() -> [u32; 20] {
        let mut words: [u32; 20] = std::array::from_fn(|at| 100 + at as u32);
        (words[1], words[18]) = (0, 3);
        (words[4], words[13], words[14]) = (SSTHRESH_INFINITE, u32::MAX, 9);
        words
    }

    #[test]
    fn fields_lie_where_the_program_writes_them() {
        let Some(Event::Segment(sample)) = event(1, &ack()) else { panic!("a segment") };
        assert_eq!((sample.at_ns, sample.bytes_acked, sample.mss_bytes), (77, Some(100), Some(102)));
        assert_eq!([sample.cwnd_segments, sample.ssthresh_segments], [103, SSTHRESH_INFINITE].map(Some));
        assert_eq!([sample.unacked_segments, sample.retrans_segments], [105, 108].map(Some));
        assert_eq!([sample.rtt_us, sample.rttvar_us], [109 / 8, 110 / 4].map(Some));
        // Both sequence numbers wrap around: 10 bytes lie between them.
        assert_eq!([sample.peer_window_bytes, sample.notsent_bytes], [111, 10].map(Some));
        assert_eq!([sample.send_queue_bytes, sample.send_buffer_bytes], [115, 116].map(Some));
        assert_eq!((sample.total_retrans, sample.ca_state), (Some(117), Some(CaState::Recovery)));
        assert_eq!(
            event(2, &[1, 2, 3, 4]),
            Some(Event::Retransmitted { seq: 1, bytes: 2, segments: 3, total_retrans: 4 })
        );
        let (before, after) = (CaState::Open, CaState::Loss);
        assert_eq!(
            event(3, &[0, 4, 10, 5]),
            Some(Event::State { before, after, cwnd_segments: 10, ssthresh_segments: 5 })
        );
        assert_eq!(
            event(4, &[5, 1, 7, 8]),
            Some(Event::Written { bytes: 5 | 1 << 32, seq: 7, notsent_bytes: 8 })
        );
    }

    #[test]
    fn what_was_not_measured_is_unknown() {
        let mut words = ack();
        (words[9], words[18]) = (7, 9);
        let Some(Event::Segment(sample)) = event(1, &words) else { panic!("a segment") };
        assert_eq!((sample.rtt_us, sample.rttvar_us, sample.ca_state), (None, None, None));
        assert_eq!((sample.bytes_sent, sample.min_rtt_us), (None, None));
    }

    #[test]
    fn kinds_and_states_that_do_not_exist_are_refused() {
        for kind in [0, 5, u32::MAX] {
            assert_eq!(event(kind, &[0; 20]), None, "{kind}");
        }
        for states in [[5, 0], [0, 256], [u32::MAX, 1]] {
            assert_eq!(event(3, &[states[0], states[1], 1, 1]), None, "{states:?}");
        }
    }

    /// Kind, and least bytes after the head.
    const LEAST: &[(u32, usize)] = &[(1, 76), (2, 16), (3, 16), (4, 16)];

    #[test]
    fn records_that_are_cut_are_refused_at_every_length() {
        for (kind, least) in LEAST {
            let whole = bytes(*kind, &[1; 20]);
            for length in 0..=whole.len() {
                // Cut with a length that still claims all, and with one that fits.
                assert!(
                    length == whole.len() || Record::parse(&whole[..length]).is_none(),
                    "{kind} {length}"
                );
                let mut fitting = whole[..length].to_vec();
                if let Some(place) = fitting.get_mut(4..8) {
                    place.copy_from_slice(&(length as u32).to_ne_bytes());
                }
                let is_whole = length >= HEAD_BYTES + least;
                assert_eq!(Record::parse(&fitting).is_some(), is_whole, "{kind} {length}");
            }
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for claimed in [0, 1, 23, 24, 39, 105, 1 << 20, u32::MAX] {
            for (kind, _) in LEAST {
                let mut record = bytes(*kind, &[1; 20]);
                record[4..8].copy_from_slice(&claimed.to_ne_bytes());
                assert_eq!(Record::parse(&record), None, "{kind} {claimed}");
            }
        }
    }
}
