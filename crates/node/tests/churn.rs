//! Many concurrent sessions that work, end at any moment and return under the same name.
//!
//! What is shown: acknowledged writes persist; a write that was not acknowledged either happened or not, and once the
//! next login of its initiator port was answered no task of the old session has any further effect (RFC 7143 §6.3.5);
//! the end of one session does not damage the data of another; at the end the server drains and all memory has returned
//! (asserted by its threads).
//!
//! `CHURN_SEED=n` repeats a run as far as thread scheduling allows, `CHURN_SECONDS=n` makes it longer.

mod support;

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{Capability, Completion, Endpoint, Inspect, Kind, Medium, OpenError, Request};
use io::{Io, Owner, Token};
use iscsi::initiator::{Direction, Event};
use iscsi::machine::Machine;
use iscsi::wire::{TmFunction, TmResult};
use node::target::Access;
use scsi::cdb;
use support::{Broken, Client, Guard, eventually, lun, medium};

const CHUNK: usize = 4096;
const BLOCKS_PER_CHUNK: u32 = (CHUNK / 512) as u32;
/// Chunks of each LUN that belong to one thread.
const CHUNKS: u32 = 256;
const THREADS: u8 = 8;
/// LUNs with data: memory with immediate writes, and memory with delayed writes. Delayed writes are in flight when a
/// session ends, and would take effect after those of the next session if its login did not wait for them.
const DATA_LUNS: u16 = 2;
/// A LUN whose reads are abandoned, and which is reset again and again.
const RESET_LUN: u16 = 2;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }
}

/// Storage whose writes take up to 30 ms, each a different time; all other requests take none.
#[derive(Debug)]
struct Lingering(Arc<dyn Medium>);

impl Medium for Lingering {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let (owner, inner) = (io.owner(), self.0.attach(io)?);
        Ok(Box::new(Lingers { inner, owner, random: Random(1), waiting: HashMap::new(), last: 0 }))
    }

    fn name(&self) -> String {
        "lingering".into()
    }
}

struct Lingers {
    inner: Box<dyn Endpoint>,
    owner: Owner,
    random: Random,
    waiting: HashMap<u32, Request>,
    last: u32,
}

impl Endpoint for Lingers {
    fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        if !matches!(request.kind, Kind::Write { .. }) {
            return self.inner.submit(io, request, done);
        }
        self.last = self.last.wrapping_add(1);
        let delay = Duration::from_millis(u64::from(self.random.below(30)));
        io.timer(Token { owner: self.owner, key: self.last }, io.now() + delay);
        self.waiting.insert(self.last, request);
    }

    fn on_event(&mut self, io: &mut Io, event: io::Event, done: &mut Vec<Completion>) {
        if event.token.owner != self.owner {
            return self.inner.on_event(io, event, done);
        }
        let request = self.waiting.remove(&event.token.key).expect("one timer for each write");
        self.inner.submit(io, request, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        owners.push(self.owner);
        self.inner.owners(owners);
    }

    fn inspect(&self) -> &dyn Inspect {
        self.inner.inspect()
    }
}

/// The values that a chunk may hold: one if its last write was acknowledged or it has been read since.
type Possible = Vec<u64>;

/// One initiator port and the expected content of its chunks.
struct Port {
    index: u8,
    address: SocketAddr,
    random: Random,
    chunks: HashMap<(u16, u32), Possible>,
    version: u64,
    /// Connections of replaced sessions that were left open.
    left_open: Vec<Client>,
    deaths: u32,
}

enum Done {
    Read { lun: u16, first: u32 },
    Wrote { lun: u16, first: u32, count: u32, value: u64 },
}

impl Port {
    fn login(&self) -> Client {
        Client::login(self.address, &format!("churn-{}", self.index), self.index).unwrap()
    }

    fn lba(&self, chunk: u32) -> u32 {
        (u32::from(self.index) * CHUNKS + chunk) * BLOCKS_PER_CHUNK
    }

    /// Submits commands on chunks that do not overlap.
    fn submit(&mut self, client: &mut Client) -> Vec<(iscsi::machine::TaskId, Done)> {
        let mut begun = Vec::new();
        let mut first = 0;
        for _ in 0..1 + self.random.below(8) {
            first += self.random.below(8);
            // Occasionally longer than FirstBurstLength, so that an R2T is needed.
            let count = if self.random.below(6) == 0 { 40 } else { 1 + self.random.below(8) };
            if first + count > CHUNKS {
                break;
            }
            let lun = self.random.below(u32::from(DATA_LUNS)) as u16;
            let (lba, blocks) = (self.lba(first), (count * BLOCKS_PER_CHUNK) as u16);
            let length = count as usize * CHUNK;
            let (task, done) = if self.random.below(2) == 0 {
                let read = cdb::read_10(lba, blocks, false);
                (client.submit(lun, read, Direction::In, vec![0; length]), Done::Read { lun, first })
            } else {
                self.version += 1;
                let value = u64::from(self.index) << 56 | self.version;
                let data = value.to_le_bytes().repeat(length / 8);
                for chunk in first..first + count {
                    // Both values are possible until the write is acknowledged.
                    self.chunks.entry((lun, chunk)).or_insert_with(|| vec![0]).push(value);
                }
                let fua = self.random.below(4) == 0;
                let write = cdb::write_10(lba, blocks, fua);
                (client.submit(lun, write, Direction::Out, data), Done::Wrote { lun, first, count, value })
            };
            begun.push((task, done));
            first += count;
        }
        begun
    }

    fn check(&mut self, lun: u16, first: u32, data: &[u8]) {
        for (chunk, bytes) in (first..).zip(data.chunks(CHUNK)) {
            let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let place = (self.index, lun, chunk);
            assert!(bytes.chunks(8).all(|word| word == value.to_le_bytes()), "{place:?} is torn");
            let possible = self.chunks.entry((lun, chunk)).or_insert_with(|| vec![0]);
            assert!(possible.contains(&value), "{place:?} holds {value:x}, may hold {possible:x?}");
            *possible = vec![value];
        }
    }

    fn complete(
        &mut self,
        client: &mut Client,
        mut begun: Vec<(iscsi::machine::TaskId, Done)>,
    ) -> Result<(), Broken> {
        while !begun.is_empty() {
            let (outcome, data) = client.complete()?;
            let at = begun.iter().position(|(task, _)| *task == outcome.task).expect("a task of ours");
            match (begun.swap_remove(at).1, outcome.status) {
                (Done::Read { lun, first }, 0) => self.check(lun, first, &data),
                (Done::Wrote { lun, first, count, value }, 0) => {
                    for chunk in first..first + count {
                        self.chunks.insert((lun, chunk), vec![value]);
                    }
                }
                (_, status) => panic!("status {status}, sense {:x?}", outcome.sense),
            }
        }
        Ok(())
    }

    fn greet(client: &mut Client) {
        for number in 0..=RESET_LUN {
            client.command(number, cdb::test_unit_ready(), Direction::None, &[]).unwrap();
        }
    }

    /// One session, ended in a random way.
    fn live(&mut self) -> Result<(), Broken> {
        let mut client = self.login();
        Self::greet(&mut client);
        for _ in 0..self.random.below(12) {
            let begun = self.submit(&mut client);
            self.complete(&mut client, begun).expect("nobody disturbs a session that is well");
        }
        self.deaths += 1;
        // Every command submitted from here on has an unknown outcome.
        self.submit(&mut client);
        match self.random.below(8) {
            // Before a byte is sent, right after, or in the middle of a PDU.
            0 => {}
            1 => client.flush()?,
            2 => {
                let transmit = client.machine.poll_transmit().expect("commands are queued");
                let length = 1 + self.random.below(47) as usize;
                client.stream.write_all(&transmit.header[..length])?;
            }
            // The connection stays open without reads and writes: the next login replaces its session.
            3 | 4 => {
                client.flush()?;
                self.left_open.push(client);
                if self.left_open.len() > 3 {
                    self.left_open.remove(0);
                }
            }
            5 => {
                client.flush()?;
                let mut garbage = [0xFF; 96];
                self.random.next().to_le_bytes().iter().zip(&mut garbage).for_each(|(from, to)| *to = *from);
                client.stream.write_all(&garbage)?;
            }
            6 => {
                client.flush()?;
                client.logout()?;
            }
            _ => {
                let lba = self.lba(0);
                client.submit(RESET_LUN, cdb::read_10(lba, 8, false), Direction::In, vec![0; CHUNK]);
                client.flush()?;
                let function = match self.random.below(3) {
                    0 => TmFunction::LogicalUnitReset,
                    1 => TmFunction::ClearTaskSet,
                    _ => TmFunction::AbortTaskSet,
                };
                assert_eq!(client.manage(function, RESET_LUN)?, TmResult::Complete);
            }
        }
        Ok(())
    }

    /// Reads all chunks twice: no write of an old session may happen in between.
    fn verify(&mut self) {
        let mut client = self.login();
        Self::greet(&mut client);
        for _ in 0..2 {
            for lun in 0..DATA_LUNS {
                for first in (0..CHUNKS).step_by(64) {
                    let (lba, blocks) = (self.lba(first), (64 * BLOCKS_PER_CHUNK) as u16);
                    let read = cdb::read_10(lba, blocks, false);
                    let (status, data) =
                        client.command(lun, read, Direction::In, &vec![0; 64 * CHUNK]).unwrap();
                    assert_eq!(status, 0);
                    self.check(lun, first, &data);
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        client.logout().unwrap();
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn sessions_that_die_at_any_moment_leave_right_data_and_no_trace() {
    let seed = number("CHURN_SEED").unwrap_or_else(|| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    });
    println!("CHURN_SEED={seed}");
    let lifetime = Duration::from_secs(number("CHURN_SECONDS").unwrap_or(3));
    let luns = vec![
        lun(0, medium("mem:16M")),
        lun(1, Arc::new(Lingering(medium("mem:16M")))),
        lun(RESET_LUN, medium("mem:16M,delay=5ms")),
    ];
    let luns = luns.into_iter().map(|lun| node::target::LunConfig { shared: true, ..lun }).collect();
    let mut server = Guard::start(luns, Access::default());
    let address = server.address();
    let until = Instant::now() + lifetime;
    let threads: Vec<_> = (0..THREADS)
        .map(|index| {
            std::thread::spawn(move || {
                let mut port = Port {
                    index,
                    address,
                    random: Random(seed ^ u64::from(index) << 32),
                    chunks: HashMap::new(),
                    version: 0,
                    left_open: Vec::new(),
                    deaths: 0,
                };
                while Instant::now() < until {
                    // The connection may break at any point of `live`; the next one checks the data.
                    let _ = port.live();
                }
                port.verify();
                port.deaths
            })
        })
        .collect();
    let deaths: Vec<u32> = threads.into_iter().map(|thread| thread.join().expect("data is right")).collect();
    println!("deaths: {deaths:?}");
    assert!(deaths.iter().all(|deaths| *deaths > 0), "{deaths:?}");
    eventually("every session ends", || server.handle().sessions().is_empty());
    let running = server.0.take().unwrap();
    running.handle().drain();
    let start = Instant::now();
    running.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(4), "a drain without sessions waits for nobody");
}

/// Four ports share one name and ISID: each login replaces the session of another, on any thread.
#[test]
fn ports_of_one_name_replace_each_other_without_end_and_without_harm() {
    let server = Guard::of("mem:1M,delay=1ms");
    let address = server.address();
    let until = Instant::now() + Duration::from_secs(1);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                let mut logins = 0;
                while Instant::now() < until {
                    let Ok(mut client) = Client::login(address, "contended", 1) else { continue };
                    logins += 1;
                    client.submit(0, cdb::read_10(0, 8, false), Direction::In, vec![0; CHUNK]);
                    // The session may be replaced before the command is answered.
                    while let Ok(event) = client.next_event() {
                        if let Event::Complete(_) = event {
                            break;
                        }
                    }
                }
                logins
            })
        })
        .collect();
    let logins: Vec<u32> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    println!("logins: {logins:?}");
    assert!(logins.iter().sum::<u32>() > 20, "{logins:?}");
    eventually("every session ends", || server.handle().sessions().is_empty());
}
